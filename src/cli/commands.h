// The commands, and what several of them need. Each returns the exit code.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/environment.h"
#include "cli/options.h"
#include "io/dataset.h"
#include "io/hf_model.h"
#include "io/peft.h"
#include "train/placement.h"
#include "train/session.h"

namespace npu {

int cmd_train(const Options& options);
int cmd_check(const Options& options);
// check --serve-gap (src/cli/serve_gap.cpp).
int check_serve_gap(const Options& options);
int cmd_compile(const Options& options);
int cmd_plan(const Options& options);
int cmd_eval(const Options& options);
int cmd_data(const Options& options);
int cmd_convert(const Options& options);
int cmd_ir(const Options& options);
int cmd_doctor(const Options& options);
int cmd_diagnose(const Options& options);

struct Command {
  CommandSpec spec;
  int (*run)(const Options&);
};
const std::vector<Command>& command_table();

// ---- what several commands need (src/cli/setup.cpp) --------------------------------------------

// Where models named by a hub id are looked for, in order.
std::vector<fs::path> hub_roots();
HfModel open_model(const Options& options, bool with_weights = true);
fs::path cache_directory(const Options& options);

// --seq-len, rising. Where only one makes sense, ask options.integer("seq-len").
std::vector<int64_t> seq_lengths(const Options& options);

// How rows become tokens: --seq-len, --train-on (where the command has it), --skip-bad-rows,
// --date.
DatasetOptions dataset_options(const Options& options, const ModelConfig& config);

// Warnings, and counts of rows that were cut, dropped or bad. A dataset with nothing to train on,
// or to score, is a kBadInput error.
void report_dataset(const Dataset& data, const std::string& option);

// --rank, --alpha, --targets, --rslora.
LoraSpec lora_options(const Options& options);
// An adapter brings its own: one of these options that says otherwise is a kUsage error.
void refuse_other_lora(const Options& options, const std::string& option, const LoraSpec& adapter);

// Everything but sizes that depend on data: backend, numerics, limits, compile settings. `lora`
// comes from the options or from an adapter; what depends on memory is resolved by the caller.
SessionOptions session_options(const Options& options, const LoraSpec& lora,
                               const ModelConfig& config);

// --disable-pass, each name checked.
std::set<std::string, std::less<>> disabled_passes(const Options& options);

// Fills graphs.recompute from --recompute, and prepack where it was not asked for: by memory, and
// says so.
void resolve_memory(const Options& options, const ModelConfig& config, SessionOptions& session);

// Decides --host-parts auto, from evidence or by measuring; says how. Last before a runner starts.
void resolve_placement(const ModelConfig& config, SessionOptions& session,
                       const WeightStore& weights);
// The same from evidence alone; without any all groups are on the device and evaluation is among
// the graphs, as a run will want them for measuring, which is said.
std::optional<Placement> recall_placement(const ModelConfig& config, SessionOptions& session);

// prepare + compile + load with progress on stderr.
std::unique_ptr<ModelRunner> start_runner(const ModelConfig& config, const SessionOptions& session,
                                          const WeightStore& weights, bool quiet);
// Says on stderr what a compile built, took from the cache and moved to the host.
void report_compile(const CompileReport& report, bool quiet);

// Rows with loss that pass the head at a time: --loss-rows, else choose_loss_rows.
int64_t loss_rows_option(const Options& options, std::span<const int64_t> counts, int64_t all);

}  // namespace npu
