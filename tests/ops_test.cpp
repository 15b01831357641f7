// Meanings that samples do not reach: special values, ties, rounding, large products, composites.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/text.h"
#include "op_samples.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "transform/vjp.h"

namespace npu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Runs y = function(x0, x1, …) on operands.
template <class Function>
Tensor run(const std::vector<Tensor>& operands, Function&& function) {
  Builder b("g");
  std::vector<Value> inputs;
  for (size_t i = 0; i < operands.size(); ++i) {
    inputs.push_back(b.input(operand_name(i), {operands[i].dtype(), operands[i].shape()}));
  }
  b.output("y", function(inputs));
  return interpret(std::move(b).build(), bound(operands))[0];
}

using Values = const std::vector<Value>&;

std::vector<float> floats(const Tensor& tensor) {
  const auto values = tensor.values<float>();
  return {values.begin(), values.end()};
}

// d(sum of c·y)/dx for y = function(x), by transform's vjp.
template <class Function>
Tensor gradient(const Tensor& x, const Tensor& cotangent, Function&& function) {
  Builder b("g");
  b.output("y", function(b.input("x", {x.dtype(), x.shape()})));
  const Graph joint = vjp(std::move(b).build(), {"y"}, {"x"}).take();
  const auto outputs = interpret(joint, {{"x", x}, {"d_y", cotangent}});
  return outputs[1];
}

TEST(Ops, ExtremaPropagateNan) {
  const Tensor a = Tensor::from_f32({4}, std::vector<float>{kNan, 1, 2, -kInf});
  const Tensor b = Tensor::from_f32({4}, std::vector<float>{1, kNan, 3, kInf});
  const auto largest = floats(run({a, b}, [](Values v) { return ops::max(v[0], v[1]); }));
  const auto smallest = floats(run({a, b}, [](Values v) { return ops::min(v[0], v[1]); }));
  for (const size_t i : {0, 1}) EXPECT_TRUE(std::isnan(largest[i]) && std::isnan(smallest[i]));
  EXPECT_EQ(largest[2], 3);
  EXPECT_EQ(smallest[2], 2);
  EXPECT_EQ(largest[3], kInf);
  EXPECT_EQ(smallest[3], -kInf);
  for (const std::vector<float>& row :
       {std::vector<float>{1, kNan, 3}, {kNan, 1, 3}, {1, 3, kNan}}) {
    const Tensor x = Tensor::from_f32({1, 3}, row);
    EXPECT_TRUE(
        std::isnan(floats(run({x}, [](Values v) { return ops::reduce_max(v[0], {1}); }))[0]));
  }
}

TEST(Ops, TiesShareTheGradientOfTheMaximum) {
  const Tensor x = Tensor::from_f32({2, 4}, std::vector<float>{3, 1, 3, 3, -1, 0, 0, -2});
  const Tensor g = Tensor::from_f32({2, 1}, std::vector<float>{6, 5});
  EXPECT_EQ(floats(gradient(x, g, [](Value v) { return ops::reduce_max(v, {1}); })),
            (std::vector<float>{2, 0, 2, 2, 0, 2.5, 2.5, 0}));
  const Tensor ones = Tensor::from_f32({2, 4}, std::vector<float>(8, 1));
  EXPECT_EQ(
      floats(gradient(x, ones, [](Value v) { return ops::max(v, ops::constant_like(v, 0)); })),
      (std::vector<float>{1, 1, 1, 1, 0, 0.5, 0.5, 0}));
}

TEST(Ops, ComparisonsWithNanAndLargeIntegers) {
  const Tensor a = Tensor::from_f32({3}, std::vector<float>{kNan, 1, 0.0f});
  const Tensor b = Tensor::from_f32({3}, std::vector<float>{kNan, kNan, -0.0f});
  const std::vector<std::pair<std::string, std::vector<int>>> expected = {
      {"eq", {0, 0, 1}}, {"ne", {1, 1, 0}}, {"lt", {0, 0, 0}},
      {"le", {0, 0, 1}}, {"gt", {0, 0, 0}}, {"ge", {0, 0, 1}}};
  for (const auto& [kind, truth] : expected) {
    const Tensor y = run({a, b}, [&](Values v) { return ops::compare(v[0], v[1], kind); });
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(element(y, i), truth[static_cast<size_t>(i)]) << kind;
  }
  // Neighbours that neither f32 nor f64 can tell apart.
  Tensor big(DType::kI64, {1}), next(DType::kI64, {1});
  big.mutable_values<int64_t>()[0] = (int64_t{1} << 60) + 1;
  next.mutable_values<int64_t>()[0] = (int64_t{1} << 60) + 2;
  EXPECT_EQ(element(run({big, next}, [](Values v) { return ops::compare(v[0], v[1], "lt"); }), 0),
            1);
}

TEST(Ops, SigmoidIsFiniteEverywhere) {
  const Tensor x = Tensor::from_f32({4}, std::vector<float>{-kInf, -200, 200, kInf});
  EXPECT_EQ(floats(run({x}, [](Values v) { return ops::sigmoid(v[0]); })),
            (std::vector<float>{0, 0, 1, 1}));
}

// ---- matmul ------------------------------------------------------------------------------------

double reference_product(const Tensor& lhs, const Tensor& rhs, ops::MatmulFlags flags,
                         int64_t batch, int64_t m, int64_t n) {
  const int64_t rows = lhs.shape()[1], k_size = flags.transpose_lhs ? rows : lhs.shape()[2];
  double sum = 0;
  for (int64_t k = 0; k < k_size; ++k) {
    const auto at = [batch](const Tensor& t, int64_t i, int64_t j) {
      return element(t, (batch * t.shape()[1] + i) * t.shape()[2] + j);
    };
    sum += (flags.transpose_lhs ? at(lhs, k, m) : at(lhs, m, k)) *
           (flags.transpose_rhs ? at(rhs, n, k) : at(rhs, k, n));
  }
  return sum;
}

// Sizes that are no multiples of the kernel's tiles.
TEST(Matmul, AgreesWithTheSumInEveryLayout) {
  const int64_t m = 37, n = 301, k = 131;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Tensor lhs =
          random_tensor({DType::kF32, ta ? Shape{2, k, m} : Shape{2, m, k}}, 1, "lhs");
      const Tensor rhs =
          random_tensor({DType::kF32, tb ? Shape{2, n, k} : Shape{2, k, n}}, 1, "rhs");
      const ops::MatmulFlags flags = {ta, tb};
      const Tensor y = run({lhs, rhs}, [&](Values v) { return ops::matmul(v[0], v[1], flags); });
      ASSERT_EQ(y.shape(), (Shape{2, m, n}));
      double worst = 0;
      for (int64_t i = 0; i < y.size(); i += 7) {
        const double exact = reference_product(lhs, rhs, flags, i / (m * n), i / n % m, i % n);
        worst = std::max(worst, std::abs(element(y, i) - exact));
      }
      EXPECT_LT(worst, 2e-5);
    }
  }
}

// Elements do not depend on how many others are computed beside them, nor on the layout.
TEST(Matmul, IsBitwiseTheSameForAPartOfTheRowsAndColumns) {
  const int64_t m = 9, n = 300, k = 200;
  const Tensor lhs = random_tensor({DType::kF32, {m, k}}, 2, "lhs");
  const Tensor rhs = random_tensor({DType::kF32, {k, n}}, 2, "rhs");
  const Tensor whole = run({lhs, rhs}, [](Values v) { return ops::matmul(v[0], v[1]); });
  const Tensor part = run({lhs, rhs}, [&](Values v) {
    return ops::matmul(ops::slice(v[0], {2, 0}, {5, k}), ops::slice(v[1], {0, 290}, {k, n}));
  });
  const Tensor transposed = run({lhs, rhs}, [](Values v) {
    return ops::matmul(ops::transpose(v[0], {1, 0}), ops::transpose(v[1], {1, 0}),
                       {.transpose_lhs = true, .transpose_rhs = true});
  });
  EXPECT_TRUE(same_bytes(transposed, whole));
  EXPECT_TRUE(same_bytes(part, run({whole}, [&](Values v) {
                           return ops::slice(v[0], {2, 290}, {5, n});
                         })));
}

TEST(Matmul, Bf16SumsInF32) {
  // 1 + 4096·2⁻¹²: each term alone is lost in a bf16 sum.
  const int64_t k = 4097;
  Tensor lhs(DType::kBF16, {1, k}), rhs(DType::kBF16, {k, 1});
  for (int64_t i = 0; i < k; ++i) {
    set_element(lhs, i, i == 0 ? 1.0 : 0x1p-12);
    set_element(rhs, i, 1.0);
  }
  EXPECT_EQ(element(run({lhs, rhs}, [](Values v) { return ops::matmul(v[0], v[1]); }), 0), 2.0);
}

TEST(Matmul, GradientsUseFlagsInsteadOfTransposes) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      Builder b("g");
      const Value x = b.input("x", {DType::kF32, ta ? Shape{4, 3} : Shape{3, 4}});
      const Value w = b.input("w", {DType::kF32, tb ? Shape{5, 4} : Shape{4, 5}});
      b.output("y", ops::matmul(x, w, {ta, tb}));
      const Graph joint = vjp(std::move(b).build(), {"y"}, {"x", "w"}).take();
      EXPECT_EQ(joint.num_contractions(), 3);
      EXPECT_EQ(joint.nodes().size(), 6u) << print_graph(joint);
    }
  }
}

// ---- indices -----------------------------------------------------------------------------------

TEST(Ops, IndicesOutsideTheTable) {
  const Tensor table = Tensor::from_f32({2, 2}, std::vector<float>{1, 2, 3, 4});
  for (const int32_t index : {-1, 2}) {
    const Tensor indices = Tensor::from_i32({1}, {{index}});
    EXPECT_THROW(run({table, indices}, [](Values v) { return ops::gather(v[0], v[1]); }),
                 InternalError);
    EXPECT_EQ(floats(run({indices}, [](Values v) { return ops::one_hot(v[0], 2, DType::kF32); })),
              (std::vector<float>{0, 0}));
  }
}

TEST(Ops, RepeatedRowsAddUpInTheGradientOfGather) {
  const Tensor table = Tensor::from_f32({3, 1}, std::vector<float>{1, 2, 3});
  const Tensor g = Tensor::from_f32({4, 1}, std::vector<float>{1, 10, 100, 1000});
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {3, 1}});
  b.output("y", ops::gather(x, b.input("rows", {DType::kI32, {4}})));
  const Graph joint = vjp(std::move(b).build(), {"y"}, {"x"}).take();
  const Tensor rows = Tensor::from_i32({4}, std::vector<int32_t>{2, 0, 2, 2});
  EXPECT_EQ(floats(interpret(joint, {{"x", table}, {"rows", rows}, {"d_y", g}})[1]),
            (std::vector<float>{10, 0, 1101}));
}

// ---- composites --------------------------------------------------------------------------------

TEST(Composite, SoftmaxIsStableAndItsGradientSkipsTheMaximum) {
  const Tensor x = Tensor::from_f32({2, 3}, std::vector<float>{1000, 1001, 1002, -1, 0, 1});
  const std::vector<float> y = floats(run({x}, [](Values v) { return ops::softmax(v[0]); }));
  const double sum = std::exp(-1.0) + 1 + std::exp(1.0);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(y[i], std::exp(static_cast<double>(i) - 1) / sum, 1e-6);
    EXPECT_EQ(y[i], y[i + 3]);
  }
  const Tensor g = Tensor::from_f32({2, 3}, std::vector<float>{1, 2, -1, 0.5, 3, 1});
  const std::vector<float> dx = floats(gradient(x, g, ops::softmax));
  for (size_t row = 0; row < 2; ++row) {
    double mean = 0;
    for (size_t i = 0; i < 3; ++i) mean += element(g, static_cast<int64_t>(3 * row + i)) * y[i];
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(dx[3 * row + i], y[i] * (element(g, static_cast<int64_t>(3 * row + i)) - mean),
                  1e-6);
    }
  }
  Builder b("g");
  b.output("y", ops::softmax(b.input("x", {DType::kF32, {2, 3}})));
  const Graph joint = vjp(std::move(b).build(), {"y"}, {"x"}).take();
  for (const Node& node : joint.nodes()) {
    EXPECT_TRUE(node.is_input() || node.op->name != "compare");
  }
}

TEST(Composite, SmallFunctions) {
  const Tensor x = Tensor::from_f32({2, 4}, std::vector<float>{1, 2, 3, 4, -1, 0, 2, 5});
  EXPECT_EQ(floats(run({x}, [](Values v) { return ops::rotate_half(v[0]); })),
            (std::vector<float>{-3, -4, 1, 2, -2, -5, -1, 0}));
  EXPECT_EQ(floats(run({x}, [](Values v) { return ops::mean(v[0], 1); })),
            (std::vector<float>{2.5, 1.5}));
  EXPECT_EQ(floats(run({x}, [](Values v) { return ops::mean(v[0], 0); })),
            (std::vector<float>{0, 1, 2.5, 4.5}));
  EXPECT_EQ(floats(run({x}, [](Values v) { return ops::add_scalar(ops::scale(v[0], 2), 1); })),
            (std::vector<float>{3, 5, 7, 9, -1, 1, 5, 11}));
  const std::vector<float> silu = floats(run({x}, [](Values v) { return ops::silu(v[0]); }));
  EXPECT_NEAR(silu[1], 2 / (1 + std::exp(-2.0)), 1e-6);
  EXPECT_NEAR(silu[4], -1 / (1 + std::exp(1.0)), 1e-6);
}

TEST(Composite, BuildersLeaveOutWhatDoesNothing) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {2, 4}});
  EXPECT_EQ(ops::convert(x, DType::kF32).id, x.id);
  EXPECT_EQ(ops::broadcast(x, {2, 4}).id, x.id);
}

// ---- interpreter -------------------------------------------------------------------------------

TEST(Interpret, NeedsEveryInputInItsType) {
  Builder b("needy");
  b.output("y", ops::neg(b.input("x", {DType::kF32, {2}})));
  const Graph g = std::move(b).build();
  EXPECT_THROW(interpret(g, {}), InternalError);
  EXPECT_THROW(interpret(g, {{"x", Tensor(DType::kF32, {3})}}), InternalError);
  EXPECT_THROW(interpret(g, {{"x", Tensor(DType::kBF16, {2})}}), InternalError);
  EXPECT_NO_THROW(interpret(g, {{"x", Tensor(DType::kF32, {2})}}));
}

TEST(Interpret, OutputsMayBeInputsAndRepeat) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {2}});
  const Value y = ops::neg(x);
  b.output("same", x);
  b.output("y", y);
  b.output("again", y);
  const Tensor value = Tensor::from_f32({2}, std::vector<float>{1, -2});
  const auto outputs = interpret(std::move(b).build(), {{"x", value}});
  EXPECT_EQ(floats(outputs[0]), (std::vector<float>{1, -2}));
  EXPECT_EQ(floats(outputs[1]), (std::vector<float>{-1, 2}));
  EXPECT_EQ(floats(outputs[2]), floats(outputs[1]));
}

}  // namespace
}  // namespace npu
