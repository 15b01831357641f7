// The devices that stand in for real ones. What is known of each, and what is fitted to what was
// measured on it: docs/simulators.md.
#include "backend/sim_profile.h"

namespace npu::sim {
namespace {

constexpr std::string_view kFuriosa = R"(
name: furiosa
compute_dtype: f32
memory: device
memory_bytes: 51539607552           # 48 GiB of HBM
arithmetic: [f32, bf16]             # f16 has no native arithmetic
rounding:
  subnormals: flush
  nan: canonical
  matmul: {operands: {format: bf16}}  # accumulates in f32
reject:
  - pattern: pad
    reason: "UnsupportedOpError: failed to compile the graph: aten.constant_pad_nd"
legalise: [pad_to_concat]
limits: {contractions: 2, inputs: 119}
costs:
  launch_seconds: 0.00008
  flops_per_second: 200.0e12
  h2d_bytes_per_second: 20.0e9
  d2h_bytes_per_second: 20.0e9
  compile_seconds_per_node: 0.0002
)";

constexpr std::string_view kRbln = R"(
name: rbln
compute_dtype: f32
memory: host                        # every call moves every input, weights included
memory_bytes: 17179869184           # 16 GB
arithmetic: [f32, bf16]
rounding:
  subnormals: flush
  nan: canonical
  matmul:
    operands: {format: bf16}
    result: {format: bf16, mode: away, bias: 0.9, from: 0.125}
  elementwise:
    operands: {format: bf16}
    result: {format: bf16, mode: away, bias: 0.9, from: 0.125}
  transcendental:
    operands: {format: bf16}
    result: {format: bf16, mode: away, bias: 0.9, from: 0.125}
  reduce:
    operands: {format: bf16}
    result: {format: bf16, mode: away, bias: 0.9, from: 0.125}
reject:
  - pattern: neg -> add => matmul
    how: crash
    reason: "librbln.so: segmentation fault"
  - pattern: neg -> add
    reason: "DEVICE_GRAPH_CONVERSION: cannot lower neg feeding add"
inputs: by-use
legalise: [fold_neg_add]
host_parts: [fwd]
limits: {contractions: 2}
costs:
  launch_seconds: 0.0003
  flops_per_second: 32.0e12
  h2d_bytes_per_second: 12.0e9
  d2h_bytes_per_second: 12.0e9
  compile_seconds_per_node: 0.0002
)";

}  // namespace

std::optional<std::string_view> builtin_profile(std::string_view name) {
  if (name == "furiosa") return kFuriosa;
  if (name == "rbln") return kRbln;
  return std::nullopt;
}

}  // namespace npu::sim
