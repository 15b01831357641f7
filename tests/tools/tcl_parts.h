// Cuts a graph where TCL does not take a node, as a plan would, so that the rest can be written.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "backend/tcl_writer.h"
#include "transform/partition.h"

namespace npu {

// What TCL takes of a graph, in parts between the nodes that it does not take.
inline std::vector<Graph> supported_parts(const Graph& graph) {
  PartLabels labels;
  std::vector<bool> taken;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& node = graph.nodes()[i];
    const bool mine = !node.is_input() && !tcl_unsupported(graph, static_cast<NodeId>(i));
    int part = node.is_input() ? -1 : (mine ? 0 : 1);
    for (const NodeId in : node.inputs) {
      const int before = labels.part[static_cast<size_t>(in)];
      if (before < 0) continue;
      const bool same = taken[static_cast<size_t>(in)] == mine;
      part = std::max(part, same ? before : before + 1);
    }
    labels.part.push_back(part);
    taken.push_back(mine);
    labels.count = std::max(labels.count, part + 1);
  }
  std::vector<Graph> parts;
  for (Part& part : split(graph, labels)) {
    const Graph& g = part.graph;
    bool all = !g.outputs().empty();
    for (size_t i = 0; i < g.nodes().size(); ++i) {
      if (!g.nodes()[i].is_input()) all &= !tcl_unsupported(g, static_cast<NodeId>(i));
    }
    if (all) parts.push_back(std::move(part.graph));
  }
  return parts;
}

}  // namespace npu
