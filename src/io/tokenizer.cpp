// See tokenizer.h. Order of work: added tokens that are looked for in raw text; normalization;
// added tokens looked for in normalized text; splitting; merging.
#include "io/tokenizer.h"

#include <algorithm>

#include "io/added_tokens.h"
#include "io/tokenizer_file.h"
#include "io/unicode.h"

namespace npu {

struct Tokenizer::State {
  TokenizerSpec spec;
  AddedTokenFinder raw, normalized;
  std::vector<bool> added_ids, special_ids;
  int32_t eos = -1;

  bool in_vocab(int32_t id) const {
    return static_cast<size_t>(id) < spec.in_vocab.size() && spec.in_vocab[id];
  }
  void merge_piece(std::string_view piece, size_t offset, std::vector<TokenAt>& out) const;
  void encode_words(std::string_view text, size_t offset, std::vector<TokenAt>& out) const;
  void encode_normalized(std::string_view text, size_t offset, std::vector<TokenAt>& out) const;
  void encode_raw(std::string_view text, size_t offset, std::vector<TokenAt>& out) const;
};

namespace {

// Spelling of `bytes` in the byte alphabet, the inverse of token_bytes.
std::string spell(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes)
    append_utf8(letters, byte_to_letter(static_cast<unsigned char>(byte)));
  return letters;
}

}  // namespace

void Tokenizer::State::merge_piece(std::string_view piece, size_t offset,
                                   std::vector<TokenAt>& out) const {
  if (spec.ignore_merges) {
    const auto whole = spec.ids.find(spell(piece));
    if (whole != spec.ids.end() && in_vocab(whole->second)) {
      out.push_back({whole->second, offset});
      return;
    }
  }
  spec.merger.encode(piece, offset, out);
}

void Tokenizer::State::encode_words(std::string_view text, size_t offset,
                                    std::vector<TokenAt>& out) const {
  std::vector<std::string_view> pieces = {text}, finer;
  for (const SplitRule rule : spec.splits) {
    finer.clear();
    for (const std::string_view piece : pieces) split_text(rule, piece, finer);
    pieces.swap(finer);
  }
  for (const std::string_view piece : pieces)
    merge_piece(piece, offset + static_cast<size_t>(piece.data() - text.data()), out);
}

void Tokenizer::State::encode_normalized(std::string_view text, size_t offset,
                                         std::vector<TokenAt>& out) const {
  normalized.cut(text, [&](size_t begin, size_t end, const AddedToken* token) {
    if (token != nullptr)
      out.push_back({token->id, offset + begin});
    else
      encode_words(text.substr(begin, end - begin), offset + begin, out);
  });
}

void Tokenizer::State::encode_raw(std::string_view text, size_t offset,
                                  std::vector<TokenAt>& out) const {
  if (!spec.nfc) return encode_normalized(text, offset, out);
  std::vector<Origin> origins;
  const std::string composed = nfc(text, &origins);
  const size_t first = out.size();
  encode_normalized(composed, 0, out);
  size_t origin = 0;
  for (size_t i = first; i < out.size(); ++i) {
    while (origin + 1 < origins.size() && origins[origin + 1].in_result <= out[i].begin) ++origin;
    out[i].begin = offset + (origins.empty() ? out[i].begin : origins[origin].in_text);
  }
}

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::from_files(const TokenizerFiles& files) {
  auto state = std::make_unique<State>();
  state->spec = parse_tokenizer_files(files);
  const TokenizerSpec& spec = state->spec;
  state->added_ids.resize(spec.spellings.size());
  state->special_ids.resize(spec.spellings.size());
  for (const AddedToken& token : spec.added) {
    state->added_ids[token.id] = true;
    state->special_ids[token.id] = token.special;
    if (token.normalized)
      state->normalized.add(spec.nfc ? nfc(token.content) : token.content, &token);
    else
      state->raw.add(token.content, &token);
  }
  if (!files.eos_token.empty()) {
    const auto eos = spec.ids.find(files.eos_token);
    if (eos == spec.ids.end())
      fail_input(files.where, "eos_token is not in the vocabulary", files.eos_token);
    state->eos = eos->second;
  } else if (files.eos_token_id >= 0) {
    state->eos = files.eos_token_id;
  }
  return Tokenizer(std::move(state));
}

std::vector<TokenAt> Tokenizer::encode_at(std::string_view text) const {
  std::vector<TokenAt> tokens;
  state_->raw.cut(text, [&](size_t begin, size_t end, const AddedToken* token) {
    if (token != nullptr)
      tokens.push_back({token->id, begin});
    else
      state_->encode_raw(text.substr(begin, end - begin), begin, tokens);
  });
  return tokens;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  const std::vector<TokenAt> tokens = encode_at(text);
  std::vector<int32_t> ids;
  ids.reserve(tokens.size() + 1);
  if (add_special) ids = state_->spec.bos;
  for (const TokenAt& token : tokens) ids.push_back(token.id);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const bool known = id >= 0 && static_cast<size_t>(id) < state_->special_ids.size();
    if (known && !(skip_special && state_->special_ids[id])) bytes += token_text(id);
  }
  return utf8_lossy(bytes);
}

std::string Tokenizer::token_text(int32_t id) const {
  const std::vector<std::string>& spellings = state_->spec.spellings;
  if (id < 0 || static_cast<size_t>(id) >= spellings.size()) return "";
  return token_bytes(spellings[id]);
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto found = state_->spec.ids.find(std::string(token));
  if (found == state_->spec.ids.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::is_added(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < state_->added_ids.size() && state_->added_ids[id];
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(state_->spec.spellings.size());
}

int32_t Tokenizer::eos_id() const { return state_->eos; }

}  // namespace npu
