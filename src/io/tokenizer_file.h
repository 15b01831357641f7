// tokenizer.json → what the tokenizer needs, with every unknown piece refused. Private to src/io.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/added_tokens.h"
#include "io/bpe.h"
#include "io/hf_model.h"
#include "io/split_rules.h"

namespace npu {

struct TokenizerSpec {
  std::unordered_map<std::string, int32_t> ids;  // by spelling in the file, added tokens included
  std::vector<std::string> spellings;            // by id; "" where no token has the id
  std::vector<bool> in_vocab;                    // by id: in model.vocab, not only added
  BpeMerger merger;
  bool ignore_merges = false;  // a piece that is a token as a whole is not merged
  bool nfc = false;
  std::vector<SplitRule> splits;  // in order, each on the pieces of the one before
  std::vector<AddedToken> added;
  std::vector<int32_t> bos;  // what encode(add_special) puts first
};

// Throws UserErrors that name the key and its value.
TokenizerSpec parse_tokenizer_files(const TokenizerFiles& files);

}  // namespace npu
