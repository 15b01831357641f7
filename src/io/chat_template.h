// Chat templates: the part of Jinja that models' templates use. An unsupported construct is an
// error with its line, when the template is parsed or run; nothing is dropped.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace npu {

class ChatTemplate {
 public:
  static Result<ChatTemplate> parse(std::string_view jinja, std::string_view where);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  struct Inputs {
    const Json* messages = nullptr;  // [{role, content, …}]
    bool add_generation_prompt = false;
    std::string bos_token, eos_token, pad_token;  // "": the template sees it as undefined
    std::string date;                             // for strftime_now, "YYYY-MM-DD"; empty: today
  };
  Result<std::string> render(const Inputs& inputs) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace npu
