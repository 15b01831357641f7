// Frozen weights that the cpu backend keeps in the form its products read, and activations that are
// packed once for several products.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu.h"
#include "backend/cpu_matmul.h"
#include "backend/cpu_plan.h"
#include "ops/ops.h"
#include "random_graph.h"

namespace npu {
namespace {

struct Sizes {
  int64_t rows, out, in;
};

// A weight as both directions of a linear read it: y = x·wᵀ and dx = dy·w.
Graph both_directions(const Sizes& sizes, DType weight_dtype, DType dtype) {
  Builder b("linear");
  const Value w = b.input("w", {weight_dtype, {sizes.out, sizes.in}});
  const Value wide = weight_dtype == dtype ? w : ops::convert(w, dtype);
  const Value x = b.input("x", {dtype, {sizes.rows, sizes.in}});
  const Value dy = b.input("dy", {dtype, {sizes.rows, sizes.out}});
  b.output("y", ops::matmul(x, wide, {.transpose_rhs = true}));
  b.output("dx", ops::matmul(dy, wide));
  return std::move(b).build();
}

// One device with one part, whose weight buffer stays from call to call.
class Linear {
 public:
  Linear(const Graph& graph, const NamedTensors& inputs, int threads, bool prepack, bool frozen)
      : graph_(graph),
        device_(make_cpu()->open({.threads = threads, .prepack = prepack}).take()),
        executable_(device_->load(make_cpu()->compile(graph, {}).take(), graph).take()) {
    for (const NodeId id : graph.inputs()) {
      const Tensor& tensor = inputs.at(graph.node(id).name);
      inputs_.push_back(device_->allocate(tensor.bytes()).take());
      device_->upload(*inputs_.back(), {tensor.data(), tensor.bytes()});
      if (frozen && graph.node(id).name == "w") inputs_.back()->freeze();
    }
  }

  NamedTensors call() {
    std::vector<Buffer*> in, out;
    std::vector<std::shared_ptr<Buffer>> owned;
    for (const auto& buffer : inputs_) in.push_back(buffer.get());
    for (const GraphOutput& output : graph_.outputs()) {
      const TensorType& type = graph_.node(output.node).type;
      owned.push_back(device_->allocate(static_cast<size_t>(type.bytes())).take());
      out.push_back(owned.back().get());
    }
    EXPECT_FALSE(device_->wait(device_->submit(*executable_, in, out).take()).has_value());
    NamedTensors results;
    for (size_t i = 0; i < out.size(); ++i) {
      const TensorType& type = graph_.node(graph_.outputs()[i].node).type;
      Tensor result(type.dtype, type.shape);
      device_->download({result.mutable_data(), result.bytes()}, *out[i]);
      results[graph_.outputs()[i].name] = result;
    }
    return results;
  }
  Device& device() { return *device_; }
  Buffer& weight() { return *inputs_[0]; }  // the first input

 private:
  const Graph& graph_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Executable> executable_;
  std::vector<std::shared_ptr<Buffer>> inputs_;
};

void expect_equal_bits(const NamedTensors& got, const NamedTensors& want, const std::string& what) {
  for (const auto& [name, tensor] : want) {
    EXPECT_EQ(std::memcmp(got.at(name).data(), tensor.data(), tensor.bytes()), 0)
        << what << " " << name;
  }
}

NamedTensors inputs_of(const Graph& graph, bool whole_bf16) {
  NamedTensors inputs = random_inputs(graph, 7);
  Tensor& w = inputs.at("w");
  for (int64_t i = 0; whole_bf16 && i < w.size(); ++i) {
    set_element(w, i, f32_from_bf16(bf16_from_f32(static_cast<float>(element(w, i)))));
  }
  return inputs;
}

// Kept packed or not, the results are those of the rows, with the same bits for any threads.
TEST(CpuPacked, KeptWeightsChangeNoResult) {
  struct Case {
    Sizes sizes;
    DType weight, compute;
    bool whole_bf16;
  };
  const Case cases[] = {
      {{70, 200, 130}, DType::kBF16, DType::kF32, true},
      {{300, 97, 1601}, DType::kBF16, DType::kF32, true},
      {{65, 3333, 65}, DType::kBF16, DType::kF32, true},  // k too long to pack activations first
      {{70, 200, 130}, DType::kF32, DType::kF32, true},
      {{70, 200, 130}, DType::kF32, DType::kF32, false},
      {{70, 200, 130}, DType::kF16, DType::kF32, false},
      {{129, 160, 250}, DType::kBF16, DType::kBF16, true},
      {{33, 32, 31}, DType::kBF16, DType::kF32, true},
  };
  for (const Case& c : cases) {
    const std::string what = std::string(dtype_name(c.weight)) + " " + std::to_string(c.sizes.out) +
                             (c.whole_bf16 ? "" : " of more digits");
    const Graph graph = both_directions(c.sizes, c.weight, c.compute);
    const NamedTensors inputs = inputs_of(graph, c.whole_bf16);
    const NamedTensors want = run_graph(graph, inputs);
    Linear kept(graph, inputs, 2, true, true);
    const NamedTensors first = kept.call();
    for (const auto& [name, tensor] : want) {
      const double bound = c.compute == DType::kF32 ? 2e-6 : 0x1p-8;
      EXPECT_LE(difference(first.at(name), tensor).rel_l2, bound) << what << " " << name;
    }
    expect_equal_bits(kept.call(), first, what + " again");
    expect_equal_bits(Linear(graph, inputs, 3, true, true).call(), first, what + " by 3 threads");
    for (const auto& [name, tensor] : Linear(graph, inputs, 2, false, true).call()) {
      const double bound = c.compute == DType::kF32 ? 1e-6 : 0x1p-8;
      EXPECT_LE(difference(tensor, first.at(name)).rel_l2, bound) << what << " off " << name;
    }
  }
}

TEST(CpuPacked, OnlyFrozenBuffersOnRequest) {
  const Graph graph = both_directions({64, 96, 64}, DType::kBF16, DType::kF32);
  const NamedTensors inputs = inputs_of(graph, true);
  for (const bool prepack : {false, true}) {
    for (const bool frozen : {false, true}) {
      Linear linear(graph, inputs, 1, prepack, frozen);
      linear.call();
      const bool kept = linear.weight().forms() != nullptr;
      EXPECT_EQ(kept, prepack && frozen && cpu::best_product_unit() != cpu::ProductUnit::kBlas)
          << prepack << frozen;
    }
  }
}

// A buffer that isn't frozen may change between calls.
TEST(CpuPacked, ChangedWeightsAreRead) {
  const Graph graph = both_directions({64, 96, 64}, DType::kBF16, DType::kF32);
  const NamedTensors inputs = inputs_of(graph, true);
  Linear linear(graph, inputs, 2, true, false);
  const NamedTensors before = linear.call();
  NamedTensors changed = inputs;
  changed["w"] = random_inputs(graph, 8).at("w");
  linear.device().upload(linear.weight(), {changed["w"].data(), changed["w"].bytes()});
  const NamedTensors after = linear.call();
  expect_equal_bits(after, Linear(graph, changed, 2, true, false).call(), "changed");
  EXPECT_GT(difference(after.at("y"), before.at("y")).rel_l2, 0.1);
}

// Products that read one value, or two windows of one, share its packed form; a value that is
// written in two steps is packed after the second.
TEST(CpuPacked, ValuesArePackedOnce) {
  Builder b("g");
  const auto weight = [&](const char* name) { return b.input(name, {DType::kBF16, {64, 64}}); };
  const auto product = [](const Value& x, const Value& w) {
    return ops::matmul(x, ops::convert(w, DType::kF32), {.transpose_rhs = true});
  };
  const Value x = ops::exp(b.input("x", {DType::kF32, {64, 64}}));
  const Value sum = ops::add(product(x, weight("q")), product(x, weight("k")));
  b.output("y", product(sum, weight("v")));
  b.output("z", ops::matmul(x, ops::convert(weight("o"), DType::kF32)));
  const Graph graph = std::move(b).build();
  const cpu::Plan plan = cpu::make_plan(graph, cpu::ProductUnit::kAmx);
  int packs = 0;
  for (const cpu::Step& step : plan.steps) {
    packs += std::holds_alternative<cpu::PackStep>(step.work) ? 1 : 0;
  }
  EXPECT_EQ(packs, 3) << "x for each side of the tiles, and the sum\n" << plan_text(plan);
  EXPECT_EQ(plan.weights.size(), 1u) << "bf16 rows are the left side's form: only o is packed";
  const NamedTensors inputs = random_inputs(graph, 9), want = run_graph(graph, inputs);
  for (const auto& [name, tensor] : Linear(graph, inputs, 2, true, true).call()) {
    EXPECT_LE(difference(tensor, want.at(name)).rel_l2, 2e-6) << name;
  }
}

}  // namespace
}  // namespace npu
