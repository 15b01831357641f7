// Vector products, compiled once per instruction set (NPU_VECTOR_ISA names the namespace): the
// right operand passes by in panels of two vectors' columns, the left one's words are spread over
// lanes from where they lie.
#include "backend/cpu_vector.h"

#include "backend/cpu_vector_pack.h"

namespace npu::cpu::NPU_VECTOR_ISA {
namespace {

constexpr int64_t kMaxWords = 768;  // of k at a time: a panel of them stays in L2
constexpr int64_t kPanelWords = kMaxWords * kPanelCols;
constexpr int64_t kLeftWords = static_cast<int64_t>(kProductScratchBytes) / 4 - kPanelWords;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t element_bytes(OperandDType dtype) { return dtype == OperandDType::kF32 ? 4 : 2; }

// Up to kBlockRows rows of sums by one panel.
struct Block {
  Left left;  // from the block's first row on
  const uint32_t* panel;
  int64_t words;
  float alpha;
  bool add;  // to what is there, which is f32
  std::byte* out;
  OperandDType out_dtype;
  int64_t out_row_bytes, cols;
};

[[gnu::always_inline]] static inline void store_as(OperandDType dtype, std::byte* to, Vector v) {
  if (dtype == OperandDType::kF32) return store(to, v);
  dtype == OperandDType::kBF16 ? store_bf16(to, v) : store_f16(to, v);
}

[[gnu::always_inline]] static inline void store_sums(const Vector* sums, int vectors,
                                                     const Block& block, std::byte* out) {
  const int64_t element = element_bytes(block.out_dtype);
  const Vector alpha = repeated(block.alpha);
  if (block.cols == vectors * kLanes) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      std::byte* const to = out + v * kLanes * element;
      store_as(block.out_dtype, to,
               block.add ? fma(alpha, sums[v], load(to)) : mul(alpha, sums[v]));
    }
    return;
  }
  alignas(64) std::byte edge[kPanelCols * sizeof(float)];
  const size_t bytes = static_cast<size_t>(block.cols * element);
  if (block.add) std::memcpy(edge, out, bytes);
  for (int v = 0; v < vectors; ++v) {
    std::byte* const to = edge + v * kLanes * element;
    store_as(block.out_dtype, to, block.add ? fma(alpha, sums[v], load(to)) : mul(alpha, sums[v]));
  }
  std::memcpy(out, edge, bytes);
}

template <class Unit, int rows, int vectors>
void multiply_block(const Block& block) {
  Vector sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = zeros();
  }
  const std::byte* left = block.left.data;
  const uint32_t* panel = block.panel;
  const int64_t row_bytes = block.left.row_bytes;
  for (int64_t i = 0; i < block.words; ++i) {
    Vector right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = load(panel + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      float spread;
      std::memcpy(&spread, left + r * row_bytes, sizeof(spread));
      const Vector a = repeated(spread);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] = Unit::madd(a, right[v], sums[r][v]);
    }
    left += block.left.word_bytes;
    panel += kPanelCols;
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    store_sums(sums[r], vectors, block, block.out + r * block.out_row_bytes);
  }
}

using MultiplyBlock = void (*)(const Block&);
template <class Unit, int vectors>
MultiplyBlock block_of_rows(int64_t rows) {
  static constexpr MultiplyBlock kByRows[] = {
    multiply_block<Unit, 1, vectors>,
    multiply_block<Unit, 2, vectors>,
    multiply_block<Unit, 3, vectors>,
    multiply_block<Unit, 4, vectors>,
    multiply_block<Unit, 5, vectors>,
    multiply_block<Unit, 6, vectors>,
#if defined(__AVX512F__)
    multiply_block<Unit, 7, vectors>,
    multiply_block<Unit, 8, vectors>,
#endif
  };
  static_assert(sizeof(kByRows) / sizeof(kByRows[0]) == kBlockRows);
  return kByRows[rows - 1];
}

// The cache lines of the panel after this one, asked for while this one is multiplied: the
// hardware does not foresee the strides between its rows. Behind the last panel of a call lies,
// more often than not, the first of the next.
class Ahead {
 public:
  Ahead(const Window& next, int64_t calls) {
    const int64_t element = element_bytes(next.from.dtype);
    rows_ = next.from.k_rows ? next.k_count : next.x_count;
    row_bytes_ = (next.from.k_rows ? next.x_count : next.k_count) * element;
    ld_bytes_ = next.from.ld * element;
    first_ = static_cast<const char*>(next.from.data) + next.index(0, 0) * element;
    rows_per_call_ = (rows_ + calls - 1) / calls;
  }
  void ask() {
    const int64_t last = smaller(row_ + rows_per_call_, rows_);
    for (; row_ < last; ++row_) {
      const char* const row = first_ + row_ * ld_bytes_;
      for (int64_t b = 0; b < row_bytes_; b += 64) _mm_prefetch(row + b, _MM_HINT_T1);
    }
  }

 private:
  const char* first_ = nullptr;
  int64_t rows_ = 0, row_bytes_ = 0, ld_bytes_ = 0, rows_per_call_ = 0, row_ = 0;
};

// Rows [row, row + rows) and k [k, k + k_count) by all columns.
template <class Unit>
void pass(const Product& p, int64_t row, int64_t rows, int64_t k, int64_t k_count,
          uint32_t* scratch) {
  const Window lhs{p.lhs, row, rows, k, k_count};
  const Left left = left_words<Unit>(lhs, scratch + kPanelWords);
  Block block;
  block.panel = scratch;
  block.words = words_of<Unit>(k_count);
  block.alpha = p.alpha;
  block.add = p.beta != 0 || k > 0;
  block.out_dtype = p.out_dtype;
  block.out_row_bytes = p.out_ld * element_bytes(p.out_dtype);
  for (int64_t col = 0; col < p.n; col += kPanelCols) {
    block.cols = smaller(kPanelCols, p.n - col);
    pack_panel<Unit>({p.rhs, col, block.cols, k, k_count}, scratch);
    Ahead ahead({p.rhs, col + kPanelCols, kPanelCols, k, k_count},
                (rows + kBlockRows - 1) / kBlockRows);
    for (int64_t r = 0; r < rows; r += kBlockRows) {
      ahead.ask();
      const int64_t count = smaller(kBlockRows, rows - r);
      block.left = {left.data + r * left.row_bytes, left.row_bytes, left.word_bytes};
      block.out = static_cast<std::byte*>(p.out) + (row + r) * block.out_row_bytes +
                  col * element_bytes(p.out_dtype);
      block.cols > kLanes ? block_of_rows<Unit, 2>(count)(block)
                          : block_of_rows<Unit, 1>(count)(block);
    }
  }
}

template <class Unit>
void multiply_by(const Product& p, uint32_t* scratch) {
  const int64_t words = words_of<Unit>(p.k), blocks = (words + kMaxWords - 1) / kMaxWords;
  const int64_t k_block = (words + blocks - 1) / blocks * Unit::kDepth;
  // As many rows as can be copied, where they must be.
  const int64_t row_block = kLeftWords / words_of<Unit>(k_block);
  for (int64_t row = 0; row < p.m; row += row_block) {
    for (int64_t k = 0; k < p.k; k += k_block) {
      pass<Unit>(p, row, smaller(row_block, p.m - row), k, smaller(k_block, p.k - k), scratch);
    }
  }
}

bool in_pairs([[maybe_unused]] const Product& p) {
#if defined(__AVX512BF16__)
  return p.lhs.dtype == OperandDType::kBF16 && p.rhs.dtype == OperandDType::kBF16;
#else
  return false;
#endif
}

void multiply(const Product& product, std::byte* scratch) {
  auto* const words = reinterpret_cast<uint32_t*>(scratch);
#if defined(__AVX512BF16__)
  if (in_pairs(product)) return multiply_by<BF16Pairs>(product, words);
#endif
  multiply_by<F32>(product, words);
}

bool writes_narrow(const Product& product) {
  return product.beta == 0 && product.k <= kMaxWords * (in_pairs(product) ? 2 : 1);
}

constexpr const char* kIsaName =
#if defined(__AVX512BF16__)
    "avx512_bf16";
#elif defined(__AVX512F__)
    "avx512";
#else
    "avx2";
#endif

}  // namespace

extern const VectorUnit kVectorUnit;
constinit const VectorUnit kVectorUnit = {kIsaName, multiply, writes_narrow};

}  // namespace npu::cpu::NPU_VECTOR_ISA
