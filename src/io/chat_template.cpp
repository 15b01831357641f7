// See chat_template.h. The environment is that of transformers' apply_chat_template without tools.
#include "io/chat_template.h"

#include <nlohmann/json.hpp>

#include "io/jinja_eval.h"
#include "io/jinja_parser.h"
#include "io/unicode.h"

namespace npu {
namespace {

constexpr int kInputDepth = 100;  // more than the nesting that parse_json lets through

Error template_error(const std::string& where, const jinja::TemplateError& error) {
  constexpr size_t kShown = 300;  // what templates say of their input may quote all of it
  return Error{ErrorKind::kBadInput, where + ":" + std::to_string(error.line),
               printable(error.what, kShown), printable(error.got, kShown), ""};
}

bool is_date(const std::string& date) {
  const std::string_view form = "dddd-dd-dd";
  if (date.size() != form.size()) return false;
  for (size_t i = 0; i < form.size(); ++i)
    if (form[i] == '-' ? date[i] != '-' : date[i] < '0' || date[i] > '9') return false;
  const int month = std::stoi(date.substr(5, 2)), day = std::stoi(date.substr(8, 2));
  return month >= 1 && month <= 12 && day >= 1 && day <= 31;
}

}  // namespace

struct ChatTemplate::State {
  jinja::Block block;
  std::string where;
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view jinja, std::string_view where) {
  auto state = std::make_unique<State>();
  state->where = where;
  if (!valid_utf8(jinja))
    return Error{ErrorKind::kBadInput, state->where, "the template is not valid UTF-8", "", ""};
  try {
    state->block = jinja::parse_template(jinja);
  } catch (const jinja::TemplateError& error) {
    return template_error(state->where, error);
  }
  return ChatTemplate(std::move(state));
}

Result<std::string> ChatTemplate::render(const Inputs& inputs) const {
  using jinja::Value;
  NPU_CHECK(inputs.messages != nullptr, "render needs messages");
  if (!inputs.date.empty() && !is_date(inputs.date))
    return Error{ErrorKind::kUsage, "date", "a date is written YYYY-MM-DD",
                 printable(inputs.date, 40), ""};
  try {
    // The owner is empty: messages outlive the call.
    std::map<std::string, Value> variables = {
        {"messages", Value::view(*inputs.messages, nullptr, kInputDepth)},
        {"tools", Value::of(nullptr)},
        {"documents", Value::of(nullptr)},
        {"add_generation_prompt", Value::of(inputs.add_generation_prompt)},
    };
    for (const auto& [name, token] :
         {std::pair{"bos_token", &inputs.bos_token}, std::pair{"eos_token", &inputs.eos_token},
          std::pair{"pad_token", &inputs.pad_token}})
      if (!token->empty()) variables[name] = Value::of(*token);
    return jinja::run_template(state_->block, std::move(variables), inputs.date);
  } catch (const jinja::TemplateError& error) {
    return template_error(state_->where, error);
  }
}

}  // namespace npu
