// GGUF: hostile files, typed metadata, and blocks made by hand.
#include <gtest/gtest.h>

#include "gguf_builder.h"
#include "io/gguf.h"
#include "io_test_util.h"

namespace npu {
namespace {

std::string verdict(const std::string& bytes) {
  return refusal([&] { parse_gguf(as_byte_span(bytes), "f.gguf"); });
}

GgufBuilder small() {
  GgufBuilder gguf;
  gguf.u32("general.quantization_version", 2).tensor("a", {4}, {1, 2, 3, 4});
  return gguf;
}

struct GgufCase {
  const char* label;
  std::string bytes;
  const char* refusal;  // part of the message; "" for accepted
};

void check(std::span<const GgufCase> cases) {
  for (const GgufCase& c : cases) {
    const std::string text = verdict(c.bytes);
    EXPECT_EQ(text.empty(), *c.refusal == '\0') << c.label << ": " << text;
    EXPECT_TRUE(contains(text, c.refusal)) << c.label << ": " << text;
    EXPECT_LT(text.size(), 500u) << c.label;
  }
}

template <class Change>
std::string changed(Change change) {
  GgufBuilder gguf = small();
  change(gguf);
  return gguf.bytes();
}

TEST(Gguf, HeaderVerdicts) {
  const GgufCase cases[] = {
      {"plain", small().bytes(), ""},
      {"version 2", changed([](auto& g) { g.version = 2; }), ""},
      {"no tensors and no metadata", GgufBuilder().bytes(), ""},
      {"empty file", "", "ends too early"},
      {"magic of something else", changed([](auto& g) { g.magic = 0x46554746; }),
       "not a GGUF file"},
      {"version 1", changed([](auto& g) { g.version = 1; }), "versions 2 and 3"},
      {"version 4", changed([](auto& g) { g.version = 4; }), "versions 2 and 3"},
      {"big endian", changed([](auto& g) { g.version = 0x03000000; }), "big-endian"},
      {"more entries than there are", changed([](auto& g) { g.count_error = 1; }), ""},
      {"2^62 entries", changed([](auto& g) { g.count_error = int64_t{1} << 62; }), ""},
  };
  for (const GgufCase& c : std::span(cases).first(8)) check({&c, 1});
  for (const GgufCase& c : std::span(cases).last(2)) EXPECT_NE(verdict(c.bytes), "") << c.label;
}

TEST(Gguf, MetadataVerdicts) {
  const auto with = [](uint32_t type, const std::string& value) {
    return changed([&](auto& g) { g.raw("key", type, value); });
  };
  const auto array = [&](uint32_t type, uint64_t count, const std::string& items) {
    return with(kArray, le(type) + le(count) + items);
  };
  const std::string inner = le<uint32_t>(kU8) + le<uint64_t>(1) + "\1";
  const GgufCase cases[] = {
      {"every scalar type", changed([](auto& g) {
         g.raw("a8", kU8, le<uint8_t>(1))
             .raw("b8", kI8, le<int8_t>(-1))
             .raw("a16", kU16, le<uint16_t>(1));
         g.raw("b16", kI16, le<int16_t>(-1))
             .raw("a32", kU32, le<uint32_t>(1))
             .raw("b32", kI32, le<int32_t>(-1));
         g.raw("a64", kU64, le(~uint64_t{0}))
             .raw("b64", kI64, le<int64_t>(-1))
             .raw("f", kF32, le(1.0f));
         g.raw("d", kF64, le(1.0)).raw("t", kBool, "\1").raw("s", kString, gguf_string("é"));
       }),
       ""},
      {"type 13", with(13, "\1"), "unknown metadata value type; got 13"},
      {"type 2^32-1", with(~0u, "\1"), "unknown metadata value type"},
      {"truth value 2", with(kBool, "\2"), "must be 0 or 1; got 2"},
      {"string longer than the file", with(kString, le<uint64_t>(1'000'000) + "abc"),
       "ends too early"},
      {"string of 2^64-1 bytes", with(kString, le(~uint64_t{0}) + "abc"), "ends too early"},
      {"string of 2^63 bytes", with(kString, le(uint64_t{1} << 63) + "abc"), "ends too early"},
      {"string not UTF-8", with(kString, gguf_string("\xff")), "must be UTF-8"},
      {"array", array(kI32, 2, le<int32_t>(1) + le<int32_t>(2)), ""},
      {"empty array", array(kString, 0, ""), ""},
      {"array longer than the file", array(kU8, 1'000'000, "abc"), "longer than the file"},
      {"array of more bytes than are left", array(kU64, 40, ""), "longer than the file"},
      {"array of 2^61 64-bit numbers", array(kU64, uint64_t{1} << 61, ""), "longer than the file"},
      {"array of 2^64-1 bytes", array(kU8, ~uint64_t{0}, ""), "longer than the file"},
      {"array of 2^60 strings", array(kString, uint64_t{1} << 60, ""), "longer than the file"},
      {"array in an array", array(kArray, 1, inner), "arrays in arrays"},
      {"array of unknown type", array(99, 1, "\1"), "unknown metadata value type"},
      {"array with 2^64-1", array(kU64, 1, le(~uint64_t{0})), "above 2^63-1"},
      {"array with truth value 7", array(kBool, 1, "\7"), "must be 0 or 1"},
      {"key twice", changed([](auto& g) { g.u32("k", 1).u32("k", 1); }), "duplicate metadata key"},
      {"empty key", changed([](auto& g) { g.u32("", 1); }), "1 to 65535 bytes"},
      {"key of 65536 bytes", changed([](auto& g) { g.u32(std::string(65536, 'k'), 1); }),
       "1 to 65535 bytes"},
      {"key not UTF-8", changed([](auto& g) { g.u32("\xc0\xaf", 1); }), "must be UTF-8"},
      {"alignment 0", changed([](auto& g) { g.u32("general.alignment", 0); }), "power of two"},
      {"alignment 48", changed([](auto& g) { g.u32("general.alignment", 48); }), "power of two"},
      {"alignment 2^31", changed([](auto& g) { g.u32("general.alignment", 1u << 31); }),
       "power of two"},
      {"alignment as text", changed([](auto& g) { g.text("general.alignment", "32"); }),
       "a whole number"},
  };
  check(cases);
}

TEST(Gguf, TensorVerdicts) {
  const std::string data(16, '\1');
  const auto with = [](GgufBuilder::Tensor tensor) {
    return changed([&](auto& g) { g.tensor(tensor); });
  };
  const GgufCase cases[] = {
      {"two dimensions", with({"b", {2, 2}, 0, data}), ""},
      {"four dimensions", with({"b", {1, 2, 1, 2}, 0, data}), ""},
      {"no dimension", with({"b", {}, 0, data}), "1 to 4 dimensions; got 0"},
      {"five dimensions", with({"b", {1, 1, 1, 2, 2}, 0, data}), "1 to 4 dimensions; got 5"},
      {"2^32-1 dimensions", with({"b", {4}, 0, data, -1, 0xffffffff}), "1 to 4 dimensions"},
      {"dimension 0", with({"b", {0, 4}, 0, data}), "must be positive"},
      {"product 2^64", with({"b", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, data}), "below 2^63"},
      {"product 2^63", with({"b", {uint64_t{1} << 63}, 0, data}), "below 2^63"},
      {"size overflows", with({"b", {uint64_t{1} << 62}, 0, data}), "the size overflows"},
      {"type Q5_0", with({"b", {32}, 6, data}), "not implemented; got type 6"},
      {"type 2^32-1", with({"b", {32}, ~0u, data}), "not implemented"},
      {"half a block", with({"b", {16, 2}, 8, std::string(34, '\0')}), "whole blocks of 32"},
      {"name twice", with({"a", {4}, 0, data}), "the same name"},
      {"empty name", with({"", {4}, 0, data}), "1 to 64 bytes"},
      {"name of 65 bytes", with({std::string(65, 'n'), {4}, 0, data}), "1 to 64 bytes"},
      {"name not UTF-8", with({"\xff", {4}, 0, data}), "must be UTF-8"},
      {"offset not aligned", with({"b", {4}, 0, data, 36}), "aligned to 32"},
      {"overlap", with({"b", {4}, 0, data, 0}), "overlaps another tensor"},
      {"offset beyond the file", with({"b", {4}, 0, data, 1 << 20}), "outside the file"},
      {"offset near 2^63", with({"b", {4}, 0, data, INT64_MAX & ~31ll}), "outside the file"},
      {"end wraps past 2^64", with({"b", {(uint64_t{1} << 62) - 8}, 0, data, 32}),
       "outside the file"},
      {"data cut", changed([](auto& g) { g.cut = 17; }), "outside the file"},
      {"longer than the file", with({"b", {1 << 20}, 0, data}), "outside the file"},
      {"in reverse order", changed([&](auto& g) {
         g.tensor({"b", {4}, 0, data, 64}).tensor({"c", {4}, 0, data, 32});
       }),
       ""},
  };
  check(cases);
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string whole = tiny_llama_gguf().bytes();
  ASSERT_EQ(verdict(whole), "");
  // The last tensor ends at a multiple of 32, so that no padding hides a loss.
  for (size_t size = 0; size < whole.size(); size += size < 4096 ? 1 : 97)
    EXPECT_NE(verdict(whole.substr(0, size)), "") << size;
}

TEST(Gguf, TypedAccess) {
  const std::string bytes = GgufBuilder()
                                .u32("n", 7)
                                .f32("eps", 1e-5f)
                                .text("t", "x")
                                .flag("b", true)
                                .i32s("a", {-1, 2})
                                .bytes();
  const Gguf gguf = parse_gguf(as_byte_span(bytes), "f");
  EXPECT_EQ(gguf.whole("n"), 7);
  EXPECT_EQ(gguf.whole("absent", 3), 3);
  EXPECT_EQ(gguf.number("eps"), 1e-5);  // the decimal, not the widened float
  EXPECT_EQ(gguf.text("t"), "x");
  EXPECT_TRUE(gguf.flag("b", false));
  EXPECT_EQ(gguf.wholes("a"), (std::vector<int64_t>{-1, 2}));
  EXPECT_TRUE(
      contains(refusal([&] { gguf.whole("absent"); }), "f: absent: the metadata key is missing"));
  EXPECT_TRUE(contains(refusal([&] { gguf.whole("t"); }), "must be a whole number"));
  EXPECT_TRUE(contains(refusal([&] { gguf.number("n"); }), "must be a finite real number"));
  EXPECT_TRUE(contains(refusal([&] { gguf.text("n"); }), "must be a string"));
  EXPECT_TRUE(contains(refusal([&] { gguf.flag("n", false); }), "must be a truth value"));
  EXPECT_TRUE(contains(refusal([&] { gguf.texts("a"); }), "must be an array of strings"));
  EXPECT_TRUE(contains(refusal([&] { gguf.wholes("t"); }), "must be an array of whole numbers"));
}

// ---- blocks ----

std::string half(float value) { return le(f16_from_f32(value)); }

std::vector<float> values_of(GgmlType type, const std::string& block) {
  const GgmlTypeInfo* info = find_ggml_type(static_cast<uint32_t>(type));
  EXPECT_EQ(block.size(), static_cast<size_t>(info->block_bytes));
  std::vector<float> values(static_cast<size_t>(info->block_elements));
  dequantize(type, as_byte_span(block), values);
  return values;
}

TEST(GgufBlocks, Q8_0) {
  std::string block = half(0.5f);
  for (int i = 0; i < 32; ++i) block += static_cast<char>(i * 8 - 128);
  const auto values = values_of(GgmlType::kQ8_0, block);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(values[i], 0.5f * static_cast<float>(i * 8 - 128));
}

TEST(GgufBlocks, Q4_0AndQ4_1KeepLowNibblesFirst) {
  std::string nibbles;
  for (int i = 0; i < 16; ++i) nibbles += static_cast<char>(i | (15 - i) << 4);
  const auto q4_0 = values_of(GgmlType::kQ4_0, half(2.0f) + nibbles);
  const auto q4_1 = values_of(GgmlType::kQ4_1, half(2.0f) + half(-3.0f) + nibbles);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(q4_0[i], 2.0f * static_cast<float>(i - 8));
    EXPECT_EQ(q4_0[i + 16], 2.0f * static_cast<float>(15 - i - 8));
    EXPECT_EQ(q4_1[i], 2.0f * static_cast<float>(i) - 3.0f);
    EXPECT_EQ(q4_1[i + 16], 2.0f * static_cast<float>(15 - i) - 3.0f);
  }
}

// Packs eight 6-bit scales and minima the way the format says, from the other side.
std::string pack_scales(const int (&scale)[8], const int (&min)[8]) {
  std::string packed(12, '\0');
  for (int i = 0; i < 4; ++i) {
    packed[i] = static_cast<char>(scale[i] | (scale[i + 4] >> 4) << 6);
    packed[i + 4] = static_cast<char>(min[i] | (min[i + 4] >> 4) << 6);
    packed[i + 8] = static_cast<char>((scale[i + 4] & 15) | (min[i + 4] & 15) << 4);
  }
  return packed;
}

TEST(GgufBlocks, Q4_K) {
  const int scale[8] = {1, 63, 17, 32, 5, 62, 48, 15}, min[8] = {0, 3, 63, 9, 16, 31, 33, 60};
  std::string quants;
  for (int i = 0; i < 128; ++i) quants += static_cast<char>((i % 16) | ((i * 7) % 16) << 4);
  const auto values =
      values_of(GgmlType::kQ4_K, half(0.25f) + half(0.5f) + pack_scales(scale, min) + quants);
  for (int i = 0; i < 256; ++i) {
    const int group = i / 32, byte = group / 2 * 32 + i % 32;
    const int q = group % 2 == 0 ? byte % 16 : (byte * 7) % 16;
    EXPECT_EQ(values[i],
              0.25f * static_cast<float>(scale[group] * q) - 0.5f * static_cast<float>(min[group]))
        << i;
  }
}

TEST(GgufBlocks, Q6_K) {
  int q[256];
  std::string low(128, '\0'), high(64, '\0'), scales;
  for (int i = 0; i < 256; ++i) {
    q[i] = (i * 37 + 11) % 64;
    const int block_half = i / 128, quarter = i % 128 / 32, at = i % 32;
    low[block_half * 64 + quarter % 2 * 32 + at] |=
        static_cast<char>((q[i] & 15) << (quarter / 2 * 4));
    high[block_half * 32 + at] |= static_cast<char>((q[i] >> 4) << (2 * quarter));
  }
  for (int i = 0; i < 16; ++i) scales += static_cast<char>(i * 16 - 128);
  const auto values = values_of(GgmlType::kQ6_K, low + high + scales + half(0.125f));
  for (int i = 0; i < 256; ++i)
    EXPECT_EQ(values[i], 0.125f * static_cast<float>((i / 16 * 16 - 128) * (q[i] - 32))) << i;
}

TEST(GgufBlocks, PlainTypes) {
  EXPECT_EQ(values_of(GgmlType::kF32, le(1.25f))[0], 1.25f);
  EXPECT_EQ(values_of(GgmlType::kF16, half(-0.75f))[0], -0.75f);
  EXPECT_EQ(values_of(GgmlType::kBF16, le(bf16_from_f32(3.0f)))[0], 3.0f);
}

}  // namespace
}  // namespace npu
