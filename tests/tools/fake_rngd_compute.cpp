// Computes for the stand-ins of FuriosaAI's runtimes: a graph as the simulated chip does, TCL as
// the cpu executor does what it says. The card's memory is shared: FD and BYTES are its arguments.
// On stdin, after a letter: L LENGTH EDF, answered by LENGTH and a line for each port ("in f32 16
// 64"), or by a length of 0; R NUMBER (of the loaded EDF, from 0) and where in the memory each
// input and output lies, answered by 0 when they are computed. Numbers are of 8 bytes.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "fake_rngd.h"
#include "ir/text.h"
#include "ops/table.h"
#include "tcl_graph.h"

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

std::byte* shared = nullptr;  // the card's memory
size_t shared_bytes = 0;

// A loaded EDF: a part on a device of this program's own.
class Part {
 public:
  Part(Backend& backend, Device& device, Graph part) : device_(device), part_(std::move(part)) {
    executable_ = device.load(backend.compile(part_, {}).take(), part_).take();
    for (const NodeId id : part_.inputs()) inputs.push_back(part_.node(id).type);
    for (const GraphOutput& output : part_.outputs()) {
      outputs.push_back(part_.node(output.node).type);
    }
  }
  virtual ~Part() = default;

  // The values lie from these places on, inputs first.
  virtual bool run(const std::vector<uint64_t>& places) = 0;
  std::vector<TensorType> inputs, outputs;

 protected:
  bool run_on(const std::vector<std::shared_ptr<Buffer>>& buffers) {
    std::vector<Buffer*> pointers;
    for (const auto& buffer : buffers) pointers.push_back(buffer.get());
    const std::span<Buffer* const> all = pointers;
    const auto ticket =
        device_.submit(*executable_, all.first(inputs.size()), all.subspan(inputs.size()));
    return ticket && !device_.wait(ticket.value());
  }
  std::span<std::byte> bytes_at(uint64_t place, size_t port) const {
    const TensorType& type = port < inputs.size() ? inputs[port] : outputs[port - inputs.size()];
    return {shared + place, static_cast<size_t>(type.bytes())};
  }
  Device& device_;

 private:
  Graph part_;
  std::unique_ptr<Executable> executable_;
};

// On a device with memory of its own.
class CopyingPart : public Part {
 public:
  CopyingPart(Backend& backend, Device& device, Graph part)
      : Part(backend, device, std::move(part)) {
    for (const auto& types : {inputs, outputs}) {
      for (const TensorType& type : types) {
        buffers_.push_back(device.allocate(static_cast<size_t>(type.bytes())).take());
      }
    }
  }
  bool run(const std::vector<uint64_t>& places) override {
    for (size_t i = 0; i < inputs.size(); ++i) {
      device_.upload(*buffers_[i], bytes_at(places[i], i));
    }
    if (!run_on(buffers_)) return false;
    for (size_t i = inputs.size(); i < places.size(); ++i) {
      device_.download(bytes_at(places[i], i), *buffers_[i]);
    }
    return true;
  }

 private:
  std::vector<std::shared_ptr<Buffer>> buffers_;
};

// On a device that computes where the values lie.
class SharedPart : public Part {
 public:
  SharedPart(Backend& backend, Device& device, std::shared_ptr<Buffer> memory, Graph part)
      : Part(backend, device, std::move(part)), memory_(std::move(memory)) {}
  bool run(const std::vector<uint64_t>& places) override {
    std::vector<std::shared_ptr<Buffer>> windows;
    for (size_t i = 0; i < places.size(); ++i) {
      windows.push_back(device_.view(memory_, places[i], bytes_at(places[i], i).size()));
    }
    return run_on(windows);
  }

 private:
  std::shared_ptr<Buffer> memory_;
};

class Computer {
 public:
  Computer() {
    const char* const threads = std::getenv("FAKE_RNGD_THREADS");
    const DeviceOptions options{.threads = threads == nullptr ? 1 : std::atoi(threads)};
    simulator_ = make_backend("sim:furiosa").take();
    simulated_ = simulator_->open(options).take();
    cpu_ = make_backend("cpu").take();
    host_ = cpu_->open(options).take();
    memory_ = host_->adopt(Tensor::borrow(DType::kU8, {static_cast<int64_t>(shared_bytes)}, shared))
                  .take();
  }

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
    Part& part = *loaded_[number];
    std::vector<uint64_t> places(part.inputs.size() + part.outputs.size());
    if (!read_exactly(places.data(), places.size() * sizeof places[0])) return false;
    return part.run(places);
  }

 private:
  std::unique_ptr<Part> read(const std::string& edf) {
    if (edf.starts_with(kFakeEdf)) {
      Result<Graph> graph = parse_graph(edf.substr(kFakeEdf.size()), find_op);
      if (!graph || !simulator_->compile(graph.value(), {})) return nullptr;
      return std::make_unique<CopyingPart>(*simulator_, *simulated_, std::move(graph.value()));
    }
    // The text that the stand-in for furiosa-tcc put into its EDF, before the signature.
    const size_t text = edf.find("#tactic_kernel_dsl");
    const size_t end = edf.rfind("\x69signature");
    if (text == std::string::npos || end == std::string::npos || end < text) return nullptr;
    Result<Graph> graph = tcl_graph(edf.substr(text, end - text));
    if (!graph) {
      std::fprintf(stderr, "%s\n", graph.error().text().c_str());
      return nullptr;
    }
    return std::make_unique<SharedPart>(*cpu_, *host_, memory_, std::move(graph.value()));
  }

  std::unique_ptr<Backend> simulator_, cpu_;
  std::unique_ptr<Device> simulated_, host_;
  std::shared_ptr<Buffer> memory_;
  std::vector<std::unique_ptr<Part>> loaded_;
};

int serve() {
  Computer computer;
  char letter = 0;
  uint64_t number = 0;
  while (read_exactly(&letter, 1) && read_exactly(&number, sizeof number)) {
    if (letter == 'R') {
      if (!computer.run(number)) return 1;
      const uint64_t done = 0;
      write_exactly(&done, sizeof done);
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

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  npu::shared_bytes = std::strtoull(argv[2], nullptr, 10);
  void* const mapped =
      ::mmap(nullptr, npu::shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, std::atoi(argv[1]), 0);
  if (mapped == MAP_FAILED) return 2;
  npu::shared = static_cast<std::byte*>(mapped);
  return npu::serve();
}
