// Which inputs of a call become constants, and how long what is made of them is kept.
#include "backend/frozen_inputs.h"

#include <gtest/gtest.h>

#include "ops/ops.h"

namespace npu {
namespace {

// y = (x + c)·wᵀ with w stored in bf16: w is read by a product, c is not.
Graph sample_graph() {
  Builder b("sample");
  const Value x = b.input("x", {DType::kF32, {2, 4}});
  const Value c = b.input("c", {DType::kF32, {1, 4}});
  const Value w = b.input("w", {DType::kBF16, {3, 4}});
  b.output("y", ops::matmul(ops::add(x, c), ops::convert(w, DType::kF32), {.transpose_rhs = true}));
  return std::move(b).build();
}

TEST(ProductWeights, InputsWithOtherUsesAreNoWeights) {
  const TensorType square{DType::kF32, {4, 4}}, batch{DType::kF32, {2, 4, 4}};
  Builder b("others");
  const Value x = b.input("x", square), w = b.input("w", square), added = b.input("added", square);
  const Value given = b.input("given", square), batched = b.input("batched", batch);
  b.output("y", ops::add(ops::matmul(x, w), added));
  b.output("z", ops::matmul(w, added));
  b.output("same", given);
  b.output("product", ops::matmul(x, given));
  b.output("products", ops::matmul(batched, batched));
  const Graph others = std::move(b).build();
  // w is a left operand too, `added` is added, `given` is an output, and batches are no weights.
  EXPECT_EQ(product_weights(others), std::vector<bool>(5, false));
}

class FrozenInputsTest : public testing::Test {
 protected:
  FrozenInputsTest()
      : device(make_backend("cpu:reference").take()->open({}).take()),
        graph(sample_graph()),
        weights(product_weights(graph)),
        x(device->allocate(32).take()),
        c(device->allocate(16).take()),
        w(device->allocate(24).take()) {}

  FrozenInputs frozen() {
    pointers = {x.get(), c.get(), w.get()};
    return FrozenInputs(graph, weights, pointers);
  }

  std::unique_ptr<Device> device;
  Graph graph;
  std::vector<bool> weights;
  std::shared_ptr<Buffer> x, c, w;
  std::vector<Buffer*> pointers;
};

TEST_F(FrozenInputsTest, WeightsAreSeenThroughConversions) {
  EXPECT_EQ(product_weights(graph), (std::vector<bool>{false, false, true}));
}

TEST_F(FrozenInputsTest, OnlyWeightsAreConstants) {
  EXPECT_TRUE(frozen().empty());
  c->freeze();
  x->freeze();
  EXPECT_TRUE(frozen().empty());
  w->freeze();
  const FrozenInputs constants = frozen();
  ASSERT_FALSE(constants.empty());
  const ConstantInputs values = constants.values();
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values.at(2).data(), w->host_pointer());
  EXPECT_EQ(values.at(2).dtype(), DType::kBF16);
}

TEST_F(FrozenInputsTest, FormsOfAnotherDeviceAreLeftAlone) {
  struct Packed : Buffer::Forms {};
  const auto packed = std::make_shared<Packed>();
  w->forms() = packed;
  w->freeze();
  EXPECT_TRUE(frozen().empty());
  EXPECT_EQ(w->forms(), packed);
}

TEST_F(FrozenInputsTest, CodeIsFoundWhileItsBuffersLive) {
  FrozenCode<int> code;
  w->freeze();
  EXPECT_EQ(code.find(frozen()), nullptr);
  code.add(frozen(), std::make_unique<int>(7));
  ASSERT_NE(code.find(frozen()), nullptr);
  EXPECT_EQ(*code.find(frozen()), 7);
  const auto first = w;
  w = device->allocate(24).take();
  w->freeze();
  EXPECT_EQ(code.find(frozen()), nullptr);
  EXPECT_EQ(code.size(), 1u) << "the first buffer lives";
  code.add(frozen(), std::make_unique<int>(8));
  EXPECT_EQ(code.size(), 2u);
  for (int i = 0; i < 20; ++i) {  // new buffers may lie where the freed ones lay
    w = nullptr;
    w = device->allocate(24).take();
    w->freeze();
    EXPECT_EQ(code.find(frozen()), nullptr);
    EXPECT_EQ(code.size(), 1u) << "what was made for freed buffers is freed";
    code.add(frozen(), std::make_unique<int>(i));
    EXPECT_EQ(*code.find(frozen()), i);
  }
  w = first;
  EXPECT_EQ(*code.find(frozen()), 7);
}

}  // namespace
}  // namespace npu
