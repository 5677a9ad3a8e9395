// The host's memory as the device of the backend "example": one device table, and the entry. Knows no op's inside.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include "anychip_backend.h"
#include "ops.hpp"

struct Allocation {
  void* base;  // what calloc gave; the address that was given out is the next aligned one
  std::uint64_t bytes;
};

struct anychip_device {
  std::mutex mutex;
  std::map<void*, Allocation> allocated;
};

// Work is done when it is queued, so a stream has nothing to keep and an event is a point in time.
struct anychip_stream {
  std::int32_t priority;
};

struct anychip_event {
  std::chrono::steady_clock::time_point when;
};

static thread_local std::string last_failure;

int32_t failed(int32_t status, const std::string& why) {
  last_failure = why;
  return status;
}

namespace {

const char* last_error() { return last_failure.c_str(); }

// The device is what the host had to give when the library was loaded. What `alloc` gives out counts as used, so that
// the books are exact whatever else the host does.
std::uint64_t kilobytes_of(const char* line) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::uint64_t amount = 0;
  while (file >> name >> amount) {
    if (name == line) return amount;
    std::getline(file, unit);
  }
  return 0;
}

const std::uint64_t bytes_total = 1024 * kilobytes_of("MemTotal:");
const std::uint64_t bytes_available = std::min(bytes_total, 1024 * kilobytes_of("MemAvailable:"));
std::atomic<std::uint64_t> bytes_used{0};

// Take bytes out of what is free, if there are that many.
bool take(std::uint64_t bytes) {
  std::uint64_t used = bytes_used.load();
  do {
    if (bytes > bytes_available - used) return false;
  } while (!bytes_used.compare_exchange_weak(used, used + bytes));
  return true;
}

int32_t device_count(int32_t* count) {
  *count = 1;
  return ANYCHIP_OK;
}

int32_t describe(int32_t index, anychip_device_info_t* info) {
  if (index != 0) return failed(ANYCHIP_INVALID, "there is one device, number 0");
  info->flags = ANYCHIP_DEVICE_HOST_MEMORY;
  info->bytes_total = bytes_total;
  info->bytes_free = bytes_available - bytes_used;
  info->dtypes = 1u << ANYCHIP_FLOAT32 | 1u << ANYCHIP_BFLOAT16;
  info->preferred_dtype = ANYCHIP_BFLOAT16;
  info->product = "native example on the host";
  info->driver = "1.0.0";
  info->runtime = "1.0.0";
  return ANYCHIP_OK;
}

int32_t init(int32_t index, const anychip_config_t*, anychip_device_t** device) {
  if (index != 0) return failed(ANYCHIP_INVALID, "there is one device, number 0");
  *device = new anychip_device;
  return ANYCHIP_OK;
}

int32_t destroy(anychip_device_t* device) {
  for (const auto& [address, allocation] : device->allocated) {
    bytes_used -= allocation.bytes;
    std::free(allocation.base);
  }
  delete device;
  return ANYCHIP_OK;
}

int32_t memory(anychip_device_t*, std::uint64_t* total, std::uint64_t* free_bytes) {
  *total = bytes_total;
  *free_bytes = bytes_available - bytes_used;
  return ANYCHIP_OK;
}

int32_t alloc(anychip_device_t* device, std::uint64_t bytes, std::uint64_t alignment, void** address) {
  if (!take(bytes)) return failed(ANYCHIP_OUT_OF_MEMORY, "the host has not that much memory");
  void* base = std::calloc(bytes + alignment, 1);  // zeroed, and untouched until it is used
  if (base == nullptr) {
    bytes_used -= bytes;
    return failed(ANYCHIP_OUT_OF_MEMORY, "the host has not that much memory");
  }
  const auto number = reinterpret_cast<std::uintptr_t>(base);
  *address = reinterpret_cast<void*>((number + alignment - 1) / alignment * alignment);
  const std::lock_guard<std::mutex> lock(device->mutex);
  device->allocated[*address] = {base, bytes};
  return ANYCHIP_OK;
}

int32_t release(anychip_device_t* device, void* address) {
  const std::lock_guard<std::mutex> lock(device->mutex);
  const auto found = device->allocated.find(address);
  if (found == device->allocated.end()) return failed(ANYCHIP_INVALID, "the address was not given out, or is free");
  bytes_used -= found->second.bytes;
  std::free(found->second.base);
  device->allocated.erase(found);
  return ANYCHIP_OK;
}

int32_t copy(anychip_device_t*, void* dst, const void* src, std::uint64_t bytes, int32_t, anychip_stream_t*) {
  if (bytes) std::memcpy(dst, src, bytes);
  return ANYCHIP_OK;
}

int32_t synchronize(anychip_device_t*, anychip_stream_t*) { return ANYCHIP_OK; }

int32_t create_stream(anychip_device_t*, int32_t priority, anychip_stream_t** stream) {
  *stream = new anychip_stream{priority};
  return ANYCHIP_OK;
}

int32_t destroy_stream(anychip_device_t*, anychip_stream_t* stream) {
  delete stream;
  return ANYCHIP_OK;
}

int32_t record_event(anychip_device_t*, anychip_stream_t*, anychip_event_t** event) {
  *event = new anychip_event{std::chrono::steady_clock::now()};
  return ANYCHIP_OK;
}

int32_t wait_event(anychip_device_t*, anychip_stream_t*, anychip_event_t*) { return ANYCHIP_OK; }

int32_t query_event(anychip_device_t*, anychip_event_t*, int32_t* is_done) {
  *is_done = 1;
  return ANYCHIP_OK;
}

int32_t synchronize_event(anychip_device_t*, anychip_event_t*) { return ANYCHIP_OK; }

int32_t elapsed(anychip_device_t*, anychip_event_t* since, anychip_event_t* until, double* seconds) {
  *seconds = std::chrono::duration<double>(until->when - since->when).count();
  return ANYCHIP_OK;
}

int32_t destroy_event(anychip_device_t*, anychip_event_t* event) {
  delete event;
  return ANYCHIP_OK;
}

void* handle(anychip_device_t* device) { return device; }

}  // namespace

const anychip_device_table_t kDevice = {
    sizeof(anychip_device_table_t),
    0,
    device_count,
    describe,
    init,
    destroy,
    memory,
    alloc,
    release,
    copy,
    synchronize,
    last_error,
    create_stream,
    destroy_stream,
    record_event,
    wait_event,
    query_event,
    synchronize_event,
    elapsed,
    destroy_event,
    nullptr,  // delay: nothing is ever queued
    handle,
};

extern "C" ANYCHIP_EXPORT const anychip_backend_t* anychip_backend_entry(std::uint32_t) {
  static const anychip_backend_t backend = {
      sizeof(anychip_backend_t),
      ANYCHIP_ABI_VERSION,
      "example",
      "anychip",
      "1.0.0",
      nullptr,
      &kDevice,
      kOps,
      kOpCount,
      0,
      &kWeights,
      &kPool,
  };
  return &backend;
}
