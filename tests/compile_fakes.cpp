#include "compile_fakes.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "base/process.h"
#include "compile/worker.h"
#include "ops/ops.h"

namespace npu::testing_fakes {
namespace {

bool has_exp(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const Node& n) { return !n.is_input() && n.op->name == "exp"; });
}

void use_memory_for_ever() {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (;;) {
    constexpr size_t kBlock = size_t{16} << 20;
    blocks.push_back(std::make_unique<char[]>(kBlock));
    for (size_t i = 0; i < kBlock; i += 4096) blocks.back()[i] = 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// Memory of its own behind a null host_pointer().
class HiddenBuffer : public Buffer {
 public:
  HiddenBuffer(std::shared_ptr<Buffer> memory) : memory_(std::move(memory)) {}
  size_t bytes() const override { return memory_->bytes(); }
  std::byte* host_pointer() override { return nullptr; }
  std::shared_ptr<Buffer> memory() { return memory_; }

 private:
  std::shared_ptr<Buffer> memory_;
};

Buffer* memory_of(Buffer* buffer) { return static_cast<HiddenBuffer*>(buffer)->memory().get(); }

class FakeDevice : public Device {
 public:
  FakeDevice(std::unique_ptr<Device> inner, const FakeOptions& options)
      : inner_(std::move(inner)), options_(options) {}

  Result<std::unique_ptr<Executable>> load(const Blob& blob, const Graph& part) override {
    if (!options_.refuse_load.empty()) {
      return Error{ErrorKind::kRetriable, "device", options_.refuse_load, "", ""};
    }
    if (options_.refuse_exp && has_exp(part)) {
      return Error{ErrorKind::kBadInput, "device", "will not run an exp", "", ""};
    }
    return inner_->load(blob, part);
  }
  Result<std::shared_ptr<Buffer>> allocate(size_t bytes) override {
    return hide(inner_->allocate(bytes));
  }
  Result<std::shared_ptr<Buffer>> adopt(const Tensor& host) override {
    return hide(inner_->adopt(host));
  }
  std::shared_ptr<Buffer> view(std::shared_ptr<Buffer> whole, size_t offset,
                               size_t bytes) override {
    if (!options_.hidden_memory) return inner_->view(whole, offset, bytes);
    auto memory = static_cast<HiddenBuffer*>(whole.get())->memory();
    return std::make_shared<HiddenBuffer>(inner_->view(memory, offset, bytes));
  }
  void upload(Buffer& to, std::span<const std::byte> from) override {
    inner_->upload(options_.hidden_memory ? *memory_of(&to) : to, from);
  }
  void download(std::span<std::byte> to, Buffer& from) override {
    inner_->download(to, options_.hidden_memory ? *memory_of(&from) : from);
  }
  Result<Ticket> submit(Executable& executable, std::span<Buffer* const> inputs,
                        std::span<Buffer* const> outputs) override {
    const int number = submits_++;
    const bool past = options_.stays_lost && options_.fail_submit >= 0;
    if (number == options_.fail_submit || (past && number > options_.fail_submit)) {
      return Error{ErrorKind::kRetriable, "device", "was lost", "", ""};
    }
    if (!options_.hidden_memory) return inner_->submit(executable, inputs, outputs);
    Call call{&executable, {}, {}};
    for (Buffer* b : inputs) call.inputs.push_back(memory_of(b));
    for (Buffer* b : outputs) call.outputs.push_back(memory_of(b));
    calls_.push_back(std::move(call));
    return calls_.size();
  }
  std::optional<Error> wait(Ticket ticket) override {
    if (!options_.hidden_memory) return inner_->wait(ticket);
    for (; done_ < ticket; ++done_) {
      Call& call = calls_[done_];
      auto inner = inner_->submit(*call.executable, call.inputs, call.outputs);
      if (!inner) return inner.error();
      if (auto error = inner_->wait(inner.value())) return error;
    }
    return std::nullopt;
  }

 private:
  struct Call {
    Executable* executable;
    std::vector<Buffer*> inputs, outputs;
  };

  Result<std::shared_ptr<Buffer>> hide(Result<std::shared_ptr<Buffer>> buffer) const {
    if (!buffer || !options_.hidden_memory) return buffer;
    return std::shared_ptr<Buffer>(std::make_shared<HiddenBuffer>(buffer.value()));
  }

  std::unique_ptr<Device> inner_;
  FakeOptions options_;
  int submits_ = 0;
  std::vector<Call> calls_;
  size_t done_ = 0;
};

constexpr std::string_view kFlag = "--compile-child", kRealFlag = "--real-compile-child";

}  // namespace

FakeBackend::FakeBackend(FakeOptions options)
    : options_(std::move(options)), inner_(make_backend(options_.inner).take()) {
  traits_.name = "fake:" + options_.mode;
  traits_.host_memory = !options_.hidden_memory;
}

std::optional<std::string> FakeBackend::unsupported(const Graph& graph, NodeId node,
                                                    const CompileOptions&) {
  if (options_.exp_unsupported && graph.node(node).op->name == "exp") return "no exponentials here";
  return std::nullopt;
}

Result<Blob> FakeBackend::compile(const Graph& part, const CompileOptions& options) {
  const std::string& mode = options_.mode;
  if (const char* file = std::getenv("NPU_FAKE_LOG")) {
    std::ofstream(file, std::ios::app) << part.nodes().size() << "\n";
  }
  if (options_.rejects && options_.rejects(part)) {
    return Error{ErrorKind::kBadInput, "fake", "will not take this", "", ""};
  }
  if (has_exp(part)) {
    std::cerr << "compiling exp" << std::endl;
    if (mode == "reject" || (mode == "pair" && part.num_contractions() > 0))
      return Error{ErrorKind::kBadInput, "exp", "is not accepted", "", ""};
    if (mode == "lost") return Error{ErrorKind::kRetriable, "library", "is not there", "", ""};
    if (mode == "crash") std::raise(SIGSEGV);
    if (mode == "exit") std::_Exit(5);
    if (mode == "throw") throw std::runtime_error("compiler bug");
    if (mode == "hang") std::this_thread::sleep_for(std::chrono::seconds(1000));
    if (mode == "memory") use_memory_for_ever();
    if (mode == "noise") std::cout << "progress: 50 %" << std::endl;
    if (mode == "fall") std::atexit([] { std::raise(SIGSEGV); });
  }
  return inner_->compile(part, options);
}

Result<std::unique_ptr<Device>> FakeBackend::open(const DeviceOptions& options) {
  auto inner = inner_->open(options);
  if (!inner) return inner;
  return std::unique_ptr<Device>(std::make_unique<FakeDevice>(std::move(inner.value()), options_));
}

Result<std::unique_ptr<Backend>> make_fake(std::string_view name) {
  FakeOptions options;
  options.mode = std::string(name.substr(name.find(':') + 1));
  return std::unique_ptr<Backend>(std::make_unique<FakeBackend>(options));
}

std::optional<int> run_if_child(int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  if (argv[1] == kFlag) return serve_compile_job(make_fake);
  if (argv[1] == kRealFlag) return compile_worker_main();
  return std::nullopt;
}

std::vector<std::string> worker_argv() { return {self_executable(), std::string(kFlag)}; }
std::vector<std::string> real_worker_argv() { return {self_executable(), std::string(kRealFlag)}; }

Graph blocks_graph(const std::string& name, int64_t rows) {
  Builder b(name);
  const Value w1 = b.input("w1", {DType::kF32, {16, 32}});
  const Value w2 = b.input("w2", {DType::kF32, {32, 16}});
  const auto block = [&](Value x) {
    return ops::add(ops::matmul(ops::silu(ops::matmul(x, w1)), w2), x);
  };
  const Value x = b.input("x", {DType::kF32, {rows, 16}});
  const Value h = block(x);
  const Value e = ops::matmul(ops::exp(ops::neg(ops::mul(h, h))), w1);
  const Value y = block(ops::matmul(e, w2));
  b.output("y", y);
  b.output("norm", ops::reduce_sum(ops::mul(y, x), {1}));
  return std::move(b).build();
}

std::unique_ptr<Runtime> make_runtime(std::vector<NamedGraph> graphs, Backend& backend,
                                      const PlanOptions& options) {
  const TempDir cache;
  Plan plan = make_plan(graphs, backend, options);
  CompileSettings settings;
  settings.cache_dir = cache.path();
  compile_plan(plan, backend, options.compile, settings);
  return Runtime::create(std::move(plan), backend, {}).take();
}

std::map<std::string, Tensor> run_graph(Runtime& runtime, const std::string& name,
                                        double input_scale) {
  const Graph& graph = runtime.plan().graph(name).graph;
  Device& device = runtime.device();
  std::vector<std::shared_ptr<Buffer>> buffers;
  Runtime::Bindings bindings;
  const auto allocate = [&](const std::string& value, const TensorType& type) {
    buffers.push_back(device.allocate(static_cast<size_t>(type.bytes())).take());
    bindings[value] = buffers.back().get();
  };
  int seed = 0;
  for (const NodeId id : graph.inputs()) {
    const Node& input = graph.node(id);
    allocate(input.name, input.type);
    Tensor values(input.type.dtype, input.type.shape);
    for (int64_t i = 0; i < values.size(); ++i) {
      set_element(values, i, input_scale * 0.3 * std::sin(static_cast<double>(1 + i * 7 + ++seed)));
    }
    device.upload(*bindings[input.name], {values.data(), values.bytes()});
  }
  for (const GraphOutput& output : graph.outputs()) {
    allocate(output.name, graph.node(output.node).type);
  }
  if (auto error = runtime.run(name, bindings)) throw UserError(*error);
  std::map<std::string, Tensor> results;
  for (const GraphOutput& output : graph.outputs()) {
    const TensorType& type = graph.node(output.node).type;
    Tensor result(type.dtype, type.shape);
    device.download({result.mutable_data(), result.bytes()}, *bindings[output.name]);
    results[output.name] = result;
  }
  return results;
}

PlanOptions cut_to(int64_t contractions) {
  PlanOptions options;
  options.limits.contractions = contractions;
  return options;
}

}  // namespace npu::testing_fakes
