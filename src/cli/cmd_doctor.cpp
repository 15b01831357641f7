// npu-lora doctor: which backends are usable here, and how to install the others.
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "cli/commands.h"

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

int cmd_doctor(const Options& options) {
  Json json = {{"cpu", {{"usable_cpus", usable_cpus()}, {"features", cpu_features()}}},
               {"backends", Json::array()}};
  std::string automatic;
  for (const BackendEntry& entry : backend_entries()) {
    const std::optional<Error> problem = entry.probe();
    Json row = {{"name", std::string(entry.pattern)},
                {"summary", std::string(entry.summary)},
                {"usable", !problem.has_value()}};
    if (problem) {
      row["problem"] = problem->what + (problem->got.empty() ? "" : "; got " + problem->got);
      row["hint"] = problem->hint;
    } else {
      const Result<std::string> version = entry.make()->compiler_version();
      row["version"] = version.ok() ? version.value() : version.error().text();
      if (entry.automatic && automatic.empty()) automatic = entry.pattern;
    }
    json["backends"].push_back(std::move(row));
  }
  json["auto"] = automatic;
  if (options.flag("json")) {
    std::cout << json.dump(2) << "\n";
    return 0;
  }
  std::cout << "cpu: " << usable_cpus() << " usable, " << cpu_features() << "\n";
  for (const Json& row : json["backends"]) {
    std::cout << (row["usable"].get<bool>() ? "ok   " : "-    ") << std::left << std::setw(16)
              << row["name"].get<std::string>() << row["summary"].get<std::string>() << "\n";
    if (row.contains("version")) std::cout << "     " << row["version"].get<std::string>() << "\n";
    if (row.contains("problem")) {
      std::cout << "     " << row["problem"].get<std::string>()
                << "\n     hint: " << row["hint"].get<std::string>() << "\n";
    }
  }
  std::cout << "--backend auto takes " << automatic << "\n";
  return 0;
}

}  // namespace npu
