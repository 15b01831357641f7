// Decoding of blobs and the checks of a call, for both CPU backends.
#include "backend/cpu_part.h"

#include <string>

#include "ir/text.h"
#include "ops/table.h"

namespace npu::cpu {
namespace {

Error part_error(const Graph& graph, std::string what, std::string got) {
  return {ErrorKind::kBadInput, "part " + graph.name(), std::move(what), std::move(got), ""};
}

bool same_signature(const Graph& a, const Graph& b) {
  if (a.inputs().size() != b.inputs().size() || a.outputs().size() != b.outputs().size()) {
    return false;
  }
  for (size_t i = 0; i < a.inputs().size(); ++i) {
    if (a.node(a.inputs()[i]).type != b.node(b.inputs()[i]).type) return false;
  }
  for (size_t i = 0; i < a.outputs().size(); ++i) {
    if (a.node(a.outputs()[i].node).type != b.node(b.outputs()[i].node).type) return false;
  }
  return true;
}

std::optional<Error> check_buffer(const Graph& graph, Buffer* buffer, NodeId node,
                                  const std::string& what) {
  const TensorType& type = graph.node(node).type;
  if (buffer == nullptr) return part_error(graph, what + " has a buffer", "none");
  if (buffer->bytes() < static_cast<size_t>(type.bytes())) {
    return part_error(graph,
                      what + " needs " + std::to_string(type.bytes()) + " bytes for " + type.text(),
                      std::to_string(buffer->bytes()));
  }
  if (buffer->host_pointer() == nullptr) {
    return part_error(graph, what + " lies in host memory", "a device buffer");
  }
  return std::nullopt;
}

bool overlap(const std::byte* a, size_t a_bytes, const std::byte* b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

Result<Graph> decode_part(const Blob& blob, const Graph& part) {
  Result<Graph> graph = parse_graph(blob, find_op, part.name());
  if (graph && !same_signature(graph.value(), part)) {
    return part_error(part, "the blob was made from a part with the same inputs and outputs",
                      "another part's blob");
  }
  return graph;
}

Error too_large(const Graph& part) {
  return {ErrorKind::kRetriable, "part " + part.name(), "does not fit in host memory", "",
          "use a smaller --batch or --seq-len"};
}

std::optional<Error> check_call(const Graph& graph, std::span<Buffer* const> inputs,
                                std::span<Buffer* const> outputs) {
  if (inputs.size() != graph.inputs().size() || outputs.size() != graph.outputs().size()) {
    return part_error(graph,
                      "takes " + std::to_string(graph.inputs().size()) + " inputs and " +
                          std::to_string(graph.outputs().size()) + " outputs",
                      std::to_string(inputs.size()) + " and " + std::to_string(outputs.size()));
  }
  const auto used_bytes = [&](NodeId node) {
    return static_cast<size_t>(graph.node(node).type.bytes());
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const NodeId node = graph.inputs()[i];
    if (auto error = check_buffer(graph, inputs[i], node, "input " + graph.node(node).name)) {
      return error;
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const GraphOutput& output = graph.outputs()[i];
    if (auto error = check_buffer(graph, outputs[i], output.node, "output " + output.name)) {
      return error;
    }
    const std::byte* written = outputs[i]->host_pointer();
    const size_t bytes = used_bytes(output.node);
    // Outputs are written while inputs are still being read.
    bool shared = false;
    for (size_t j = 0; j < inputs.size(); ++j) {
      shared |= overlap(written, bytes, inputs[j]->host_pointer(), used_bytes(graph.inputs()[j]));
    }
    for (size_t j = 0; j < i; ++j) {
      shared |=
          overlap(written, bytes, outputs[j]->host_pointer(), used_bytes(graph.outputs()[j].node));
    }
    if (shared) {
      return part_error(graph, "output " + output.name + " has memory of its own",
                        "memory of another buffer of the call");
    }
  }
  return std::nullopt;
}

}  // namespace npu::cpu
