// A pool of the backend's own: one allocation, pages counted by reference. Knows pages and slots; knows no token.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "anychip_backend.h"
#include "ops.hpp"

// A state tensor of one layer: where it lies, and how large an entry of it is.
struct State {
  anychip_state_tensor_t tensor;
  bool is_paged;
  std::uint64_t start, entry_bytes;
};

// One slab, state tensor by state tensor: [pages][page_size][shape...] or [slots][shape...].
struct anychip_kv_pool {
  anychip_device_t* device;
  char* slab;
  std::int64_t page_size, slots;
  std::vector<std::vector<State>> layers;  // of all groups, one after the other
  std::vector<std::size_t> first_layers;   // of each group
  std::vector<std::int64_t> counts;
  std::vector<std::int64_t> unused;  // popped from the end: low numbers first
};

namespace {

constexpr std::uint64_t kItemBytes[] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1};  // by the number of a dtype

std::uint64_t itemsize(int32_t dtype) { return kItemBytes[dtype]; }

// Whether every tensor's dtype is one of the header's that this was compiled with.
bool knows_dtypes(const anychip_kv_spec_t& spec) {
  for (std::uint32_t g = 0; g < spec.group_count; ++g)
    for (std::uint32_t i = 0; i < spec.groups[g].tensor_count; ++i)
      if (spec.groups[g].tensors[i].dtype < 0 || spec.groups[g].tensors[i].dtype > ANYCHIP_BOOL) return false;
  return true;
}

std::uint64_t entry_bytes(const anychip_state_tensor_t& tensor) {
  std::uint64_t bytes = itemsize(tensor.dtype);
  for (int32_t i = 0; i < tensor.ndim; ++i) bytes *= tensor.shape[i];
  return bytes;
}

std::uint64_t group_bytes(const anychip_state_group_t& group) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < group.tensor_count; ++i) bytes += entry_bytes(group.tensors[i]);
  return bytes * group.layers;
}

bool is_page(const anychip_kv_pool_t* pool, std::int64_t page) {
  return page >= 0 && page < static_cast<std::int64_t>(pool->counts.size());
}

bool is_slot(const anychip_kv_pool_t* pool, std::int64_t slot) { return slot >= 0 && slot < pool->slots; }

int32_t no_page(std::int64_t page) {
  return failed(ANYCHIP_INVALID, "page " + std::to_string(page) + " is none of the pool's");
}

int32_t no_slot(std::int64_t slot) {
  return failed(ANYCHIP_INVALID, "slot " + std::to_string(slot) + " is none of the pool's");
}

int32_t no_reference(std::int64_t page) {
  return failed(ANYCHIP_INVALID, "page " + std::to_string(page) + " has not so many references");
}

// Gives every state tensor its place, those of wide elements first so that each begins at a multiple of its size.
std::uint64_t place(anychip_kv_pool_t& pool, const anychip_kv_spec_t& spec) {
  std::uint64_t end = 0;
  for (const std::uint64_t size : {8, 4, 2, 1})
    for (std::size_t g = 0, at = 0; g < spec.group_count; ++g)
      for (int32_t layer = 0; layer < spec.groups[g].layers; ++layer, ++at)
        for (State& state : pool.layers[at]) {
          if (itemsize(state.tensor.dtype) != size) continue;
          state.start = end;
          end += state.entry_bytes * (state.is_paged ? pool.counts.size() * pool.page_size : pool.slots);
        }
  return end;
}

// As many as the budget holds beside the slots; at least 1, for a pool without paged groups has pages too.
std::int64_t pages_of(const anychip_kv_spec_t& spec, std::uint64_t page_bytes, std::uint64_t slots_bytes) {
  if (spec.budget_bytes < slots_bytes) return 0;
  if (page_bytes == 0) return std::max<std::int64_t>(spec.pages_max, 1);
  const std::int64_t pages = static_cast<std::int64_t>((spec.budget_bytes - slots_bytes) / page_bytes);
  return spec.pages_max > 0 ? std::min(pages, spec.pages_max) : pages;
}

int32_t create(anychip_device_t* device, const anychip_kv_spec_t* spec, anychip_kv_layout_t* layout,
               anychip_kv_pool_t** pool) {
  if (!knows_dtypes(*spec)) return failed(ANYCHIP_ERROR, "a state has a dtype that this library does not know");
  std::uint64_t token_bytes = 0, slot_bytes = 0;
  for (std::uint32_t g = 0; g < spec->group_count; ++g) {
    const bool is_paged = spec->groups[g].kind == ANYCHIP_STATE_PAGED;
    (is_paged ? token_bytes : slot_bytes) += group_bytes(spec->groups[g]);
  }
  const std::int64_t pages = pages_of(*spec, token_bytes * spec->page_size, slot_bytes * spec->slots);
  if (pages < 1) return failed(ANYCHIP_OUT_OF_MEMORY, "the budget does not hold the slots and one page");
  auto made = std::make_unique<anychip_kv_pool>();
  made->device = device;
  made->page_size = spec->page_size;
  made->slots = spec->slots;
  made->counts.assign(pages, 0);
  for (std::int64_t page = pages; page-- > 0;) made->unused.push_back(page);
  for (std::uint32_t g = 0; g < spec->group_count; ++g) {
    const anychip_state_group_t& group = spec->groups[g];
    made->first_layers.push_back(made->layers.size());
    std::vector<State> states;
    for (std::uint32_t i = 0; i < group.tensor_count; ++i)
      states.push_back({group.tensors[i], group.kind == ANYCHIP_STATE_PAGED, 0, entry_bytes(group.tensors[i])});
    made->layers.insert(made->layers.end(), group.layers, states);
  }
  made->first_layers.push_back(made->layers.size());
  void* slab = nullptr;
  if (const int32_t status = kDevice.alloc(device, place(*made, *spec), 64, &slab)) return status;
  made->slab = static_cast<char*>(slab);
  layout->pages = pages;
  layout->bytes_per_token = token_bytes;
  layout->bytes_per_slot = slot_bytes;
  layout->alignment = 64;
  *pool = made.release();
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
    if (!is_page(pool, pages[i]))
      return no_page(pages[i]);
    else if (++times[pages[i]] > pool->counts[pages[i]])
      return no_reference(pages[i]);
  for (std::int64_t i = 0; i < count; ++i)
    if (--pool->counts[pages[i]] == 0) pool->unused.push_back(pages[i]);
  return ANYCHIP_OK;
}

int32_t retain(anychip_kv_pool_t* pool, std::int64_t count, const std::int64_t* pages) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_page(pool, pages[i]))
      return no_page(pages[i]);
    else if (pool->counts[pages[i]] == 0)
      return no_reference(pages[i]);
  for (std::int64_t i = 0; i < count; ++i) ++pool->counts[pages[i]];
  return ANYCHIP_OK;
}

int32_t refcount(anychip_kv_pool_t* pool, std::int64_t page, std::int64_t* count) {
  if (!is_page(pool, page)) return no_page(page);
  *count = pool->counts[page];
  return ANYCHIP_OK;
}

int32_t copy_pages(anychip_kv_pool_t* pool, std::int64_t count, const std::int64_t* src, const std::int64_t* dst) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_page(pool, src[i]) || !is_page(pool, dst[i])) return no_page(is_page(pool, src[i]) ? dst[i] : src[i]);
  for (const std::vector<State>& states : pool->layers)
    for (const State& state : states) {
      if (!state.is_paged) continue;
      const std::uint64_t bytes = state.entry_bytes * pool->page_size;
      char* pages = pool->slab + state.start;
      for (std::int64_t i = 0; i < count; ++i)
        if (src[i] != dst[i]) std::memcpy(pages + dst[i] * bytes, pages + src[i] * bytes, bytes);
    }
  return ANYCHIP_OK;
}

int32_t copy_slots(anychip_kv_pool_t* pool, std::int64_t count, const std::int64_t* src, const std::int64_t* dst) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_slot(pool, src[i]) || !is_slot(pool, dst[i])) return no_slot(is_slot(pool, src[i]) ? dst[i] : src[i]);
  for (const std::vector<State>& states : pool->layers)
    for (const State& state : states) {
      if (state.is_paged) continue;
      char* slots = pool->slab + state.start;
      for (std::int64_t i = 0; i < count; ++i)
        if (src[i] != dst[i])
          std::memcpy(slots + dst[i] * state.entry_bytes, slots + src[i] * state.entry_bytes, state.entry_bytes);
    }
  return ANYCHIP_OK;
}

int32_t clear_slots(anychip_kv_pool_t* pool, std::int64_t count, const std::int64_t* cleared) {
  for (std::int64_t i = 0; i < count; ++i)
    if (!is_slot(pool, cleared[i])) return no_slot(cleared[i]);
  for (const std::vector<State>& states : pool->layers)
    for (const State& state : states) {
      if (state.is_paged) continue;
      for (std::int64_t i = 0; i < count; ++i)
        std::memset(pool->slab + state.start + cleared[i] * state.entry_bytes, 0, state.entry_bytes);
    }
  return ANYCHIP_OK;
}

void describe(const anychip_kv_pool_t* pool, const State& state, anychip_tensor_t* out) {
  std::vector<std::int64_t> shape;
  if (state.is_paged)
    shape = {static_cast<std::int64_t>(pool->counts.size()), pool->page_size};
  else
    shape = {pool->slots};
  shape.insert(shape.end(), state.tensor.shape, state.tensor.shape + state.tensor.ndim);
  out->data = pool->slab + state.start;
  out->dtype = state.tensor.dtype;
  out->ndim = static_cast<int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    out->shape[dim] = shape[dim];
    out->strides[dim] = stride;
    stride *= shape[dim];
  }
}

int32_t tensors(anychip_kv_pool_t* pool, int32_t group, int32_t layer, anychip_tensor_t* out) {
  if (group < 0 || group + 1 >= static_cast<int32_t>(pool->first_layers.size()))
    return failed(ANYCHIP_INVALID, "the pool has no such group");
  const std::size_t at = pool->first_layers[group] + layer;
  if (layer < 0 || at >= pool->first_layers[group + 1])
    return failed(ANYCHIP_INVALID, "the group has no such layer");
  for (const State& state : pool->layers[at]) describe(pool, state, out++);
  return ANYCHIP_OK;
}

int32_t stats(anychip_kv_pool_t* pool, std::int64_t* unused, std::int64_t* shared) {
  *unused = static_cast<std::int64_t>(pool->unused.size());
  *shared = std::count_if(pool->counts.begin(), pool->counts.end(), [](std::int64_t count) { return count > 1; });
  return ANYCHIP_OK;
}

}  // namespace

const anychip_kv_pool_table_t kPool = {
    sizeof(anychip_kv_pool_table_t),
    0,
    create,
    destroy,
    alloc,
    release,
    retain,
    refcount,
    copy_pages,
    tensors,
    stats,
    copy_slots,
    clear_slots,
};
