// The one contraction: batched matrix product with transpose flags.
#include <algorithm>
#include <vector>

#include "ops/kernel.h"
#include "ops/rows.h"

namespace npu::ops {
namespace {

using Values = std::vector<Value>;

// A flag that is off is left out, so that equal products are equal nodes.
constexpr AttrSpec kMatmulAttrs[] = {{"transpose_lhs", AttrKind::kInteger, false},
                                     {"transpose_rhs", AttrKind::kInteger, false}};

MatmulFlags flags_of(const Attrs& attrs) {
  return {attrs.integer("transpose_lhs", 0) != 0, attrs.integer("transpose_rhs", 0) != 0};
}

// Sizes of out[b] (m×n) = lhs[b] (m×k) · rhs[b] (k×n).
struct MatmulSizes {
  int64_t batch = 1, m = 0, n = 0, k = 0;
};

MatmulSizes sizes_of(const Shape& lhs, const Shape& out, MatmulFlags flags) {
  MatmulSizes sizes;
  const size_t rank = out.size();
  for (size_t d = 0; d + 2 < rank; ++d) sizes.batch *= out[d];
  sizes.m = out[rank - 2];
  sizes.n = out[rank - 1];
  sizes.k = lhs[flags.transpose_lhs ? rank - 2 : rank - 1];
  return sizes;
}

Result<TensorType> infer_matmul(std::span<const TensorType> in, const Attrs& attrs) {
  for (const auto& [name, value] : attrs.items()) {
    if (attrs.integer(name) != 1) return broken(name + " is 1 or left out");
  }
  const Shape &lhs = in[0].shape, &rhs = in[1].shape;
  if (!is_float(in[0].dtype) || in[0].dtype != in[1].dtype) {
    return broken("operands are of one float type");
  }
  const size_t rank = lhs.size();
  if (rank < 2 || rhs.size() != rank) return broken("operands have equal rank of at least 2");
  if (!std::equal(lhs.begin(), lhs.end() - 2, rhs.begin())) {
    return broken("batch dimensions are equal");
  }
  const MatmulFlags flags = flags_of(attrs);
  const int64_t lhs_k = lhs[flags.transpose_lhs ? rank - 2 : rank - 1];
  const int64_t rhs_k = rhs[flags.transpose_rhs ? rank - 1 : rank - 2];
  if (lhs_k != rhs_k) return broken("contracted dimensions are equal");
  Shape shape = lhs;
  shape[rank - 2] = lhs[flags.transpose_lhs ? rank - 1 : rank - 2];
  shape[rank - 1] = rhs[flags.transpose_rhs ? rank - 2 : rank - 1];
  return TensorType{in[0].dtype, shape};
}

// rows×cols from cols×rows, in tiles that stay in cache.
void transpose_into(const float* from, int64_t rows, int64_t cols, float* to) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) {
          to[r * cols + c] = from[c * rows + r];
        }
      }
    }
  }
}

// sum[j] += factors[0]·rows[0][j] + factors[1]·rows[1][j] + …, added one after the other.
template <int kCount>
void add_rows(const float* factors, const float* __restrict rows, int64_t stride, int64_t width,
              float* __restrict sum) {
  for (int64_t j = 0; j < width; ++j) {
    float value = sum[j];
    for (int k = 0; k < kCount; ++k) value += factors[k] * rows[k * stride + j];
    sum[j] = value;
  }
}

// out (m×n) = lhs (m×k) · rhs (k×n), all row major. Each element is summed in f32 in order of k;
// the tiles only keep rows of rhs in cache, and steps of four keep sums in registers.
void multiply(const float* lhs, const float* rhs, const MatmulSizes& s, float* out) {
  constexpr int64_t kTileK = 32, kTileN = 192, kStep = 4;
  std::fill(out, out + s.m * s.n, 0.0f);
  for (int64_t n0 = 0; n0 < s.n; n0 += kTileN) {
    const int64_t width = std::min(kTileN, s.n - n0);
    for (int64_t k0 = 0; k0 < s.k; k0 += kTileK) {
      const int64_t k_end = std::min(s.k, k0 + kTileK);
      for (int64_t m = 0; m < s.m; ++m) {
        float* sum = out + m * s.n + n0;
        const float* factors = lhs + m * s.k;
        int64_t k = k0;
        for (; k + kStep <= k_end; k += kStep) {
          add_rows<kStep>(factors + k, rhs + k * s.n + n0, s.n, width, sum);
        }
        for (; k < k_end; ++k) add_rows<1>(factors + k, rhs + k * s.n + n0, s.n, width, sum);
      }
    }
  }
}

void matmul_kernel(std::span<const Tensor> in, const Attrs& attrs, Tensor& out) {
  const MatmulFlags flags = flags_of(attrs);
  const MatmulSizes s = sizes_of(in[0].shape(), out.shape(), flags);
  const F32Input lhs(in[0]), rhs(in[1]);
  F32Output result(out);
  std::vector<float> plain_lhs(flags.transpose_lhs ? static_cast<size_t>(s.m * s.k) : 0);
  std::vector<float> plain_rhs(flags.transpose_rhs ? static_cast<size_t>(s.k * s.n) : 0);
  for (int64_t b = 0; b < s.batch; ++b) {
    const float* left = lhs.data() + b * s.m * s.k;
    const float* right = rhs.data() + b * s.k * s.n;
    if (flags.transpose_lhs) {
      transpose_into(left, s.m, s.k, plain_lhs.data());
      left = plain_lhs.data();
    }
    if (flags.transpose_rhs) {
      transpose_into(right, s.k, s.n, plain_rhs.data());
      right = plain_rhs.data();
    }
    multiply(left, right, s, result.data() + b * s.m * s.n);
  }
  result.store();
}

// With Y = A·B: dA = G·Bᵀ and dB = Aᵀ·G. An operand that is stored transposed has the transposed
// gradient, (G·Bᵀ)ᵀ = B·Gᵀ; flags say all of it, so no transpose node is made.
Values vjp_matmul(const VjpContext& c) {
  const Value a = c.inputs[0], b = c.inputs[1], g = c.cotangent;
  const auto [ta, tb] = flags_of(c.node.attrs);
  const Value grad_a = ta ? matmul(b, g, {.transpose_lhs = tb, .transpose_rhs = true})
                          : matmul(g, b, {.transpose_lhs = false, .transpose_rhs = !tb});
  const Value grad_b = tb ? matmul(g, a, {.transpose_lhs = true, .transpose_rhs = ta})
                          : matmul(a, g, {.transpose_lhs = !ta, .transpose_rhs = false});
  return {grad_a, grad_b};
}

// The permutation that exchanges the last two of `rank` dimensions.
std::vector<int64_t> swap_last_two(size_t rank) {
  std::vector<int64_t> perm(rank);
  for (size_t d = 0; d < rank; ++d) perm[d] = static_cast<int64_t>(d);
  std::swap(perm[rank - 2], perm[rank - 1]);
  return perm;
}

GraphWriter::Ref onnx_matmul(const LowerContext& c) {
  const MatmulFlags flags = flags_of(c.node.attrs);
  const size_t rank = c.node.type.shape.size();
  if (!flags.transpose_lhs && !flags.transpose_rhs) return lower_as(c, "MatMul");
  if (rank == 2) {  // Gemm has the flags, but no batch
    return lower_as(
        c, "Gemm",
        {{"transA", int64_t{flags.transpose_lhs}}, {"transB", int64_t{flags.transpose_rhs}}});
  }
  const bool transposed[] = {flags.transpose_lhs, flags.transpose_rhs};
  std::vector<GraphWriter::Ref> operands(c.inputs.begin(), c.inputs.end());
  for (size_t i = 0; i < 2; ++i) {
    if (!transposed[i]) continue;
    TensorType type = c.input_types[i];
    std::swap(type.shape[rank - 2], type.shape[rank - 1]);
    operands[i] =
        c.writer.node("Transpose", c.inputs.subspan(i, 1), {{"perm", swap_last_two(rank)}}, type);
  }
  return c.writer.node("MatMul", operands, {}, c.node.type);
}

GraphWriter::Ref openvino_matmul(const LowerContext& c) {
  const MatmulFlags flags = flags_of(c.node.attrs);
  const auto text = [](bool flag) { return std::string(flag ? "true" : "false"); };
  return lower_as(
      c, "opset1::MatMul",
      {{"transpose_a", text(flags.transpose_lhs)}, {"transpose_b", text(flags.transpose_rhs)}});
}

Attrs matmul_attrs(MatmulFlags flags) {
  Attrs attrs;
  if (flags.transpose_lhs) attrs.set("transpose_lhs", int64_t{1});
  if (flags.transpose_rhs) attrs.set("transpose_rhs", int64_t{1});
  return attrs;
}

// All four flag combinations, plain and batched, with m, n and k all different.
std::vector<OpSample> matmul_samples() {
  std::vector<OpSample> samples;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Shape a = ta ? Shape{4, 3} : Shape{3, 4};
      const Shape b = tb ? Shape{5, 4} : Shape{4, 5};
      samples.push_back(
          {.inputs = {{DType::kF32, a}, {DType::kF32, b}}, .attrs = matmul_attrs({ta, tb})});
      samples.push_back(
          {.inputs = {{DType::kF32, {2, 2, a[0], a[1]}}, {DType::kF32, {2, 2, b[0], b[1]}}},
           .attrs = matmul_attrs({ta, tb})});
    }
  }
  return samples;
}

constexpr OpDef kMatmul = {
    .name = "matmul",
    .arity = 2,
    .attrs = kMatmulAttrs,
    .traits = {.contraction = true},
    .summary =
        "[…, M, K] × […, K, N] → […, M, N]; a flag set to 1 says that the operand's last two "
        "dimensions are stored the other way round. Sums in f32, rounds once.",
    .infer = infer_matmul,
    .kernel = matmul_kernel,
    .vjp = vjp_matmul,
    .no_grad_reason = "",
    .onnx = onnx_matmul,
    .openvino = openvino_matmul,
    .samples = matmul_samples,
};

constexpr const OpDef* kRows[] = {&kMatmul};

}  // namespace

std::span<const OpDef* const> matmul_rows() { return kRows; }

Value matmul(Value lhs, Value rhs, MatmulFlags flags) {
  return lhs.builder->apply(kMatmul, {lhs, rhs}, matmul_attrs(flags));
}

}  // namespace npu::ops
