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
  const std::byte* panel;
  int64_t words;
  float alpha;
  bool add;  // to what is there, which is f32
  std::byte* out;
  OperandDType out_dtype;
  int64_t out_row_bytes, cols;
  // Memory that is asked for on the way, so many bytes a word: all at once would fill the buffers
  // for misses, and what is read from L2 meanwhile would wait.
  const std::byte* ahead;
  int64_t ahead_bytes;
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

// What a panel holds: words, or bf16 values that become words of f32.
struct OfWords {
  static constexpr int64_t kLaneBytes = 4;
  [[gnu::always_inline]] static inline Vector words(const std::byte* at) { return load(at); }
};
struct OfBF16 {
  static constexpr int64_t kLaneBytes = 2;
  [[gnu::always_inline]] static inline Vector words(const std::byte* at) { return load_bf16(at); }
};

template <class Unit, class Panel, int rows, int vectors>
void multiply_block(const Block& block) {
  Vector sums[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = zeros();
  }
  const std::byte* left = block.left.data;
  const std::byte* panel = block.panel;
  const std::byte* ahead = block.ahead;
  const int64_t row_bytes = block.left.row_bytes;
  for (int64_t i = 0; i < block.words; ++i) {
    _mm_prefetch(ahead, _MM_HINT_T1);
    ahead += block.ahead_bytes;
    Vector right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      right[v] = Panel::words(panel + v * kLanes * Panel::kLaneBytes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      float spread;
      std::memcpy(&spread, left + r * row_bytes, sizeof(spread));
      const Vector a = repeated(spread);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] = Unit::madd(a, right[v], sums[r][v]);
    }
    left += block.left.word_bytes;
    panel += kPanelCols * Panel::kLaneBytes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
    store_sums(sums[r], vectors, block, block.out + r * block.out_row_bytes);
  }
}

using MultiplyBlock = void (*)(const Block&);
template <class Unit, class Panel, int vectors>
MultiplyBlock block_of_rows(int64_t rows) {
  static constexpr MultiplyBlock kByRows[] = {
    multiply_block<Unit, Panel, 1, vectors>,
    multiply_block<Unit, Panel, 2, vectors>,
    multiply_block<Unit, Panel, 3, vectors>,
    multiply_block<Unit, Panel, 4, vectors>,
    multiply_block<Unit, Panel, 5, vectors>,
    multiply_block<Unit, Panel, 6, vectors>,
#if defined(__AVX512F__)
    multiply_block<Unit, Panel, 7, vectors>,
    multiply_block<Unit, Panel, 8, vectors>,
#endif
  };
  static_assert(sizeof(kByRows) / sizeof(kByRows[0]) == kBlockRows);
  return kByRows[rows - 1];
}

// The rows of which the next panel will be packed, asked for block by block: the hardware does not
// foresee the strides between them.
class Ahead {
 public:
  struct Lines {
    const std::byte* first = nullptr;
    int64_t rows = 0, row_bytes = 0, ld_bytes = 0;
  };
  Ahead(const Lines& lines, int64_t calls)
      : lines_(lines), rows_per_call_((lines.rows + calls - 1) / calls) {}
  void ask() {
    const int64_t last = smaller(row_ + rows_per_call_, lines_.rows);
    for (; row_ < last; ++row_) {
      const std::byte* const row = lines_.first + row_ * lines_.ld_bytes;
      for (int64_t b = 0; b < lines_.row_bytes; b += 64) _mm_prefetch(row + b, _MM_HINT_T1);
    }
  }

 private:
  const Lines lines_;
  const int64_t rows_per_call_;
  int64_t row_ = 0;
};

// The right operand panel by panel: as it was kept, or packed into scratch on the way.
template <class Unit>
class Panels {
 public:
  Panels(const Product& p, int64_t k, int64_t k_count, uint32_t* scratch)
      : p_(p), k_(k), k_count_(k_count), scratch_(scratch) {}

  bool kept() const { return p_.rhs.packed_parts > 0; }
  const std::byte* at(int64_t col) {
    if (kept()) return kept_at(col);
    pack_panel<Unit>({p_.rhs, col, smaller(kPanelCols, p_.n - col), k_, k_count_}, scratch_);
    return reinterpret_cast<const std::byte*>(scratch_);
  }
  // What is still to be packed of a panel.
  Ahead::Lines lines(int64_t col) const {
    if (kept()) return {};
    const Window w{p_.rhs, col, kPanelCols, k_, k_count_};
    const int64_t element = element_bytes(p_.rhs.dtype);
    return {static_cast<const std::byte*>(p_.rhs.data) + w.index(0, 0) * element,
            p_.rhs.k_rows ? k_count_ : kPanelCols,
            (p_.rhs.k_rows ? kPanelCols : k_count_) * element, p_.rhs.ld * element};
  }
  const std::byte* kept_at(int64_t col) const {
    return static_cast<const std::byte*>(p_.rhs.data) +
           col / kPanelCols * panel_bytes(kPanelCols, p_.k) + k_ * kPanelCols * 2;
  }

 private:
  const Product& p_;
  const int64_t k_, k_count_;
  uint32_t* const scratch_;
};

template <class Unit>
MultiplyBlock find_block(bool kept, bool two_vectors, int64_t rows) {
  if constexpr (Unit::kDepth == 1) {
    if (kept) {
      return two_vectors ? block_of_rows<Unit, OfBF16, 2>(rows)
                         : block_of_rows<Unit, OfBF16, 1>(rows);
    }
  }
  return two_vectors ? block_of_rows<Unit, OfWords, 2>(rows)
                     : block_of_rows<Unit, OfWords, 1>(rows);
}

// Rows [row, row + rows) and k [k, k + k_count) by all columns.
template <class Unit>
void pass(const Product& p, int64_t row, int64_t rows, int64_t k, int64_t k_count,
          uint32_t* scratch) {
  const Window lhs{p.lhs, row, rows, k, k_count};
  const Left left = left_words<Unit>(lhs, scratch + kPanelWords);
  Panels<Unit> panels(p, k, k_count, scratch);
  Block block;
  block.words = words_of<Unit>(k_count);
  block.alpha = p.alpha;
  block.add = p.beta != 0 || k > 0;
  block.out_dtype = p.out_dtype;
  block.out_row_bytes = p.out_ld * element_bytes(p.out_dtype);
  const int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  for (int64_t col = 0; col < p.n; col += kPanelCols) {
    block.cols = smaller(kPanelCols, p.n - col);
    block.panel = panels.at(col);
    // Behind the last panel of a call lies, more often than not, the first of the next.
    Ahead ahead(panels.lines(col + kPanelCols), blocks);
    block.ahead = panels.kept() ? panels.kept_at(col + kPanelCols) : block.panel;
    block.ahead_bytes = panels.kept() ? (kPanelCols * 2 * Unit::kDepth + blocks - 1) / blocks : 0;
    for (int64_t r = 0; r < rows; r += kBlockRows) {
      ahead.ask();
      block.left = {left.data + r * left.row_bytes, left.row_bytes, left.word_bytes};
      block.out = static_cast<std::byte*>(p.out) + (row + r) * block.out_row_bytes +
                  col * element_bytes(p.out_dtype);
      find_block<Unit>(panels.kept(), block.cols > kLanes, smaller(kBlockRows, rows - r))(block);
      block.ahead += block.words * block.ahead_bytes;
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

#if defined(__AVX512BF16__)
constexpr bool kBF16Pairs = true;
#else
constexpr bool kBF16Pairs = false;
#endif

bool in_pairs(const Product& p) {
  return kBF16Pairs && p.lhs.dtype == OperandDType::kBF16 && p.rhs.dtype == OperandDType::kBF16;
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
constinit const VectorUnit kVectorUnit = {kIsaName, kPanelCols, kBF16Pairs, multiply,
                                          writes_narrow};

}  // namespace npu::cpu::NPU_VECTOR_ISA
