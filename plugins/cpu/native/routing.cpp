// Shares tokens among threads where that is worth it. Knows no instruction set.
#include "routing.hpp"

#include "dispatch.hpp"
#include "share.hpp"

namespace anychip {

void route(const RouteArgs& args) {
  share_rows(args, chosen_kernels()->routing.route, args.rows, args.experts * args.chosen);
}

}  // namespace anychip
