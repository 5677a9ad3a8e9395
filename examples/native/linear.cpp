// Matrix products, and the blocked layout of their weights. Knows no model.
#include <algorithm>
#include <vector>

#include "numbers.hpp"
#include "ops.hpp"

namespace {

// A prepared weight is cut into blocks of kWide outputs, [in][kWide] each, so that the innermost loop runs over
// outputs: it needs no sum across a vector's lanes. The last block is filled up with zeros.
constexpr std::int64_t kWide = 16;
constexpr std::int64_t kTall = 4;  // rows of x that share one pass over a weight

std::int64_t blocks_of(std::int64_t out) { return (out + kWide - 1) / kWide; }

template <class T>
void prepare_blocks(const View<const T>& weight, T* to) {
  const std::int64_t out = weight.shape(0), in = weight.shape(1);
  for (std::int64_t block = 0; block < blocks_of(out); ++block)
    for (std::int64_t i = 0; i < in; ++i)
      for (std::int64_t lane = 0; lane < kWide; ++lane, ++to) {
        const std::int64_t row = block * kWide + lane;
        if (row < out)
          *to = weight.data[row * in + i];
        else
          store(*to, 0.0f);
      }
}

// sums[row][lane] = x[row] . weight[block * kWide + lane], for up to kTall rows that are float32 already.
template <class T>
void multiply_block(const float* const* x, std::int64_t rows, const T* block, std::int64_t in,
                    float (*sums)[kWide]) {
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t lane = 0; lane < kWide; ++lane) sums[row][lane] = 0.0f;
  for (std::int64_t i = 0; i < in; ++i) {
    float w[kWide];
    for (std::int64_t lane = 0; lane < kWide; ++lane) w[lane] = load(block[i * kWide + lane]);
    for (std::int64_t row = 0; row < rows; ++row) {
      const float scalar = x[row][i];
      for (std::int64_t lane = 0; lane < kWide; ++lane) sums[row][lane] += scalar * w[lane];
    }
  }
}

template <class T, class Out>
int32_t multiply(const anychip_tensor_t& x_tensor, const anychip_tensor_t& weight, const anychip_tensor_t* bias,
                 const anychip_tensor_t& out_tensor) {
  const View<const T> x(x_tensor);
  const View<Out> out(out_tensor);
  const std::int64_t in = weight.shape[1], outs = weight.shape[0], rows = x.rows();
  std::vector<T> own;  // a weight that came plain
  const T* blocks = View<const T>(weight).data;
  if (!(weight.flags & ANYCHIP_TENSOR_PREPARED)) {
    own.resize(blocks_of(outs) * kWide * in);
    prepare_blocks(View<const T>(weight), own.data());
    blocks = own.data();
  }
  std::vector<float> wide(kTall * in);
  for (std::int64_t first = 0; first < rows; first += kTall) {
    const std::int64_t count = std::min(kTall, rows - first);
    const float* inputs[kTall];
    for (std::int64_t row = 0; row < count; ++row) {
      const T* from = x.row(first + row);
      for (std::int64_t i = 0; i < in; ++i) wide[row * in + i] = load(from[i]);
      inputs[row] = &wide[row * in];
    }
    for (std::int64_t block = 0; block < blocks_of(outs); ++block) {
      float sums[kTall][kWide];
      multiply_block(inputs, count, blocks + block * in * kWide, in, sums);
      const std::int64_t base = block * kWide, lanes = std::min(kWide, outs - base);
      for (std::int64_t row = 0; row < count; ++row)
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
          const float added = bias ? load(View<const T>(*bias).data[base + lane]) : 0.0f;
          store(out.row(first + row)[base + lane], sums[row][lane] + added);
        }
    }
  }
  return ANYCHIP_OK;
}

int32_t prepared_bytes(anychip_device_t*, const char*, const char*, const anychip_tensor_t* weight,
                       std::uint64_t* bytes) {
  *bytes = 0;
  if (weight->ndim != 2) return ANYCHIP_OK;
  return with_type(*weight, [&](auto type) {
    *bytes = blocks_of(weight->shape[0]) * kWide * weight->shape[1] * sizeof type;
    return ANYCHIP_OK;
  });
}

int32_t prepare(anychip_device_t*, const char*, const char*, const anychip_tensor_t* weight, void* out) {
  return with_type(*weight, [&](auto type) {
    using T = decltype(type);
    prepare_blocks(View<const T>(*weight), static_cast<T*>(out));
    return ANYCHIP_OK;
  });
}

}  // namespace

// x, weight, bias -> out
int32_t linear(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  return with_type(t[0], [&](auto type) {
    using T = decltype(type);
    return multiply<T, T>(t[0], t[1], t[2].ndim < 0 ? nullptr : &t[2], t[3]);
  });
}

// x, weight -> logits, float32
int32_t lm_head(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  return with_type(t[0], [&](auto type) { return multiply<decltype(type), float>(t[0], t[1], nullptr, t[2]); });
}

const anychip_weight_table_t kWeights = {sizeof(anychip_weight_table_t), 0, prepared_bytes, prepare};
