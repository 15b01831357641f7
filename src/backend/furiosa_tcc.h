// Calling furiosa-tcc, FuriosaAI's native compiler: TCL text in, an EDF or a cycle estimate out. It
// is a program of the vendor's, found at run time and run as a child; how it ends is a value.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace npu {

// The program that NPU_LORA_FURIOSA_TCC names, else the first furiosa-tcc of PATH, of the active
// Python environment and of a .venv above this program. An Error says how to install it.
Result<fs::path> find_furiosa_tcc();

// "furiosa-tcc 2026.4.0 (b1baffa75), furiosa-compiler 2026.4.0 (ae27d44cd8)".
Result<std::string> furiosa_tcc_version(const fs::path& tcc);

// The cross compiler that the last of its steps calls. It only finds out there, so ask first;
// estimates do without.
std::optional<Error> furiosa_cross_compiler_problem();

// One target and how many PEs of a card its code takes.
struct FuriosaTarget {
  std::string_view name;  // as --target-npu has it
  int pes;
};
// Those on one card; without sparse and smaller variants, which nobody has tried here.
std::span<const FuriosaTarget> furiosa_targets();
Result<FuriosaTarget> find_furiosa_target(std::string_view name);

// The tactic that a number of shapes alone means.
inline constexpr const char* kFuriosaNumberedDefault = "DefaultWithMaxNumUniqueShapes";

// Names a file of bounds for the search; either compiler reads it.
inline constexpr const char* kFuriosaHintVariable = "TACTIC_HINT_PATH";

struct TccJob {
  std::string target;         // checked by find_furiosa_target
  std::string config;         // YAML for NPU_COMPILER_CONFIG_PATH; "" = the compiler's own defaults
  std::string hint;           // YAML for TACTIC_HINT_PATH, of a compile; "" = a file of the user's
  int threads = 1;            // RAYON_NUM_THREADS
  double seconds_limit = 0;   // 0 = none
  bool in_our_group = false;  // whoever limits this process limits the compiler too
};

struct TccCode {
  std::string edf;  // checked for its frame
  // Of one call, as the search reckoned the schedule that it chose; whole, 1 to 2^53.
  std::optional<double> cycles;
};
// Errors are kBadInput where the compiler would say the same again, with its own words; kRetriable
// where it was stopped or could not do its work here; kUsage where its configuration is wrong.
Result<TccCode> furiosa_compile_tcl(const fs::path& tcc, const std::string& tcl, const TccJob& job);

// Clock cycles of one call by the vendor's model of the card. Needs no cross compiler. A text with
// a size left open, for which the vendor prints 0, is an Error.
Result<double> furiosa_estimate_tcl(const fs::path& tcc, const std::string& tcl, const TccJob& job);

// The configuration file for a tactic hint ("" = none) and a number of shapes to try (0 = the
// compiler's own). kUsage Errors: a tactic that 2026.4 does not know; a number it does not take, or
// needs.
Result<std::string> furiosa_tactic_config(const std::string& tactic, int max_shapes);

// The hint that keeps the search to tensors divided along one axis, and to so many shapes of each:
// seconds in place of minutes to days, for a schedule that is somewhat slower (docs/furiosa.md).
std::string furiosa_quick_hint(int max_shapes);

// Writes it into `folder`; the environment's entry that names it.
std::string publish_furiosa_hint(const fs::path& folder, const std::string& hint);
// A compiler's last words as an Error, if they are about the file that the user's TACTIC_HINT_PATH
// names: no fault of the part.
std::optional<Error> furiosa_hint_error(std::string_view words);
// What may help a compile under this hint to end in time.
std::string furiosa_time_advice(const std::string& hint);

}  // namespace npu
