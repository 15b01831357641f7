// Loading a plan's executables and running its graphs. Names are resolved at load: a run only fills
// in the bound buffers and submits.
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "compile/arena.h"
#include "compile/plan.h"

namespace npu {
namespace {

// A value of a graph that a part reads or writes: bound by the caller, or a temporary.
struct Slot {
  std::string name;
  size_t bytes = 0;
  bool bound = true;
  Buffer* buffer = nullptr;           // on the device; of bound slots, set by each run
  std::shared_ptr<Buffer> owned;      // of temporaries
  std::shared_ptr<Buffer> host_copy;  // for parts on the host, where it can't address `buffer`
};

// One part of one graph, resolved.
struct Step {
  std::string name;
  bool on_host = false;
  Executable* executable = nullptr;
  std::vector<size_t> inputs, outputs;  // slots
  std::vector<size_t> fetch, publish;   // on the host: slots to download before, upload after
  std::vector<Buffer*> input_buffers, output_buffers;  // filled by each run
};

struct LoadedGraph {
  std::vector<Slot> slots;
  std::vector<Step> steps;
};

class SlotTable {
 public:
  explicit SlotTable(const PlannedGraph& graph) {
    for (const NodeId id : graph.graph.inputs()) {
      const Node& node = graph.graph.node(id);
      add(node.name, node.type, true);
    }
    for (const GraphOutput& output : graph.graph.outputs()) {
      add(output.name, graph.graph.node(output.node).type, true);
    }
    for (const auto& [name, type] : graph.temporaries) add(name, type, false);
  }

  std::vector<size_t> find(const std::vector<std::string>& names) const {
    std::vector<size_t> result;
    for (const std::string& name : names) {
      const auto found = by_name_.find(name);
      NPU_CHECK(found != by_name_.end(), "a part names a value its graph lacks: " + name);
      result.push_back(found->second);
    }
    return result;
  }

  std::vector<Slot> take() && { return std::move(slots_); }

 private:
  void add(const std::string& name, const TensorType& type, bool bound) {
    by_name_.emplace(name, slots_.size());
    Slot slot;
    slot.name = name;
    slot.bytes = static_cast<size_t>(type.bytes());
    slot.bound = bound;
    slots_.push_back(std::move(slot));
  }

  std::map<std::string, size_t> by_name_;
  std::vector<Slot> slots_;
};

// Which values each host step must fetch from the device, and hand back to it.
void plan_transfers(LoadedGraph& graph) {
  std::vector<bool> at_host(graph.slots.size(), false), wanted_by_device(graph.slots.size(), false);
  for (size_t s = 0; s < graph.slots.size(); ++s) wanted_by_device[s] = graph.slots[s].bound;
  for (const Step& step : graph.steps) {
    if (step.on_host) continue;
    for (const size_t s : step.inputs) wanted_by_device[s] = true;
  }
  for (Step& step : graph.steps) {
    step.fetch.clear();
    step.publish.clear();
    if (!step.on_host) continue;
    for (const size_t s : step.inputs) {
      if (!at_host[s]) step.fetch.push_back(s);
      at_host[s] = true;
    }
    for (const size_t s : step.outputs) {
      if (wanted_by_device[s]) step.publish.push_back(s);
      at_host[s] = true;
    }
  }
}

// Lifetimes of the temporaries, in the order of `temporaries` (slot numbers).
std::vector<Lifetime> lifetimes(const LoadedGraph& graph, const std::vector<size_t>& temporaries) {
  std::vector<Lifetime> result;
  for (const size_t slot : temporaries) {
    Lifetime life{graph.slots[slot].bytes, -1, -1};
    for (size_t i = 0; i < graph.steps.size(); ++i) {
      const auto uses = [slot](const std::vector<size_t>& slots) {
        return std::find(slots.begin(), slots.end(), slot) != slots.end();
      };
      if (!uses(graph.steps[i].inputs) && !uses(graph.steps[i].outputs)) continue;
      if (life.first < 0) life.first = static_cast<int>(i);
      life.last = static_cast<int>(i);
    }
    result.push_back(life);
  }
  return result;
}

}  // namespace

struct Runtime::State {
  Plan plan;
  std::string device_name;
  bool host_memory = true;  // the device's buffers are
  DeviceOptions options;
  std::unique_ptr<Device> device;
  std::unique_ptr<Backend> cpu;  // this and `host` only when a part needs them
  std::unique_ptr<Device> host;
  // By distinct part; a part may be loaded on both.
  std::vector<std::unique_ptr<Executable>> on_device, on_host;
  std::map<std::string, LoadedGraph, std::less<>> graphs;
  std::shared_ptr<Buffer> arena;  // of the temporaries of whichever graph is running
  struct Pending {
    Device::Ticket ticket;
    const Step* step;
  };
  std::vector<Pending> pending;
  const PlannedGraph* running = nullptr;  // of the last run
  std::string failed_group;
  Timing timing;
  std::function<void(const PartCall&)> probe;

  std::optional<Error> open(Backend& backend, const DeviceOptions& options);
  std::optional<Error> load_parts();
  std::optional<Error> load_device_part(size_t distinct);
  std::optional<Error> load_host_part(size_t distinct);
  void refuse(size_t distinct, const Error& error);
  std::optional<Error> place_group(std::string_view group, bool on_host, const std::string& reason);
  void resolve_graphs();
  std::optional<Error> place_temporaries();

  void bind(LoadedGraph& graph, const Bindings& bindings);
  std::optional<Error> run_on_device(LoadedGraph& graph, Step& step);
  std::optional<Error> host_buffer(Slot& slot, Buffer*& buffer);
  std::optional<Error> run_on_host(LoadedGraph& graph, Step& step);
  std::optional<Error> drain();
  Error of_device(const Step& step, Error error);
  std::optional<Error> run_step(LoadedGraph& graph, Step& step);
  std::optional<Error> run_probed(LoadedGraph& graph, const PlannedGraph& planned, size_t part);
};

std::optional<Error> Runtime::State::open(Backend& backend, const DeviceOptions& device_options) {
  options = device_options;
  Result<std::unique_ptr<Device>> opened = backend.open(options);
  if (!opened) return opened.error();
  device = std::move(opened.value());
  device_name = backend.traits().name;
  host_memory = backend.traits().host_memory;
  if (auto error = load_parts()) return error;
  resolve_graphs();
  return place_temporaries();
}

std::optional<Error> Runtime::State::load_parts() {
  on_device.resize(plan.distinct.size());
  on_host.resize(plan.distinct.size());
  for (const PlannedGraph& graph : plan.graphs) {
    for (const PlannedPart& part : graph.parts) {
      if (!part.on_host) {
        if (auto error = load_device_part(part.distinct)) return error;
      }
      if (!part.on_host) continue;  // asked anew: the device may have refused it
      if (auto error = load_host_part(part.distinct)) return error;
    }
  }
  return std::nullopt;
}

std::optional<Error> Runtime::State::load_device_part(size_t distinct) {
  if (on_device[distinct]) return std::nullopt;
  DistinctPart& part = plan.distinct[distinct];
  NPU_CHECK(part.outcome && part.outcome->built(), "part " + part.first_use + " was not compiled");
  auto loaded = device->load(part.outcome->blob, part.graph);
  if (loaded) {
    on_device[distinct] = std::move(loaded.value());
    part.outcome->blob = Blob();  // blobs can be large, and the device has its own form
    return std::nullopt;
  }
  if (loaded.error().kind == ErrorKind::kBadInput) {
    refuse(distinct, loaded.error());
    return std::nullopt;
  }
  Error error = loaded.error();
  error.where = part.first_use + " on " + device_name + ": " + error.where;
  return error;
}

// The device is well but will not have this part: all uses of it go to the host.
void Runtime::State::refuse(size_t distinct, const Error& error) {
  const std::string reason = "refused at load: " + error.text();
  log_warn("runtime", plan.distinct[distinct].first_use + " goes to the host: " + reason);
  for (PlannedGraph& graph : plan.graphs) {
    for (PlannedPart& part : graph.parts) {
      if (part.distinct != distinct || part.on_host) continue;
      part.on_host = true;
      part.host_reason = reason;
    }
  }
}

std::optional<Error> Runtime::State::load_host_part(size_t distinct) {
  if (on_host[distinct]) return std::nullopt;
  if (!host) {
    cpu = make_backend("cpu").take();
    // The other device's forms of a buffer stand where the host's would.
    Result<std::unique_ptr<Device>> opened = cpu->open({.threads = options.threads});
    if (!opened) return opened.error();
    host = std::move(opened.value());
  }
  CompileOptions compile_options;
  compile_options.threads = options.threads;
  const Graph& graph = plan.distinct[distinct].graph;
  const Result<Blob> blob = cpu->compile(graph, compile_options);
  if (!blob) return blob.error();
  auto loaded = host->load(blob.value(), graph);
  if (!loaded) return loaded.error();
  on_host[distinct] = std::move(loaded.value());
  return std::nullopt;
}

std::optional<Error> Runtime::State::place_group(std::string_view group, bool to_host,
                                                 const std::string& reason) {
  if (to_host && device->lost() && !host_memory) {
    return Error{ErrorKind::kRetriable, device_name,
                 "is lost with weights and activations in its own memory",
                 "group " + std::string(group) + " can't move to the host",
                 "start the command again (train: with --resume auto): it opens the device anew"};
  }
  for (PlannedGraph& planned : plan.graphs) {
    if (planned.group != group) continue;
    LoadedGraph& loaded = graphs.at(planned.name);
    for (size_t i = 0; i < planned.parts.size(); ++i) {
      PlannedPart& part = planned.parts[i];
      if (part.on_host == to_host || (!to_host && !on_device[part.distinct])) continue;
      if (to_host) {
        if (auto error = load_host_part(part.distinct)) return error;
      }
      part.on_host = loaded.steps[i].on_host = to_host;
      part.host_reason = to_host ? reason : "";
      loaded.steps[i].executable = (to_host ? on_host : on_device)[part.distinct].get();
    }
    plan_transfers(loaded);
  }
  return std::nullopt;
}

void Runtime::State::resolve_graphs() {
  for (const PlannedGraph& planned : plan.graphs) {
    SlotTable table(planned);
    LoadedGraph graph;
    for (const PlannedPart& part : planned.parts) {
      Step step;
      step.name = part.name;
      step.on_host = part.on_host;
      step.executable = (part.on_host ? on_host : on_device)[part.distinct].get();
      step.inputs = table.find(part.input_names);
      step.outputs = table.find(part.output_names);
      step.input_buffers.resize(step.inputs.size());
      step.output_buffers.resize(step.outputs.size());
      graph.steps.push_back(std::move(step));
    }
    graph.slots = std::move(table).take();
    plan_transfers(graph);
    const bool is_new = graphs.emplace(planned.name, std::move(graph)).second;
    NPU_CHECK(is_new, "two graphs are called " + planned.name);
  }
}

std::optional<Error> Runtime::State::place_temporaries() {
  size_t arena_bytes = 0;
  std::map<std::string, ArenaLayout, std::less<>> layouts;
  const auto temporaries_of = [](const LoadedGraph& graph) {
    std::vector<size_t> slots;
    for (size_t s = 0; s < graph.slots.size(); ++s) {
      if (!graph.slots[s].bound) slots.push_back(s);
    }
    return slots;
  };
  for (const auto& [name, graph] : graphs) {
    layouts[name] = plan_arena(lifetimes(graph, temporaries_of(graph)));
    arena_bytes = std::max(arena_bytes, layouts[name].bytes);
  }
  if (arena_bytes == 0) return std::nullopt;
  auto allocated = device->allocate(arena_bytes);
  if (!allocated) return allocated.error();
  arena = std::move(allocated.value());
  for (auto& [name, graph] : graphs) {
    const std::vector<size_t> temporaries = temporaries_of(graph);
    for (size_t i = 0; i < temporaries.size(); ++i) {
      Slot& slot = graph.slots[temporaries[i]];
      slot.owned = device->view(arena, layouts[name].offsets[i], slot.bytes);
      slot.buffer = slot.owned.get();
    }
  }
  return std::nullopt;
}

void Runtime::State::bind(LoadedGraph& graph, const Bindings& bindings) {
  for (Slot& slot : graph.slots) {
    if (!slot.bound) continue;
    const auto found = bindings.find(slot.name);
    NPU_CHECK(found != bindings.end() && found->second != nullptr, "no buffer for " + slot.name);
    NPU_CHECK(found->second->bytes() >= slot.bytes,
              slot.name + " needs " + std::to_string(slot.bytes) + " bytes, its buffer has " +
                  std::to_string(found->second->bytes()));
    slot.buffer = found->second;
  }
}

std::optional<Error> Runtime::State::run_on_device(LoadedGraph& graph, Step& step) {
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    step.input_buffers[i] = graph.slots[step.inputs[i]].buffer;
  }
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    step.output_buffers[i] = graph.slots[step.outputs[i]].buffer;
  }
  const Stopwatch watch(timing.device_seconds);
  auto ticket = device->submit(*step.executable, step.input_buffers, step.output_buffers);
  if (!ticket) return of_device(step, ticket.error());
  pending.push_back({ticket.value(), &step});
  return std::nullopt;
}

// The error of the device on this step. Calls are awaited late, so it may come up steps after.
Error Runtime::State::of_device(const Step& step, Error error) {
  error.where = step.name + " on " + device_name + ": " + error.where;
  failed_group = running->group;
  return error;
}

std::optional<Error> Runtime::State::drain() {
  const Stopwatch watch(timing.device_seconds);
  std::optional<Error> first;
  for (const auto& [ticket, step] : pending) {
    std::optional<Error> error = device->wait(ticket);
    if (error && !first) first = of_device(*step, std::move(*error));
  }
  pending.clear();
  return first;
}

std::optional<Error> Runtime::State::host_buffer(Slot& slot, Buffer*& buffer) {
  buffer = slot.buffer;
  if (slot.buffer->host_pointer() != nullptr) return std::nullopt;
  if (!slot.host_copy) {
    auto allocated = host->allocate(slot.bytes);
    if (!allocated) return allocated.error();
    slot.host_copy = std::move(allocated.value());
  }
  buffer = slot.host_copy.get();
  return std::nullopt;
}

std::optional<Error> Runtime::State::run_on_host(LoadedGraph& graph, Step& step) {
  if (auto error = drain()) return error;  // its inputs may still be on their way
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    if (auto error = host_buffer(graph.slots[step.inputs[i]], step.input_buffers[i])) return error;
  }
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    if (auto error = host_buffer(graph.slots[step.outputs[i]], step.output_buffers[i]))
      return error;
  }
  const auto copied = [&graph](size_t s) {
    return graph.slots[s].buffer->host_pointer() == nullptr;
  };
  {
    const Stopwatch watch(timing.transfer_seconds);
    for (const size_t s : step.fetch) {
      Slot& slot = graph.slots[s];
      if (copied(s)) device->download({slot.host_copy->host_pointer(), slot.bytes}, *slot.buffer);
    }
  }
  {
    const Stopwatch watch(timing.host_seconds);
    auto ticket = host->submit(*step.executable, step.input_buffers, step.output_buffers);
    std::optional<Error> error;
    if (!ticket) {
      error = ticket.error();
    } else {
      error = host->wait(ticket.value());
    }
    if (error) {
      error->where = step.name + " on the host: " + error->where;
      return error;
    }
  }
  const Stopwatch watch(timing.transfer_seconds);
  for (const size_t s : step.publish) {
    Slot& slot = graph.slots[s];
    if (copied(s)) device->upload(*slot.buffer, {slot.host_copy->host_pointer(), slot.bytes});
  }
  return std::nullopt;
}

std::optional<Error> Runtime::State::run_step(LoadedGraph& graph, Step& step) {
  ++timing.launches;
  return step.on_host ? run_on_host(graph, step) : run_on_device(graph, step);
}

// Waits for each part, so that its time is its own and its values are there to be looked at.
std::optional<Error> Runtime::State::run_probed(LoadedGraph& graph, const PlannedGraph& planned,
                                                size_t part) {
  Step& step = graph.steps[part];
  double wall_seconds = 0;
  {
    const Stopwatch watch(wall_seconds);
    if (auto error = run_step(graph, step)) return error;
    if (auto error = drain()) return error;
  }
  const auto device_clock = step.on_host ? std::optional<double>() : device->last_call_seconds();
  probe({planned, part, step.input_buffers, step.output_buffers,
         device_clock.value_or(wall_seconds)});
  return std::nullopt;
}

Runtime::Runtime() : state_(std::make_unique<State>()) {}
Runtime::~Runtime() = default;

Result<std::unique_ptr<Runtime>> Runtime::create(Plan plan, Backend& backend,
                                                 const DeviceOptions& options) {
  std::unique_ptr<Runtime> runtime(new Runtime());
  runtime->state_->plan = std::move(plan);
  if (auto error = runtime->state_->open(backend, options)) return std::move(*error);
  return runtime;
}

Device& Runtime::device() { return *state_->device; }
const Plan& Runtime::plan() const { return state_->plan; }

std::optional<Error> Runtime::run(std::string_view graph, const Bindings& bindings) {
  const auto found = state_->graphs.find(graph);
  NPU_CHECK(found != state_->graphs.end(), "no graph " + std::string(graph) + " is loaded");
  LoadedGraph& loaded = found->second;
  state_->running = &state_->plan.graph(graph);
  state_->failed_group.clear();
  state_->bind(loaded, bindings);
  std::optional<Error> failure;
  for (size_t i = 0; i < loaded.steps.size() && !failure; ++i) {
    failure = state_->probe ? state_->run_probed(loaded, *state_->running, i)
                            : state_->run_step(loaded, loaded.steps[i]);
  }
  // Also after a failure: calls in flight still use the buffers.
  if (auto error = state_->drain(); error && !failure) failure = std::move(error);
  return failure;
}

std::optional<Error> Runtime::place_group(std::string_view group, bool on_host,
                                          const std::string& reason) {
  return state_->place_group(group, on_host, reason);
}

const std::string& Runtime::failed_group() const { return state_->failed_group; }

void Runtime::set_probe(std::function<void(const PartCall&)> probe) {
  state_->probe = std::move(probe);
}

const Runtime::Timing& Runtime::timing() const { return state_->timing; }
void Runtime::reset_timing() { state_->timing = Timing(); }

}  // namespace npu
