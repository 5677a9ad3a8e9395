// Rows that threads take one after the other, some at a time. Knows no kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "threads.hpp"

namespace anychip {

template <class Args>
class Share {
 public:
  using Kernel = void (*)(const Args& args, std::int64_t begin, std::int64_t end);

  Share(const Args& args, Kernel kernel, std::int64_t rows, std::int64_t grain)
      : args_(&args), kernel_(kernel), rows_(rows), grain_(grain) {}

  // what the calling thread gets of it; all that share the rows call this
  void work() {
    for (;;) {
      const std::int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
      if (begin >= rows_) return;
      kernel_(*args_, begin, std::min(begin + grain_, rows_));
    }
  }

 private:
  const Args* args_;
  Kernel kernel_;
  std::int64_t rows_, grain_;
  std::atomic<std::int64_t> next_{0};
};

template <class Args>
void share_rows(const Args& args, typename Share<Args>::Kernel kernel, std::int64_t rows, std::int64_t row_elements) {
  // below so many elements a second thread costs more than it saves
  constexpr std::int64_t kWorthThreads = 1 << 16;
  // and what a thread takes at a time
  constexpr std::int64_t kElements = 1 << 13;
  if (args.threads < 2 || rows < 2 || rows * row_elements < kWorthThreads) return kernel(args, 0, rows);
  Share<Args> share(args, kernel, rows, std::max<std::int64_t>(1, kElements / row_elements));
  const auto work = [](void* data) { static_cast<Share<Args>*>(data)->work(); };
  parallel(work, &share, static_cast<unsigned>(std::min<std::int64_t>(args.threads, rows)));
}

}  // namespace anychip
