// Deduping by text, and what the backend says about a part before it is compiled.
#include "compile/distinct.h"

#include "ir/text.h"

namespace npu {

std::string unsupported_node(Backend& backend, const Graph& part, const CompileOptions& options) {
  for (size_t id = 0; id < part.nodes().size(); ++id) {
    if (part.nodes()[id].is_input()) continue;
    const auto reason = backend.unsupported(part, static_cast<NodeId>(id), options);
    if (reason) return std::string(part.nodes()[id].op->name) + ": " + *reason;
  }
  return "";
}

DistinctParts::DistinctParts(std::vector<DistinctPart>& parts, Backend& backend,
                             const CompileOptions& options)
    : parts_(parts), backend_(backend), options_(options) {
  for (size_t i = 0; i < parts_.size(); ++i) by_text_.emplace(parts_[i].text, i);
}

size_t DistinctParts::find_or_add(Graph graph, const std::string& group, const std::string& name) {
  std::string text = print_graph(graph);
  const auto [found, is_new] = by_text_.emplace(text, parts_.size());
  if (is_new) {
    DistinctPart part;
    part.unsupported = unsupported_node(backend_, graph, options_);
    part.graph = std::move(graph);
    part.text = std::move(text);
    part.group = group;
    part.first_use = name;
    parts_.push_back(std::move(part));
  }
  return found->second;
}

}  // namespace npu
