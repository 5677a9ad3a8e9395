// The OpenMP entries are handed in by the caller, who knows which runtime is loaded: linking to one could load a second.
#include "threads.hpp"

#include <thread>

#include "team.hpp"

namespace anychip {

namespace {

// a few times what the members' shares of work differ by; a member that was put off its core is waited for asleep
constexpr int kSpins = 4000;

OpenMp g_openmp{};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

struct Region {
  void (*function)(void*, Team&);
  void* data;
  Barrier barrier;
};

// The runtime may have given fewer threads than it was asked for.
void enter(void* data) {
  Region& region = *static_cast<Region*>(data);
  Team team{static_cast<unsigned>(g_openmp.thread_num()), static_cast<unsigned>(g_openmp.num_threads()),
            &region.barrier};
  region.function(region.data, team);
}

}  // namespace

void set_openmp(const OpenMp& runtime) { g_openmp = runtime; }

void parallel(void (*function)(void*), void* data, unsigned threads) {
  if (threads > 1 && g_openmp.parallel != nullptr)
    g_openmp.parallel(function, data, threads, 0);
  else
    function(data);
}

void run_team(void (*function)(void*, Team&), void* data, unsigned threads) {
  Region region{function, data, {}};
  if (threads > 1 && g_openmp.parallel != nullptr) {
    g_openmp.parallel(enter, &region, threads, 0);
    return;
  }
  Team alone{0, 1, &region.barrier};
  function(data, alone);
}

void Barrier::wait(unsigned size) {
  const unsigned round = round_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (round_.load(std::memory_order_acquire) != round) return;
    pause();
  }
  while (round_.load(std::memory_order_acquire) == round) std::this_thread::yield();
}

}  // namespace anychip
