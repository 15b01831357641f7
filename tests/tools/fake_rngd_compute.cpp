// Computes for the stand-ins of FuriosaAI's runtimes: a graph as the simulated chip does, TCL as
// our interpreter of it does. On stdin, after a letter: L LENGTH EDF, answered by LENGTH and a line
// for each port ("in f32 16 64"), or by a length of 0; R NUMBER (of the loaded EDF, from 0) and the
// bytes of all inputs, answered by the bytes of all outputs. Numbers are of 8 bytes.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/furiosa_edf.h"
#include "fake_rngd.h"
#include "ir/text.h"
#include "ops/table.h"
#include "tcl_interpreter.h"

namespace npu {
namespace {

bool read_exactly(void* data, size_t bytes) { return std::fread(data, 1, bytes, stdin) == bytes; }

void write_exactly(const void* data, size_t bytes) {
  if (std::fwrite(data, 1, bytes, stdout) != bytes) std::abort();
}

std::string port_line(const char* side, const TensorType& type) {
  std::string line = std::string(side) + " " + std::string(dtype_name(type.dtype));
  for (const int64_t dim : type.shape) line += " " + std::to_string(dim);
  return line + "\n";
}

// A loaded EDF.
class Part {
 public:
  virtual ~Part() = default;
  virtual bool run(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) = 0;
  std::vector<TensorType> inputs, outputs;
};

// The text of a graph, on the simulated chip.
class GraphPart : public Part {
 public:
  GraphPart(Backend& backend, Device& device, Graph part)
      : device_(device), part_(std::move(part)) {
    executable_ = device.load(backend.compile(part_, {}).take(), part_).take();
    const auto add_port = [&](const TensorType& type, std::vector<TensorType>& types) {
      types.push_back(type);
      buffers_.push_back(device.allocate(static_cast<size_t>(type.bytes())).take());
    };
    for (const NodeId id : part_.inputs()) add_port(part_.node(id).type, inputs);
    for (const GraphOutput& output : part_.outputs()) {
      add_port(part_.node(output.node).type, outputs);
    }
  }
  bool run(const std::vector<Tensor>& values, std::vector<Tensor>& results) override {
    std::vector<Buffer*> pointers;
    for (const auto& buffer : buffers_) pointers.push_back(buffer.get());
    const std::span<Buffer* const> all = pointers;
    for (size_t i = 0; i < values.size(); ++i) {
      device_.upload(*all[i], {values[i].data(), values[i].bytes()});
    }
    const auto ticket =
        device_.submit(*executable_, all.first(values.size()), all.subspan(values.size()));
    if (!ticket || device_.wait(ticket.value())) return false;
    for (size_t i = 0; i < outputs.size(); ++i) {
      results.emplace_back(outputs[i].dtype, outputs[i].shape);
      device_.download({results[i].mutable_data(), results[i].bytes()}, *all[values.size() + i]);
    }
    return true;
  }

 private:
  Device& device_;
  Graph part_;
  std::unique_ptr<Executable> executable_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
};

// The text that the stand-in for furiosa-tcc put into its EDF.
class TclPart : public Part {
 public:
  TclPart(const EdfPorts& ports, std::string text) : text_(std::move(text)) {
    const auto add = [](const std::vector<EdfPort>& from, std::vector<TensorType>& to) {
      for (const EdfPort& port : from) {
        to.push_back({port.element_type == "Bfloat16" ? DType::kBF16 : DType::kF32, port.dims});
      }
    };
    add(ports.inputs, inputs);
    add(ports.outputs, outputs);
  }
  bool run(const std::vector<Tensor>& values, std::vector<Tensor>& results) override {
    const auto computed = run_tcl(text_, values);
    if (!computed) {
      std::fprintf(stderr, "%s\n", computed.error().text().c_str());
      return false;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      results.push_back(
          Tensor::from_f32(outputs[i].shape, computed.value()[i].values).to(outputs[i].dtype));
    }
    return true;
  }

 private:
  std::string text_;
};

class Computer {
 public:
  Computer()
      : backend_(make_backend("sim:furiosa").take()),
        device_(backend_->open({.threads = 1}).take()) {}

  std::string load(const std::string& edf) {
    std::unique_ptr<Part> part = read(edf);
    if (!part) return "";
    std::string ports;
    for (const TensorType& type : part->inputs) ports += port_line("in", type);
    for (const TensorType& type : part->outputs) ports += port_line("out", type);
    loaded_.push_back(std::move(part));
    return ports;
  }

  bool run(uint64_t number) {
    if (number >= loaded_.size()) return false;
    std::vector<Tensor> inputs, outputs;
    for (const TensorType& type : loaded_[number]->inputs) {
      Tensor& input = inputs.emplace_back(type.dtype, type.shape);
      if (!read_exactly(input.mutable_data(), input.bytes())) return false;
    }
    if (!loaded_[number]->run(inputs, outputs)) return false;
    for (const Tensor& output : outputs) write_exactly(output.data(), output.bytes());
    return true;
  }

 private:
  std::unique_ptr<Part> read(const std::string& edf) {
    if (edf.starts_with(kFakeEdf)) {
      Result<Graph> graph = parse_graph(edf.substr(kFakeEdf.size()), find_op);
      if (!graph || !backend_->compile(graph.value(), {})) return nullptr;
      return std::make_unique<GraphPart>(*backend_, *device_, std::move(graph.value()));
    }
    const Result<EdfPorts> ports = read_edf_ports(edf);
    const size_t text = edf.find("#tactic_kernel_dsl");
    const size_t end = edf.rfind("\x69signature");  // the key behind the text
    if (!ports || text == std::string::npos || end == std::string::npos || end < text) {
      return nullptr;
    }
    return std::make_unique<TclPart>(ports.value(), edf.substr(text, end - text));
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Part>> loaded_;
};

int serve() {
  Computer computer;
  char letter = 0;
  uint64_t number = 0;
  while (read_exactly(&letter, 1) && read_exactly(&number, sizeof number)) {
    if (letter == 'R') {
      if (!computer.run(number)) return 1;
    } else {
      std::string edf(number, '\0');
      if (!read_exactly(edf.data(), edf.size())) return 1;
      const std::string ports = computer.load(edf);
      const uint64_t length = ports.size();
      write_exactly(&length, sizeof length);
      write_exactly(ports.data(), ports.size());
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace npu

int main() { return npu::serve(); }
