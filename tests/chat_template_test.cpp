// Templates against what Jinja, as transformers sets it up, makes of them; what is not supported;
// and bounds on what a template may do.
#include "io/chat_template.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace npu {
namespace {

Result<std::string> render(const std::string& jinja, const Json& messages,
                           bool add_generation_prompt = false,
                           const std::string& date = "2026-07-26") {
  Result<ChatTemplate> parsed = ChatTemplate::parse(jinja, "model chat_template");
  if (!parsed) return parsed.error();
  ChatTemplate::Inputs inputs;
  inputs.messages = &messages;
  inputs.add_generation_prompt = add_generation_prompt;
  inputs.bos_token = "<|begin|>";
  inputs.eos_token = "<|end|>";
  inputs.date = date;
  return parsed.value().render(inputs);
}

std::string error_of(const std::string& jinja) {
  const Result<std::string> result = render(jinja, Json::array());
  return result ? "rendered: " + result.value() : result.error().text();
}

TEST(ChatTemplate, EqualsJinjaOnGoldenTemplates) {
  const Json golden =
      read_json_file(fs::path(NPU_SOURCE_DIR) / "tests/golden/tokenizer_templates.json");
  ASSERT_GE(golden.at("cases").size(), 120U);
  for (const Json& test : golden.at("cases")) {
    const auto jinja = test.at("template").get<std::string>();
    SCOPED_TRACE(jinja);
    const Result<std::string> result =
        render(jinja, golden.at("messages"), test.at("add_generation_prompt").get<bool>(),
               golden.at("date").get<std::string>());
    if (test.contains("error")) {
      EXPECT_FALSE(result.ok()) << result.value();
    } else if (result.ok()) {
      EXPECT_EQ(result.value(), test.at("text").get<std::string>());
    } else {
      ADD_FAILURE() << result.error().text();
    }
  }
}

struct Unsupported {
  const char* jinja;
  const char* says;
};

TEST(ChatTemplate, NamesTheLineOfWhatItDoesNotSupport) {
  const Unsupported kCases[] = {
      {"a\nb\n{% macro f(x) %}{% endmacro %}", ":3: this statement is not supported; got macro"},
      {"{% include 'x' %}", ":1: this statement is not supported; got include"},
      {"\n{% raw %}{{ x }}{% endraw %}", ":2: this statement is not supported; got raw"},
      {"{% do x.append(1) %}", "this statement is not supported; got do"},
      {"{% filter upper %}x{% endfilter %}", "got filter"},
      {"{% for x in y recursive %}{% endfor %}", "a recursive loop is not supported"},
      {"{{ x|safe }}", "this filter is not supported; got safe"},
      {"{{ x|sort }}", "this filter is not supported; got sort"},
      {"{{ x is callable }}", "this test is not supported; got callable"},
      {"{{ 2 ** 3 }}", "`**` is not supported"},
      {"{{ 1e5 }}", "form of a number"},
      {"{{ 'x'.encode() }}", "the method `encode` of a string is not supported"},
      {"\n\n{{ [1].append(2) }}", ":3: the method `append` of a list is not supported"},
      {"{{ {'a': 1}.update({}) }}", "the method `update` of a dict"},
      {"{{ 'é'.upper() }}", "letters beyond ASCII"},
      {"{{ 'ß'|upper }}", "letters beyond ASCII"},
      {"{{ 'x'|trim|title('a') }}", "takes fewer arguments"},
      {"{{ [1]|tojson(separators=1) }}",
       "an argument of `tojson` is not supported; got separators"},
      {"{{ unk_token }}", "this variable is not supported; got unk_token"},
      {"{{ cycler('a') }}", "this function is not supported; got cycler"},
      {"{% for x in [1] %}{{ loop.cycle('a') }}{% endfor %}", "loop.cycle is not supported"},
      {"{{ {'a': 1}.items() }}", "this can't be printed; got list of tuples"},
      {"{{ (1, 2) }}", "this can't be printed; got tuple"},
      {"{{ [(1, 2)] }}", "this can't be printed; got list of tuples"},
      {"{{ [(1, 2), 3] }}", "tuples within this are not supported"},
      {"{{ {'a': (1, 2)} }}", "a dict can't hold this; got tuple"},
      {"{{ [1, 2]|map('string') }}", "this can't be printed; got generator"},
      {"{% set g = [1]|select %}{{ g|list }}{{ g|list }}", "a generator is read twice"},
      {"{{ ''.__class__ }}", "this attribute is not safe; got __class__"},
      {"{{ f(*x) }}", "unpacked arguments"},
      {"{{ strftime_now('%c') }}", "this field of strftime_now is not supported; got %c"},
      {"{% break %}", "outside of a loop"},
      {"{{ 'x' % 1 }}", "`%` does not work on these values; got str and int"},
      {"{{ '\\N{DASH}' }}", "is not supported"},
      {"{{ '\\ud800' }}", "no character"},
      {"{{ [namespace()] }}", "a list can't hold this; got namespace"},
      {"{{ 9223372036854775807 + 1 }}", "a number is too large"},
      {"{{ 99999999999999999999 }}", "a number is too large"},
  };
  for (const Unsupported& test : kCases) {
    const std::string message = error_of(test.jinja);
    EXPECT_TRUE(message.starts_with("model chat_template:")) << test.jinja << " → " << message;
    EXPECT_NE(message.find(test.says), std::string::npos) << test.jinja << " → " << message;
  }
}

TEST(ChatTemplate, GivesTheTemplatesOwnMessage) {
  EXPECT_EQ(error_of("x\n{{ raise_exception('roles must alternate') }}"),
            "model chat_template:2: the template refuses its input; got roles must alternate");
  EXPECT_EQ(error_of("{{ messages[0].role }}").find("model chat_template:1: "), 0U);
}

TEST(ChatTemplate, ErrorsInsideBlocksNameTheirOwnLine) {
  EXPECT_EQ(error_of("{% for i in range(2) %}\n\n{% if i == 1 %}\n{{ none + 1 }}\n{% endif %}\n"
                     "{% endfor %}")
                .substr(0, 22),
            "model chat_template:4:");
}

TEST(ChatTemplate, DateIsTodayUnlessGiven) {
  const Json none = Json::array();
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y') }}", none, false, "2024-02-29").value(),
            "29 Feb 2024");
  EXPECT_EQ(render("{{ strftime_now('%A') }}", none, false, "2000-01-01").value(), "Saturday");
  EXPECT_EQ(render("{{ strftime_now('%Y')|length }}", none, false, "").value(), "4");
  for (const char* wrong : {"2024", "2024-13-01", "24-01-01x", "2024/01/01"})
    EXPECT_FALSE(render("x", none, false, wrong).ok()) << wrong;
}

TEST(ChatTemplate, HostileTemplatesEndSoon) {
  const auto repeat = [](const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  const std::vector<std::string> hostile = {
      "{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}",
      "{{ " + repeat("[", 100000) + " }}",
      "{{ " + repeat("-", 100000) + "1 }}",
      "{{ " + repeat("not ", 100000) + "1 }}",
      "{{ 1" + repeat(" + 1", 100000) + " }}",
      "{{ x" + repeat(".a", 100000) + " }}",
      "{{ x" + repeat("|trim", 100000) + " }}",
      "{{ x" + repeat(" is defined", 100000) + " }}",
      "{{ 1" + repeat(" if 1 else 1", 100000) + " }}",
      repeat("{% if 1 %}", 50000),
      "{% if 0 %}" + repeat("{% elif 0 %}", 50000) + "{% endif %}",
      repeat("{% for i in range(100000) %}", 5) + "x" + repeat("{% endfor %}", 5),
      "{% for i in range(1000000) %}{% endfor %}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}",
      "{{ 'x' * 1000000000000 }}",
      "{{ [1] * 1000000000000 }}",
      "{% for i in range(100000) %}{{ 'x' * 1000000 }}{% endfor %}",
      "{{ 'aaaa'.replace('a', 'x' * 10000000).replace('x', 'y' * 10000000) }}",
      "{% set s = 'x' * 10000000 %}{% for i in range(100000) %}{{ s == s ~ '' }}{% endfor %}",
      "{% set s = 'x' * 10000000 %}{% for i in range(100000) %}{{ s|length }}{% endfor %}",
      "{% set s = 'x' * 10000000 %}{% for i in range(100000) %}{{ s[1] }}{% endfor %}",
      "{% set s = 'x' * 10000000 %}{% for i in range(100000) %}{% if s.endswith('y') %}{% endif %}"
      "{% endfor %}",
      "{% set l = range(100000)|list %}{% for i in l %}{% if -1 in l %}{% endif %}{% endfor %}",
      std::string(2 << 20, 'x'),
      "\xff\xfe",
  };
  for (const std::string& jinja : hostile) {
    SCOPED_TRACE(jinja.substr(0, 60));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(render(jinja, Json::array()).ok());
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  }
}

TEST(ChatTemplate, RandomBytesNeverCrash) {
  const std::string pieces[] = {
      "{{", "}}", "{%",   "%}",    "{#",   "#}",      "-",        "+",    "'",    "\"",
      " ",  "\n", "if ",  "endif", "for ", "in ",     "endfor",   "set ", "x",    "=",
      "1",  ".",  "|",    "(",     ")",    "[",       "]",        "{",    "}",    ",",
      ":",  "~",  "not ", "is ",   "trim", "defined", "messages", "role", "else", "namespace"};
  uint64_t state = 1;
  const auto next = [&] { return state = state * 6364136223846793005ULL + 1442695040888963407ULL; };
  const Json messages = Json::parse(R"([{"role": "user", "content": "x"}])");
  int rendered = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string jinja = i % 2 == 0 ? "{{ " : "";
    const int count = static_cast<int>(next() >> 60) + 1;
    for (int k = 0; k < count; ++k) jinja += pieces[(next() >> 33) % std::size(pieces)];
    if (i % 2 == 0) jinja += " }}";
    rendered += render(jinja, messages).ok();
  }
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace npu
