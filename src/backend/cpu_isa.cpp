// What this machine's CPU can do: picks the loops, and says whether there is AMX.
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "backend/cpu_amx.h"
#include "backend/cpu_loops.h"
#include "backend/cpu_vector.h"
#include "base/error.h"

namespace npu::cpu {

const LoopTable& loop_table() {
#if defined(__x86_64__)
  static const LoopTable& table = []() -> const LoopTable& {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 =
        has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has_avx512 ? avx512::kTable : has_avx2 ? avx2::kTable : baseline::kTable;
  }();
  return table;
#else
  return baseline::kTable;
#endif
}

LoopFn find_loop(const char* name, unsigned form) {
  const LoopTable& table = loop_table();
  for (int i = 0; i < table.count; ++i) {
    if (std::strcmp(table.rows[i].name, name) == 0) return table.rows[i].forms[form];
  }
  return nullptr;
}

const VectorUnit* vector_unit() {
#if defined(__x86_64__)
  static const VectorUnit* const unit = []() -> const VectorUnit* {
    if (&loop_table() == &avx512::kTable) {
      return __builtin_cpu_supports("avx512bf16") ? &avx512_bf16::kVectorUnit
                                                  : &avx512::kVectorUnit;
    }
    const bool has_avx2 = &loop_table() == &avx2::kTable && __builtin_cpu_supports("f16c");
    return has_avx2 ? &avx2::kVectorUnit : nullptr;
  }();
  return unit;
#else
  return nullptr;
#endif
}

bool amx_available() {
#if defined(__x86_64__)
  static const bool available = [] {
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0 &&
           (d & kAmxTile) != 0 && &loop_table() == &avx512::kTable &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return available;
#else
  return false;
#endif
}

#if !defined(__x86_64__)
void amx_multiply(const AmxProduct&, std::byte*) { NPU_CHECK(false, "this CPU has no AMX"); }
bool amx_pack(const ProductOperand&, bool, int, int64_t, int64_t, int64_t, std::byte*) {
  NPU_CHECK(false, "this CPU has no AMX");
  return false;
}
#endif

}  // namespace npu::cpu
