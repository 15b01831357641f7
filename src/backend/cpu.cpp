// Backend "cpu": parts are planned once when loaded and run on a pool of threads.
#include "backend/cpu.h"

#include <mutex>
#include <new>

#include "backend/cpu_amx.h"
#include "backend/cpu_matmul.h"
#include "backend/cpu_packed_weights.h"
#include "backend/cpu_part.h"
#include "backend/cpu_run.h"
#include "backend/host_device.h"
#include "ir/text.h"

namespace npu {
namespace {

class CpuExecutable : public Executable {
 public:
  CpuExecutable(Graph part, int threads)
      : graph(std::move(part)), runner(cpu::make_plan(graph, cpu::best_product_unit()), threads) {}

  const Graph graph;
  cpu::PlanRunner runner;
  std::vector<std::byte*> inputs, outputs;  // kept, so that a call allocates nothing
  std::vector<const std::byte*> weights;
};

class CpuDevice : public HostDevice {
 public:
  explicit CpuDevice(const DeviceOptions& options)
      : HostDevice(alignof(int64_t)),
        prepack_(options.prepack),
        pool_(options.threads),
        workspace_(pool_.threads()) {}

  Result<std::unique_ptr<Executable>> load(const Blob& blob, const Graph& part) override {
    Result<Graph> graph = cpu::decode_part(blob, part);
    if (!graph) return graph.error();
    try {
      auto executable = std::make_unique<CpuExecutable>(std::move(graph.value()), pool_.threads());
      const std::lock_guard lock(mutex_);
      workspace_.reserve(executable->runner.plan());
      return std::unique_ptr<Executable>(std::move(executable));
    } catch (const std::bad_alloc&) {
      return cpu::too_large(part);
    }
  }

  Result<Ticket> submit(Executable& executable, std::span<Buffer* const> inputs,
                        std::span<Buffer* const> outputs) override {
    auto* loaded = dynamic_cast<CpuExecutable*>(&executable);
    NPU_CHECK(loaded != nullptr, "the executable is of another device");
    if (auto error = cpu::check_call(loaded->graph, inputs, outputs)) return *error;
    const std::lock_guard lock(mutex_);
    loaded->inputs.clear();
    loaded->outputs.clear();
    for (Buffer* buffer : inputs) loaded->inputs.push_back(buffer->host_pointer());
    for (Buffer* buffer : outputs) loaded->outputs.push_back(buffer->host_pointer());
    if (prepack_) {
      const cpu::Plan& plan = loaded->runner.plan();
      if (auto error = cpu::packed_weights(plan.weights, inputs, pool_, loaded->weights)) {
        return *error;
      }
    }
    loaded->runner.run(pool_, workspace_, loaded->inputs, loaded->outputs, loaded->weights);
    return ++last_ticket_;
  }

 private:
  std::mutex mutex_;  // one call at a time: the workspace and packed weights are shared
  const bool prepack_;
  ThreadPool pool_;
  cpu::Workspace workspace_;
  Ticket last_ticket_ = 0;
};

class CpuBackend : public Backend {
 public:
  CpuBackend() {
    traits_.name = "cpu";
    traits_.host_cpu = true;
    traits_.widens_weights = true;
    const cpu::ProductUnit unit = cpu::best_product_unit();
    traits_.prepack = unit == cpu::ProductUnit::kBlas ? Prepack::kNever : Prepack::kByDefault;
    traits_.prepack_bytes = 2;
    traits_.forward_reads_bf16 = unit == cpu::ProductUnit::kAmx;
    traits_.prepack_bf16_only = traits_.prepack_exact = unit == cpu::ProductUnit::kVector;
  }
  const Traits& traits() const override { return traits_; }
  Result<std::string> compiler_version() override {
    return "cpu 2, loops " + std::string(cpu::loop_table().isa) + ", products " +
           cpu::product_units();
  }
  std::optional<std::string> unsupported(const Graph&, NodeId, const CompileOptions&) override {
    return std::nullopt;
  }
  Result<Blob> compile(const Graph& part, const CompileOptions&) override {
    return print_graph(part);
  }
  bool compiles_in_process() const override { return true; }
  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override {
    cpu::use_single_threaded_blas();
    return std::unique_ptr<Device>(std::make_unique<CpuDevice>(options));
  }

 private:
  Traits traits_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu() { return std::make_unique<CpuBackend>(); }

}  // namespace npu
