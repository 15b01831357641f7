// A blob is the text of the compiled part, sealed with the digest of the profile.
#include "backend/sim_compile.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <thread>

#include "backend/sealed_blob.h"
#include "ir/text.h"
#include "ops/table.h"

namespace npu::sim {
namespace {

constexpr std::string_view kBlobKind = "sim";

size_t at(NodeId id) { return static_cast<size_t>(id); }

// Follows a pattern link by link: which nodes can be its last link so far.
bool occurs(const std::vector<Rejection::Link>& pattern, const Graph& graph) {
  const size_t count = graph.nodes().size();
  std::vector<bool> matched(count, true);  // nothing must come before the first link
  for (size_t i = 0; i < pattern.size(); ++i) {
    std::vector<bool> next(count, false), behind(count, false);
    for (size_t id = 0; id < count; ++id) {
      const Node& node = graph.nodes()[id];
      bool adjacent = i == 0;
      for (const NodeId in : node.inputs) {
        behind[id] = behind[id] || matched[at(in)] || behind[at(in)];
        adjacent = adjacent || matched[at(in)];
      }
      const bool follows = adjacent || (!pattern[i].adjacent && behind[id]);
      next[id] = follows && !node.is_input() && node.op->name == pattern[i].op;
    }
    matched = std::move(next);
  }
  return std::find(matched.begin(), matched.end(), true) != matched.end();
}

[[noreturn]] void exhaust_memory() {
  // Without a limit around this process the host must survive.
  constexpr size_t kBlock = size_t{64} << 20, kMost = size_t{1} << 30;
  std::vector<std::unique_ptr<char[]>> held;
  for (size_t bytes = 0; bytes < kMost; bytes += kBlock) {
    held.push_back(std::make_unique<char[]>(kBlock));  // zeroed, so resident
  }
  throw std::bad_alloc();
}

// Ends the compile in that way; only a rejection comes back.
Error end_compile(Failure how, const Profile& profile, const std::string& reason) {
  std::fprintf(stderr, "sim:%s compiler: %s\n", profile.name.c_str(), reason.c_str());
  std::fflush(stderr);
  switch (how) {
    case Failure::kCrash:
      std::signal(SIGSEGV, SIG_DFL);
      std::raise(SIGSEGV);
      break;
    case Failure::kHang:
      while (true) std::this_thread::sleep_for(std::chrono::hours(1));
    case Failure::kOutOfMemory:
      exhaust_memory();
    default:
      break;
  }
  return {ErrorKind::kBadInput, "sim:" + profile.name, "the compiler rejects the part", reason, ""};
}

// In words, the first limit that the part exceeds; "" when it exceeds none.
std::string exceeded(const BackendLimits& most, const Graph& part) {
  const auto over = [](const char* what, int64_t count, int64_t limit) {
    if (limit == 0 || count <= limit) return std::string();
    return std::to_string(count) + " " + what + ", more than " + std::to_string(limit);
  };
  const auto count = [](size_t n) { return static_cast<int64_t>(n); };
  std::string text = over("matmuls", part.num_contractions(), most.contractions);
  if (text.empty()) {
    text = over("nodes", count(part.nodes().size() - part.inputs().size()), most.nodes);
  }
  if (text.empty()) text = over("inputs", count(part.inputs().size()), most.inputs);
  if (text.empty()) text = over("outputs", count(part.outputs().size()), most.outputs);
  return text;
}

// The part with the inputs that are read, in the order of their last use.
Graph with_inputs_by_use(const Graph& part) {
  std::vector<NodeId> order;
  const auto use = [&](NodeId id) {
    if (!part.node(id).is_input()) return;
    if (std::find(order.begin(), order.end(), id) == order.end()) order.push_back(id);
  };
  for (size_t id = part.nodes().size(); id-- > 0;) {
    for (const NodeId in : part.nodes()[id].inputs) use(in);
  }
  for (const GraphOutput& output : part.outputs()) use(output.node);
  Builder builder(part.name());
  std::vector<Value> values(part.nodes().size());
  for (const NodeId id : order) {
    values[at(id)] = builder.input(part.node(id).name, part.node(id).type);
  }
  for (const GraphOutput& output : part.outputs()) {
    builder.output(output.name, import_node(builder, part, output.node, values));
  }
  return std::move(builder).build();
}

}  // namespace

std::optional<std::string> unsupported_node(const Profile& profile, const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.is_input()) return std::nullopt;
  const std::string_view name = node.op->name;
  if (!profile.ops.empty() &&
      std::find(profile.ops.begin(), profile.ops.end(), name) == profile.ops.end()) {
    return "sim:" + profile.name + " has no " + std::string(name);
  }
  if (class_of(*node.op) == OpClass::kMovement) return std::nullopt;
  for (const NodeId in : node.inputs) {
    const DType dtype = graph.node(in).type.dtype;
    const bool known = std::find(profile.arithmetic.begin(), profile.arithmetic.end(), dtype) !=
                       profile.arithmetic.end();
    if (is_float(dtype) && !known) {
      return "sim:" + profile.name + " does not compute in " + std::string(dtype_name(dtype));
    }
  }
  return std::nullopt;
}

const Rejection* find_rejection(const Profile& profile, const Graph& graph) {
  for (const Rejection& rejection : profile.reject) {
    if (occurs(rejection.pattern, graph)) return &rejection;
  }
  return nullptr;
}

Result<Blob> compile_part(const Profile& profile, const Graph& part) {
  const std::string text = print_graph(part);
  for (const Fault& fault : profile.faults) {
    if (fault.when != Fault::When::kCompile || text.find(fault.part) == std::string::npos) continue;
    return end_compile(fault.kind, profile, "planted fault");
  }
  const size_t nodes = part.nodes().size() - part.inputs().size();
  std::this_thread::sleep_for(std::chrono::duration<double>(profile.costs.compile_seconds_per_node *
                                                            static_cast<double>(nodes)));
  if (const std::string over = exceeded(profile.limits.most, part);
      profile.limits.beyond && !over.empty()) {
    return end_compile(*profile.limits.beyond, profile, "part too large: " + over);
  }
  for (size_t id = 0; id < part.nodes().size(); ++id) {
    if (const auto reason = unsupported_node(profile, part, static_cast<NodeId>(id))) {
      return end_compile(Failure::kReject, profile, *reason);
    }
  }
  if (const Rejection* rejection = find_rejection(profile, part)) {
    return end_compile(rejection->how, profile, rejection->reason);
  }
  const std::string compiled = profile.inputs_by_use ? print_graph(with_inputs_by_use(part)) : text;
  return seal_blob(kBlobKind, profile.digest, compiled);
}

Result<Graph> decode_blob(const Profile& profile, const Blob& blob) {
  const Result<std::string_view> text = unseal_blob(kBlobKind, profile.digest, blob);
  if (!text) return text.error();
  return parse_graph(text.value(), find_op, "part");
}

}  // namespace npu::sim
