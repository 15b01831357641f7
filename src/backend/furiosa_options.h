// What options and variables ask of RNGD's two compilers: which rules hold between them. kUsage
// Errors name the option.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "backend/furiosa_tcc.h"
#include "backend/furiosa_torch.h"

namespace npu {

inline constexpr const char* kFuriosaDefaultTarget = "renegade-8pe";

// Quick unless something else says how to search: a tactic, a file of the user's own.
enum class FuriosaSearch : uint8_t { kQuick, kFull };

struct FuriosaSettings {
  FuriosaTarget target;
  FuriosaSearch search = FuriosaSearch::kQuick;
  std::string tactic;  // of a full search; "" = the compiler's own
  int max_shapes = 0;  // of a quick search, or that the tactic takes; 0 = the compiler's own
  bool full_by_config = false;  // for no other reason than a configuration of the user's own
};
Result<FuriosaSettings> furiosa_settings(const CompileOptions& options);

// The settings as entries of a cache key, with defaults filled in: --search quick is no other code
// than nothing. Options that hold an error stay as they are.
VendorOptions furiosa_key_options(const CompileOptions& options, KeyUse use);

// Of --compiler. Auto: furiosa-tcc, and furiosa.torch for what TCL does not express, if it is
// there.
enum class FuriosaCompiler : uint8_t { kAuto, kTcc, kTorch };
Result<FuriosaCompiler> furiosa_compiler_option(const CompileOptions& options);

Result<TccJob> furiosa_tcc_job(const CompileOptions& options);
Result<TorchJob> furiosa_torch_job(const CompileOptions& options);

// A compiler's version with the files of the user's own that reach it: what they say counts, not
// where they lie. Errors: such a file can't be read.
Result<std::string> with_furiosa_files(std::string version);

}  // namespace npu
