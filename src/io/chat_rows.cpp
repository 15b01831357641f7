// See chat_rows.h.
#include "io/chat_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/jsonl.h"
#include "io/unicode.h"

namespace npu {
namespace {

// The part of a conversation that a template is shown.
Json first_messages(const Json& messages, size_t count) {
  Json part = Json::array();
  for (size_t i = 0; i < count; ++i) part.push_back(messages[i]);
  return part;
}

std::string roles(const Json& messages) {
  constexpr size_t kShown = 5;
  std::string names;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (i == kShown) return names + ", …";
    names += (i > 0 ? ", " : "") + printable(messages[i].at("role").get<std::string>(), 20);
  }
  return names;
}

}  // namespace

std::optional<Error> check_messages(const Json& messages, const std::string& where) {
  const auto wrong = [&](std::string what, const Json& got) {
    return Error{ErrorKind::kBadInput, where, std::move(what), json_kind(got),
                 R"(write [{"role": "user", "content": "…"}, {"role": "assistant", …}])"};
  };
  if (!messages.is_array()) return wrong("\"messages\" must be a list", messages);
  if (messages.empty())
    return Error{ErrorKind::kBadInput, where, "\"messages\" is empty", "",
                 "a conversation needs an assistant turn"};
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string name = "messages[" + std::to_string(i) + "]";
    if (!messages[i].is_object()) return wrong(name + " must be an object", messages[i]);
    for (const char* key : {"role", "content"}) {
      const auto found = messages[i].find(key);
      if (found == messages[i].end())
        return Error{ErrorKind::kBadInput, where, name + " has no \"" + key + "\"", "", ""};
      if (!found->is_string()) return wrong(name + "." + key + " must be a string", *found);
    }
  }
  return std::nullopt;
}

Result<ChatText> render_chat(const ChatTemplate& chat_template, ChatTemplate::Inputs inputs,
                             const Json& messages, bool find_trained, const std::string& where) {
  const auto render = [&](const Json& shown, bool add_generation_prompt) {
    inputs.messages = &shown;
    inputs.add_generation_prompt = add_generation_prompt;
    return chat_template.render(inputs);
  };
  const auto refused = [&](const Error& error) {
    return Error{ErrorKind::kBadInput, where, "the chat template can't render this row",
                 error.text(), error.hint};
  };
  Result<std::string> whole = render(messages, false);
  if (!whole) return refused(whole.error());
  ChatText chat{std::move(whole.value()), {}};
  if (!find_trained) return chat;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].at("role") != "assistant") continue;
    const Result<std::string> before = render(first_messages(messages, i), true);
    if (!before) return refused(before.error());
    const bool last = i + 1 == messages.size();
    const Result<std::string> with =
        last ? Result<std::string>(chat.text) : render(first_messages(messages, i + 1), false);
    if (!with) return refused(with.error());
    if (!chat.text.starts_with(before.value()) || !chat.text.starts_with(with.value()) ||
        with.value().size() < before.value().size())
      return Error{ErrorKind::kBadInput, where,
                   "the chat template writes earlier turns differently when more follow, so that "
                   "the assistant's text can't be told apart",
                   "messages[" + std::to_string(i) + "]",
                   "begin with a user turn, end after one assistant turn, or --train-on all"};
    chat.trained.push_back({before.value().size(), with.value().size()});
  }
  if (chat.trained.empty())
    return Error{ErrorKind::kBadInput, where, "no assistant turn to train on",
                 "roles " + roles(messages), "add an assistant turn, or use --train-on all"};
  return chat;
}

std::vector<bool> trained_tokens(const ChatText& chat, const std::vector<TokenAt>& tokens,
                                 const Tokenizer& tokenizer) {
  std::vector<bool> trained(tokens.size(), false);
  const auto first_from = [&](size_t offset) {
    return static_cast<size_t>(
        std::partition_point(tokens.begin(), tokens.end(),
                             [&](const TokenAt& token) { return token.begin < offset; }) -
        tokens.begin());
  };
  for (const TextSpan& span : chat.trained) {
    const size_t first = first_from(span.begin);
    const size_t end = first_from(span.end);
    size_t last = end;  // past the last token that is not white space
    while (last > first && strip_space(tokenizer.token_text(tokens[last - 1].id)).empty()) --last;
    const bool ends_turn = last > first && tokenizer.is_added(tokens[last - 1].id);
    std::fill(trained.begin() + static_cast<std::ptrdiff_t>(first),
              trained.begin() + static_cast<std::ptrdiff_t>(ends_turn ? last : end), true);
  }
  return trained;
}

}  // namespace npu
