// Backends that misbehave on purpose, and graphs to try them on. Both wrap a real CPU backend.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "compile/plan.h"

namespace npu::testing_fakes {

// What compile() does with a part that holds an `exp`: the mode in the backend's name, so that a
// child does the same ("fake:crash").
//   ok, reject, lost (retriable), crash, exit, throw, hang, memory, noise (prints to stdout first),
//   fall (answers, then crashes), pair (rejects it beside a matmul only)
// With the environment variable NPU_FAKE_LOG set to a file, each compile appends a line to it.
struct FakeOptions {
  std::string mode = "ok";
  std::string inner = "cpu:reference";
  std::string compiler = "fake compiler 1";
  bool in_process = false;
  bool exp_unsupported = false;
  // Buffers that the host can't address, on a device that runs calls only when they are waited for.
  bool hidden_memory = false;
  std::string refuse_load;                    // an error of every load
  int fail_submit = -1;                       // the number of the submit that fails
  bool stays_lost = false;                    // and all after it
  bool refuse_exp = false;                    // an error of the loads of parts that hold an exp
  std::function<bool(const Graph&)> rejects;  // compiles in this process only
};

class FakeBackend : public Backend {
 public:
  explicit FakeBackend(FakeOptions options);
  const Traits& traits() const override { return traits_; }
  Result<std::string> compiler_version() override { return options_.compiler; }
  std::optional<std::string> unsupported(const Graph& graph, NodeId node,
                                         const CompileOptions&) override;
  Result<Blob> compile(const Graph& part, const CompileOptions& options) override;
  bool compiles_in_process() const override { return options_.in_process; }
  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override;

 private:
  FakeOptions options_;
  Traits traits_;
  std::unique_ptr<Backend> inner_;
};

// "fake:MODE", for compile children.
Result<std::unique_ptr<Backend>> make_fake(std::string_view name);

// Called first in main(): nothing unless this process is a compile child.
std::optional<int> run_if_child(int argc, char** argv);
std::vector<std::string> worker_argv();       // a child that knows the fakes
std::vector<std::string> real_worker_argv();  // compile_worker_main()

// Two equal blocks y = silu(x·w1)·w2 + x, a part with exp between them, and a second output.
// Inputs x [8,16], w1 [16,32], w2 [32,16] (shared by both blocks); outputs "y", "norm".
Graph blocks_graph(const std::string& name = "blocks", int64_t rows = 8);

// Compiles in this process into a fresh cache and opens a runtime.
std::unique_ptr<Runtime> make_runtime(std::vector<NamedGraph> graphs, Backend& backend,
                                      const PlanOptions& options);

// Runs `graph` with fixed inputs; the outputs by name.
std::map<std::string, Tensor> run_graph(Runtime& runtime, const std::string& graph,
                                        double input_scale = 1);

PlanOptions cut_to(int64_t contractions);

}  // namespace npu::testing_fakes
