// Calls of the fast cpu executor, and its results against the meaning of the graph.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "backend/backend.h"
#include "backend/cpu.h"
#include "random_graph.h"

namespace npu {

inline std::unique_ptr<Device> open_cpu(int threads) {
  return make_cpu()->open({.threads = threads}).take();
}

struct Loaded {
  std::unique_ptr<Device> device;
  std::unique_ptr<Executable> executable;
};

inline Loaded load(const Graph& graph, int threads) {
  Loaded loaded;
  loaded.device = open_cpu(threads);
  const Blob blob = make_cpu()->compile(graph, {}).take();
  loaded.executable = loaded.device->load(blob, graph).take();
  return loaded;
}

inline NamedTensors call(const Loaded& loaded, const Graph& graph, const NamedTensors& inputs) {
  std::vector<std::shared_ptr<Buffer>> owned;
  std::vector<Buffer*> in, out;
  for (const NodeId id : graph.inputs()) {
    owned.push_back(loaded.device->adopt(inputs.at(graph.node(id).name)).take());
    in.push_back(owned.back().get());
  }
  for (const GraphOutput& output : graph.outputs()) {
    owned.push_back(
        loaded.device->allocate(static_cast<size_t>(graph.node(output.node).type.bytes())).take());
    std::memset(owned.back()->host_pointer(), 0xa5, owned.back()->bytes());
    out.push_back(owned.back().get());
  }
  const Device::Ticket ticket = loaded.device->submit(*loaded.executable, in, out).take();
  EXPECT_FALSE(loaded.device->wait(ticket).has_value());
  NamedTensors results;
  for (size_t i = 0; i < out.size(); ++i) {
    const GraphOutput& output = graph.outputs()[i];
    Tensor result(graph.node(output.node).type.dtype, graph.node(output.node).type.shape);
    loaded.device->download({result.mutable_data(), result.bytes()}, *out[i]);
    results[output.name] = result;
  }
  return results;
}

inline NamedTensors run_cpu(const Graph& graph, const NamedTensors& inputs, int threads = 2) {
  return call(load(graph, threads), graph, inputs);
}

// Relative L2 of every output against the rows' kernels.
inline void expect_near_reference(const Graph& graph, const NamedTensors& inputs, double bound) {
  const NamedTensors want = run_graph(graph, inputs), got = run_cpu(graph, inputs);
  for (const auto& [name, reference] : want) {
    const Difference d = difference(got.at(name), reference);
    const double step = reference.dtype() == DType::kBF16 ? 0x1p-8 : 0;  // a neighbour now and then
    EXPECT_LE(d.rel_l2, std::max(bound, step)) << graph.name() << " output " << name;
    EXPECT_EQ(d.finite, true) << graph.name() << " output " << name;
  }
}

}  // namespace npu
