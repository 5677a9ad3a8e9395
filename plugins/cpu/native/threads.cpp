// The OpenMP entry is handed in by the caller, who knows which runtime is loaded: linking to one could load a second.
#include "threads.hpp"

#include <atomic>

namespace anychip {

namespace {
std::atomic<ParallelFunction> g_parallel{nullptr};
}

void set_parallel(ParallelFunction parallel) { g_parallel = parallel; }

bool has_parallel() { return g_parallel.load() != nullptr; }

void parallel(void (*function)(void*), void* data, unsigned threads) {
  const ParallelFunction run = g_parallel.load(std::memory_order_relaxed);
  if (threads > 1 && run != nullptr)
    run(function, data, threads, 0);
  else
    function(data);
}

}  // namespace anychip
