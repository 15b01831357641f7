// Divides a joint graph into forward and backward. What the forward keeps is a minimum cut between
// its contractions and the values that the backward reads
// (docs/decisions/002-what-forward-keeps.md).
#include <algorithm>
#include <string_view>

#include "transform/min_cut.h"
#include "transform/vjp.h"

namespace npu {
namespace {

using Marks = std::vector<bool>;  // by node id

bool marked(const Marks& marks, NodeId id) { return marks[static_cast<size_t>(id)]; }

Marks ancestors(const Graph& graph, std::span<const GraphOutput> outputs) {
  Marks needed(graph.nodes().size(), false);
  for (const GraphOutput& output : outputs) needed[static_cast<size_t>(output.node)] = true;
  for (size_t id = needed.size(); id-- > 0;) {
    if (!needed[id]) continue;
    for (NodeId operand : graph.nodes()[id].inputs) needed[static_cast<size_t>(operand)] = true;
  }
  return needed;
}

// The joint graph with the roles that its nodes play.
struct Joint {
  const Graph& graph;
  std::span<const GraphOutput> forward_outputs, backward_outputs;
  Marks seeds;        // inputs "d_NAME" of a forward output NAME
  Marks seeded;       // values that depend on a seed: only the backward can compute them
  Marks in_forward;   // values that the forward's outputs need
  Marks in_backward;  // values that the backward's outputs need

  Joint(const Graph& joint, size_t num_forward_outputs) : graph(joint) {
    NPU_CHECK(num_forward_outputs <= joint.outputs().size(), joint.name());
    const std::span<const GraphOutput> outputs = joint.outputs();
    forward_outputs = outputs.first(num_forward_outputs);
    backward_outputs = outputs.subspan(num_forward_outputs);
    in_forward = ancestors(joint, forward_outputs);
    in_backward = ancestors(joint, backward_outputs);
    seeds.assign(joint.nodes().size(), false);
    for (const GraphOutput& output : forward_outputs) {
      const NodeId seed = joint.find_input("d_" + output.name);
      if (seed >= 0) seeds[static_cast<size_t>(seed)] = true;
    }
    seeded = seeds;
    for (size_t id = 0; id < seeded.size(); ++id) {
      for (NodeId operand : joint.nodes()[id].inputs)
        if (marked(seeded, operand)) seeded[id] = true;
    }
    for (const GraphOutput& output : forward_outputs)
      NPU_CHECK(!marked(seeded, output.node), "forward output " + output.name + " needs a seed");
  }

  // Values without seed that the backward reads: operands of seeded nodes, or its outputs.
  Marks read_by_backward() const {
    Marks read(graph.nodes().size(), false);
    for (size_t id = 0; id < read.size(); ++id) {
      if (!seeded[id] || !in_backward[id]) continue;
      for (NodeId operand : graph.nodes()[id].inputs)
        if (!marked(seeded, operand)) read[static_cast<size_t>(operand)] = true;
    }
    for (const GraphOutput& output : backward_outputs)
      if (!marked(seeded, output.node)) read[static_cast<size_t>(output.node)] = true;
    return read;
  }
};

// Each value v is an edge v_in → v_out whose capacity is its size. Flow enters at the contractions
// of the forward, which must not be computed again, and leaves at the values that the backward
// reads; a cut is a set of values to keep from which the rest can be computed without a
// contraction. Graph inputs and what is made of them without contraction carry no flow: they cost
// nothing.
std::vector<NodeId> values_to_save(const Joint& joint) {
  const std::vector<Node>& nodes = joint.graph.nodes();
  const Marks read = joint.read_by_backward();
  // Bytes first; among equals rather values that the forward computes anyway.
  const int64_t bytes_weight = 2 * static_cast<int64_t>(nodes.size() + 1);

  FlowNetwork network;
  const int source = network.add_vertex();
  const int sink = network.add_vertex();
  const auto in_vertex = [](size_t id) { return 2 + 2 * static_cast<int>(id); };
  const auto out_vertex = [](size_t id) { return 3 + 2 * static_cast<int>(id); };
  for (size_t id = 0; id < nodes.size(); ++id) {
    network.add_vertex();
    network.add_vertex();
    if (joint.seeded[id] || !joint.in_backward[id] || nodes[id].is_input()) continue;
    const int64_t bytes = std::max<int64_t>(1, nodes[id].type.bytes());
    NPU_CHECK(bytes < FlowNetwork::kUnbounded / 1024 / bytes_weight, nodes[id].type.text());
    network.add_edge(in_vertex(id), out_vertex(id),
                     bytes * bytes_weight + (joint.in_forward[id] ? 0 : 1));
    if (nodes[id].op->traits.contraction && joint.in_forward[id])
      network.add_edge(source, in_vertex(id), FlowNetwork::kUnbounded);
    for (NodeId operand : nodes[id].inputs) {
      network.add_edge(out_vertex(static_cast<size_t>(operand)), in_vertex(id),
                       FlowNetwork::kUnbounded);
    }
    if (read[id]) network.add_edge(out_vertex(id), sink, FlowNetwork::kUnbounded);
  }
  network.maximize(source, sink);

  const std::vector<bool> near_sink = network.sink_side(sink);
  std::vector<NodeId> saved;
  for (size_t id = 0; id < nodes.size(); ++id) {
    if (!near_sink[static_cast<size_t>(in_vertex(id))] &&
        near_sink[static_cast<size_t>(out_vertex(id))] && !nodes[id].is_input())
      saved.push_back(static_cast<NodeId>(id));
  }
  return saved;
}

Graph forward_graph(const Joint& joint, const std::vector<NodeId>& saved,
                    const std::vector<std::string>& names) {
  Builder builder(joint.graph.name());
  std::vector<Value> values(joint.graph.nodes().size());
  for (NodeId id : joint.graph.inputs())
    if (!marked(joint.seeds, id)) import_node(builder, joint.graph, id, values);
  for (const GraphOutput& output : joint.forward_outputs)
    builder.output(output.name, import_node(builder, joint.graph, output.node, values));
  for (size_t i = 0; i < saved.size(); ++i)
    builder.output(names[i], import_node(builder, joint.graph, saved[i], values));
  return std::move(builder).build();
}

// "layer_fwd" → "layer_bwd", "rms" → "rms_bwd".
std::string backward_name(std::string_view forward) {
  constexpr std::string_view kSuffix = "_fwd";
  if (forward.ends_with(kSuffix)) forward.remove_suffix(kSuffix.size());
  return std::string(forward) + "_bwd";
}

Graph backward_graph(const Joint& joint, const std::vector<NodeId>& saved,
                     const std::vector<std::string>& names) {
  Builder builder(backward_name(joint.graph.name()));
  std::vector<Value> values(joint.graph.nodes().size());
  // Order of inputs: forward's, seeds, saved.
  for (const bool seed : {false, true}) {
    for (NodeId id : joint.graph.inputs())
      if (marked(joint.seeds, id) == seed) import_node(builder, joint.graph, id, values);
  }
  for (size_t i = 0; i < saved.size(); ++i) {
    values[static_cast<size_t>(saved[i])] =
        builder.input(names[i], joint.graph.node(saved[i]).type);
  }
  for (const GraphOutput& output : joint.backward_outputs)
    builder.output(output.name, import_node(builder, joint.graph, output.node, values));
  return std::move(builder).build(/*drop_unused_inputs=*/true);
}

}  // namespace

ForwardBackward split_joint(const Graph& joint_graph, size_t num_forward_outputs,
                            Recompute recompute) {
  const Joint joint(joint_graph, num_forward_outputs);
  std::vector<NodeId> saved;
  if (recompute == Recompute::kNone) saved = values_to_save(joint);
  std::vector<std::string> names;
  for (size_t i = 0; i < saved.size(); ++i) {
    names.push_back(std::string("saved").append(std::to_string(i)));
    NPU_CHECK(joint_graph.find_input(names[i]) < 0 && joint_graph.find_output(names[i]) < 0,
              names[i]);
  }
  return {forward_graph(joint, saved, names), backward_graph(joint, saved, names), names};
}

}  // namespace npu
