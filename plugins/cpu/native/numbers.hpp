// Element types and what a kernel needs besides vectors. Everything is local to the file that includes it: each is
// compiled for another instruction set, so no function may be shared between them, not even one of the library's.
#pragma once

#include <cstdint>

namespace {

struct bf16 {
  std::uint16_t bits;
};
struct half {
  std::uint16_t bits;
};

constexpr float kInfinity = __builtin_inff();

// 2^f for f in [-0.5, 0.5], from the lowest coefficient; relative error 2e-9
constexpr float kExp2[] = {1.0f,         0.6931472056f,  0.2402264661f, 0.05550328998f,
                           0.009618519534f, 0.001339986036f, 0.0001533757683f};
constexpr float kLog2E = 1.4426950408889634f;

template <class T>
constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}

template <class T>
constexpr T larger(T a, T b) {
  return a < b ? b : a;
}

inline std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }

}  // namespace
