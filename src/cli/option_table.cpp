// The table of options. Names and meanings follow product.md section 6.
#include "cli/options.h"

namespace npu {
namespace {

using enum OptionKind;

constexpr std::string_view kRuns = "train check compile plan eval diagnose";  // builds graphs
constexpr std::string_view kTrains = "train check compile plan diagnose";     // a LoRA backward
// What shapes the graphs of a training run. compile and plan take every other option of train too,
// unlisted, so that one command line or file serves all three.
constexpr std::string_view kTraining = "train compile plan";

constexpr OptionSpec kTable[] = {
    // What is trained on what.
    {"model", kText, "", "PATH", "train check compile plan eval data ir diagnose",
     "model directory, id in the local hub cache, or .gguf file"},
    {"data", kList, "", "FILE", "train compile plan eval check",
     "JSON lines; may repeat; in check for --serve-gap"},
    {"out", kText, "", "DIR", "train convert diagnose", "directory to write"},
    {"config", kText, "", "FILE", kTraining, "YAML with the same options; the command line wins"},
    {"overwrite", kFlag, "", "", "train convert diagnose",
     "replace the results of an earlier run in --out"},
    // Where it runs.
    {"backend", kText, "auto", "NAME", kRuns,
     "auto, cpu, cpu:reference, openvino:CPU, …; see `npu-lora doctor`"},
    {"threads", kInteger, "0", "N", kRuns, "host threads; 0 = all usable CPUs"},
    {"max-mm", kInteger, "", "N", kRuns,
     "matmuls per compiled part; 0 = no limit [backend's own limit]"},
    {"host-parts", kWords, "", "GROUPS", kRuns,
     "groups that run on the host: fwd,bwd,rms,rms-bwd,ce-stats,ce-grad, or none, or auto: by "
     "measured error and time [backend's own]"},
    {"on-device-error", kText, "stop", "WHAT", "train",
     "stop with a checkpoint, or host: move the group that failed to the host and go on, unless "
     "the "
     "device is lost with the weights in its own memory"},
    {"numerics", kText, "hf", "MODE", kRuns,
     "where activations round: hf (after each op, as transformers), vllm (RoPE, SwiGLU and the "
     "residual norm once) or fp32 (nowhere); see docs/numerics.md"},
    {"dtype", kText, "", "TYPE", kRuns,
     "activation dtype: f32, bf16, f16 [what the backend computes in]"},
    {"weight-dtype", kText, "auto", "TYPE", kRuns,
     "frozen weights in memory: auto (as on disk where that costs nothing, else as activations), "
     "f32, bf16, f16"},
    {"prepack", kText, "auto", "on|off", kRuns,
     "frozen weights also in the form that the device's products read: faster, for the memory of a "
     "second copy or two; auto: where the backend does so by default and memory allows"},
    {"recompute", kText, "auto", "MODE", kTrains,
     "none keeps activations for the backward, layer recomputes them, auto decides by memory"},
    {"disable-pass", kList, "", "NAME", "train check compile plan eval ir diagnose",
     "switch a graph pass or rule off; may repeat"},
    // Shapes.
    {"seq-len", kWords, "512", "N[,N…]", "train check compile plan eval data diagnose",
     "tokens a sequence, fixed when graphs are compiled; several (not in check and diagnose): rows "
     "are packed to the longest, what needs less runs in the shortest that holds it"},
    {"batch", kInteger, "1", "N", "train compile plan eval diagnose",
     "sequences a micro-batch, inside the graph"},
    {"loss-rows", kInteger, "0", "N", kRuns,
     "rows with loss that pass the head at a time; 0 = the best for the data, or all rows where "
     "compile and plan have no --data"},
    {"vocab-chunk", kInteger, "16384", "N", kRuns,
     "largest number of vocabulary columns a head graph takes"},
    // The adapter.
    {"rank", kInteger, "16", "N", kTrains, "LoRA rank r"},
    {"alpha", kReal, "32", "X", kTrains, "LoRA alpha; the scale is alpha / r"},
    {"targets", kWords, "q,v", "LIST", kTrains,
     "linears with an adapter: of q,k,v,o,gate,up,down, or all"},
    {"rslora", kFlag, "", "", kTrains, "scale by alpha / sqrt(r)"},
    {"init-adapter", kText, "", "DIR", kTraining,
     "continue from this PEFT adapter; sets rank, alpha and targets"},
    {"adapter", kText, "", "DIR", "check eval diagnose", "PEFT adapter to load"},
    {"base-model-name", kText, "", "NAME", "train",
     "base_model_name_or_path of the adapter [--model]"},
    // Length and optimizer.
    {"steps", kInteger, "400", "N", "train", "optimizer steps"},
    {"epochs", kReal, "", "X", "train", "passes over the data, instead of --steps"},
    {"accum", kInteger, "1", "N", "train",
     "micro-batches an optimizer step; loss is the mean over all their trained tokens"},
    {"lr", kReal, "2e-4", "X", "train", "peak learning rate"},
    {"warmup", kInteger, "0", "N", "train", "steps of linear warm-up"},
    {"schedule", kText, "constant", "NAME", "train", "constant, linear or cosine"},
    {"weight-decay", kReal, "0", "X", "train", "AdamW, decoupled"},
    {"betas", kText, "0.9 0.999", "\"B1 B2\"", "train", "AdamW"},
    {"eps", kReal, "1e-8", "X", "train", "AdamW"},
    {"grad-clip", kReal, "1.0", "X", "train", "largest gradient norm; 0 = no clipping"},
    {"max-bad-steps", kInteger, "5", "N", "train",
     "stop after this many non-finite steps in a row"},
    {"loss-scale", kText, "auto", "auto|N|off", "train",
     "factor on the loss before the backward pass: auto (for f16 activations: from 65536, halved "
     "when a gradient overflows, doubled after 2,000 good steps), a fixed power of two, or off"},
    {"drift-every", kText, "auto", "N|auto", "train",
     "at step 1 and every N steps run a micro-batch on the reference too and log loss gap and "
     "gradient error; 0 = never; auto: once, at the first step, on devices other than this CPU"},
    {"drift-limit", kReal, "0.05", "X", "train",
     "relative error of a gradient that --drift-every accepts; of the loss a fifth of it"},
    {"drift-action", kText, "auto", "WHAT", "train",
     "beyond --drift-limit: stop (checkpoint, exit 1), host (move part groups to the host until "
     "within it, and go on) or warn; auto: stop under --drift-every N, else warn, and stop only at "
     "what no rounding explains"},
    {"seed", kInteger, "0", "N", "train check compile plan diagnose",
     "of the adapter's initial values and the shuffle"},
    // Data.
    {"packing", kText, "best-fit", "MODE", kTraining, "best-fit, wrap or none"},
    {"train-on", kText, "response", "WHAT", "train compile plan data eval check",
     "response (text rows: all tokens) or all"},
    {"skip-bad-rows", kInteger, "0", "N", "train compile plan data eval check",
     "bad rows to tolerate"},
    {"date", kText, "", "YYYY-MM-DD", "train compile plan data eval check",
     "date for chat templates that print one [today]"},
    {"eval-data", kList, "", "FILE", kTraining, "held-out rows; their loss is logged"},
    {"eval-every", kInteger, "0", "N", "train",
     "steps between evaluations of --eval-data; 0 = at the end"},
    // Checkpoints and records.
    {"save-every", kInteger, "0", "N", "train", "steps between checkpoints; 0 = only when stopped"},
    {"keep", kInteger, "2", "N", "train", "checkpoints to keep"},
    {"resume", kText, "", "auto|DIR", "train",
     "continue from a checkpoint; auto takes the newest in --out, or starts anew"},
    {"log-file", kText, "", "FILE", "train", "JSON lines [OUT/train_log.jsonl]"},
    {"run-name", kText, "", "NAME", "train", "name of the run in its records"},
    // Compiling.
    {"cache-dir", kText, "", "DIR", kRuns,
     "compiled parts [$NPU_LORA_CACHE, else ~/.cache/npu-lora]"},
    {"jobs", kInteger, "1", "N", kRuns, "parts compiled at the same time"},
    {"compile-timeout", kReal, "600", "SECONDS", kRuns, "per part"},
    {"compile-memory", kInteger, "0", "MIB", kRuns,
     "memory that compiling a part may take; 0 = no limit"},
    {"compile-budget", kReal, "14400", "SECONDS", kRuns,
     "for all parts of a run together; what is not compiled by then runs on the host; 0 = none"},
    {"part-seconds", kReal, "", "SECONDS", kRuns,
     "CPU time that compiling a part may be forecast to take where the compiler's own forecasts of "
     "speed choose the cut; not with --max-mm [furiosa: 300 with a quick search, else 14400]"},
    {"no-adaptive-cut", kFlag, "", "", kRuns,
     "a part that fails to compile runs on the host whole, instead of being cut until it compiles"},
    {"expect-cached", kFlag, "", "", kRuns,
     "fail, saying why, if any part would have to be compiled"},
    {"target", kWords, "", "NAME", kRuns,
     "what the vendor's compiler compiles for; plan takes several and prices the step on each "
     "[furiosa: renegade-8pe; also renegade, renegade-2pe, renegade-4pe]"},
    {"search", kText, "", "HOW", kRuns,
     "how far the vendor's compiler looks for the best schedule: quick (seconds to minutes a part) "
     "or full (minutes to days) [furiosa: quick]"},
    {"tactic", kText, "", "NAME", kRuns,
     "hint for its full search [furiosa: its own; ForLlmModelComputeBound, ForLlmModelIOBound, "
     "NoConstraint, …]"},
    {"max-shapes", kInteger, "", "N", kRuns,
     "shapes of a tensor that the quick search tries [furiosa: 8], or the full one with a tactic "
     "that takes a number"},
    {"compiler", kText, "", "NAME", kRuns,
     "which of the vendor's compilers: tcc, torch, or auto, which is torch for what TCL has no "
     "words for [furiosa: auto]"},
    {"export", kText, "", "FILE", "compile",
     "also write the compiled parts as a bundle for another machine"},
    {"import", kText, "", "FILE", "compile", "first take compiled parts from a bundle"},
    // check, diagnose
    {"batch-file", kText, "", "FILE", "check diagnose",
     "safetensors with input_ids and labels, int64 [B,S]; also spelt --batch"},
    {"layers", kInteger, "0", "N", "check diagnose", "only the first N layers; 0 = all"},
    {"random-weights", kInteger, "", "SEED", "check diagnose",
     "weights as the family initialises them, from config.json alone"},
    {"dump", kText, "", "FILE", "check",
     "write loss and every gradient of --backend (PEFT names) as safetensors"},
    {"reference", kText, "", "NAME", "check diagnose",
     "backend to compare with, or none [cpu; for cpu: cpu:reference]"},
    {"serve-gap", kText, "", "WHERE", "check",
     "instead: the log-probability gap a token to a serving engine, under each --numerics: "
     "transformers (a Python child, bf16) or the address of a vLLM server, http://host:port"},
    {"serve-model", kText, "", "NAME", "check",
     "model or adapter name at the server of --serve-gap [the only one that it lists]"},
    {"serve-timeout", kReal, "600", "SECONDS", "check",
     "for a request to the server of --serve-gap, or for all of transformers"},
    {"seeds", kInteger, "1", "N", "check diagnose",
     "repeat with the inputs of N seeds from --seed on; the worst is judged"},
    {"blame", kText, "auto", "WHEN", "check",
     "move one placement group after the other to the host: auto (when it fails), always, never"},
    {"parts", kText, "auto", "WHEN", "check",
     "also judge every part alone: auto (where it takes no longer than the check), always, never"},
    {"top", kInteger, "10", "N", "check diagnose", "rows of each table in text; --json has all"},
    {"html", kText, "", "FILE", "check", "also write the report as one self-contained page"},
    {"part", kText, "", "NAME", "diagnose", "only this part, as plan names it: layer_fwd.2"},
    {"max-compiles", kInteger, "200", "N", "diagnose",
     "compiles that the search for one smallest graph may take"},
    {"max-error", kReal, "", "X", "diagnose",
     "largest relative error of a part's output [by dtype: 0.016 bf16, 0.002 f16, 2e-4 f32]"},
    // eval
    {"mode", kText, "choice", "MODE", "eval",
     "choice (by log-probability), keyword (in generated text) or nll (held-out loss)"},
    {"choice", kList, "", "TEXT", "eval",
     "an answer to choose from; may repeat [the distinct responses of the data]"},
    {"max-new-tokens", kInteger, "8", "N", "eval", "tokens generated for keyword"},
    {"limit", kInteger, "0", "N", "eval data check", "only the first N rows; 0 = all"},
    {"rows", kText, "", "FILE", "eval", "write one JSON object a row, with log-probabilities"},
    // convert, ir
    {"save-dtype", kText, "bf16", "TYPE", "convert",
     "dtype of the weights written: bf16, f16 or f32; also spelt --dtype"},
    {"graph", kText, "", "NAME", "ir",
     "print this graph of --model (layer_fwd, layer_bwd, ce_grad, …) instead of reading a file"},
    {"passes", kWords, "", "LIST", "ir", "passes to run, comma-separated, or default"},
    {"print-after", kFlag, "", "", "ir", "also print after each pass that changed the graph"},
    {"emit", kText, "text", "FORMAT", "ir", "text, openvino (IR XML) or onnx (bytes)"},
    // Everywhere.
    {"json", kFlag, "", "", "check compile plan eval data doctor diagnose",
     "machine-readable output on stdout"},
    {"log", kWords, "", "CHANNELS", "train check compile plan eval data convert ir doctor diagnose",
     "show debug lines of these channels: cache,compile,train,…"},
    {"quiet", kFlag, "", "", "train check compile plan eval data convert diagnose",
     "only warnings and errors on stderr"},
};

}  // namespace

std::span<const OptionSpec> option_table() { return kTable; }

}  // namespace npu
