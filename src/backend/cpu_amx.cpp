// The passes of an AMX product over its operands.
#include "backend/cpu_amx_block.h"

namespace npu::cpu {
namespace amx {
namespace {

// The smaller operand stays packed in L2 while the larger one passes by in strips of kBlock.
constexpr int64_t kResidentBytes = int64_t{3} << 19;
constexpr int64_t kMaxK = 768;
constexpr int64_t kLeastX = 256;  // resident x below which k is cut instead
constexpr int64_t kStripBytes = kMaxK / kTileK * kParts * kPart;
static_assert(kResidentBytes + kStripBytes + 2 * kBlock * kBlock * 4 <=
              static_cast<int64_t>(kProductScratchBytes));

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Adds a 16 × 16 piece of sums to out[row…][col…], turned when rhs was the left operand.
template <bool turned>
void add_piece(const float* sums, const Product& p, int64_t row, int64_t col) {
  const int64_t rows = smaller(16, p.m - row), cols = smaller(16, p.n - col);
  if (rows <= 0 || cols <= 0) return;
  __m512i piece[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) piece[i] = _mm512_load_si512(sums + i * kBlock);
  if constexpr (turned) transpose(piece);
  const __mmask16 lanes = low_lanes(cols);
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  const bool add = p.beta != 0;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i >= rows) break;
    float* const out = static_cast<float*>(p.out) + (row + i) * p.out_ld + col;
    __m512 value = _mm512_mul_ps(alpha, _mm512_castsi512_ps(piece[i]));
    if (add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, out));
    _mm512_mask_storeu_ps(out, lanes, value);
  }
}

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// One product. `wide` is the operand that passes by in strips of kBlock, `resident` the one that
// stays in L2. Each is packed already or packed on the way.
class Multiplier {
 public:
  Multiplier(const AmxProduct& product, std::byte* scratch) : p_(product) {
    const bool lhs_packed = p_.lhs.packed_parts > 0, rhs_packed = p_.rhs.packed_parts > 0;
    // Of two packed ones the activations, which are lhs, stay: they have more parts.
    wide_is_lhs_ = rhs_packed ? !lhs_packed : !lhs_packed && p_.m > p_.n;
    // Without a side given each takes that of its form; of two with the same form the resident one
    // is turned, since it is packed once.
    wide_is_left_ =
        p_.left == AmxLeft::kAny ? !wide().k_rows : (p_.left == AmxLeft::kLhs) == wide_is_lhs_;
    resident_ = scratch;
    strip_ = scratch + kResidentBytes;
    sums_[0] = reinterpret_cast<float*>(strip_ + kStripBytes);
    sums_[1] = sums_[0] + kBlock * kBlock;
  }

  // The resident operand by as many x and k as stay in L2, in equal blocks.
  void run() {
    const int64_t resident_x = wide_is_lhs_ ? p_.n : p_.m;
    resident_parts_ = resident().packed_parts > 0                       ? resident().packed_parts
                      : all_bf16({&resident(), 0, resident_x, 0, p_.k}) ? 1
                                                                        : kParts;
    const auto equal_blocks = [](int64_t size, int64_t most, int64_t unit) {
      const int64_t blocks = (size + most - 1) / most;
      return round_up((size + blocks - 1) / blocks, unit);
    };
    const int64_t cells = kResidentBytes / (2 * resident_parts_);
    const int64_t least_x = smaller(round_up(resident_x, kBlock), kLeastX);
    const int64_t most_k = smaller(cells / least_x / kTileK * kTileK, kMaxK);
    const int64_t k_block = equal_blocks(p_.k, most_k, kTileK);
    const int64_t x_block = equal_blocks(resident_x, cells / k_block / kBlock * kBlock, kBlock);
    const float beta = p_.beta;
    for (int64_t x = 0; x < resident_x; x += x_block) {
      p_.beta = beta;
      for (int64_t k = 0; k < p_.k; k += k_block) {
        pass(x, smaller(x_block, resident_x - x), k, smaller(k_block, p_.k - k));
        p_.beta = 1;
      }
    }
  }

 private:
  const ProductOperand& wide() const { return wide_is_lhs_ ? p_.lhs : p_.rhs; }
  const ProductOperand& resident() const { return wide_is_lhs_ ? p_.rhs : p_.lhs; }

  // Where a packed operand's block of x begins, from k on.
  const std::byte* packed_block(const ProductOperand& from, int64_t x, int64_t k) const {
    return static_cast<const std::byte*>(from.data) +
           x / kBlock * amx_packed_block_bytes(p_.k, from.packed_parts) +
           k / kTileK * from.packed_parts * kPart;
  }

  // Makes resident_blocks_ the blocks of the window.
  void place_resident(const Window& window, int64_t k_tiles) {
    if (resident().packed_parts > 0) {
      resident_blocks_ = packed_block(resident(), window.x, window.k);
      block_bytes_ = amx_packed_block_bytes(p_.k, resident_parts_);
      return;
    }
    resident_blocks_ = resident_;
    block_bytes_ = k_tiles * resident_parts_ * kPart;
    for (int64_t x = 0; x < window.x_count; x += kBlock) {
      const Window block{window.from, window.x + x, smaller(kBlock, window.x_count - x), window.k,
                         window.k_count};
      pack_block(block, !wide_is_left_, resident_parts_, resident_ + x / kBlock * block_bytes_);
    }
  }

  void pass(int64_t x0, int64_t x_count, int64_t k, int64_t k_count) {
    const int64_t wide_x = wide_is_lhs_ ? p_.m : p_.n;
    const int64_t k_tiles = round_up(k_count, kTileK) / kTileK;
    place_resident({&resident(), x0, x_count, k, k_count}, k_tiles);
    const bool packed = wide().packed_parts > 0;
    int& parts = wide_parts_;
    if (packed) parts = wide().packed_parts;
    for (int64_t x = 0; x < wide_x; x += kBlock) {
      const int64_t count = smaller(kBlock, wide_x - x);
      const std::byte* const tiles = packed ? packed_block(wide(), x, k) : strip_;
      if (!packed)
        parts = pack_block({&wide(), x, count, k, k_count}, wide_is_left_, parts, strip_);
      const bool last = x + kBlock >= wide_x;
      const std::byte* const next = packed && !last ? packed_block(wide(), x + kBlock, k) : nullptr;
      multiply_strip({tiles, parts, count, x, next}, x0, x_count, k_tiles);
    }
    while (pending_.pieces < kPieces) store_piece();
  }

  static constexpr int kPieces = 4;  // of 16 × 16 in a block

  struct Strip {
    const std::byte* tiles;
    int parts;
    int64_t count, x;
    const std::byte* next;  // the tiles after it, where they come from memory
  };

  void multiply_strip(const Strip& strip, int64_t x0, int64_t x_count, int64_t k_tiles) {
    const int64_t blocks = round_up(x_count, kBlock) / kBlock;
    const int64_t strip_lines = (strip.parts * kPart / 64 + blocks - 1) / blocks;
    const bool resident_comes =
        strip.x == 0 && resident().packed_parts == 1 && strip.next == nullptr;
    for (int64_t b = 0; b < blocks; ++b) {
      const std::byte* const block = resident_blocks_ + b * block_bytes_;
      float* const sums = sums_[pending_.sums == sums_[0] ? 1 : 0];
      const BlockWork work{
          wide_is_left_ ? strip.tiles : block,
          wide_is_left_ ? block : strip.tiles,
          k_tiles,
          sums,
          [](void* self) { static_cast<Multiplier*>(self)->store_piece(); },
          this,
          kPieces - pending_.pieces,
          resident_comes ? block + block_bytes_ : strip.next + b * k_tiles * strip_lines * 64,
          resident_comes          ? kPart / 64
          : strip.next == nullptr ? 0
                                  : strip_lines};
      const bool two_wide = strip.count > kTileX, two_resident = x_count - b * kBlock > kTileX;
      if (wide_is_left_) {
        find_block(strip.parts, resident_parts_, two_wide, two_resident)(work);
      } else {
        find_block(resident_parts_, strip.parts, two_resident, two_wide)(work);
      }
      pending_ = {sums, strip.x, x0 + b * kBlock, 0};
    }
  }

  // The sums of a block go to the result while the next one is multiplied.
  void store_piece() {
    const int64_t i = pending_.pieces / 2 * kTileX, j = pending_.pieces % 2 * kTileX;
    ++pending_.pieces;
    const int64_t row = wide_is_lhs_ ? pending_.wide_x : pending_.resident_x;
    const int64_t col = wide_is_lhs_ ? pending_.resident_x : pending_.wide_x;
    // sums[left][right]; rows of out are lhs. Turned where rhs was the left operand.
    if (wide_is_lhs_ != wide_is_left_) {
      add_piece<true>(pending_.sums + j * kBlock + i, p_, row + i, col + j);
    } else {
      add_piece<false>(pending_.sums + i * kBlock + j, p_, row + i, col + j);
    }
  }

  struct Pending {
    const float* sums = nullptr;
    int64_t wide_x = 0, resident_x = 0;
    int pieces = kPieces;  // stored so far
  };

  AmxProduct p_;
  bool wide_is_lhs_ = false, wide_is_left_ = false;
  int resident_parts_ = kParts;
  int wide_parts_ = 1;  // of the last strip, likely those of the next
  const std::byte* resident_blocks_ = nullptr;
  int64_t block_bytes_ = 0;
  std::byte *resident_, *strip_;
  float* sums_[2];
  Pending pending_;
};

}  // namespace
}  // namespace amx

void amx_multiply(const AmxProduct& product, std::byte* scratch) {
  static constexpr amx::TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  amx::Multiplier(product, scratch).run();
  _tile_release();
}

bool amx_pack(const ProductOperand& from, bool left, int parts, int64_t first, int64_t last,
              int64_t k, std::byte* to) {
  const int64_t block_bytes = amx_packed_block_bytes(k, parts);
  bool exact = true;
  for (int64_t x = first, next = 0; x < last; x = next) {
    next = amx::smaller(last, (x / amx::kBlock + 1) * amx::kBlock);
    std::byte* const tile =
        to + x / amx::kBlock * block_bytes + x % amx::kBlock / amx::kTileX * amx::kTileBytes;
    exact &= amx::pack_block({&from, x, next - x, 0, k}, left, parts, tile, true) != 0;
  }
  return exact;
}

}  // namespace npu::cpu
