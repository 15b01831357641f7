// What a part compiled for FuriosaAI's RNGD travels as. The vendor's EDF does not say its target
// and knows no names but the text's, so both are kept beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace npu {

// Whose bytes they are: the two are loaded by different calls.
enum class FuriosaContainer : uint8_t {
  kEdf,       // furiosa-tcc's file
  kRunnable,  // what furiosa.torch serializes; only furiosa.torch loads it
};

struct FuriosaBlob {
  std::string target;                // "renegade-8pe"
  std::string edf;                   // the vendor's bytes
  std::vector<std::string> inputs;   // names of the part's ports, in the EDF's order; an input of
  std::vector<std::string> outputs;  // the part that nothing reads is no port
  std::string compiler;              // its version; filled by decode
  FuriosaContainer container = FuriosaContainer::kEdf;
  std::optional<double> cycles;  // of one call, as TccCode has them
};

// Sealed with a digest (sealed_blob.h).
Blob encode_furiosa_blob(const FuriosaBlob& blob, std::string_view compiler_version);
// Errors: not such a blob, another form of it, damaged.
Result<FuriosaBlob> decode_furiosa_blob(const Blob& blob);

}  // namespace npu
