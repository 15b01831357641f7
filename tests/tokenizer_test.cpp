// The tokenizer against what the `tokenizers` library makes of the same file and texts, files that
// must be refused, and bounds on time.
#include "io/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "io/unicode.h"

namespace npu {
namespace {

const fs::path kGolden = fs::path(NPU_SOURCE_DIR) / "tests/golden";

Json tiny() { return read_json_file(kGolden / "tokenizer_tiny.json"); }

TokenizerFiles files_of(const Json& tokenizer) {
  TokenizerFiles files;
  files.tokenizer_json = tokenizer.dump();
  files.eos_token = "<|end|>";
  files.bos_token = "<|begin|>";
  files.where = "tokenizer.json";
  return files;
}

Tokenizer make(const Json& tokenizer) { return Tokenizer::from_files(files_of(tokenizer)); }

void patch(Json& target, const Json& changes) {
  for (const auto& [key, value] : changes.items()) {
    const bool merges = value.is_object() && !value.contains("type") && target[key].is_object();
    if (merges)
      patch(target[key], value);
    else
      target[key] = value;
  }
}

std::string refusal(const TokenizerFiles& files) {
  try {
    Tokenizer::from_files(files);
  } catch (const UserError& error) {
    EXPECT_EQ(error.error().kind, ErrorKind::kBadInput);
    return error.what();
  }
  return "accepted";
}

using Ids = std::vector<int32_t>;

TEST(Tokenizer, EqualsTheReferenceOnGoldenTexts) {
  const Json variants = read_json_file(kGolden / "tokenizer_cases.json");
  ASSERT_EQ(variants.size(), 5U);
  for (const Json& variant : variants) {
    Json file = tiny();
    patch(file, variant.at("patch"));
    const Tokenizer tokenizer = make(file);
    ASSERT_GE(variant.at("cases").size(), 60U);
    for (const Json& test : variant.at("cases")) {
      const auto text = test.at("text").get<std::string>();
      SCOPED_TRACE(variant.at("name").get<std::string>() + ": " + test.at("text").dump());
      const Ids ids = tokenizer.encode(text, false);
      EXPECT_EQ(ids, test.at("ids").get<Ids>());
      EXPECT_EQ(tokenizer.encode(text, true), test.at("special").get<Ids>());
      EXPECT_EQ(tokenizer.decode(ids), test.at("decoded").get<std::string>());
      EXPECT_EQ(tokenizer.decode(ids, true), test.at("plain").get<std::string>());
    }
  }
}

TEST(Tokenizer, OffsetsOfTokensCoverTheText) {
  const Tokenizer tokenizer = make(tiny());
  const std::string text = "Hi <|end|>\n한국어 42 naïve 😀";
  const std::vector<TokenAt> tokens = tokenizer.encode_at(text);
  std::string joined;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t end = i + 1 < tokens.size() ? tokens[i + 1].begin : text.size();
    EXPECT_EQ(tokenizer.token_text(tokens[i].id),
              text.substr(tokens[i].begin, end - tokens[i].begin));
    joined += tokenizer.token_text(tokens[i].id);
  }
  EXPECT_EQ(joined, text);
}

TEST(Tokenizer, OffsetsUnderNormalizationPointIntoTheOriginal) {
  Json file = tiny();
  file["normalizer"] = {{"type", "NFC"}};
  const Tokenizer tokenizer = make(file);
  const std::string text = "e\u0301e\u0301 <|end|> e\u0301 end";  // composed, each é is a byte less
  const std::vector<TokenAt> tokens = tokenizer.encode_at(text);
  EXPECT_EQ(tokens.front().begin, 0U);
  for (const TokenAt& token : tokens) {
    if (token.id == tokenizer.token_id("<|end|>")) {
      EXPECT_EQ(token.begin, text.find('<'));
    }
  }
  const std::string last = tokenizer.token_text(tokens.back().id);
  EXPECT_EQ(tokens.back().begin, text.size() - last.size());
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = make(tiny());
  EXPECT_EQ(tokenizer.token_id("<|begin|>"), 0);
  EXPECT_EQ(tokenizer.eos_id(), 1);
  EXPECT_TRUE(tokenizer.is_added(1));
  EXPECT_FALSE(tokenizer.is_added(*tokenizer.token_id("a")));
  EXPECT_FALSE(tokenizer.is_added(-1));
  EXPECT_FALSE(tokenizer.is_added(1 << 20));
  EXPECT_EQ(tokenizer.token_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token_text(*tokenizer.token_id("\u0120")), " ");
  EXPECT_EQ(tokenizer.token_text(-5), "");
  EXPECT_EQ(tokenizer.decode(Ids{-1, 1 << 20}), "");
  EXPECT_EQ(tokenizer.vocab_size(), static_cast<int64_t>(tiny()["model"]["vocab"].size()) + 8);
}

TEST(Tokenizer, EndTokenComesFromItsTextThenFromItsId) {
  TokenizerFiles files = files_of(tiny());
  files.eos_token = "";
  EXPECT_EQ(Tokenizer::from_files(files).eos_id(), -1);
  files.eos_token_id = 7;
  EXPECT_EQ(Tokenizer::from_files(files).eos_id(), 7);
  files.eos_token = "<|nothing|>";
  EXPECT_NE(refusal(files).find("eos_token is not in the vocabulary"), std::string::npos);
}

TEST(Tokenizer, ConfigOverrulesTheFileOnBos) {
  TokenizerFiles files = files_of(tiny());
  files.tokenizer_config_json = R"({"add_bos_token": true})";
  EXPECT_EQ(Tokenizer::from_files(files).encode("a", true).front(), 0);
  EXPECT_EQ(Tokenizer::from_files(files).encode("a", false).size(), 1U);
  files.tokenizer_config_json = R"({"add_bos_token": false})";
  EXPECT_EQ(Tokenizer::from_files(files).encode("a", true).size(), 1U);
  files.tokenizer_config_json = R"({"add_eos_token": true})";
  EXPECT_NE(refusal(files).find("add_eos_token"), std::string::npos);
}

TEST(Tokenizer, ReadsMergesInBothSpellings) {
  Json file = tiny();
  const std::string text = "a film about nothing in particular";
  const Ids expected = make(file).encode(text, false);
  for (Json& merge : file["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  EXPECT_EQ(make(file).encode(text, false), expected);
}

TEST(Tokenizer, UnknownBytesAreDroppedOrBecomeTheUnknownToken) {
  Json file = tiny();  // byte 0 has no token
  const std::string text("a\0\0b", 4);
  EXPECT_EQ(make(file).encode(text, false).size(), 2U);
  file["model"]["unk_token"] = "<|begin|>";
  EXPECT_EQ(make(file).encode(text, false).size(), 4U);
  file["model"]["fuse_unk"] = true;
  const Ids ids = make(file).encode(text, false);
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_EQ(ids[1], 0);
}

struct Refused {
  const char* pointer;  // JSON pointer of what is changed
  const char* value;    // what it is changed to
  const char* says;     // part of the message
};

TEST(Tokenizer, RefusesWhatItDoesNotImplement) {
  const Refused kRefused[] = {
      {"/model/type", R"("Unigram")", "model.type is not supported; got \"Unigram\""},
      {"/model/dropout", "0.1", "model.dropout"},
      {"/model/byte_fallback", "true", "model.byte_fallback"},
      {"/model/continuing_subword_prefix", R"("##")", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", R"("</w>")", "model.end_of_word_suffix"},
      {"/model/new_key", "1", "model.new_key is not known"},
      {"/model/unk_token", R"("<none>")", "model.unk_token is not in the vocabulary"},
      {"/model/vocab/a", "-1", "must be a token id"},
      {"/model/vocab/a", "1e3", "must be a token id"},
      {"/model/vocab/a", "4194304", "must be a token id"},
      {"/model/vocab/a", "99999999999999999999", "must be a token id"},
      {"/model/vocab/a", R"("5")", "must be a token id"},
      {"/model/vocab/a", "5", "another token"},
      {"/model/vocab", "[]", "model.vocab must be an object"},
      {"/model/vocab", "{}", "model.vocab must be an object"},
      {"/model/merges", "{}", "model.merges must be a list"},
      {"/model/merges/0", R"("abc")", "model.merges[0] must be two tokens"},
      {"/model/merges/0", R"("a b c")", "model.merges[0] must be two tokens"},
      {"/model/merges/0", R"(["a"])", "model.merges[0] must be a pair"},
      {"/model/merges/0", R"(["a", 1])", "model.merges[0] must be a pair"},
      {"/model/merges/0", R"(["zzzz", "a"])", "not in the vocabulary"},
      {"/model", "null", "model must be an object"},
      {"/normalizer", R"({"type": "NFKC"})", "normalizer is not supported"},
      {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFC"}]})",
       "normalizer is not supported"},
      {"/normalizer", "3", "normalizer must be an object"},
      {"/pre_tokenizer", "null", "pre_tokenizer is not supported"},
      {"/pre_tokenizer", R"({"type": "Metaspace"})", "pre_tokenizer.type"},
      {"/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": []})", "pretokenizers"},
      {"/pre_tokenizer/pretokenizers/0/individual_digits", "false", "individual_digits"},
      {"/pre_tokenizer/pretokenizers/0", R"({"type": "Whitespace"})", "pretokenizers[0].type"},
      {"/pre_tokenizer/pretokenizers/0", R"({"type": "ByteLevel", "add_prefix_space": false})",
       "must be the last step"},
      {"/pre_tokenizer/pretokenizers/0",
       R"({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated", "invert": false})",
       "is not a known pattern"},
      {"/pre_tokenizer/pretokenizers/0",
       R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": false})",
       "pattern.String is not known"},
      {"/pre_tokenizer/pretokenizers/0",
       R"({"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Removed", "invert": false})",
       "behavior"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space"},
      {"/post_processor", R"({"type": "BertProcessing"})", "post_processor.type"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
           {"SpecialToken": {"id": "x", "type_id": 0}}], "special_tokens": {}})",
       "special tokens, then the text"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}},
           {"Sequence": {"id": "A", "type_id": 0}}],
           "special_tokens": {"x": {"id": "x", "ids": [99999]}}})",
       "names an id that no token has"},
      {"/decoder", R"({"type": "WordPiece"})", "decoder.type"},
      {"/added_tokens", "{}", "added_tokens must be a list"},
      {"/added_tokens/0/content", R"("")", "must have 1 to"},
      {"/added_tokens/0/content", R"("<|end|>")", "added_tokens[0].id differs"},
      {"/added_tokens/0/id", "5", "differs from the id in model.vocab"},
      {"/added_tokens/2/id", "1", "another token"},
      {"/added_tokens/0/lstrip", "1", "must be true or false"},
      {"/added_tokens/0/colour", "1", "is not known"},
      {"/surprise", "1", "surprise is not known"},
  };
  for (const Refused& test : kRefused) {
    SCOPED_TRACE(std::string(test.pointer) + " = " + test.value);
    Json file = tiny();
    file[Json::json_pointer(test.pointer)] = Json::parse(test.value);
    const std::string message = refusal(files_of(file));
    EXPECT_TRUE(message.starts_with("tokenizer.json")) << message;
    EXPECT_NE(message.find(test.says), std::string::npos) << message;
  }
}

TEST(Tokenizer, RefusesDuplicatesAndBrokenJson) {
  TokenizerFiles files = files_of(tiny());
  for (const char* text : {"", "[", "{}", "[]", "null", "{\"model\": {}, \"model\": {}}",
                           "{\"model\": {\"vocab\": {\"a\": 1, \"a\": 2}, \"merges\": []}}"}) {
    files.tokenizer_json = text;
    EXPECT_NE(refusal(files), "accepted") << text;
  }
  Json twice = tiny();
  twice["added_tokens"].push_back(twice["added_tokens"][0]);
  EXPECT_NE(refusal(files_of(twice)).find("is given twice"), std::string::npos);
}

TEST(Tokenizer, DamagedFilesAreReadOrRefusedNeverMore) {
  const std::string good = tiny().dump();
  uint64_t state = 7;
  const auto next = [&](size_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<size_t>((state >> 33) % below);
  };
  const std::string letters = "{}[]\",:0123456789-eatrunfls\\ ";
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    TokenizerFiles files = files_of(Json());
    files.tokenizer_json = good;
    for (size_t k = next(3) + 1; k > 0; --k) {
      const size_t at = next(good.size());
      if (next(8) == 0)
        files.tokenizer_json.resize(std::min(at + 1, files.tokenizer_json.size()));
      else if (at < files.tokenizer_json.size())
        files.tokenizer_json[at] = letters[next(letters.size())];
    }
    try {
      Tokenizer::from_files(files).encode("Review: a film <|end|> 한국어 123", true);
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Tokenizer, LongRunsAreNotQuadratic) {
  const Tokenizer tokenizer = make(tiny());
  std::string letters;
  for (size_t i = 0; i < 1'000'000; ++i) letters += static_cast<char>('a' + (i * i + i / 7) % 26);
  const auto start = std::chrono::steady_clock::now();
  for (const std::string& text : {letters, std::string(1'000'000, 'e'), std::string(1'000'000, ' '),
                                  std::string(1'000'000, '\n'), std::string(1'000'000, '<')}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false)), text);
  }
  // Quadratic work would take hours; sanitizers are allowed for.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Unicode, ReplacesIllFormedBytesAsRustDoes) {
  EXPECT_EQ(utf8_lossy("a\xff\xfe z"), "a\ufffd\ufffd z");
  EXPECT_EQ(utf8_lossy("\xe1\x80"), "\ufffd");  // a truncated sequence is one
  EXPECT_EQ(utf8_lossy("\xf0\x9f\x98x"), "\ufffdx");
  EXPECT_EQ(utf8_lossy("\xc0\xaf"), "\ufffd\ufffd");            // overlong
  EXPECT_EQ(utf8_lossy("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");  // a surrogate
  EXPECT_EQ(utf8_lossy("한\xed\x95\x9c"), "한한");
}

TEST(Unicode, PropertiesFollowTheReferencesVersions) {
  EXPECT_TRUE(is_letter(0x10d4a));       // Unicode 16
  EXPECT_TRUE(is_number(0x1ccf0));       // Unicode 16
  EXPECT_FALSE(is_number(0x11de0));      // Unicode 17
  EXPECT_TRUE(is_digit_piece(0x11de0));  // Unicode 17
  EXPECT_TRUE(is_space(0x3000));
  EXPECT_FALSE(is_space(0x200b));
  EXPECT_FALSE(is_space(0x1c));
  EXPECT_TRUE(is_python_space(0x1c));
  EXPECT_TRUE(is_word(0x24b6));
}

TEST(Unicode, PrintableTextIsShortAndHarmless) {
  EXPECT_EQ(printable("a\x1b[31m\n\x7f한", 100), "a\\x1b[31m\\x0a\\x7f한");
  EXPECT_EQ(printable("한국어", 7), "한국…");  // never half a code point
  EXPECT_EQ(printable("abc", 3), "abc");
}

TEST(Unicode, ComposesAndTracesWhereItChanged) {
  std::vector<Origin> origins;
  EXPECT_EQ(nfc("plain 한국어", &origins), "plain 한국어");
  EXPECT_TRUE(origins.empty());
  EXPECT_EQ(nfc("xe\u0301y", &origins), "x\u00e9y");
  ASSERT_EQ(origins.size(), 3U);
  EXPECT_EQ(origins[2].in_result, 3U);
  EXPECT_EQ(origins[2].in_text, 4U);
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "한");
}

}  // namespace
}  // namespace npu
