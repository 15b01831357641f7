// The quantised blocks of GGUF → f32. Layouts are those of ggml's block structs; in all of them a
// row is a run of blocks and every field is little endian and unaligned.
#include <array>
#include <cstring>

#include "io/gguf.h"

namespace npu {
namespace {

constexpr std::array<GgmlTypeInfo, 8> kTypes = {{
    {GgmlType::kF32, "F32", 1, 4},
    {GgmlType::kF16, "F16", 1, 2},
    {GgmlType::kBF16, "BF16", 1, 2},
    {GgmlType::kQ8_0, "Q8_0", 32, 34},
    {GgmlType::kQ4_0, "Q4_0", 32, 18},
    {GgmlType::kQ4_1, "Q4_1", 32, 20},
    {GgmlType::kQ4_K, "Q4_K", 256, 144},
    {GgmlType::kQ6_K, "Q6_K", 256, 210},
}};

uint8_t byte_at(const std::byte* at, int i) { return static_cast<uint8_t>(at[i]); }

uint16_t bits16(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return bits;
}
float half_at(const std::byte* at) { return f32_from_f16(bits16(at)); }

float f32_value(const std::byte* at) {
  float value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// f16 d, i8 q[32]: d·q.
void q8_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// f16 d, u4 q[32] (low nibbles are elements 0…15): d·(q-8).
void q4_0(const std::byte* block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 16; ++i) {
    const int pair = byte_at(block, 2 + i);
    out[i] = d * static_cast<float>((pair & 15) - 8);
    out[i + 16] = d * static_cast<float>((pair >> 4) - 8);
  }
}

// f16 d, f16 m, u4 q[32]: d·q + m.
void q4_1(const std::byte* block, float* out) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int pair = byte_at(block, 4 + i);
    out[i] = d * static_cast<float>(pair & 15) + m;
    out[i + 16] = d * static_cast<float>(pair >> 4) + m;
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each in the low bits of
// bytes 0…3 and 4…7; the last four as nibbles of bytes 8…11 with their high bits atop the first.
struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin q4_k_scale(const std::byte* packed, int group) {
  if (group < 4) return {byte_at(packed, group) & 63, byte_at(packed, group + 4) & 63};
  const int nibbles = byte_at(packed, group + 4);
  return {(nibbles & 15) | (byte_at(packed, group - 4) >> 6 << 4),
          (nibbles >> 4) | (byte_at(packed, group) >> 6 << 4)};
}

// f16 d, f16 dmin, scales[12], u4 q[256]: eight groups of 32, (d·scale)·q - dmin·min. Groups 2k and
// 2k+1 are the low and high nibbles of the k-th 32 bytes.
void q4_k(const std::byte* block, float* out) {
  const float d = half_at(block), dmin = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMin packed = q4_k_scale(block + 4, group);
    const float scale = d * static_cast<float>(packed.scale);
    const float min = dmin * static_cast<float>(packed.min);
    const std::byte* bytes = block + 16 + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = group % 2 == 0 ? byte_at(bytes, i) & 15 : byte_at(bytes, i) >> 4;
      out[group * 32 + i] = scale * static_cast<float>(q) - min;
    }
  }
}

// u4 low[256], u2 high[256], i8 scales[16], f16 d: (d·scale)·(q-32), a scale for each 16 elements.
// Each half of 128 elements takes 64 bytes of low nibbles and 32 of high bits: quarter k (32
// elements) has its nibbles in bytes (k%2)·32…, low for k<2, and its high bits at 2k.
void q6_k(const std::byte* block, float* out) {
  const float d = half_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    const std::byte* low = block + half * 64;
    const std::byte* high = block + 128 + half * 32;
    const std::byte* scales = block + 192 + half * 8;
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const int nibbles = byte_at(low, quarter % 2 * 32 + i);
        const int q4 = quarter < 2 ? nibbles & 15 : nibbles >> 4;
        const int q = (q4 | (byte_at(high, i) >> (2 * quarter) & 3) << 4) - 32;
        const int scale = static_cast<int8_t>(scales[quarter * 2 + i / 16]);
        out[half * 128 + quarter * 32 + i] = d * static_cast<float>(scale) * static_cast<float>(q);
      }
    }
  }
}

void dequantize_block(GgmlType type, const std::byte* block, float* out) {
  switch (type) {
    case GgmlType::kF32:
      *out = f32_value(block);
      return;
    case GgmlType::kF16:
      *out = half_at(block);
      return;
    case GgmlType::kBF16:
      *out = f32_from_bf16(bits16(block));
      return;
    case GgmlType::kQ8_0:
      return q8_0(block, out);
    case GgmlType::kQ4_0:
      return q4_0(block, out);
    case GgmlType::kQ4_1:
      return q4_1(block, out);
    case GgmlType::kQ4_K:
      return q4_k(block, out);
    case GgmlType::kQ6_K:
      return q6_k(block, out);
  }
}

}  // namespace

const GgmlTypeInfo* find_ggml_type(uint32_t type) {
  for (const GgmlTypeInfo& info : kTypes)
    if (static_cast<uint32_t>(info.type) == type) return &info;
  return nullptr;
}

void dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> out) {
  const GgmlTypeInfo* info = find_ggml_type(static_cast<uint32_t>(type));
  NPU_CHECK(info != nullptr, "type " + std::to_string(static_cast<uint32_t>(type)));
  const auto elements = static_cast<size_t>(info->block_elements);
  const auto bytes = static_cast<size_t>(info->block_bytes);
  NPU_CHECK(
      out.size() % elements == 0 && blocks.size() == out.size() / elements * bytes,
      std::to_string(blocks.size()) + " bytes for " + std::to_string(out.size()) + " elements");
  for (size_t i = 0; i < out.size() / elements; ++i)
    dequantize_block(type, blocks.data() + i * bytes, out.data() + i * elements);
}

}  // namespace npu
