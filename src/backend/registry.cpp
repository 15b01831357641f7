// The list of backends: the one place that knows all of them.
#include <string>

#include "backend/backend.h"
#include "backend/cpu.h"
#include "backend/furiosa.h"
#include "backend/furiosa_device.h"
#include "backend/openvino.h"
#include "backend/ort.h"
#include "backend/sim.h"

namespace npu {
namespace {

std::optional<Error> always_usable() { return std::nullopt; }

// In order of preference for `auto`. Reference kernels are never picked unasked, they are slow; nor
// are GPUs, which round to f16 by default.
constexpr BackendEntry kEntries[] = {
    {"furiosa", "FuriosaAI RNGD, bf16 products; furiosa:N names the card", make_furiosa_entry,
     probe_furiosa, true},
    {"openvino:NPU", "Intel NPU through OpenVINO, f16", make_openvino_entry<OpenVinoDevice::kNpu>,
     probe_openvino_entry<OpenVinoDevice::kNpu>, true},
    {"openvino:CPU", "any CPU through OpenVINO", make_openvino_entry<OpenVinoDevice::kCpu>,
     probe_openvino_entry<OpenVinoDevice::kCpu>, true},
    {"cpu", "this program's own executor: vector units or AMX, fused loops", make_cpu,
     always_usable, true},
    {"ort", "any CPU through ONNX Runtime", [] { return make_ort(""); },
     [] { return probe_ort(""); }, false},
    {"ort:CUDA", "NVIDIA GPU through ONNX Runtime", [] { return make_ort("CUDA"); },
     [] { return probe_ort("CUDA"); }, false},
    {"ort:QNN", "Qualcomm NPU through ONNX Runtime", [] { return make_ort("QNN"); },
     [] { return probe_ort("QNN"); }, false},
    {"openvino:GPU", "Intel GPU through OpenVINO", make_openvino_entry<OpenVinoDevice::kGpu>,
     probe_openvino_entry<OpenVinoDevice::kGpu>, false},
    {"cpu:reference", "the definition of every op, slow; judges the others", make_cpu_reference,
     always_usable, false},
    {"sim:furiosa", "simulated FuriosaAI RNGD: bf16 products, memory of its own",
     make_simulator_entry<BuiltinSimulator::kFuriosa>, always_usable, false},
    {"sim:rbln", "simulated Rebellions ATOM: 16-bit results, biased; sim:FILE reads a profile",
     make_simulator_entry<BuiltinSimulator::kRbln>, always_usable, false},
};

constexpr WorkerEntry kWorkers[] = {{"device-worker", furiosa_worker_main}};

constexpr std::string_view kSimulator = "sim:", kFuriosa = "furiosa:";

std::string known_names() {
  std::string names = "auto";
  for (const BackendEntry& entry : kEntries) names += ", " + std::string(entry.pattern);
  return names + ", furiosa:N, sim:FILE";
}

}  // namespace

std::span<const BackendEntry> backend_entries() { return kEntries; }

std::span<const WorkerEntry> worker_entries() { return kWorkers; }

Result<std::unique_ptr<Backend>> make_backend(std::string_view name) {
  for (const BackendEntry& entry : kEntries) {
    const bool wanted = name == "auto" ? entry.automatic && !entry.probe() : name == entry.pattern;
    if (wanted) return entry.make();
  }
  if (name.starts_with(kSimulator) && name.size() > kSimulator.size()) {
    return make_simulator(name.substr(kSimulator.size()));
  }
  if (name.starts_with(kFuriosa)) return make_furiosa(name.substr(kFuriosa.size()));
  return Error{ErrorKind::kUsage, "--backend", "there is no such backend", std::string(name),
               "use one of " + known_names()};
}

}  // namespace npu
