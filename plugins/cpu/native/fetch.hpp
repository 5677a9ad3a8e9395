// Fetching from memory before something is needed. Knows the processor's maker; knows no kernel.
#pragma once

namespace {

constexpr int kFar = 2;  // into the second cache, as __builtin_prefetch wants to be told

// Whether what is read once passes by the other caches on its way to the first: activations stay in them then, and what
// a step needs between two forwards. Intel's processors fetch half as fast so.
inline bool passes_by() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return !__builtin_cpu_is("intel");
#else
  return true;
#endif
}

const bool kPassesBy = passes_by();

// A line of what is read once.
inline void fetch_once(const void* line) { kPassesBy ? __builtin_prefetch(line, 0, 0) : __builtin_prefetch(line); }

}  // namespace
