// The library's functions, and the choice of the instruction set. Knows no kernel.
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>

#ifdef ANYCHIP_AMX_BF16
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "compact.hpp"
#include "dense.hpp"
#include "dispatch.hpp"
#include "experts.hpp"
#include "products.hpp"
#include "program.hpp"
#include "routing.hpp"
#include "threads.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace anychip {

namespace {

struct Candidate {
  const Kernels* (*kernels)();
  bool is_present;
};

// the best last
Candidate candidate(int index) {
  switch (index) {
    case 0:
      return {portable_kernels, true};
#ifdef ANYCHIP_AVX2
    case 1:
      return {avx2_kernels,
              __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")};
#endif
#ifdef ANYCHIP_AVX512
    case 2:
      return {avx512_kernels, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")};
#endif
#ifdef ANYCHIP_AVX512_BF16
    case 3:
      return {avx512_bf16_kernels, __builtin_cpu_supports("avx512bf16") && candidate(2).is_present};
#endif
    default:
      return {nullptr, false};
  }
}

constexpr int kCandidates = 4;

const Kernels* best() {
  for (int index = kCandidates - 1; index >= 0; --index)
    if (candidate(index).is_present) return candidate(index).kernels();
  return portable_kernels();
}

std::atomic<const Kernels*> g_kernels{nullptr};
std::atomic<bool> g_uses_tiles{true};

#ifdef ANYCHIP_AMX_BF16
// Whether the processor has tiles of bfloat16 and the system lets this process have their registers.
bool may_use_tiles() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
#if defined(__linux__)
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

const Kernels* chosen_kernels() {
  const Kernels* kernels = g_kernels.load(std::memory_order_relaxed);
  if (kernels == nullptr) g_kernels.store(kernels = best(), std::memory_order_relaxed);
  return kernels;
}

const ProductKernels* chosen_products() {
  const Kernels* kernels = chosen_kernels();
#ifdef ANYCHIP_AVX512_VNNI
  static const bool has_vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  if (has_vnni && std::strncmp(kernels->name, "avx512", 6) == 0) return avx512_vnni_products();
#endif
#ifdef ANYCHIP_AVX2
  if (std::strncmp(kernels->name, "avx", 3) == 0) return avx2_products();
#endif
  return portable_products();
}

const DenseKernels* chosen_dense() {
  const char* name = chosen_kernels()->name;
#ifdef ANYCHIP_AVX512_BF16
  if (std::strcmp(name, "avx512_bf16") == 0) return avx512_bf16_dense();
#endif
#ifdef ANYCHIP_AVX512
  if (std::strcmp(name, "avx512") == 0) return avx512_dense();
#endif
#ifdef ANYCHIP_AVX2
  if (std::strcmp(name, "avx2") == 0) return avx2_dense();
#endif
  return portable_dense();
}

const DenseKernels* chosen_singles() {
  const char* name = chosen_kernels()->name;
#ifdef ANYCHIP_AVX512
  if (std::strncmp(name, "avx512", 6) == 0) return avx512_singles();
#endif
#ifdef ANYCHIP_AVX2
  if (std::strcmp(name, "avx2") == 0) return avx2_singles();
#endif
  return portable_singles();
}

const DenseKernels* chosen_expert_dense(std::int64_t in) {
#ifdef ANYCHIP_AMX_BF16
  static const bool has_tiles = may_use_tiles();
  if (has_tiles && g_uses_tiles.load(std::memory_order_relaxed) && in % 32 == 0 &&
      std::strcmp(chosen_kernels()->name, "avx512_bf16") == 0)
    return amx_bf16_dense();
#endif
  static_cast<void>(in);
  return chosen_dense();
}

void use_tiles(bool is_used) { g_uses_tiles.store(is_used); }

bool choose_kernels(const char* name) {
  for (int index = 0; index < kCandidates; ++index) {
    const Candidate found = candidate(index);
    if (found.is_present && std::strcmp(found.kernels()->name, name) == 0) {
      g_kernels.store(found.kernels());
      return true;
    }
  }
  return false;
}

}  // namespace anychip

// What it was built from; a caller of another version doesn't use the library.
EXPORT const char* anychip_cpu_version() { return ANYCHIP_CPU_VERSION; }

EXPORT std::int32_t anychip_cpu_args_size() { return sizeof(anychip::AttentionArgs); }

// The OpenMP runtime's entries, or NULL for one thread.
EXPORT void anychip_cpu_set_openmp(const anychip::OpenMp* runtime) {
  anychip::set_openmp(runtime == nullptr ? anychip::OpenMp{} : *runtime);
}

EXPORT const char* anychip_cpu_kernels() { return anychip::chosen_kernels()->name; }

// Take another instruction set's kernels than the best; 0: this processor or this library hasn't got them.
EXPORT std::int32_t anychip_cpu_choose(const char* name) { return anychip::choose_kernels(name); }

// 0: done; 1: out of memory. Nothing may be thrown across the boundary.
EXPORT std::int32_t anychip_cpu_attention(const anychip::AttentionArgs* args) {
  try {
    anychip::attention(*args);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// 0: done; 1: out of memory
EXPORT std::int32_t anychip_cpu_product(const anychip::ProductArgs* args) {
  try {
    anychip::product(*args);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// 0: done; 1: out of memory
EXPORT std::int32_t anychip_cpu_experts(const anychip::ExpertsArgs* args) {
  try {
    anychip::experts(*args);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// 0: experts of bfloat16 do without the processor's matrix tiles from now on
EXPORT void anychip_cpu_use_tiles(std::int32_t is_used) { anychip::use_tiles(is_used != 0); }

EXPORT void anychip_cpu_route(const anychip::RouteArgs* args) { anychip::route(*args); }

EXPORT std::int64_t anychip_cpu_plan_compact(const anychip::CompactArgs* args) { return anychip::plan_compact(*args); }

EXPORT void anychip_cpu_pack_compact(const anychip::CompactArgs* args) { anychip::pack_compact(*args); }

EXPORT void anychip_cpu_norm(const anychip::NormArgs* args) { anychip::norm(*args); }

// 0: done; 1: a position or a slot is out of range, and nothing was written
EXPORT std::int32_t anychip_cpu_heads(const anychip::HeadsArgs* args) { return !anychip::heads(*args); }

EXPORT void anychip_cpu_gated(const anychip::GatedArgs* args) { anychip::gated(*args); }

EXPORT void anychip_cpu_argmax(const anychip::ArgmaxArgs* args) { anychip::argmax(*args); }

// 0: done; 1: a slot is out of range, and nothing was written
EXPORT std::int32_t anychip_cpu_convolve(const anychip::ConvolveArgs* args) { return !anychip::convolve(*args); }

// likewise
EXPORT std::int32_t anychip_cpu_delta(const anychip::DeltaArgs* args) { return !anychip::delta(*args); }

EXPORT void anychip_cpu_head_product(const anychip::HeadProductArgs* args) { anychip::head_product(*args); }

EXPORT std::int32_t anychip_cpu_instruction_size() { return sizeof(anychip::Instruction); }

// NULL: out of memory
EXPORT void* anychip_cpu_program(const anychip::Instruction* instructions, std::int64_t count, std::int64_t tokens) {
  try {
    return new anychip::Program(instructions, count, tokens);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// 0: done; 1: out of memory; 2: a number is out of range, and nothing was written
EXPORT std::int32_t anychip_cpu_run(void* program, const anychip::StepArgs* step, const anychip::GroupArgs* groups) {
  try {
    anychip::StepArgs whole = *step;
    whole.groups = groups;
    static_cast<anychip::Program*>(program)->run(whole);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  } catch (const std::out_of_range&) {
    return 2;
  }
}

EXPORT void anychip_cpu_free(void* program) { delete static_cast<anychip::Program*>(program); }

EXPORT void anychip_cpu_sample(const anychip::SampleArgs* args) { anychip::sample(*args); }

// 0: done; 1: an id is not in the vocabulary, or out of memory, and nothing was written
EXPORT std::int32_t anychip_cpu_penalise(const anychip::PenaltyArgs* args) {
  try {
    return !anychip::penalise(*args);
  } catch (const std::bad_alloc&) {
    return 1;
  }
}
