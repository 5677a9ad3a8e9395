// A backend with one fault, named by the environment variable FAULT. Knows the header; its ops and its pool, which FAULT
// has to name too, tell what they are handed.
#include <csignal>
#include <cstdlib>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "anychip_backend.h"

namespace {

bool has(const char* fault) {
  const char* chosen = std::getenv("FAULT");
  return chosen != nullptr && std::strcmp(chosen, fault) == 0;
}

const char* why = "";

int32_t fail(int32_t status, const char* text) {
  why = text;
  return status;
}

const bool crashed_at_load = has("crash at load") && std::raise(SIGSEGV) == 0;

int32_t device_count(int32_t* count) {
  if (has("count fails")) return fail(ANYCHIP_ERROR, "the driver is too old");
  *count = has("no device") ? 0 : has("negative count") ? -2 : 1;
  return ANYCHIP_OK;
}

int32_t describe(int32_t, anychip_device_info_t* info) {
  if (has("abort in describe")) std::abort();
  info->flags = has("device memory") ? 0 : ANYCHIP_DEVICE_HOST_MEMORY;
  if (has("async without streams")) info->flags |= ANYCHIP_DEVICE_ASYNC_STREAMS;
  info->bytes_total = 1000;
  info->bytes_free = has("free above total") ? 2000 : 1000;
  info->dtypes = 1u << ANYCHIP_FLOAT32;
  info->preferred_dtype = has("preferred dtype") ? ANYCHIP_INT8 : ANYCHIP_FLOAT32;
  info->product = has("no product") ? nullptr : "faulty";
  info->firmware = "7";
  return ANYCHIP_OK;
}

int32_t init(int32_t, const anychip_config_t* config, anychip_device_t** device) {
  if (has("crash at init")) *reinterpret_cast<volatile int*>(8) = 1;
  if (has("hang at init")) std::this_thread::sleep_for(std::chrono::seconds(60));
  if (has("init fails")) return fail(ANYCHIP_ERROR, "firmware 7 is too old");
  if (has("wants an option") && (config->option_count != 1 || std::strcmp(config->option_names[0], "mode") != 0 ||
                                 std::strcmp(config->option_values[0], "fast") != 0 || config->threads != 3))
    return fail(ANYCHIP_ERROR, "not configured as asked");
  static int opened;
  *device = has("no handle") ? nullptr : reinterpret_cast<anychip_device_t*>(&opened);
  return ANYCHIP_OK;
}

int32_t destroy(anychip_device_t*) { return ANYCHIP_OK; }

int32_t memory(anychip_device_t*, uint64_t* total, uint64_t* free_bytes) {
  *total = *free_bytes = 1000;
  return ANYCHIP_OK;
}

int32_t alloc(anychip_device_t*, uint64_t bytes, uint64_t, void** address) {
  if (bytes > 1000) return fail(ANYCHIP_OUT_OF_MEMORY, "1000 bytes are all there is");
  static char slab[2048];
  *address = has("misaligned") ? slab + 1 : slab;
  return ANYCHIP_OK;
}

int32_t release(anychip_device_t*, void*) { return ANYCHIP_OK; }

int32_t copy(anychip_device_t*, void* dst, const void* src, uint64_t bytes, int32_t, anychip_stream_t*) {
  std::memcpy(dst, src, bytes);
  return ANYCHIP_OK;
}

int32_t synchronize(anychip_device_t*, anychip_stream_t*) {
  return has("late error") ? fail(ANYCHIP_ERROR, "an earlier copy failed") : ANYCHIP_OK;
}

const char* last_error() { return has("no reason") ? nullptr : why; }

int32_t create_stream(anychip_device_t*, int32_t, anychip_stream_t** stream) {
  static int queue;
  *stream = reinterpret_cast<anychip_stream_t*>(&queue);
  return ANYCHIP_OK;
}

int32_t destroy_stream(anychip_device_t*, anychip_stream_t*) { return ANYCHIP_OK; }

int32_t record_event(anychip_device_t*, anychip_stream_t*, anychip_event_t**) { return ANYCHIP_OK; }

// Writes what it is told about its arguments into out: one number a field.
int32_t tell(const anychip_args_t* args) {
  if (has("op fails")) return fail(ANYCHIP_ERROR, "the grid is too large");
  if (has("op refuses")) return fail(ANYCHIP_INVALID, "dim is odd");
  const anychip_tensor_t& x = args->tensors[0];
  float* out = static_cast<float*>(args->tensors[args->tensor_count - 1].data);
  out[0] = static_cast<float>(args->tensor_count);
  out[1] = static_cast<float>(args->scalar_count);
  out[2] = static_cast<float>(x.ndim);
  out[3] = static_cast<float>(x.strides[0]);
  out[4] = static_cast<float>(args->device != nullptr);
  out[5] = static_cast<float>(args->struct_size);
  return ANYCHIP_OK;
}

// Writes what it is told about the step into out, group after group: kind, pages_max, first page, last slot.
int32_t tell_step(const anychip_args_t* args) {
  const anychip_step_t& step = *args->step;
  float* out = static_cast<float*>(args->tensors[args->tensor_count - 1].data);
  *out++ = static_cast<float>(step.group_count);
  for (int32_t i = 0; i < step.group_count; ++i) {
    const anychip_step_group_t& group = step.groups[i];
    const bool is_paged = group.kind == ANYCHIP_STATE_PAGED;
    *out++ = static_cast<float>(group.kind);
    *out++ = static_cast<float>(group.pages_max);
    *out++ = is_paged ? static_cast<float>(group.page_table[0]) : -1.0f;
    *out++ = static_cast<float>(group.slots[(is_paged ? step.tokens : step.rows) - 1]);
  }
  return ANYCHIP_OK;
}

// A pool of one group of slots, whose tensors are of float32 with one dimension.
struct {
  float memory[256];
  anychip_kv_spec_t spec;
  anychip_state_group_t group;
  anychip_state_tensor_t tensor;
} slots;

std::string described(const anychip_kv_spec_t& spec) {
  std::string text = "page size " + std::to_string(spec.page_size) + ", slots " + std::to_string(spec.slots) +
                     ", pages " + std::to_string(spec.pages_max) + ", bytes " + std::to_string(spec.budget_bytes);
  for (uint32_t g = 0; g < spec.group_count; ++g) {
    const anychip_state_group_t& group = spec.groups[g];
    text += std::string("; ") + group.name + " kind " + std::to_string(group.kind) + " layers " +
            std::to_string(group.layers) + " window " + std::to_string(group.window);
    for (uint32_t i = 0; i < group.tensor_count; ++i) {
      text += std::string(", ") + group.tensors[i].name + " dtype " + std::to_string(group.tensors[i].dtype);
      for (int32_t dim = 0; dim < group.tensors[i].ndim; ++dim)
        text += " " + std::to_string(group.tensors[i].shape[dim]);
    }
  }
  return text;
}

int32_t create_pool(anychip_device_t*, const anychip_kv_spec_t* spec, anychip_kv_layout_t* layout,
                    anychip_kv_pool_t** pool) {
  static std::string text;
  text = described(*spec);
  if (has("pool refuses")) return fail(ANYCHIP_ERROR, text.c_str());
  if (has("pool without a handle")) return ANYCHIP_OK;
  slots.spec = *spec;
  slots.group = spec->groups[0];
  slots.tensor = slots.group.tensors[0];
  layout->pages = 1;
  *pool = reinterpret_cast<anychip_kv_pool_t*>(&slots);
  return ANYCHIP_OK;
}

int32_t destroy_pool(anychip_kv_pool_t*) { return ANYCHIP_OK; }
int32_t alloc_pages(anychip_kv_pool_t*, int64_t, int64_t*) { return ANYCHIP_OUT_OF_MEMORY; }
int32_t hold_pages(anychip_kv_pool_t*, int64_t, const int64_t*) { return ANYCHIP_INVALID; }
int32_t count_references(anychip_kv_pool_t*, int64_t, int64_t*) { return ANYCHIP_INVALID; }
int32_t copy_pages(anychip_kv_pool_t*, int64_t, const int64_t*, const int64_t*) { return ANYCHIP_OK; }
int32_t clear_slots(anychip_kv_pool_t*, int64_t, const int64_t*) { return ANYCHIP_OK; }

int32_t tensors(anychip_kv_pool_t*, int32_t, int32_t layer, anychip_tensor_t* out) {
  const int64_t size = slots.tensor.shape[0];
  out->data = slots.memory + layer * slots.spec.slots * size;
  out->dtype = has("pool of another dtype") ? ANYCHIP_INT8 : slots.tensor.dtype;
  out->ndim = 2;
  out->shape[0] = slots.spec.slots;
  out->shape[1] = has("pool of another shape") ? size + 1 : size;
  out->strides[0] = size;
  out->strides[1] = 1;
  return ANYCHIP_OK;
}

int32_t stats(anychip_kv_pool_t*, int64_t* unused, int64_t* shared) {
  *unused = *shared = 0;
  return ANYCHIP_OK;
}

}  // namespace

#ifndef NO_ENTRY
extern "C" ANYCHIP_EXPORT const anychip_backend_t* anychip_backend_entry(uint32_t host_abi_version) {
  static anychip_device_table_t device;
  device = {};
  device.struct_size = has("device size") ? 24 : sizeof device;
  device.device_count = device_count;
  device.describe = describe;
  device.init = init;
  device.destroy = destroy;
  device.memory = memory;
  device.alloc = has("null alloc") ? nullptr : alloc;
  device.free = release;
  device.copy = has("null alloc") ? nullptr : copy;
  device.synchronize = synchronize;
  device.last_error = last_error;
  if (has("streams without events") || has("half the streams")) device.create_stream = create_stream;
  if (has("streams without events")) device.destroy_stream = destroy_stream;
  if (has("half the events")) device.record_event = record_event;

  static const int64_t sizes[] = {64, 128}, limit[] = {4096}, step[] = {8};
  static const char* const types[] = {"float32"};
  static anychip_need_t needs[5];
  needs[0] = {"head_dim", has("need kind") ? 9 : ANYCHIP_NEED_ONE_OF, 2, sizes, nullptr};
  needs[1] = {"hidden", ANYCHIP_NEED_AT_MOST, 1, limit, nullptr};
  needs[2] = {"rows", ANYCHIP_NEED_AT_LEAST, 1, step, nullptr};
  needs[3] = {"page_size", ANYCHIP_NEED_MULTIPLE_OF, has("need count") ? 2u : 1u, step, nullptr};
  needs[4] = {"kv_dtype", ANYCHIP_NEED_ONE_OF, 1, nullptr, has("need values") ? nullptr : types};

  static anychip_kv_pool_table_t pool;
  pool = {sizeof pool, 0, create_pool, destroy_pool, alloc_pages, hold_pages, hold_pages, count_references,
          copy_pages, tensors, stats, nullptr, nullptr};
  if (has("pool without tensors")) pool.tensors = nullptr;
  if (has("pool with half the slots")) pool.clear_slots = clear_slots;

  static anychip_op_t ops[2];
  ops[0] = {sizeof(anychip_op_t), 1, "silu", "tell", 1u << ANYCHIP_FLOAT32, 0, tell, nullptr, 0, 0};
  ops[1] = {sizeof(anychip_op_t), 1, "rms_norm", "picky", 1u << ANYCHIP_FLOAT32, 0, tell, needs, 5, 0};
  if (has("op size")) ops[1].struct_size = 1u << 20;
  if (has("null run")) ops[1].run = nullptr;
  if (has("no kernel name")) ops[1].kernel = "";
  if (has("op dtypes")) ops[1].dtypes = 1u << 20;
  if (has("unknown op")) ops[1].name = "rms_nrom";
  if (has("op version")) ops[1].version = 2;
  if (has("no dtypes")) ops[1].dtypes = 0;
  if (has("steps")) ops[1] = {sizeof(anychip_op_t), 1, "select_rows", "tell", 1u << ANYCHIP_FLOAT32, 0, tell_step,
                              nullptr, 0, 0};
  if (has("strided rows")) ops[0].flags = ANYCHIP_OP_STRIDED_ROWS;
  if (has("prepares without a table")) ops[0].flags = ANYCHIP_OP_PREPARES_WEIGHT;

  // A later header's struct is longer.
  static struct {
    anychip_backend_t known;
    uint64_t unknown;
  } backend;
  backend.known = {sizeof(anychip_backend_t), ANYCHIP_ABI_VERSION, "faulty", "nobody", "0.1", "no slot holds one",
                   &device, ops, 2, 0, nullptr, nullptr};
  const char* chosen = std::getenv("FAULT");
  if (chosen != nullptr && std::strncmp(chosen, "pool", 4) == 0) backend.known.kv_pool = &pool;
  if (has("longer struct")) backend.known.struct_size = sizeof backend;
  if (has("abi version")) backend.known.abi_version = host_abi_version + 6;
  if (has("backend size")) backend.known.struct_size = 4;
  if (has("null device")) backend.known.device = nullptr;
  if (has("null ops")) backend.known.ops = nullptr;
  if (has("no ops")) backend.known.op_count = 0;
  if (has("no version")) backend.known.version = nullptr;
  if (has("name")) backend.known.name = "Faulty!";
  if (has("taken name")) backend.known.name = "reference";
  return has("null table") ? nullptr : &backend.known;
}
#endif
