// Products, kernels and copies as steps with addresses; loops are in cpu_emit_loops.cpp.
#include "backend/cpu_emit.h"

#include <algorithm>
#include <bit>

#include "backend/cpu_amx.h"

namespace npu::cpu {
namespace {

// One-product steps are cut in columns, large ones also in rows, so that both threads of a small
// machine and all of a large one have work; every part packs its operands anew, so not finer.
constexpr double kPartFlops = 2e9;
constexpr int64_t kMinPartCols = 96, kMinPartRows = 256;
constexpr int64_t kColGrain = 32;  // columns of one register tile

// 16-bit operands are widened into panels of about this many cells, which stay in L2.
constexpr int64_t kPanelCells = 256 * 1024;

int64_t stride_of(const Factors& dim) { return dim.empty() ? 1 : dim[0].stride; }

// How one product of m × n × k is shared out.
void cut_product(GemmStep& gemm, int64_t m, Step& step) {
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(gemm.n) * static_cast<double>(gemm.k);
  if (gemm.n < 2 * kMinPartCols) {
    step.chunk_rows = rows_per_chunk(m);
    return;
  }
  const int64_t parts =
      std::clamp(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(flops / kPartFlops))),
                 int64_t{2}, int64_t{64});
  const int64_t col_parts = std::clamp(gemm.n / kMinPartCols, int64_t{1}, parts);
  const int64_t row_parts = std::clamp(m / kMinPartRows, int64_t{1}, parts / col_parts);
  const auto cut = [](int64_t size, int64_t count, int64_t grain) {
    return std::min(size, ((size + count - 1) / count + grain - 1) / grain * grain);
  };
  step.cols = gemm.n;
  step.chunk_cols = cut(gemm.n, col_parts, kColGrain);
  step.chunk_rows = cut(m, row_parts, 16);
}

// Vector products pack a panel of columns at a time, once for as many rows as a call has; the
// others' rows come from a cache that all cores share.
void cut_for_panels(const GemmStep& gemm, Step& step) {
  constexpr int64_t kMostRows = 512, kMostColParts = 64;
  if (gemm.n < 2 * kMinPartCols) {
    step.chunk_rows = rows_per_chunk(step.rows);
    return;
  }
  const auto equal = [](int64_t size, int64_t parts, int64_t grain) {
    return ((size + parts - 1) / parts + grain - 1) / grain * grain;
  };
  step.chunk_rows = equal(step.rows, (step.rows + kMostRows - 1) / kMostRows, kColGrain);
  step.cols = gemm.n;
  step.chunk_cols = std::max(kMinPartCols, equal(gemm.n, kMostColParts, kColGrain));
}

// Products of packed operands are cut finer, since nothing is packed twice. As many rows as stay in
// L2 share a pass over the weight.
void cut_packed(const GemmStep& gemm, Step& step) {
  constexpr int64_t kMostCells = 192 * 1024, kMostColParts = 64;
  const int64_t most_rows = std::clamp(kMostCells / gemm.k, int64_t{64}, int64_t{256});
  const int64_t row_parts = (step.rows + most_rows - 1) / most_rows;
  const auto rounded = [](int64_t size) { return (size + kColGrain - 1) / kColGrain * kColGrain; };
  step.chunk_rows = rounded((step.rows + row_parts - 1) / row_parts);
  step.cols = gemm.n;
  step.chunk_cols = std::max(kMinPartCols, rounded((gemm.n + kMostColParts - 1) / kMostColParts));
}

// With a k so long that the packed rows would come from memory once more for each chunk of columns,
// a chunk has all columns and packs its rows itself.
void cut_by_rows(Step& step) {
  constexpr int64_t kMostRows = 128;
  const int64_t half = (step.rows / 2 + kAmxBlock - 1) / kAmxBlock * kAmxBlock;
  step.chunk_rows = std::min(kMostRows, half);
}

// One product of activations by an input, neither side too small to be packed.
bool is_by_weight(const EmitContext& context, const GemmStep& gemm, NodeId rhs) {
  const bool large =
      gemm.amx ? fills_amx(gemm.space.rows, gemm.n, gemm.k) : gemm.vector && gemm.n >= kColGrain;
  return large && gemm.space.sizes.size() == 1 && !gemm.lhs_transposed &&
         context.graph.node(context.place(rhs).root).is_input();
}

// What is folded in, how it is cut, and the room for widened operands.
void finish_gemm(const EmitContext& context, const GemmSpec& spec, GemmStep gemm, Step& step) {
  gemm.amx = context.best == ProductUnit::kAmx;
  gemm.vector = context.best >= ProductUnit::kVector;
  gemm.alpha = spec.alpha;
  gemm.accumulate = spec.accumulate >= 0;
  if (spec.alpha_node >= 0) {
    gemm.alpha_storage = context.storage_of(spec.alpha_node);
    gemm.alpha_offset = context.place(spec.alpha_node).view.offset;
  }
  step.rows = gemm.space.rows;
  step.chunk_rows = rows_per_chunk(step.rows);
  const Node& product = context.graph.node(spec.product);
  constexpr int64_t kMostPackedK = 3072;
  gemm.by_weight = is_by_weight(context, gemm, product.inputs[1]);
  gemm.packed = gemm.amx && gemm.by_weight && gemm.k <= kMostPackedK;
  gemm.turned = gemm.rhs_transposed;
  if (gemm.packed) {
    cut_packed(gemm, step);
  } else if (gemm.amx && gemm.by_weight) {
    cut_by_rows(step);
  } else if (gemm.space.sizes.size() <= 1) {
    gemm.vector ? cut_for_panels(gemm, step) : cut_product(gemm, step.rows, step);
  }
  if (!gemm.vector && (context.stored_dtype(product.inputs[0]) != DType::kF32 ||
                       context.stored_dtype(product.inputs[1]) != DType::kF32)) {
    const int64_t width =
        std::min(step.chunk_rows, gemm.space.inner()) + (step.cols > 1 ? step.chunk_cols : gemm.n);
    gemm.block_k = std::min(gemm.k, std::max<int64_t>(64, kPanelCells / width / 64 * 64));
  }
  step.work = std::move(gemm);
}

}  // namespace

int64_t rows_per_chunk(int64_t rows) {
  if (rows <= 16) return rows;
  // A dozen chunks or more level out between a few threads; larger ones suit products better.
  const uint64_t dozenth = std::bit_floor(static_cast<uint64_t>(rows / 12) | 1u);
  return std::clamp(static_cast<int64_t>(dozenth), int64_t{16}, int64_t{256});
}

std::optional<RowSpace> common_rows(int64_t rows, std::span<const Factors> operands,
                                    std::vector<std::vector<int64_t>>& strides, size_t& misfit) {
  // Cuts, as the number of rows inside: each must divide the next.
  std::vector<int64_t> cuts = {1, rows};
  for (size_t i = 0; i < operands.size(); ++i) {
    int64_t inside = 1;
    for (size_t f = operands[i].size(); f-- > 0;) {
      inside *= operands[i][f].size;
      const auto at = std::lower_bound(cuts.begin(), cuts.end(), inside);
      if (at != cuts.end() && *at == inside) continue;
      if (at == cuts.end() || *at % inside != 0 || inside % *(at - 1) != 0) {
        misfit = i;
        return std::nullopt;
      }
      cuts.insert(at, inside);
    }
  }
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  RowSpace space;
  space.rows = rows;
  strides.assign(operands.size(), {});
  for (size_t c = cuts.size() - 1; c > 0; --c) {
    space.sizes.push_back(cuts[c] / cuts[c - 1]);
    for (size_t i = 0; i < operands.size(); ++i) {
      int64_t inside = 1;
      size_t f = operands[i].size();
      while (inside * operands[i][f - 1].size <= cuts[c - 1]) inside *= operands[i][--f].size;
      strides[i].push_back(operands[i][f - 1].stride * (cuts[c - 1] / inside));
    }
  }
  return space;
}

std::optional<NodeId> emit_gemm(const EmitContext& context, const Group& group, Step& step) {
  const NodeId result = group.nodes[0];
  const GemmSpec& spec = context.values.gemms[static_cast<size_t>(context.place(result).gemm)];
  const Node& product = context.graph.node(spec.product);
  const NodeId lhs_id = product.inputs[0], rhs_id = product.inputs[1];
  for (const NodeId id : {lhs_id, rhs_id}) {
    const bool fits = is_float(context.stored_dtype(id)) &&
                      fits_product(context.graph, spec.product, id, context.place(id).view);
    if (!fits) return context.place(id).role == Role::kView ? id : spec.product;
  }
  const View &lhs = context.place(lhs_id).view, &rhs = context.place(rhs_id).view;
  const View& out = context.place(result).view;
  const size_t rank = out.dims.size();
  const bool lhs_flag = product.attrs.integer("transpose_lhs", 0) != 0;
  const bool rhs_flag = product.attrs.integer("transpose_rhs", 0) != 0;
  const Factors& m = lhs.dims[rank - (lhs_flag ? 1 : 2)];
  const Factors& k = lhs.dims[rank - (lhs_flag ? 2 : 1)];
  const Factors& rhs_k = rhs.dims[rank - (rhs_flag ? 1 : 2)];
  const Factors& n = rhs.dims[rank - (rhs_flag ? 2 : 1)];

  GemmStep gemm;
  const Shape& shape = context.graph.node(result).type.shape;
  const int64_t rows = row_count(context.graph.node(result).type), m_size = shape[rank - 2];
  gemm.n = shape[rank - 1];
  gemm.k = loop_count(k);
  const Factors row_lists[] = {joined(lhs.flattened(0, rank - 2), m),
                               joined(rhs.flattened(0, rank - 2), {{m_size, 0}}), out.rows()};
  std::vector<std::vector<int64_t>> strides;
  size_t misfit = 0;
  auto space = common_rows(rows, row_lists, strides, misfit);
  if (!space) return misfit == 1 ? rhs_id : lhs_id;
  if (!strides[1].empty() && strides[1].back() != 0) {  // products of one row each
    space->sizes.push_back(1);
    for (auto& list : strides) list.push_back(0);
  }
  gemm.space = std::move(*space);
  gemm.lhs = {context.storage_of(lhs_id), lhs.offset, gemm.k, stride_of(k), strides[0]};
  gemm.rhs = {context.storage_of(rhs_id), rhs.offset, gemm.n, stride_of(n), strides[1]};
  gemm.out = {context.storage_of(result), out.offset, gemm.n, 1, strides[2]};
  gemm.rhs_k_stride = stride_of(rhs_k);

  const int64_t inner = gemm.space.inner();
  const auto lhs_matrix = blas_matrix({inner, gemm.lhs.inner_stride()}, k);
  const auto rhs_matrix = blas_matrix({gemm.k, gemm.rhs_k_stride}, n);
  const auto out_matrix =
      blas_matrix({inner, gemm.out.inner_stride()}, gemm.n == 1 ? Factors{} : Factors{{gemm.n, 1}});
  if (!lhs_matrix || !rhs_matrix || !out_matrix || out_matrix->transposed) return spec.product;
  gemm.lhs_ld = lhs_matrix->ld;
  gemm.lhs_transposed = lhs_matrix->transposed;
  gemm.rhs_ld = rhs_matrix->ld;
  gemm.rhs_transposed = rhs_matrix->transposed;
  gemm.out_ld = out_matrix->ld;
  step.nodes = group.nodes;
  finish_gemm(context, spec, std::move(gemm), step);
  return std::nullopt;
}

std::optional<NodeId> emit_kernel(const EmitContext& context, const Group& group, Step& step) {
  const NodeId id = group.nodes[0];
  const Node& node = context.graph.node(id);
  KernelStep kernel;
  kernel.op = node.op;
  kernel.attrs = node.attrs;
  kernel.out = context.storage_of(id);
  kernel.out_type = node.type;
  for (const NodeId input : node.inputs) {
    const TensorType& type = context.graph.node(input).type;
    View view = context.place(input).view;
    const int64_t offset = view.offset;
    view.offset = 0;
    if (view != dense_view(type.shape) || context.stored_dtype(input) != type.dtype) return input;
    kernel.operands.push_back({context.storage_of(input), offset, type});
  }
  step.nodes = group.nodes;
  step.work = std::move(kernel);
  return std::nullopt;
}

void emit_copy(const EmitContext& context, NodeId id, Step& step) {
  const Node& node = context.graph.node(id);
  const NodeId source = node.inputs[0];
  const View view = *view_of(context.graph, node, context.place(source).view);
  Factors rows = view.flattened(0, view.dims.size());
  Factor cols{1, 1};
  if (!rows.empty()) {
    cols = rows.back();
    rows.pop_back();
  }
  LoopStep loop;
  loop.space.rows = loop_count(rows);
  Access from{context.storage_of(source), view.offset, cols.size, cols.stride, {}};
  Access to{context.storage_of(id), 0, cols.size, 1, {}};
  int64_t dense = loop.space.rows * cols.size;
  for (const Factor& factor : rows) {
    loop.space.sizes.push_back(factor.size);
    from.strides.push_back(factor.stride);
    dense /= factor.size;
    to.strides.push_back(dense);
  }
  loop.memory = {from, to};
  const std::string stored(dtype_name(context.stored_dtype(source)));
  const DType dtype = node.type.dtype;
  const LoopArg read{LoopArg::Where::kMemory, 0, 0, cols.size};
  const LoopArg write{LoopArg::Where::kMemory, 1, 0, cols.size};
  LoopOp load{find_loop(("load." + stored).c_str()),
              write,
              {read},
              cols.size,
              cols.stride,
              false,
              "load." + stored};
  if (dtype != DType::kF32 && dtype != DType::kI32) {
    const LoopArg cell{LoopArg::Where::kRegister, 0, 0, cols.size};
    const std::string store = "store." + std::string(dtype_name(dtype));
    load.dst = cell;
    loop.register_cols = {cols.size};
    loop.register_start = {0};
    loop.program = {load, {find_loop(store.c_str()), write, {cell}, cols.size, 1, false, store}};
  } else {
    loop.program = {load};
  }
  loop.block_rows = std::clamp(kBlockCells / cols.size, int64_t{1}, loop.space.inner());
  step.nodes = {id};
  step.rows = loop.space.rows;
  step.chunk_rows = rows_per_chunk(step.rows);
  step.work = std::move(loop);
}

}  // namespace npu::cpu
