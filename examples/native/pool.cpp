// A KV pool of the backend's own: one allocation, pages counted by reference. Knows pages; knows no token.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "anychip_backend.h"
#include "ops.hpp"

// One slab, [layers][keys, values][pages][page_size][kv_heads][head_dim].
struct anychip_kv_pool {
  anychip_device_t* device;
  char* slab;
  anychip_kv_spec_t spec;
  std::uint64_t page_bytes;  // of one layer's keys or values
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> unused;  // popped from the end: low numbers first
};

namespace {

std::uint64_t itemsize(int32_t dtype) { return dtype == ANYCHIP_FLOAT32 ? 4 : dtype == ANYCHIP_FLOAT64 ? 8 : 2; }

bool is_page(const anychip_kv_pool_t* pool, std::int64_t page) {
  return page >= 0 && page < static_cast<std::int64_t>(pool->counts.size());
}

int32_t create(anychip_device_t* device, const anychip_kv_spec_t* spec, anychip_kv_layout_t* layout,
               anychip_kv_pool_t** pool) {
  const std::uint64_t token_bytes =
      static_cast<std::uint64_t>(spec->kv_heads) * spec->head_dim * itemsize(spec->dtype);
  const std::uint64_t page_bytes = token_bytes * spec->page_size;
  std::int64_t pages = static_cast<std::int64_t>(spec->budget_bytes / (2 * spec->layers * page_bytes));
  if (spec->pages_max > 0) pages = std::min(pages, spec->pages_max);
  if (pages < 1) return ANYCHIP_OUT_OF_MEMORY;
  void* slab = nullptr;
  if (const int32_t status = kDevice.alloc(device, 2 * spec->layers * page_bytes * pages, 64, &slab)) return status;
  auto* made = new anychip_kv_pool{device, static_cast<char*>(slab), *spec, page_bytes, {}, {}};
  made->counts.assign(pages, 0);
  for (std::int64_t page = pages; page-- > 0;) made->unused.push_back(page);
  layout->pages = pages;
  layout->bytes_per_token = 2 * spec->layers * token_bytes;
  layout->alignment = 64;
  layout->axes = "page slot head dim";
  *pool = made;
  return ANYCHIP_OK;
}

int32_t destroy(anychip_kv_pool_t* pool) {
  const int32_t status = kDevice.free(pool->device, pool->slab);
  delete pool;
  return status;
}

int32_t alloc(anychip_kv_pool_t* pool, std::int64_t count, std::int64_t* pages) {
  if (count > static_cast<std::int64_t>(pool->unused.size())) return ANYCHIP_OUT_OF_MEMORY;
  for (std::int64_t i = 0; i < count; ++i) {
    pages[i] = pool->unused.back();
    pool->unused.pop_back();
    pool->counts[pages[i]] = 1;
  }
  return ANYCHIP_OK;
}

int32_t release(anychip_kv_pool_t* pool, std::int64_t count, const std::int64_t* pages) {
  std::map<std::int64_t, std::int64_t> times;
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_page(pool, pages[i]) || ++times[pages[i]] > pool->counts[pages[i]]) return ANYCHIP_INVALID;
  for (std::int64_t i = 0; i < count; ++i)
    if (--pool->counts[pages[i]] == 0) pool->unused.push_back(pages[i]);
  return ANYCHIP_OK;
}

int32_t retain(anychip_kv_pool_t* pool, std::int64_t count, const std::int64_t* pages) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_page(pool, pages[i]) || pool->counts[pages[i]] == 0) return ANYCHIP_INVALID;
  for (std::int64_t i = 0; i < count; ++i) ++pool->counts[pages[i]];
  return ANYCHIP_OK;
}

int32_t refcount(anychip_kv_pool_t* pool, std::int64_t page, std::int64_t* count) {
  if (!is_page(pool, page)) return ANYCHIP_INVALID;
  *count = pool->counts[page];
  return ANYCHIP_OK;
}

char* page_at(const anychip_kv_pool_t* pool, int32_t half, std::int64_t page) {
  return pool->slab + (half * pool->counts.size() + page) * pool->page_bytes;
}

int32_t copy_pages(anychip_kv_pool_t* pool, std::int64_t count, const std::int64_t* src, const std::int64_t* dst) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_page(pool, src[i]) || !is_page(pool, dst[i])) return ANYCHIP_INVALID;
  for (int32_t half = 0; half < 2 * pool->spec.layers; ++half)
    for (std::int64_t i = 0; i < count; ++i)
      if (src[i] != dst[i]) std::memcpy(page_at(pool, half, dst[i]), page_at(pool, half, src[i]), pool->page_bytes);
  return ANYCHIP_OK;
}

void describe_half(const anychip_kv_pool_t* pool, int32_t half, anychip_tensor_t* out) {
  const anychip_kv_spec_t& spec = pool->spec;
  const std::int64_t shape[] = {static_cast<std::int64_t>(pool->counts.size()), spec.page_size, spec.kv_heads,
                                spec.head_dim};
  out->data = page_at(pool, half, 0);
  out->dtype = spec.dtype;
  out->ndim = 4;
  std::int64_t stride = 1;
  for (int dim = 3; dim >= 0; --dim) {
    out->shape[dim] = shape[dim];
    out->strides[dim] = stride;
    stride *= shape[dim];
  }
}

int32_t layer(anychip_kv_pool_t* pool, int32_t index, anychip_tensor_t* keys, anychip_tensor_t* values) {
  if (index < 0 || index >= pool->spec.layers) return ANYCHIP_INVALID;
  describe_half(pool, 2 * index, keys);
  describe_half(pool, 2 * index + 1, values);
  return ANYCHIP_OK;
}

int32_t stats(anychip_kv_pool_t* pool, std::int64_t* unused, std::int64_t* shared) {
  *unused = static_cast<std::int64_t>(pool->unused.size());
  *shared = std::count_if(pool->counts.begin(), pool->counts.end(), [](std::int64_t count) { return count > 1; });
  return ANYCHIP_OK;
}

}  // namespace

const anychip_kv_pool_table_t kPool = {
    sizeof(anychip_kv_pool_table_t), 0, create, destroy, alloc, release, retain, refcount, copy_pages, layer, stats,
};
