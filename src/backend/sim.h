// Backends "sim:furiosa", "sim:rbln" and "sim:FILE": simulated NPUs with the roundings, rejections,
// crashes, limits and costs of a profile (docs/simulators.md).
#pragma once

#include <memory>
#include <string_view>

#include "backend/backend.h"

namespace npu {

// `name` without "sim:": a built-in profile or the path of a YAML file. Errors: what is wrong with
// the file, by line and key.
Result<std::unique_ptr<Backend>> make_simulator(std::string_view name);

enum class BuiltinSimulator { kFuriosa, kRbln };
// In the form that the list of backends takes.
template <BuiltinSimulator kWhich>
std::unique_ptr<Backend> make_simulator_entry() {
  return make_simulator(kWhich == BuiltinSimulator::kFuriosa ? "furiosa" : "rbln").take();
}

}  // namespace npu
