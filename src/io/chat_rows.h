// Conversations → text with the stretches that are trained. Private to src/io.
#pragma once

#include <string>
#include <vector>

#include "io/chat_template.h"
#include "io/tokenizer.h"

namespace npu {

struct TextSpan {
  size_t begin = 0, end = 0;
};

struct ChatText {
  std::string text;               // the whole conversation as the model's template writes it
  std::vector<TextSpan> trained;  // assistant turns, from after the role header
};

// Null, or what is wrong with a "messages" value: a list of objects with a string role and content.
std::optional<Error> check_messages(const Json& messages, const std::string& where);

// Renders `messages`. With `find_trained`, a turn is found by rendering what comes before it with a
// generation prompt, and then with it; a template whose text for a longer conversation does not
// begin with that for a shorter one is an error, for the turn can't be told apart then.
Result<ChatText> render_chat(const ChatTemplate& chat_template, ChatTemplate::Inputs inputs,
                             const Json& messages, bool find_trained, const std::string& where);

// Which of `tokens` (of `chat.text`) are trained: those that begin in a span, up to and including
// the turn's last added token. White space that a template writes after it is not the assistant's.
std::vector<bool> trained_tokens(const ChatText& chat, const std::vector<TokenAt>& tokens,
                                 const Tokenizer& tokenizer);

}  // namespace npu
