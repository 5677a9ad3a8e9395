// Sharing independent rows among threads where that is worth it. Knows no kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "threads.hpp"

namespace anychip {

// below so many elements a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 16;
// and what a thread takes at a time
constexpr std::int64_t kGrain = 1 << 13;

template <class Args>
struct Share {
  const Args* args;
  void (*kernel)(const Args&, std::int64_t, std::int64_t);
  std::int64_t rows, grain;
  std::atomic<std::int64_t> next{0};
};

template <class Args>
void work(void* data) {
  auto& share = *static_cast<Share<Args>*>(data);
  for (;;) {
    const std::int64_t begin = share.next.fetch_add(share.grain, std::memory_order_relaxed);
    if (begin >= share.rows) return;
    share.kernel(*share.args, begin, std::min(begin + share.grain, share.rows));
  }
}

template <class Args>
void share_rows(const Args& args, void (*kernel)(const Args&, std::int64_t, std::int64_t), std::int64_t rows,
                std::int64_t row_elements) {
  if (args.threads < 2 || rows < 2 || rows * row_elements < kWorthThreads) return kernel(args, 0, rows);
  Share<Args> share{&args, kernel, rows, std::max<std::int64_t>(1, kGrain / row_elements)};
  parallel(work<Args>, &share, static_cast<unsigned>(std::min<std::int64_t>(args.threads, rows)));
}

}  // namespace anychip
