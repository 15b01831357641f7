// Facts about the host and the libraries, each as its owner states it.
#include "cli/environment.h"

#include <gnu/libc-version.h>

#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "base/cpu_model.h"
#include "base/thread_pool.h"
#include "base/version.h"

namespace npu {
namespace {

std::string cpu_features() {
  std::string features;
  const auto add = [&](bool present, const char* name) {
    if (present) features += (features.empty() ? "" : " ") + std::string(name);
  };
#if defined(__x86_64__)
  __builtin_cpu_init();
  add(__builtin_cpu_supports("avx2") != 0, "avx2");
  add(__builtin_cpu_supports("fma") != 0, "fma");
  add(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  add(__builtin_cpu_supports("avx512bf16") != 0, "avx512bf16");
#endif
  return features.empty() ? "baseline" : features;
}

}  // namespace

Json host_json() {
  return {{"cpu", cpu_model()}, {"usable_cpus", usable_cpus()}, {"features", cpu_features()}};
}

Json library_versions() {
  // Parts on the host run on the cpu backend, whose version names its BLAS.
  return {{"npu-lora", std::string(kVersion)},
          {"host_backend", make_backend("cpu").take()->compiler_version().take()},
          {"c_library", gnu_get_libc_version()},
          {"compiler", __VERSION__}};
}

}  // namespace npu
