// Byte-level BPE as tokenizer.json describes it (GPT-2, SmolLM2, Llama 3, Qwen). Anything in the
// file that this reader does not implement is an error, never a guess.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/bpe.h"
#include "io/hf_model.h"

namespace npu {

class Tokenizer {
 public:
  static Tokenizer from_files(const TokenizerFiles& files);  // throws UserError
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids of `text`; `add_special` applies the post-processor (a BOS where the file asks for one).
  // Text must be valid UTF-8 (checked by the callers that read files).
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;
  // The same without special tokens, each id with the byte of `text` at which it begins. Where
  // normalization changed the text, that is the begin of the smallest stretch it can be traced to.
  std::vector<TokenAt> encode_at(std::string_view text) const;

  // Text of `ids`; bytes that are not UTF-8 become U+FFFD and ids without a token give nothing, as
  // in the `tokenizers` library. `skip_special` leaves out special tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  std::string token_text(int32_t id) const;  // bytes of one token; "" where no token has the id
  std::optional<int32_t> token_id(std::string_view token) const;  // spelled as in the file
  bool is_added(int32_t id) const;  // an added token ("<|im_end|>"), never the product of merges
  int64_t vocab_size() const;       // highest id + 1
  int32_t eos_id() const;           // -1 when the model has none

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace npu
