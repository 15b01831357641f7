// Rows → tokens and labels: each form's loss mask, limits, and every message a bad row can cause.
#include "io/dataset.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "io/eval_rows.h"

namespace npu {
namespace {

// Turns as "<|begin|>role\ncontent<|end|>\n"; a default system turn, as SmolLM2's template has.
constexpr const char* kChatTemplate =
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|begin|>system\\nBe kind<|end|>\\n' }}{% endif %}"
    "{{ '<|begin|>' + m.role + '\\n' + m.content + '<|end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|begin|>assistant\\n' }}{% endif %}";

class DatasetTest : public testing::Test {
 protected:
  DatasetTest() : files_(tokenizer_files()), tokenizer_(Tokenizer::from_files(files_)) {}

  static TokenizerFiles tokenizer_files() {
    TokenizerFiles files;
    files.tokenizer_json = read_text(fs::path(NPU_SOURCE_DIR) / "tests/golden/tokenizer_tiny.json");
    files.chat_template = kChatTemplate;
    files.bos_token = "<|begin|>";
    files.eos_token = "<|end|>";
    files.where = "model";
    return files;
  }

  fs::path write(const std::string& text, const std::string& name = "rows.jsonl") {
    publish_text(directory_.path() / name, text);
    return directory_.path() / name;
  }
  Dataset load(const std::string& text) {
    return load_dataset({write(text)}, tokenizer_, files_, options_);
  }
  // The message without the path; "accepted" when there is none.
  std::string refusal(const std::string& text) {
    try {
      load(text);
    } catch (const UserError& error) {
      EXPECT_EQ(error.error().kind, ErrorKind::kBadInput);
      std::string message = error.what();
      const std::string prefix = directory_.path().string() + "/";
      if (message.starts_with(prefix)) message.erase(0, prefix.size());
      return message;
    }
    return "accepted";
  }

  std::vector<int32_t> encode(const std::string& text) { return tokenizer_.encode(text, false); }
  // The text of the tokens that are trained, "|" between stretches.
  std::string trained_text(const TokenRow& row) {
    std::string text;
    for (size_t i = 0; i < row.labels.size(); ++i) {
      if (row.labels[i] == kNoLoss) {
        if (!text.empty() && text.back() != '|') text += '|';
        continue;
      }
      EXPECT_EQ(row.labels[i], row.input_ids[i]);
      text += tokenizer_.token_text(row.labels[i]);
    }
    while (text.ends_with('|')) text.pop_back();
    return text;
  }

  TempDir directory_;
  TokenizerFiles files_;
  Tokenizer tokenizer_;
  DatasetOptions options_;
};

TEST_F(DatasetTest, TextTrainsEverythingAndEnds) {
  const Dataset data = load(R"({"text": "one film"})");
  std::vector<int32_t> ids = encode("one film");
  ids.push_back(1);
  EXPECT_EQ(data.rows[0].input_ids, ids);
  EXPECT_EQ(data.rows[0].labels, ids);
  EXPECT_EQ(data.trained_tokens(), static_cast<int64_t>(ids.size()) - 1);
  EXPECT_TRUE(data.warnings.empty());
  // An end token that the text spells is not doubled.
  EXPECT_EQ(load(R"({"text": "one film<|end|>"})").rows[0].input_ids, ids);
}

TEST_F(DatasetTest, PromptIsNotTrained) {
  const Dataset data = load(
      "{\"prompt\": \"Review: fine\\nSentiment:\", \"response\": \" positive\", \"label\": 1}\n"
      "{\"prompt\": \"Review: fine\\nSentiment:\", \"completion\": \" positive\"}\n"
      "{\"prompt\": \"\", \"response\": \"x y\"}\n");
  std::vector<int32_t> ids = encode("Review: fine\nSentiment:");
  const size_t prompt = ids.size();
  for (const int32_t id : encode(" positive")) ids.push_back(id);
  ids.push_back(1);
  EXPECT_EQ(data.rows[0].input_ids, ids);
  EXPECT_EQ(trained_text(data.rows[0]), " positive<|end|>");
  EXPECT_EQ(data.rows[0].labels[prompt - 1], kNoLoss);
  EXPECT_EQ(data.rows[1].labels, data.rows[0].labels);
  EXPECT_EQ(trained_text(data.rows[2]), "x y<|end|>");
  options_.train_on_all = true;
  EXPECT_EQ(load(R"({"prompt": "a", "response": "b"})").rows[0].labels[0], encode("a")[0]);
}

TEST_F(DatasetTest, BosStandsBeforeThePromptOnly) {
  files_.tokenizer_config_json = R"({"add_bos_token": true})";
  tokenizer_ = Tokenizer::from_files(files_);
  const Dataset data = load(
      "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"text\": \"a\"}\n"
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  EXPECT_EQ(data.rows[0].input_ids, (std::vector<int32_t>{0, encode("a")[0], encode("b")[0], 1}));
  EXPECT_EQ(data.rows[1].input_ids, (std::vector<int32_t>{0, encode("a")[0], 1}));
  EXPECT_EQ(data.rows[2].input_ids[0], 0);
  EXPECT_NE(data.rows[2].input_ids[1], 0);  // the template's own BOS is the only one
}

TEST_F(DatasetTest, AssistantTurnsAreTrainedWithTheirEndAndWithoutTheirHeader) {
  const Json row = {{"messages",
                     {{{"role", "user"}, {"content", "Hi"}},
                      {{"role", "assistant"}, {"content", "Hello 한국어\n"}},
                      {{"role", "user"}, {"content", "<|end|>assistant\n"}},
                      {{"role", "assistant"}, {"content", "Bye 😀"}},
                      {{"role", "user"}, {"content", "?"}}}}};
  const Dataset data = load(row.dump());
  EXPECT_EQ(data.rows[0].input_ids,
            encode("<|begin|>system\nBe kind<|end|>\n<|begin|>user\nHi<|end|>\n<|begin|>assistant\n"
                   "Hello 한국어\n<|end|>\n<|begin|>user\n<|end|>assistant\n<|end|>\n"
                   "<|begin|>assistant\nBye 😀<|end|>\n<|begin|>user\n?<|end|>\n"));
  EXPECT_EQ(trained_text(data.rows[0]), "Hello 한국어\n<|end|>|Bye 😀<|end|>");
  options_.train_on_all = true;
  EXPECT_EQ(load(row.dump()).rows[0].labels, data.rows[0].input_ids);
}

TEST_F(DatasetTest, TemplateWithoutAnEndTokenTrainsTheWholeTurn) {
  files_.chat_template =
      "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
  const Dataset data = load(
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]})");
  EXPECT_EQ(trained_text(data.rows[0]), "Yes.\n");
  ASSERT_EQ(data.warnings.size(), 1U);
  EXPECT_EQ(data.warnings[0], "no row trains an end token: the model will not learn to stop");
}

TEST_F(DatasetTest, TokenisedRowsAreTakenAsTheyAre) {
  const Dataset data = load(
      "{\"input_ids\": [5, 6, 7]}\n"
      "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, -100]}\n"
      "{\"input_ids\": [5, 6], \"labels\": [5, -100]}\n");
  EXPECT_EQ(data.rows[0].labels, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(data.rows[1].labels, (std::vector<int32_t>{kNoLoss, 6, kNoLoss}));
  EXPECT_TRUE(data.rows[2].dropped);  // the first label follows nothing
  options_.vocab_size = 7;
  EXPECT_NE(refusal(R"({"input_ids": [5, 7]})").find("ids go from 0 to 6"), std::string::npos);
}

TEST_F(DatasetTest, LongRowsAreCutAtTheEndAndCounted) {
  options_.max_length = 4;
  const Dataset data = load(
      "{\"input_ids\": [5, 6, 7, 8, 9]}\n"
      "{\"input_ids\": [5, 6, 7, 8, 9], \"labels\": [-100, -100, -100, -100, 9]}\n"
      "{\"input_ids\": [5, 6, 7, 8]}\n");
  EXPECT_EQ(data.cut, 2);
  EXPECT_EQ(data.dropped, 1);
  EXPECT_EQ(data.rows[0].input_ids, (std::vector<int32_t>{5, 6, 7, 8}));
  EXPECT_TRUE(data.rows[0].cut);
  EXPECT_FALSE(data.rows[0].dropped);
  EXPECT_TRUE(data.rows[1].dropped);
  EXPECT_FALSE(data.rows[2].cut);
  EXPECT_EQ(data.rows.size(), 3U);
  ASSERT_EQ(data.warnings.size(), 3U);
  EXPECT_EQ(data.warnings[0], "2 rows cut at 4 tokens");
  EXPECT_EQ(data.warnings[1], "1 row dropped: no trained token within 4 tokens");
}

TEST_F(DatasetTest, WarnsWhenNothingIsTrained) {
  const Dataset data = load(R"({"input_ids": [5, 6], "labels": [-100, -100]})");
  EXPECT_EQ(data.trained_tokens(), 0);
  ASSERT_EQ(data.warnings.size(), 2U);
  EXPECT_EQ(data.warnings[1], "no row trains anything");
}

TEST_F(DatasetTest, AcceptsWhatEditorsLeaveBehind) {
  const Dataset data = load(
      "\xef\xbb\xbf{\"text\": \"a\"}\r\n\r\n  \t\n{\"text\": \"b\\u0000\\ud83d\\ude00\"}\r\n"
      " {\"text\": \"c\"} ");
  ASSERT_EQ(data.rows.size(), 3U);
  EXPECT_EQ(data.rows[1].where, (directory_.path() / "rows.jsonl").string() + ":4");
  EXPECT_EQ(tokenizer_.decode(data.rows[1].input_ids), "b😀<|end|>");
}

TEST_F(DatasetTest, DigestIsOfAllBytesInOrder) {
  const std::string a = "{\"text\": \"a\"}\n", b = "{\"text\": \"b\"}";
  const Dataset data =
      load_dataset({write(a, "a.jsonl"), write(b, "b.jsonl")}, tokenizer_, files_, options_);
  EXPECT_EQ(data.rows.size(), 2U);
  EXPECT_EQ(data.sha256, sha256_hex(a + b));
}

struct BadRow {
  const char* row;
  const char* message;
};

TEST_F(DatasetTest, NamesWhatIsWrongWithARow) {
  const BadRow kRows[] = {
      {"{\"text\": \"a\xff\"}",
       "not valid UTF-8; got byte 0xff at byte 11 of the line; hint: save"},
      {"{\"text\": \"\xed\xa0\x80\"}", "not valid UTF-8; got byte 0xed at byte 10 of the line"},
      {"\xff\xfe{", "not valid UTF-8; got byte 0xff at byte 0 of the line"},
      {"{\"text\": \"a\"", "not valid JSON"},
      {"{'text': 'a'}", "not valid JSON"},
      {"{\"text\": \"a\",}", "not valid JSON"},
      {"{\"text\": \"a\"} {\"text\": \"b\"}", "not valid JSON"},
      {"{\"text\": \"\\ud800\"}", "not valid JSON"},
      {"{\"text\": \"a\", \"text\": \"b\"}", "duplicate key"},
      {"text", "not valid JSON"},
      {"[", "hint: one JSON object a line (JSON lines), not one list over many lines"},
      {"[{\"text\": \"a\"}]", "a row must be a JSON object; got a list; hint"},
      {"\"text\"", "a row must be a JSON object; got a string"},
      {"null", "a row must be a JSON object; got null"},
      {"{}", "the row has no form that is known; got no fields; hint: a row is {\"text\"}"},
      {"{\"txt\": \"a\", \"n\": 1}", "no form that is known; got fields \"txt\", \"n\"; hint"},
      {"{\"\\u001b[31m\": \"a\"}", "got fields \"\\x1b[31m\"; hint"},
      {"{\"prompt\": \"a\", \"answer\": \"b\"}",
       "a prompt without \"response\"; got fields \"prompt\", \"answer\""},
      {"{\"question\": \"a\", \"response\": \"b\"}",
       "a response without \"prompt\"; got fields \"question\", \"response\""},
      {"{\"text\": 5}", "\"text\" must be a string; got a number"},
      {"{\"text\": null}", "\"text\" must be a string; got null"},
      {"{\"text\": \"\"}", "\"text\" is empty"},
      {"{\"prompt\": [\"a\"], \"response\": \"b\"}", "\"prompt\" must be a string; got a list"},
      {"{\"prompt\": \"a\", \"response\": true}",
       "\"response\" must be a string; got true or false"},
      {"{\"prompt\": \"a\", \"response\": \"\"}", "\"response\" is empty"},
      {"{\"prompt\": \"a\", \"completion\": {}}", "\"completion\" must be a string; got an object"},
      {"{\"prompt\": \"a\", \"response\": \"b\", \"completion\": \"c\"}",
       "the row has both \"response\" and \"completion\""},
      {"{\"text\": \"a\", \"messages\": []}",
       "the row has more than one form; got messages; text; hint: keep"},
      {"{\"messages\": {}}", "\"messages\" must be a list; got an object"},
      {"{\"messages\": []}", "\"messages\" is empty"},
      {"{\"messages\": [\"hi\"]}", "messages[0] must be an object; got a string"},
      {"{\"messages\": [{\"role\": \"user\"}]}", "messages[0] has no \"content\""},
      {"{\"messages\": [{\"content\": \"a\"}]}", "messages[0] has no \"role\""},
      {"{\"messages\": [{\"role\": 1, \"content\": \"a\"}]}",
       "messages[0].role must be a string; got a number"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": null}]}",
       "messages[0].content must be a string; got null"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
       "messages[0].content must be a string; got a list"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
       "no assistant turn to train on; got roles user; hint"},
      {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}",
       "the chat template writes earlier turns differently"},
      {"{\"input_ids\": 5}", "\"input_ids\" must be a list; got a number"},
      {"{\"input_ids\": []}", "\"input_ids\" is empty"},
      {"{\"input_ids\": [1, 2.5]}", "input_ids[1] must be a whole number; got 2.5"},
      {"{\"input_ids\": [1, \"2\"]}", "input_ids[1] must be a whole number; got \"2\""},
      {"{\"input_ids\": [-1]}",
       "input_ids[0] is outside the vocabulary; got -1; hint: ids go from"},
      {"{\"input_ids\": [-100, 1]}", "input_ids[0] is outside the vocabulary; got -100"},
      {"{\"input_ids\": [1000000]}", "input_ids[0] is outside the vocabulary; got 1000000"},
      {"{\"input_ids\": [18446744073709551615]}", "input_ids[0] is outside the vocabulary"},
      {"{\"input_ids\": [1, 2], \"labels\": [1]}",
       "\"labels\" must be as long as \"input_ids\"; got 1 labels for 2 ids"},
      {"{\"input_ids\": [1, 2], \"labels\": [1, -1]}",
       "labels[1] is outside the vocabulary; got -1"},
      {"{\"input_ids\": [1, 2], \"labels\": null}", "\"labels\" must be a list; got null"},
  };
  for (const BadRow& test : kRows) {
    SCOPED_TRACE(test.row);
    const std::string message = refusal("{\"text\": \"good\"}\n\n" + std::string(test.row) + "\n");
    EXPECT_TRUE(message.starts_with("rows.jsonl:3: ")) << message;
    EXPECT_NE(message.find(test.message), std::string::npos) << message;
  }
}

TEST_F(DatasetTest, NestedTooDeeplyIsABadRow) {
  std::string deep = "{\"text\": " + std::string(100000, '[');
  EXPECT_NE(refusal(deep).find("rows.jsonl:1: "), std::string::npos);
  EXPECT_NE(refusal(deep), "accepted");
}

TEST_F(DatasetTest, FilesThatAreNoDataAreRefused) {
  EXPECT_EQ(refusal("").substr(0, 37), "rows.jsonl: the file has no rows; got");
  EXPECT_NE(refusal("\n \n\r\n").find("the file has no rows; got 5 bytes"), std::string::npos);
  EXPECT_NE(refusal("\xef\xbb\xbf").find("the file has no rows"), std::string::npos);
  EXPECT_THROW(load_dataset({directory_.path() / "absent.jsonl"}, tokenizer_, files_, options_),
               UserError);
  EXPECT_THROW(load_dataset({directory_.path()}, tokenizer_, files_, options_), UserError);
}

TEST_F(DatasetTest, SkipsUpToTheNumberOfBadRowsAllowed) {
  const std::string rows = "{\"text\": \"a\"}\nbroken\n{\"txt\": 1}\n{\"text\": \"b\"}\n";
  options_.skip_bad_rows = 1;
  EXPECT_TRUE(refusal(rows).starts_with("rows.jsonl:3: ")) << refusal(rows);
  options_.skip_bad_rows = 2;
  const Dataset data = load(rows);
  EXPECT_EQ(data.bad, 2);
  EXPECT_EQ(data.rows.size(), 2U);
  ASSERT_EQ(data.warnings.size(), 1U);
  EXPECT_TRUE(data.warnings[0].starts_with("2 rows passed over as bad; the first: "));
  EXPECT_NE(data.warnings[0].find("rows.jsonl:2: not valid JSON"), std::string::npos);
}

TEST_F(DatasetTest, TroubleWithTheTemplateIsNotABadRow) {
  const std::string row =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  options_.skip_bad_rows = 100;
  files_.chat_template = "\n{% macro x() %}{% endmacro %}";
  EXPECT_EQ(refusal(row), "model chat_template:2: this statement is not supported; got macro");
  files_.chat_template = "";
  EXPECT_NE(refusal(row).find("the model has none"), std::string::npos);
  EXPECT_EQ(refusal("{\"text\": \"no template needed\"}"), "accepted");
  files_.chat_template = "{{ raise_exception('no system turns') }}";
  options_.skip_bad_rows = 0;
  EXPECT_EQ(refusal(row),
            "rows.jsonl:1: the chat template can't render this row; got model chat_template:1: the "
            "template refuses its input; got no system turns");
}

TEST_F(DatasetTest, DateReachesTheTemplate) {
  files_.chat_template =
      "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}";
  options_.template_date = "2026-07-26";
  options_.train_on_all = true;
  const Dataset data = load(R"({"messages": [{"role": "user", "content": "!"}]})");
  EXPECT_EQ(tokenizer_.decode(data.rows[0].input_ids), "26 Jul 2026!");
}

TEST_F(DatasetTest, EvalRowsCarryPromptAndAnswer) {
  const std::vector<EvalRow> rows =
      load_eval_rows({write("{\"prompt\": \"p\", \"response\": \" r\", \"label\": 1}\n"
                            "{\"prompt\": \"q\", \"completion\": \" s\"}\n")},
                     0);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].prompt, "p");
  EXPECT_EQ(rows[0].response, " r");
  EXPECT_EQ(rows[1].response, " s");
  EXPECT_TRUE(rows[1].where.ends_with("rows.jsonl:2"));
  for (const char* wrong :
       {"{\"prompt\": \"p\"}", "{\"response\": \"r\"}", "{\"prompt\": 1, \"response\": \"r\"}",
        "{\"prompt\": \"p\", \"response\": \"\"}", "x", ""})
    EXPECT_THROW(load_eval_rows({write(wrong)}, 0), UserError) << wrong;
  const fs::path one_bad = write("{\"prompt\": \"p\", \"response\": \"r\"}\n{\"prompt\": 1}\n");
  EXPECT_THROW(load_eval_rows({one_bad}, 0), UserError);
  EXPECT_EQ(load_eval_rows({one_bad}, 1).size(), 1U);
}

}  // namespace
}  // namespace npu
