// Threads that work through one job together and meet between its parts. Knows no kernel.
#pragma once

#include <atomic>

namespace anychip {

// Where threads wait for each other, as often as they like.
class Barrier {
 public:
  void wait(unsigned size);

 private:
  alignas(64) std::atomic<unsigned> arrived_{0};
  alignas(64) std::atomic<unsigned> round_{0};
};

// What one member knows of its team.
struct Team {
  unsigned rank, size;
  Barrier* barrier;

  // until all members have come here; what any of them wrote before is seen by all after
  void wait() {
    if (size > 1) barrier->wait(size);
  }
};

// Calls the function on at most so many threads, each with its own Team; returns when all have.
void run_team(void (*function)(void* data, Team& team), void* data, unsigned threads);

}  // namespace anychip
