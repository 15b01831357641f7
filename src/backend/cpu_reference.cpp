// Backend "cpu:reference": every node by its row's own kernel, in order. Slow, and the judge of
// every other backend.
#include <cstring>
#include <map>

#include "backend/cpu.h"
#include "backend/cpu_part.h"
#include "backend/host_device.h"
#include "ir/text.h"
#include "ops/table.h"

namespace npu {
namespace {

struct ReferenceExecutable : Executable {
  explicit ReferenceExecutable(Graph part) : graph(std::move(part)) {}
  Graph graph;
};

class ReferenceDevice : public HostDevice {
 public:
  ReferenceDevice() : HostDevice(alignof(int64_t)) {}

  Result<std::unique_ptr<Executable>> load(const Blob& blob, const Graph& part) override {
    Result<Graph> graph = cpu::decode_part(blob, part);
    if (!graph) return graph.error();
    return std::unique_ptr<Executable>(
        std::make_unique<ReferenceExecutable>(std::move(graph.value())));
  }

  Result<Ticket> submit(Executable& executable, std::span<Buffer* const> inputs,
                        std::span<Buffer* const> outputs) override {
    const auto* loaded = dynamic_cast<ReferenceExecutable*>(&executable);
    NPU_CHECK(loaded != nullptr, "the executable is of another device");
    const Graph& graph = loaded->graph;
    if (auto error = cpu::check_call(graph, inputs, outputs)) return *error;
    std::map<std::string, Tensor> values;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Node& node = graph.node(graph.inputs()[i]);
      values.emplace(node.name,
                     Tensor::borrow(node.type.dtype, node.type.shape, inputs[i]->host_pointer()));
    }
    const std::vector<Tensor> results = interpret(graph, values);
    for (size_t i = 0; i < outputs.size(); ++i) {
      std::memcpy(outputs[i]->host_pointer(), results[i].data(), results[i].bytes());
    }
    return ++last_ticket_;
  }

 private:
  Ticket last_ticket_ = 0;
};

class ReferenceBackend : public Backend {
 public:
  ReferenceBackend() {
    traits_.name = "cpu:reference";
    traits_.host_cpu = true;
  }
  const Traits& traits() const override { return traits_; }
  Result<std::string> compiler_version() override { return std::string("reference 1"); }
  std::optional<std::string> unsupported(const Graph&, NodeId, const CompileOptions&) override {
    return std::nullopt;
  }
  Result<Blob> compile(const Graph& part, const CompileOptions&) override {
    return print_graph(part);
  }
  bool compiles_in_process() const override { return true; }
  Result<std::unique_ptr<Device>> open(const DeviceOptions&) override {
    return std::unique_ptr<Device>(std::make_unique<ReferenceDevice>());
  }

 private:
  Traits traits_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_reference() { return std::make_unique<ReferenceBackend>(); }

}  // namespace npu
