// npu-lora doctor: which backends are usable here, and how to install the others.
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "cli/commands.h"
#include "cli/environment.h"

namespace npu {
int cmd_doctor(const Options& options) {
  Json json = {{"cpu", host_json()}, {"backends", Json::array()}};
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
  std::cout << "cpu: " << json["cpu"]["usable_cpus"] << " usable, "
            << json["cpu"]["features"].get<std::string>() << "\n";
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
