// Runs imported parts: buffers are bound to ports as host pointers, so nothing is copied.
#include "backend/openvino_device.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/frozen_inputs.h"
#include "backend/graph_writers.h"
#include "backend/host_device.h"
#include "backend/sealed_blob.h"

namespace npu {
namespace {

constexpr std::string_view kPrecisionKey = "INFERENCE_PRECISION_HINT";
constexpr size_t kFastAlignment =
    64;  // kernels lose a third of their speed on less aligned operands

// One input or output of a loaded part, with the memory that it is bound to at present.
struct Port {
  TensorType type;
  OvHandle<OvPort> handle;
  size_t position = 0;         // among the inputs or outputs of the part
  bool bound_directly = true;  // else copied out after each call
  std::byte* memory = nullptr;
  OvHandle<OvTensor> tensor = {nullptr, [](OvTensor*) {}};
};

// The weights of products, but for square ones that the part reads both as they lie and transposed:
// the runtime packs such a constant once, for one of the two (seen in 2026.4.1).
std::vector<bool> constant_weights(const Graph& part) {
  std::vector<bool> weights = product_weights(part);
  std::vector<bool> plain(part.nodes().size(), false), transposed = plain;
  for (size_t id = part.nodes().size(); id-- > 0;) {
    const Node& node = part.nodes()[id];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const size_t operand = static_cast<size_t>(node.inputs[i]);
      if (!node.op->traits.contraction) {  // a conversion, where it matters
        plain[operand] = plain[operand] || plain[id];
        transposed[operand] = transposed[operand] || transposed[id];
      } else if (i == 1) {
        std::vector<bool>& uses = node.attrs.integer("transpose_rhs", 0) != 0 ? transposed : plain;
        uses[operand] = true;
      }
    }
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t id = static_cast<size_t>(part.inputs()[i]);
    const Shape& shape = part.nodes()[id].type.shape;
    if (plain[id] && transposed[id] && shape[0] == shape[1]) weights[i] = false;
  }
  return weights;
}

// A compiled part, with all inputs bound or some of them constant.
struct OpenVinoCode {
  std::unique_ptr<std::string> constants;  // read by the compiled part where they lie
  OvHandle<OvCompiled> compiled;
  OvHandle<OvRequest> request;
  std::vector<Port> inputs = {}, outputs = {};
};

using OpenVinoExecutable = PrepackExecutable<OpenVinoCode>;

std::vector<bool> constant_nodes(const Graph& part, const ConstantInputs& constants) {
  std::vector<bool> constant(part.nodes().size());
  for (const auto& known : constants) {
    constant[static_cast<size_t>(part.inputs()[known.first])] = true;
  }
  for (size_t id = 0; id < constant.size(); ++id) {
    const Node& node = part.nodes()[id];
    if (node.is_input()) continue;
    constant[id] = std::all_of(node.inputs.begin(), node.inputs.end(),
                               [&](NodeId in) { return constant[static_cast<size_t>(in)]; });
  }
  return constant;
}

// Which outputs may be bound to the caller's memory. Where the runtime drops or shares the node of
// an output (a movement, a conversion, x·1), binding it can redirect the *input* behind it to the
// output's memory: results are then wrong without any error (seen in 2026.4.1). Such outputs, and
// those that are inputs or repeat an earlier output, are copied after the call instead.
std::vector<bool> directly_bound(const Graph& part, const ConstantInputs& constants) {
  const std::vector<bool> constant = constant_nodes(part, constants);
  std::vector<bool> direct;
  std::vector<NodeId> seen;
  for (const GraphOutput& output : part.outputs()) {
    const Node& node = part.node(output.node);
    const bool repeated = std::find(seen.begin(), seen.end(), output.node) != seen.end();
    seen.push_back(output.node);
    bool may_vanish = node.is_input() || constant[static_cast<size_t>(output.node)];
    if (!may_vanish) {
      may_vanish = node.op->traits.movement;
      for (const NodeId in : node.inputs) {
        // No product is dropped for what its constant operand holds.
        may_vanish |= constant[static_cast<size_t>(in)] && !node.op->traits.contraction;
        may_vanish |= part.node(in).type.dtype != node.type.dtype;
      }
    }
    direct.push_back(!may_vanish && !repeated);
  }
  return direct;
}

// Element numbers and shapes as this program understands them: releases have renumbered the types.
std::optional<Error> check_port(const OpenVinoLibrary& library, const OvPort& port,
                                const TensorType& type, const std::string& name) {
  const Result<OvPortType> found = library.port_type(port);
  if (!found) return found.error();
  if (found.value().element == static_cast<int>(ov_element(type.dtype)) &&
      found.value().shape == type.shape) {
    return std::nullopt;
  }
  return Error{ErrorKind::kBadInput, "openvino " + library.version(),
               "port \"" + name + "\" must be " + type.text(),
               "element type " + std::to_string(found.value().element) + ", shape " +
                   shape_text(found.value().shape),
               "use OpenVINO 2026.4.1"};
}

class OpenVinoDeviceRunner : public HostDevice {
 public:
  OpenVinoDeviceRunner(OpenVinoHandle library, const OpenVinoTarget& target, OvHandle<OvCore> core,
                       bool prepack)
      : HostDevice(kFastAlignment),
        library_(std::move(library)),
        target_(target),
        core_(std::move(core)),
        prepack_(prepack) {}

  Result<std::unique_ptr<Executable>> load(const Blob& blob, const Graph& part) override;
  Result<Ticket> submit(Executable& executable, std::span<Buffer* const> inputs,
                        std::span<Buffer* const> outputs) override;

 private:
  Result<std::unique_ptr<OpenVinoCode>> make_code(Result<OvHandle<OvCompiled>> compiled,
                                                  std::unique_ptr<std::string> constant_bytes,
                                                  const Graph& part,
                                                  const ConstantInputs& constants) const;
  Result<std::unique_ptr<OpenVinoCode>> compile_with(const Graph& part,
                                                     const ConstantInputs& constants) const;
  std::optional<Error> add_ports(OpenVinoCode& code, const Graph& part,
                                 const ConstantInputs& constants) const;
  // Makes the port use the buffer; `bind` hands a new tensor to the request. Wrapping is skipped
  // while the buffer stays the same, as it does for most ports from call to call.
  template <class Bind>
  std::optional<Error> retarget(Port& port, Buffer& buffer, std::string_view side, Bind&& bind);

  OpenVinoHandle library_;
  OpenVinoTarget target_;
  OvHandle<OvCore> core_;
  bool prepack_;
  Ticket last_ticket_ = 0;
};

Result<std::unique_ptr<OpenVinoCode>> OpenVinoDeviceRunner::make_code(
    Result<OvHandle<OvCompiled>> compiled, std::unique_ptr<std::string> constant_bytes,
    const Graph& part, const ConstantInputs& constants) const {
  if (!compiled) return compiled.error();
  if (auto failure = check_precision(*library_, *compiled.value(), target_)) return *failure;
  Result<OvHandle<OvRequest>> request = library_->create_request(*compiled.value());
  if (!request) return request.error();
  std::unique_ptr<OpenVinoCode> code(new OpenVinoCode{
      std::move(constant_bytes), std::move(compiled.value()), std::move(request.value())});
  if (auto failure = add_ports(*code, part, constants)) return *failure;
  return code;
}

Result<std::unique_ptr<Executable>> OpenVinoDeviceRunner::load(const Blob& blob,
                                                               const Graph& part) {
  const Result<std::string_view> exported = unseal_blob("openvino", library_->version(), blob);
  if (!exported) return exported.error();
  Result<std::unique_ptr<OpenVinoCode>> code = make_code(
      library_->import_blob(*core_, exported.value(), std::string(target_.device)), {}, part, {});
  if (!code) return code.error();
  return std::unique_ptr<Executable>(
      std::make_unique<OpenVinoExecutable>(part, constant_weights(part), std::move(code.value())));
}

Result<std::unique_ptr<OpenVinoCode>> OpenVinoDeviceRunner::compile_with(
    const Graph& part, const ConstantInputs& constants) const {
  auto bytes = std::make_unique<std::string>();
  const std::string xml = write_openvino_ir(part, bytes.get(), constants);
  const Result<OvHandle<OvModel>> model = library_->read_model(*core_, xml, *bytes);
  if (!model) return model.error();
  auto compiled = library_->compile(*core_, *model.value(), std::string(target_.device));
  return make_code(std::move(compiled), std::move(bytes), part, constants);
}

std::optional<Error> OpenVinoDeviceRunner::add_ports(OpenVinoCode& code, const Graph& part,
                                                     const ConstantInputs& constants) const {
  for (size_t i = 0; i < part.inputs().size(); ++i) {
    if (constants.contains(i)) continue;
    const Node& node = part.node(part.inputs()[i]);
    Result<OvHandle<OvPort>> port = library_->input_by_name(*code.compiled, node.name);
    if (!port) return port.error();
    if (auto failure = check_port(*library_, *port.value(), node.type, node.name)) return failure;
    code.inputs.push_back({node.type, std::move(port.value()), i});
  }
  const Result<size_t> num_outputs = library_->num_outputs(*code.compiled);
  if (!num_outputs) return num_outputs.error();
  if (num_outputs.value() != part.outputs().size()) {
    return Error{ErrorKind::kBadInput, "openvino blob",
                 "must have " + std::to_string(part.outputs().size()) + " outputs",
                 std::to_string(num_outputs.value()), "clear the compile cache"};
  }
  const std::vector<bool> direct = directly_bound(part, constants);
  for (size_t i = 0; i < part.outputs().size(); ++i) {
    const GraphOutput& output = part.outputs()[i];
    const TensorType& type = part.node(output.node).type;
    Result<OvHandle<OvPort>> port = library_->output_by_index(*code.compiled, i);
    if (!port) return port.error();
    if (auto failure = check_port(*library_, *port.value(), type, output.name)) return failure;
    code.outputs.push_back({type, std::move(port.value()), i, direct[i]});
  }
  return std::nullopt;
}

template <class Bind>
std::optional<Error> OpenVinoDeviceRunner::retarget(Port& port, Buffer& buffer,
                                                    std::string_view side, Bind&& bind) {
  const size_t bytes = static_cast<size_t>(port.type.bytes());
  if (buffer.bytes() < bytes) {
    return Error{ErrorKind::kBadInput, std::string(target_.backend),
                 std::string(side) + " " + std::to_string(port.position) + " needs " +
                     std::to_string(bytes) + " bytes",
                 "a buffer of " + std::to_string(buffer.bytes()), ""};
  }
  if (port.memory == buffer.host_pointer()) return std::nullopt;
  Result<OvHandle<OvTensor>> tensor =
      library_->wrap(port.type.dtype, port.type.shape, buffer.host_pointer());
  if (!tensor) return tensor.error();
  port.memory = nullptr;  // unknown again should binding fail
  port.tensor = std::move(tensor.value());
  if (auto failure = bind(*port.tensor)) return failure;
  port.memory = buffer.host_pointer();
  return std::nullopt;
}

Result<Device::Ticket> OpenVinoDeviceRunner::submit(Executable& executable,
                                                    std::span<Buffer* const> inputs,
                                                    std::span<Buffer* const> outputs) {
  auto& loaded = dynamic_cast<OpenVinoExecutable&>(executable);
  NPU_CHECK(inputs.size() == loaded.part.inputs().size() &&
                outputs.size() == loaded.part.outputs().size(),
            "a call binds every input and output of its part");
  const Result<OpenVinoCode*> chosen = loaded.code_for(
      inputs, prepack_,
      [&](const ConstantInputs& constants) { return compile_with(loaded.part, constants); });
  if (!chosen) return chosen.error();
  OpenVinoCode& code = *chosen.value();
  for (Port& port : code.inputs) {
    auto failure = retarget(port, *inputs[port.position], "input", [&](OvTensor& tensor) {
      return library_->bind_input(*code.request, *port.handle, tensor);
    });
    if (failure) return *failure;
  }
  for (Port& port : code.outputs) {
    auto failure = retarget(port, *outputs[port.position], "output",
                            [&](OvTensor& tensor) -> std::optional<Error> {
                              if (!port.bound_directly) return std::nullopt;
                              return library_->bind_output(*code.request, port.position, tensor);
                            });
    if (failure) return *failure;
  }
  if (auto failure = library_->infer(*code.request)) return *failure;
  for (const Port& port : code.outputs) {
    if (port.bound_directly) continue;
    auto failure = library_->copy_output(*code.request, port.position,
                                         {port.memory, static_cast<size_t>(port.type.bytes())});
    if (failure) return *failure;
  }
  return ++last_ticket_;
}

}  // namespace

Result<OvHandle<OvCore>> configured_core(
    const OpenVinoLibrary& library, const OpenVinoTarget& target, int threads,
    const std::vector<std::pair<std::string, std::string>>& properties) {
  Result<OvHandle<OvCore>> core = library.create_core();
  if (!core) return core;
  std::vector<std::pair<std::string, std::string>> all = properties;
  all.emplace_back(kPrecisionKey, target.precision);
  if (target.has_threads) {
    all.emplace_back("NUM_STREAMS", "1");
    if (threads > 0) all.emplace_back("INFERENCE_NUM_THREADS", std::to_string(threads));
  }
  for (const auto& [key, value] : all) {
    auto failure = library.set_property(*core.value(), std::string(target.device), key, value);
    if (failure) return *failure;
  }
  return core;
}

std::optional<Error> check_precision(const OpenVinoLibrary& library, const OvCompiled& compiled,
                                     const OpenVinoTarget& target) {
  const Result<std::string> effective =
      library.compiled_property(compiled, std::string(kPrecisionKey));
  if (!effective) return effective.error();
  if (effective.value() == target.precision) return std::nullopt;
  return Error{ErrorKind::kBadInput, std::string(target.backend),
               "must compute in " + std::string(target.precision), effective.value(),
               "use OpenVINO 2026.4.1"};
}

Result<std::unique_ptr<Device>> open_openvino_device(OpenVinoHandle library,
                                                     const OpenVinoTarget& target,
                                                     const DeviceOptions& options) {
  Result<OvHandle<OvCore>> core = configured_core(*library, target, options.threads, {});
  if (!core) return core.error();
  return std::unique_ptr<Device>(std::make_unique<OpenVinoDeviceRunner>(
      std::move(library), target, std::move(core.value()), options.prepack));
}

}  // namespace npu
