// Products of the cpu backend: those of every unit of this CPU against f64, and through plans.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu_amx.h"
#include "backend/cpu_matmul.h"
#include "backend/cpu_run.h"
#include "backend/cpu_vector.h"
#include "ops/ops.h"
#include "random_graph.h"

namespace npu::cpu {
namespace {

struct Matrix {
  int64_t x, k, ld;
  bool k_rows;
  OperandDType dtype;
  std::vector<std::byte> bytes;

  int64_t index(int64_t row, int64_t i) const { return k_rows ? i * ld + row : row * ld + i; }
  double at(int64_t row, int64_t i) const {
    if (dtype == OperandDType::kF32)
      return reinterpret_cast<const float*>(bytes.data())[index(row, i)];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(bytes.data())[index(row, i)];
    return dtype == OperandDType::kBF16 ? f32_from_bf16(bits) : f32_from_f16(bits);
  }
  void set(int64_t row, int64_t i, float value) {
    if (dtype == OperandDType::kF32) {
      reinterpret_cast<float*>(bytes.data())[index(row, i)] = value;
    } else {
      reinterpret_cast<uint16_t*>(bytes.data())[index(row, i)] =
          dtype == OperandDType::kBF16 ? bf16_from_f32(value) : f16_from_f32(value);
    }
  }
  ProductOperand operand() const { return {bytes.data(), ld, dtype, k_rows}; }
};

// Exactly as large as needed: sanitizers see a read past the end. `rough` values need all 24 bits.
Matrix random_matrix(Dice& dice, int64_t x, int64_t k, bool k_rows, OperandDType dtype,
                     bool rough) {
  const int64_t pad = static_cast<int64_t>(dice.roll(3));
  Matrix m{x, k, (k_rows ? x : k) + pad, k_rows, dtype, {}};
  const int64_t rows = k_rows ? k : x, cols = k_rows ? x : k;
  const size_t element = dtype == OperandDType::kF32 ? 4 : 2;
  m.bytes.resize(static_cast<size_t>((rows - 1) * m.ld + cols) * element);
  for (int64_t i = 0; i < x; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      float value = static_cast<float>(dice.normal());
      if (!rough) value = f32_from_bf16(bf16_from_f32(value));
      m.set(i, j, value);
    }
  }
  return m;
}

// The vector units that this CPU can run, not only the one it uses.
std::vector<const VectorUnit*> vector_units() {
  std::vector<const VectorUnit*> list;
#if defined(__x86_64__)
  for (const VectorUnit* unit :
       {&avx512_bf16::kVectorUnit, &avx512::kVectorUnit, &avx2::kVectorUnit}) {
    if (!list.empty() || unit == vector_unit()) list.push_back(unit);
  }
#endif
  return list;
}

// Anything that multiplies.
struct Unit {
  const char* name;
  void (*multiply)(const Product&, std::byte*);
};

std::vector<Unit> units() {
  std::vector<Unit> list;
  for (const VectorUnit* unit : vector_units()) list.push_back({unit->isa, unit->multiply});
  if (amx_available()) {
    list.push_back({"amx", [](const Product& p, std::byte* scratch) {
                      amx_multiply(AmxProduct{p}, scratch);
                    }});
  }
  return list;
}

class Products : public testing::TestWithParam<Unit> {
 protected:
  void SetUp() override { scratch_ = allocate_aligned(kProductScratchBytes); }
  // Relative L2 error against sums in f64.
  double error(const Matrix& lhs, const Matrix& rhs, float alpha, float beta, Dice& dice) {
    const int64_t ld = rhs.x + static_cast<int64_t>(dice.roll(2));
    std::vector<float> out(static_cast<size_t>((lhs.x - 1) * ld + rhs.x));
    for (float& value : out) value = static_cast<float>(dice.normal());
    const std::vector<float> before = out;
    GetParam().multiply(
        {lhs.operand(), rhs.operand(), lhs.x, rhs.x, lhs.k, alpha, beta, out.data(), ld},
        scratch_.get());
    double wrong = 0, size = 0;
    for (int64_t i = 0; i < lhs.x; ++i) {
      for (int64_t j = 0; j < ld && i * ld + j < static_cast<int64_t>(out.size()); ++j) {
        const size_t at = static_cast<size_t>(i * ld + j);
        if (j >= rhs.x) {
          EXPECT_EQ(out[at], before[at]) << "written beside the result";
          continue;
        }
        double sum = 0;
        for (int64_t k = 0; k < lhs.k; ++k) sum += lhs.at(i, k) * rhs.at(j, k);
        sum = alpha * sum + (beta != 0 ? before[at] : 0);
        wrong += (out[at] - sum) * (out[at] - sum);
        size += sum * sum;
      }
    }
    return std::sqrt(wrong / size);
  }
  std::shared_ptr<std::byte> scratch_;
};

TEST_P(Products, AreAsExactAsF32) {
  Dice dice(1, "products");
  const OperandDType dtypes[] = {OperandDType::kF32, OperandDType::kF32, OperandDType::kBF16,
                                 OperandDType::kF16};
  for (int i = 0; i < 200; ++i) {
    const int64_t m = 1 + static_cast<int64_t>(dice.roll(150)),
                  n = 1 + static_cast<int64_t>(dice.roll(150));
    const int64_t k = 1 + static_cast<int64_t>(dice.roll(i % 10 == 0 ? 3000 : 200));
    const Matrix lhs =
        random_matrix(dice, m, k, dice.chance(0.5), dice.pick(dtypes), dice.chance(0.5));
    const Matrix rhs =
        random_matrix(dice, n, k, dice.chance(0.5), dice.pick(dtypes), dice.chance(0.5));
    const float alpha = dice.chance(0.5) ? 1.0f : 0.125f, beta = dice.chance(0.5) ? 1.0f : 0.0f;
    EXPECT_LE(error(lhs, rhs, alpha, beta, dice), 5e-7) << m << " " << n << " " << k;
  }
}

// More rows than stay in L2 at once, and values of which only some are bf16 already.
TEST_P(Products, ManyPasses) {
  Dice dice(2, "products");
  for (const bool k_rows : {false, true}) {
    Matrix lhs = random_matrix(dice, 300, 2100, k_rows, OperandDType::kF32, false);
    lhs.set(299, 2099, 0.1f);
    Matrix rhs = random_matrix(dice, 270, 2100, !k_rows, OperandDType::kF32, false);
    EXPECT_LE(error(lhs, rhs, 1, 0, dice), 5e-7);
    rhs.set(140, 0, 0.3f);
    EXPECT_LE(error(lhs, rhs, 1, 1, dice), 5e-7);
  }
}

TEST_P(Products, LargeAndSmallNumbers) {
  Dice dice(3, "products");
  Matrix lhs = random_matrix(dice, 40, 64, false, OperandDType::kF32, true);
  Matrix rhs = random_matrix(dice, 40, 64, false, OperandDType::kF32, true);
  for (int64_t k = 0; k < 64; ++k) {
    lhs.set(0, k, k == 0 ? std::numeric_limits<float>::max() : 0);
    lhs.set(1, k, k == 0 ? std::numeric_limits<float>::infinity() : 0);
    lhs.set(2, k, k == 0 ? std::nanf("") : 0);
    lhs.set(3, k, static_cast<float>(lhs.at(3, k)) * 1e-30f);
    rhs.set(0, k, 0.5f);
  }
  std::vector<float> out(1600);
  GetParam().multiply({lhs.operand(), rhs.operand(), 40, 40, 64, 1, 0, out.data(), 40},
                      scratch_.get());
  EXPECT_EQ(out[0], std::numeric_limits<float>::max() / 2);
  EXPECT_FALSE(std::isfinite(out[40])) << "infinity or NaN: zero parts of 0.5 meet it";
  EXPECT_TRUE(std::isnan(out[80]));
  double sum = 0;
  for (int64_t k = 0; k < 64; ++k) sum += lhs.at(3, k) * 0.5;
  EXPECT_NEAR(out[120] / sum, 1, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Units, Products, testing::ValuesIn(units()),
                         [](const auto& unit) { return std::string(unit.param.name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Products);  // a CPU may have none

// bf16 values as a vector unit keeps a weight: by panels of x, in rows of k or of pairs of k.
std::vector<uint16_t> panels_of(const Matrix& matrix, const VectorUnit& unit, bool pairs) {
  const int64_t cols = unit.panel_cols, depth = pairs ? 2 : 1;
  const int64_t panel = panel_bytes(cols, matrix.k) / 2;
  std::vector<uint16_t> panels(static_cast<size_t>((matrix.x + cols - 1) / cols * panel));
  for (int64_t x = 0; x < matrix.x; ++x) {
    for (int64_t k = 0; k < matrix.k; ++k) {
      const int64_t at = x / cols * panel + (k / depth * cols + x % cols) * depth + k % depth;
      panels[static_cast<size_t>(at)] = bf16_from_f32(static_cast<float>(matrix.at(x, k)));
    }
  }
  return panels;
}

TEST(CpuMatmul, KeptPanelsAndRoundedResults) {
  const std::shared_ptr<std::byte> scratch = allocate_aligned(kProductScratchBytes);
  for (const VectorUnit* unit : vector_units()) {
    Dice dice(4, unit->isa);
    for (int i = 0; i < 60; ++i) {
      const int64_t m = 1 + static_cast<int64_t>(dice.roll(40));
      const int64_t n = 1 + static_cast<int64_t>(dice.roll(100));
      const int64_t k = 1 + static_cast<int64_t>(dice.roll(i % 6 == 0 ? 2000 : 200));
      const OperandDType dtype = dice.chance(0.5) ? OperandDType::kBF16 : OperandDType::kF32;
      const Matrix lhs = random_matrix(dice, m, k, dice.chance(0.3), dtype, true);
      const Matrix rhs = random_matrix(dice, n, k, dice.chance(0.5), OperandDType::kBF16, true);
      const bool pairs = unit->bf16_pairs && dtype == OperandDType::kBF16;
      const std::vector<uint16_t> panels = panels_of(rhs, *unit, pairs);
      std::vector<float> want(static_cast<size_t>(m * n)), got(want.size());
      Product product{lhs.operand(), rhs.operand(), m, n, k, 0.5f, 0, want.data(), n};
      unit->multiply(product, scratch.get());
      product.rhs.data = panels.data();
      product.rhs.packed_parts = 1;
      product.out = got.data();
      unit->multiply(product, scratch.get());
      EXPECT_EQ(got, want) << unit->isa << " " << m << " " << n << " " << k;
      for (const OperandDType narrow : {OperandDType::kBF16, OperandDType::kF16}) {
        std::vector<uint16_t> rounded(want.size());
        product.out = rounded.data();
        product.out_dtype = narrow;
        EXPECT_EQ(unit->writes_narrow(product), k <= 768 || (pairs && k <= 1536));
        if (!unit->writes_narrow(product)) continue;
        unit->multiply(product, scratch.get());
        for (size_t j = 0; j < want.size(); ++j) {
          const bool bf16 = narrow == OperandDType::kBF16;
          ASSERT_EQ(rounded[j], bf16 ? bf16_from_f32(want[j]) : f16_from_f32(want[j])) << want[j];
        }
      }
    }
  }
}

// The last rows of a step may be too few for tiles; what is kept of its weight are tiles.
TEST(CpuMatmul, TilesAreNotPanels) {
  if (vector_unit() == nullptr) return;
  const std::shared_ptr<std::byte> scratch = allocate_aligned(kProductScratchBytes);
  const std::vector<float> lhs(40, 1), rhs(40 * 64, 2), tiles(40 * 64, 1e9f);
  std::vector<float> out(64);
  GemmStep step;
  step.amx = step.vector = step.by_weight = true;
  step.lhs_ld = 40;
  step.rhs_ld = step.out_ld = 64;
  GemmCall call;
  call.lhs = reinterpret_cast<const std::byte*>(lhs.data());
  call.rhs = reinterpret_cast<const std::byte*>(rhs.data());
  call.rhs_packed = reinterpret_cast<const std::byte*>(tiles.data());
  call.out = reinterpret_cast<std::byte*>(out.data());
  call.m = 1;
  call.n = 64;
  call.k = 40;
  call.scratch = reinterpret_cast<float*>(scratch.get());
  run_gemm(step, call);
  EXPECT_EQ(out, std::vector<float>(64, 80));
}

// The plan's ways of multiplying agree, for every dtype and layout of operands.
TEST(CpuMatmul, UnitsAgree) {
  use_single_threaded_blas();
  ThreadPool pool(2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const ops::MatmulFlags flags :
         {ops::MatmulFlags{}, {true, false}, {false, true}, {true, true}}) {
      Builder b("product");
      const int64_t m = 70, n = 300, k = 1100;
      const Value x = b.input("x", {dtype, flags.transpose_lhs ? Shape{2, k, m} : Shape{2, m, k}});
      const Value y = b.input("y", {dtype, flags.transpose_rhs ? Shape{2, n, k} : Shape{2, k, n}});
      b.output("narrow", ops::matmul(x, y, flags));
      b.output("wide", ops::scale(ops::matmul(ops::convert(x, DType::kF32),
                                              ops::convert(y, DType::kF32), flags),
                                  0.5));
      const Graph graph = std::move(b).build();
      NamedTensors inputs = random_inputs(graph, 5);
      const NamedTensors want = run_graph(graph, inputs);
      for (const ProductUnit unit : {ProductUnit::kBlas, ProductUnit::kVector, ProductUnit::kAmx}) {
        if (unit > best_product_unit()) continue;
        PlanRunner runner(make_plan(graph, unit), pool.threads());
        Workspace workspace(pool.threads());
        workspace.reserve(runner.plan());
        std::vector<std::byte*> in, out;
        std::vector<Tensor> results;
        for (const NodeId id : graph.inputs()) {
          in.push_back(inputs[graph.node(id).name].mutable_data());
        }
        for (const GraphOutput& output : graph.outputs()) {
          const TensorType& type = graph.node(output.node).type;
          results.emplace_back(type.dtype, type.shape);
          out.push_back(results.back().mutable_data());
        }
        runner.run(pool, workspace, in, out);
        for (size_t i = 0; i < results.size(); ++i) {
          const double bound = results[i].dtype() == DType::kF32 ? 2e-6 : 0x1p-8;
          const std::string& name = graph.outputs()[i].name;
          EXPECT_LE(difference(results[i], want.at(name)).rel_l2, bound)
              << name << " unit " << static_cast<int>(unit);
        }
      }
    }
  }
}

}  // namespace
}  // namespace npu::cpu
