// JSON as untrusted input: what is refused, where, and what survives.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io_test_util.h"

namespace npu {
namespace {

struct JsonCase {
  const char* label;
  std::string text;
  const char* refusal;  // part of the message; "" for accepted
};

TEST(Json, Verdicts) {
  const std::string deep_64 = std::string(64, '[') + std::string(64, ']');
  const std::string deep_65 = std::string(65, '[') + std::string(65, ']');
  const std::string very_deep(1'000'000, '[');
  const JsonCase cases[] = {
      {"object", R"({"a":1})", ""},
      {"scalar", "3", ""},
      {"blanks around", " \n{}\t ", ""},
      {"same key in different objects", R"({"a":{"k":1},"b":{"k":2}})", ""},
      {"escaped surrogate pair", R"("\ud83d\ude00")", ""},
      {"escaped NUL", R"("\u0000")", ""},
      {"64 levels", deep_64, ""},
      {"65 levels", deep_65, "nested deeper than 64"},
      {"a million levels", very_deep, "nested deeper than 64"},
      {"empty", "", "not valid JSON"},
      {"only blanks", "  ", "not valid JSON"},
      {"truncated", R"({"a":)", "not valid JSON"},
      {"trailing comma", "[1,]", "not valid JSON"},
      {"trailing text", "{} x", "not valid JSON"},
      {"two values", "{}{}", "not valid JSON"},
      {"comment", "/* */{}", "not valid JSON"},
      {"single quotes", "{'a':1}", "not valid JSON"},
      {"NaN", "NaN", "not valid JSON"},
      {"leading zero", "[01]", "not valid JSON"},
      {"number beyond double", "1e999", "not valid JSON"},
      {"raw control character", "\"a\x01\"", "not valid JSON"},
      {"lone surrogate escape", R"("\ud800")", "not valid JSON"},
      {"duplicate key", R"({"a":1,"b":2,"a":3})", "duplicate key; got \"a\""},
      {"duplicate after escape", R"({"a":1,"\u0061":3})", "duplicate key"},
      {"byte-order mark", "\xef\xbb\xbf{}", "byte-order mark"},
      {"NUL after the value", std::string("{}\0", 3), "NUL"},
      {"byte ff", "\"\xff\"", "not UTF-8"},
      {"overlong", "\"\xc0\xaf\"", "not UTF-8"},
      {"encoded surrogate", "\"\xed\xa0\x80\"", "not UTF-8"},
      {"beyond U+10FFFF", "\"\xf4\x90\x80\x80\"", "not UTF-8"},
  };
  for (const JsonCase& c : cases) {
    const std::string text = refusal_of(parse_json(c.text, "f.json"));
    EXPECT_EQ(text.empty(), *c.refusal == '\0') << c.label << ": " << text;
    EXPECT_TRUE(contains(text, c.refusal)) << c.label << ": " << text;
    EXPECT_LT(text.size(), 400u) << c.label;
  }
}

TEST(Json, ErrorsNameTheLine) {
  EXPECT_TRUE(
      contains(refusal_of(parse_json("{\n\"a\": 1,\n\"b\": x\n}", "f.json")), "f.json:3: "));
  EXPECT_TRUE(contains(refusal_of(parse_json("{\"a\":1,\n\n\"a\":2}", "f.json")), "f.json:3: "));
  EXPECT_TRUE(contains(refusal_of(parse_json("[1,\n\"\xff\"]", "f.json")), "f.json:2: "));
}

TEST(Json, SizeLimit) {
  EXPECT_TRUE(parse_json("[1,2]", "f", {.max_bytes = 5}).ok());
  EXPECT_TRUE(
      contains(refusal_of(parse_json("[1,2]", "f", {.max_bytes = 4})), "larger than 4 bytes"));
}

TEST(Json, KeepsOrderAndValues) {
  const Json json =
      parse_json(R"({"z":[true,null,-1,18446744073709551615,0.5,"é\n"],"a":{}})", "f").take();
  EXPECT_EQ(json.dump(), R"({"z":[true,null,-1,18446744073709551615,0.5,"é\n"],"a":{}})");
}

TEST(Json, LargeObjectIsLinear) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":1";
  EXPECT_EQ(parse_json(text + "}", "f").take().size(), 300'000u);
}

TEST(Utf8, ReportsTheFirstBadByte) {
  size_t bad = 0;
  EXPECT_TRUE(valid_utf8("aé한😀\x7f", &bad));
  EXPECT_FALSE(valid_utf8("ab\x80", &bad));
  EXPECT_EQ(bad, 2u);
  EXPECT_FALSE(valid_utf8("é\xe2\x82", &bad));  // truncated
  EXPECT_EQ(bad, 2u);
  EXPECT_FALSE(valid_utf8("\xf0\x8f\xbf\xbf"));  // overlong
}

}  // namespace
}  // namespace npu
