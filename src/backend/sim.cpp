// The simulators as backends: all that they know is in their profile.
#include "backend/sim.h"

#include <algorithm>
#include <filesystem>

#include "backend/sim_compile.h"
#include "backend/sim_device.h"
#include "base/file.h"

namespace npu {
namespace {

constexpr size_t kMostProfileBytes = size_t{1} << 20;

// Of f32 arithmetic: the coarsest format that the device rounds to on the way.
DType precision_of(const sim::Profile& profile) {
  DType precision = DType::kF32;
  for (const sim::ClassRounding& rounding : profile.rounding) {
    for (const sim::Rounding& side : {rounding.operands, rounding.result}) {
      if (side.format == sim::Format::kBF16) return DType::kBF16;
      // dlfloat's 9 bits of mantissa are nearest to f16's 10.
      if (side.format != sim::Format::kF32) precision = DType::kF16;
    }
  }
  return precision;
}

// Does a value that leaves the device as f32 hold f32's digits?
bool exact_f32(const sim::Profile& profile) {
  return std::ranges::all_of(profile.rounding, [](const sim::ClassRounding& rounding) {
    return rounding.result.format == sim::Format::kF32;
  });
}

Traits traits_of(const sim::Profile& profile, const std::string& name) {
  Traits traits;
  traits.name = "sim:" + name;
  traits.compute_dtype = profile.compute_dtype;
  if (profile.limits.known) traits.limits = profile.limits.most;
  traits.host_parts = profile.host_parts;
  traits.host_memory = profile.host_memory;
  if (!profile.host_memory) traits.memory_bytes = profile.memory_bytes;
  traits.launch_seconds = profile.costs.launch_seconds;
  traits.precision = precision_of(profile);
  traits.exact_f32 = exact_f32(profile);
  traits.widens_weights = true;
  traits.legalise = profile.legalise;
  return traits;
}

class Simulator : public Backend {
 public:
  Simulator(sim::Profile profile, const std::string& name)
      : profile_(std::make_shared<const sim::Profile>(std::move(profile))),
        traits_(traits_of(*profile_, name)) {}

  const Traits& traits() const override { return traits_; }
  // The whole profile is part of what compiles: a changed file is another compiler.
  Result<std::string> compiler_version() override {
    return "simulator 1, profile " + profile_->name + " " + profile_->digest.substr(0, 16);
  }
  std::optional<std::string> unsupported(const Graph& graph, NodeId node,
                                         const CompileOptions&) override {
    return sim::unsupported_node(*profile_, graph, node);
  }
  Result<Blob> compile(const Graph& part, const CompileOptions&) override {
    return sim::compile_part(*profile_, part);
  }
  bool compiles_in_process() const override { return false; }
  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override {
    return sim::open_device(profile_, options.threads);
  }

 private:
  std::shared_ptr<const sim::Profile> profile_;
  Traits traits_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_simulator(std::string_view name) {
  // A path is made absolute: compile children get the backend's name, wherever they run.
  std::string full_name(name), source = "sim:" + full_name, text;
  if (const auto builtin = sim::builtin_profile(name)) {
    text = *builtin;
  } else {
    full_name = std::filesystem::absolute(full_name).lexically_normal().string();
    source = full_name;
    try {
      text = read_text(full_name, kMostProfileBytes);
    } catch (const UserError& error) {
      Error failure = error.error();
      failure.hint =
          "sim:NAME is sim:furiosa, sim:rbln or the path of a profile (docs/simulators.md)";
      return failure;
    }
  }
  Result<sim::Profile> profile = sim::parse_profile(text, source);
  if (!profile) return profile.error();
  return std::unique_ptr<Backend>(
      std::make_unique<Simulator>(std::move(profile.value()), full_name));
}

}  // namespace npu
