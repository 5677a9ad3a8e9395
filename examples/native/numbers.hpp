// Element types and typed views of the host's tensors. Knows layouts; knows no op.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "anychip_backend.h"

struct bfloat16 {
  std::uint16_t bits;
};

inline float load(float x) { return x; }

inline float load(bfloat16 x) {
  const std::uint32_t wide = static_cast<std::uint32_t>(x.bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}

inline void store(float& out, float x) { out = x; }

// Round to the nearest, ties to even; what is not a number stays one.
inline void store(bfloat16& out, float x) {
  std::uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  if (std::isnan(x)) {
    out.bits = static_cast<std::uint16_t>(wide >> 16 | 0x40);
    return;
  }
  wide += 0x7fff + (wide >> 16 & 1);
  out.bits = static_cast<std::uint16_t>(wide >> 16);
}

// A double is rounded once: to float32, or through a float32 that is "rounded to odd" to bfloat16.
inline void store(float& out, double x) { out = static_cast<float>(x); }

inline void store(bfloat16& out, double x) {
  float near = static_cast<float>(x);
  std::uint32_t wide;
  std::memcpy(&wide, &near, sizeof wide);
  if (std::isfinite(near) && static_cast<double>(near) != x) {
    const bool is_beyond = std::fabs(static_cast<double>(near)) > std::fabs(x);
    if (is_beyond) wide -= 1;  // truncated towards zero
    wide |= 1;                 // and marked as inexact
    std::memcpy(&near, &wide, sizeof near);
  }
  store(out, near);
}

// One tensor argument with the element type that the kernel is for.
template <class T>
struct View {
  T* data;
  const anychip_tensor_t* tensor;

  explicit View(const anychip_tensor_t& from)
      : data(reinterpret_cast<T*>(static_cast<char*>(from.data) + from.byte_offset)), tensor(&from) {}

  bool is_given() const { return tensor->ndim >= 0; }
  std::int64_t shape(int dim) const { return tensor->shape[dim]; }
  std::int64_t last() const { return tensor->shape[tensor->ndim - 1]; }

  // How many rows of the last dimension there are.
  std::int64_t rows() const {
    std::int64_t count = 1;
    for (int dim = 0; dim + 1 < tensor->ndim; ++dim) count *= tensor->shape[dim];
    return count;
  }

  // Row `index` of the last dimension, whose elements lie side by side.
  T* row(std::int64_t index) const {
    std::int64_t offset = 0;
    for (int dim = tensor->ndim - 2; dim >= 0; --dim) {
      offset += index % tensor->shape[dim] * tensor->strides[dim];
      index /= tensor->shape[dim];
    }
    return data + offset;
  }

  T* at(std::int64_t i, std::int64_t j) const { return data + i * tensor->strides[0] + j * tensor->strides[1]; }
  T* at(std::int64_t i, std::int64_t j, std::int64_t k) const { return at(i, j) + k * tensor->strides[2]; }
};

inline double as_float(const anychip_scalar_t& scalar) { return scalar.value.as_float; }

inline std::int64_t as_int(const anychip_scalar_t& scalar, std::int64_t otherwise) {
  return scalar.kind == ANYCHIP_SCALAR_NONE ? otherwise : scalar.value.as_int;
}

// Run `body(T{})` with the type of a tensor.
template <class Body>
int32_t with_type(const anychip_tensor_t& tensor, Body body) {
  if (tensor.dtype == ANYCHIP_FLOAT32) return body(float{});
  if (tensor.dtype == ANYCHIP_BFLOAT16) return body(bfloat16{});
  return ANYCHIP_INVALID;
}
