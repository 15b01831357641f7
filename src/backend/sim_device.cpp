// Memory, calls and clock of a simulated device. The arithmetic is the cpu executor's.
#include "backend/sim_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "backend/cpu_matmul.h"
#include "backend/cpu_part.h"
#include "backend/cpu_run.h"
#include "backend/host_device.h"
#include "backend/sim_compile.h"
#include "ir/text.h"

namespace npu::sim {
namespace {

size_t at(NodeId id) { return static_cast<size_t>(id); }

// ---- memory ------------------------------------------------------------------------------------

// Memory of the device in use, counted by the buffers that hold it.
class Budget {
 public:
  explicit Budget(int64_t limit) : limit_(limit) {}
  bool take(int64_t bytes) {
    if (used_.fetch_add(bytes) + bytes <= limit_ || limit_ == 0) return true;
    used_.fetch_sub(bytes);
    return false;
  }
  void release(int64_t bytes) { used_.fetch_sub(bytes); }
  int64_t left() const { return limit_ - used_.load(); }

 private:
  int64_t limit_;
  std::atomic<int64_t> used_ = 0;
};

// `visible`: the host may use the memory in place.
class SimBuffer : public Buffer {
 public:
  SimBuffer(std::shared_ptr<const void> owner, std::byte* data, size_t bytes, bool visible)
      : owner_(std::move(owner)), data_(data), bytes_(bytes), visible_(visible) {}
  size_t bytes() const override { return bytes_; }
  std::byte* host_pointer() override { return visible_ ? data_ : nullptr; }
  std::byte* data() { return data_; }

 private:
  std::shared_ptr<const void> owner_;
  std::byte* data_;
  size_t bytes_;
  bool visible_;
};

std::byte* data_of(Buffer& buffer) {
  auto* ours = dynamic_cast<SimBuffer*>(&buffer);
  NPU_CHECK(ours != nullptr, "the buffer is of another device");
  return ours->data();
}

// A device buffer as the cpu executor's checks see it.
SimBuffer opened(Buffer& buffer) { return {nullptr, data_of(buffer), buffer.bytes(), true}; }

// ---- loaded parts ------------------------------------------------------------------------------

struct SimExecutable : Executable {
  SimExecutable(Graph given_part, const Graph& compiled, int threads)
      : part(std::move(given_part)),
        runner(cpu::make_plan(compiled, cpu::best_product_unit()), threads) {}

  Graph part;
  cpu::PlanRunner runner;
  // For each input and output of the compiled part, its number in `part`.
  std::vector<size_t> inputs, outputs;
  double seconds = 0;                                    // of one call
  std::vector<std::pair<const Fault*, int64_t>> faults;  // of this part, with its calls so far
};

// Ports are mapped by name: a compiler may drop inputs and change their order.
std::optional<Error> map_ports(const Graph& compiled, const std::string& where,
                               SimExecutable& executable) {
  const Graph& part = executable.part;
  const auto bad = [&](const std::string& what, const std::string& name) {
    return Error{ErrorKind::kBadInput, where, what, "port \"" + name + "\"",
                 "clear the compile cache"};
  };
  for (const NodeId id : compiled.inputs()) {
    const Node& port = compiled.node(id);
    const auto& inputs = part.inputs();
    const auto found = std::find(inputs.begin(), inputs.end(), part.find_input(port.name));
    if (found == inputs.end()) return bad("the part has no such input", port.name);
    if (part.node(*found).type != port.type) return bad("type differs from the part's", port.name);
    executable.inputs.push_back(static_cast<size_t>(found - inputs.begin()));
  }
  for (const GraphOutput& port : compiled.outputs()) {
    const auto& outputs = part.outputs();
    const auto found = std::find_if(outputs.begin(), outputs.end(),
                                    [&](const GraphOutput& o) { return o.name == port.name; });
    if (found == outputs.end()) return bad("the part has no such output", port.name);
    if (part.node(found->node).type != compiled.node(port.node).type) {
      return bad("type differs from the part's", port.name);
    }
    executable.outputs.push_back(static_cast<size_t>(found - outputs.begin()));
  }
  if (compiled.outputs().size() != part.outputs().size()) return bad("outputs are missing", "");
  return std::nullopt;
}

double call_seconds(const Profile& profile, const Graph& compiled) {
  const auto takes = [](double amount, double per_second) {
    return per_second > 0 ? amount / per_second : 0.0;
  };
  const Costs& costs = profile.costs;
  double seconds =
      costs.launch_seconds + takes(compiled.contraction_flops(), costs.flops_per_second);
  if (profile.host_memory) {
    seconds += takes(static_cast<double>(compiled.input_bytes()), costs.h2d_bytes_per_second);
    seconds += takes(static_cast<double>(compiled.output_bytes()), costs.d2h_bytes_per_second);
  }
  return seconds;
}

// What `wrong` does: the sign of every second value of each float result, from the first on.
void spoil(const TensorType& type, std::byte* data) {
  if (!is_float(type.dtype)) return;
  const size_t width = dtype_bytes(type.dtype);
  for (int64_t i = 0; i < num_elements(type.shape); i += 2) {
    data[static_cast<size_t>(i) * width + width - 1] ^= std::byte{0x80};
  }
}

// ---- the device --------------------------------------------------------------------------------

class SimDevice : public Device {
 public:
  SimDevice(std::shared_ptr<const Profile> profile, int threads)
      : profile_(std::move(profile)),
        where_("sim:" + profile_->name),
        budget_(std::make_shared<Budget>(profile_->memory_bytes)),
        pool_(threads),
        workspace_(static_cast<size_t>(pool_.threads())) {}

  Result<std::unique_ptr<Executable>> load(const Blob& blob, const Graph& part) override;
  Result<std::shared_ptr<Buffer>> allocate(size_t bytes) override;
  Result<std::shared_ptr<Buffer>> adopt(const Tensor& host) override;
  std::shared_ptr<Buffer> view(std::shared_ptr<Buffer> whole, size_t offset, size_t bytes) override;
  void upload(Buffer& to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, Buffer& from) override;
  Result<Ticket> submit(Executable& executable, std::span<Buffer* const> inputs,
                        std::span<Buffer* const> outputs) override;
  std::optional<Error> wait(Ticket ticket) override;
  std::optional<double> last_call_seconds() const override { return last_seconds_; }
  bool lost() const override { return lost_; }

 private:
  Error out_of_memory(int64_t wanted) const;
  std::optional<Error> load_fault(const Graph& part, const std::string& text) const;
  void execute(SimExecutable& executable, std::span<Buffer* const> inputs,
               std::span<Buffer* const> outputs);
  // Counts the call, and does what the profile plants in it.
  void after_call(SimExecutable& executable, std::span<Buffer* const> outputs);
  Error lost_error() const;
  bool memory_is_gone() const { return lost_ && !profile_->host_memory; }

  std::shared_ptr<const Profile> profile_;
  std::string where_;
  std::shared_ptr<Budget> budget_;
  std::mutex mutex_;  // one call at a time: the workspace is shared
  ThreadPool pool_;
  cpu::Workspace workspace_;
  std::vector<std::byte*> input_data_, output_data_;
  Ticket last_ticket_ = 0;
  std::optional<double> last_seconds_;
  std::vector<std::pair<Ticket, Error>> failed_;  // until they are waited for
  std::atomic<bool> lost_ = false;
};

Error SimDevice::out_of_memory(int64_t wanted) const {
  return {ErrorKind::kRetriable, where_, "device memory is exhausted",
          std::to_string(wanted) + " bytes wanted, " + std::to_string(budget_->left()) +
              " left of " + std::to_string(profile_->memory_bytes),
          "use a smaller --batch or --seq-len"};
}

Error SimDevice::lost_error() const {
  return {ErrorKind::kRetriable, where_, "the device is lost", "no answer",
          "open it again: a resumed run continues from the last checkpoint"};
}

std::optional<Error> SimDevice::load_fault(const Graph& part, const std::string& text) const {
  for (const Fault& fault : profile_->faults) {
    if (fault.when != Fault::When::kLoad || text.find(fault.part) == std::string::npos) continue;
    switch (fault.kind) {
      case Failure::kCrash:
        return Error{ErrorKind::kRetriable, where_, "the loader aborted",
                     "panic in a function that cannot unwind", "run the part on the host"};
      case Failure::kOutOfMemory:
        return out_of_memory(part.input_bytes() + part.output_bytes());
      default:
        return Error{ErrorKind::kBadInput, where_, "the runtime refuses the compiled part",
                     "planted fault", "clear the compile cache"};
    }
  }
  return std::nullopt;
}

Result<std::unique_ptr<Executable>> SimDevice::load(const Blob& blob, const Graph& part) {
  const Result<Graph> compiled = decode_blob(*profile_, blob);
  if (!compiled) return compiled.error();
  const std::string text = print_graph(part);
  if (auto failure = load_fault(part, text)) return *failure;
  if (profile_->host_memory) {  // every call brings all of it over
    const int64_t bytes = compiled.value().input_bytes() + compiled.value().output_bytes();
    if (!budget_->take(bytes)) return out_of_memory(bytes);
    budget_->release(bytes);
  }
  try {
    auto executable = std::make_unique<SimExecutable>(
        part, with_roundings(*profile_, compiled.value()), pool_.threads());
    if (auto failure = map_ports(compiled.value(), where_, *executable)) return *failure;
    executable->seconds = call_seconds(*profile_, compiled.value());
    for (const Fault& fault : profile_->faults) {
      if (fault.when != Fault::When::kRun || text.find(fault.part) == std::string::npos) continue;
      executable->faults.emplace_back(&fault, 0);
    }
    const std::lock_guard lock(mutex_);
    workspace_.reserve(executable->runner.plan());
    return std::unique_ptr<Executable>(std::move(executable));
  } catch (const std::bad_alloc&) {
    return cpu::too_large(part);
  }
}

Result<std::shared_ptr<Buffer>> SimDevice::allocate(size_t bytes) {
  const int64_t counted = profile_->host_memory ? 0 : static_cast<int64_t>(bytes);
  if (!budget_->take(counted)) return out_of_memory(counted);
  try {
    const std::shared_ptr<std::byte> memory = allocate_aligned(bytes);
    std::byte* const data = memory.get();
    const std::shared_ptr<std::byte> owner(
        data, [memory, budget = budget_, counted](std::byte*) { budget->release(counted); });
    return std::shared_ptr<Buffer>(
        std::make_shared<SimBuffer>(owner, data, bytes, profile_->host_memory));
  } catch (const std::bad_alloc&) {
    budget_->release(counted);
    return Error{ErrorKind::kRetriable, "host memory", "is exhausted",
                 std::to_string(bytes) + " bytes wanted", "use a smaller --batch or --seq-len"};
  }
}

Result<std::shared_ptr<Buffer>> SimDevice::adopt(const Tensor& host) {
  if (profile_->host_memory && reinterpret_cast<uintptr_t>(host.data()) % alignof(int64_t) == 0) {
    // Parts only read adopted buffers, hence the const_cast.
    return std::shared_ptr<Buffer>(std::make_shared<SimBuffer>(std::make_shared<const Tensor>(host),
                                                               const_cast<std::byte*>(host.data()),
                                                               host.bytes(), true));
  }
  Result<std::shared_ptr<Buffer>> copy = allocate(host.bytes());
  if (copy) upload(*copy.value(), {host.data(), host.bytes()});
  return copy;
}

std::shared_ptr<Buffer> SimDevice::view(std::shared_ptr<Buffer> whole, size_t offset,
                                        size_t bytes) {
  check_view(*whole, offset, bytes);
  std::byte* const data = data_of(*whole) + offset;
  return std::make_shared<SimBuffer>(std::move(whole), data, bytes, profile_->host_memory);
}

void SimDevice::upload(Buffer& to, std::span<const std::byte> from) {
  NPU_CHECK(from.size() <= to.bytes(), "upload is larger than its buffer");
  if (memory_is_gone()) return;
  if (!from.empty()) std::memcpy(data_of(to), from.data(), from.size());
}

void SimDevice::download(std::span<std::byte> to, Buffer& from) {
  NPU_CHECK(to.size() <= from.bytes(), "download is larger than its buffer");
  if (memory_is_gone()) {
    std::ranges::fill(to, std::byte{0xff});  // NaN, so that nobody goes on with it unnoticed
    return;
  }
  if (!to.empty()) std::memcpy(to.data(), data_of(from), to.size());
}

Result<Device::Ticket> SimDevice::submit(Executable& executable, std::span<Buffer* const> inputs,
                                         std::span<Buffer* const> outputs) {
  auto* loaded = dynamic_cast<SimExecutable*>(&executable);
  NPU_CHECK(loaded != nullptr, "the executable is of another device");
  const std::lock_guard lock(mutex_);
  if (lost_) return lost_error();
  std::vector<SimBuffer> views;
  views.reserve(inputs.size() + outputs.size());
  std::vector<Buffer*> pointers;
  for (const std::span<Buffer* const> side : {inputs, outputs}) {
    for (Buffer* buffer : side) {
      if (buffer != nullptr) views.push_back(opened(*buffer));
      pointers.push_back(buffer == nullptr ? nullptr : &views.back());
    }
  }
  const std::span<Buffer* const> all = pointers;
  if (auto error =
          cpu::check_call(loaded->part, all.first(inputs.size()), all.subspan(inputs.size()))) {
    return *error;
  }
  execute(*loaded, inputs, outputs);
  ++last_ticket_;
  after_call(*loaded, outputs);
  return last_ticket_;
}

void SimDevice::execute(SimExecutable& executable, std::span<Buffer* const> inputs,
                        std::span<Buffer* const> outputs) {
  input_data_.clear();
  output_data_.clear();
  for (const size_t i : executable.inputs) input_data_.push_back(data_of(*inputs[i]));
  for (const size_t i : executable.outputs) output_data_.push_back(data_of(*outputs[i]));
  executable.runner.run(pool_, workspace_, input_data_, output_data_);
  last_seconds_ = executable.seconds;
}

void SimDevice::after_call(SimExecutable& executable, std::span<Buffer* const> outputs) {
  for (auto& [fault, calls] : executable.faults) {
    ++calls;
    if (fault->launch && *fault->launch != calls) continue;
    if (fault->kind == Failure::kWrong) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        const NodeId node = executable.part.outputs()[i].node;
        spoil(executable.part.node(node).type, data_of(*outputs[i]));
      }
    } else if (fault->kind == Failure::kLost) {
      lost_ = true;
      failed_.emplace_back(last_ticket_, lost_error());
    } else {
      failed_.emplace_back(last_ticket_,
                           Error{ErrorKind::kRetriable, where_, "the call timed out",
                                 "no answer from call " + std::to_string(last_ticket_),
                                 "reset the device, then retry"});
    }
  }
}

std::optional<Error> SimDevice::wait(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const auto failed = std::find_if(failed_.begin(), failed_.end(),
                                   [&](const auto& f) { return f.first == ticket; });
  if (failed == failed_.end()) return std::nullopt;
  Error error = std::move(failed->second);
  failed_.erase(failed);
  return error;
}

// Puts roundings around the nodes of a graph.
class Rounder {
 public:
  Rounder(const Profile& profile, const Graph& part)
      : profile_(profile), part_(part), builder_(part.name()), values_(part.nodes().size()) {}

  Graph run() && {
    for (const NodeId id : part_.inputs()) {
      values_[at(id)] = builder_.input(part_.node(id).name, part_.node(id).type);
    }
    for (size_t id = 0; id < values_.size(); ++id) {
      const Node& node = part_.nodes()[id];
      if (!node.is_input()) values_[id] = computed(node);
    }
    for (const GraphOutput& output : part_.outputs()) {
      builder_.output(output.name, values_[at(output.node)]);
    }
    return std::move(builder_).build();
  }

 private:
  Value computed(const Node& node) {
    const OpClass op_class = class_of(*node.op);
    const ClassRounding& rounding = profile_.rounding_of(op_class);
    std::vector<Value> operands;
    for (const NodeId in : node.inputs) {
      operands.push_back(round(values_[at(in)], rounding.operands, op_class));
    }
    return round(builder_.apply(*node.op, std::move(operands), node.attrs), rounding.result,
                 op_class);
  }

  // What only moves keeps its bits unless the profile says otherwise.
  Value round(Value x, const Rounding& rounding, OpClass op_class) const {
    const bool moves = op_class == OpClass::kMovement && rounding.format == Format::kF32;
    if (!is_float(x.dtype()) || moves || is_identity(rounding, profile_.specials)) return x;
    return rounded(x, rounding, profile_.specials);
  }

  const Profile& profile_;
  const Graph& part_;
  Builder builder_;
  std::vector<Value> values_;
};

}  // namespace

Graph with_roundings(const Profile& profile, const Graph& part) {
  return Rounder(profile, part).run();
}

std::unique_ptr<Device> open_device(std::shared_ptr<const Profile> profile, int threads) {
  cpu::use_single_threaded_blas();
  return std::make_unique<SimDevice>(std::move(profile), threads);
}

}  // namespace npu::sim
