// npu-lora: the table of commands, and the one place where errors become exit codes.
#include <algorithm>
#include <exception>
#include <iostream>

#include "backend/backend.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/commands.h"
#include "compile/plan.h"

namespace npu {

const std::vector<Command>& command_table() {
  static const std::vector<Command> kCommands = {
      {{"train", "Train a LoRA adapter from JSON lines to PEFT files", ""}, cmd_train},
      {{"check", "Compare loss and every gradient of a backend with the CPU", ""}, cmd_check},
      {{"compile", "Build and cache every graph part of a run", ""}, cmd_compile},
      {{"plan", "Show parts, placement, bytes and memory before compiling", ""}, cmd_plan},
      {{"eval", "Accuracy or loss of a model or adapter on JSON lines", ""}, cmd_eval},
      {{"data", "Show rows as tokens, with the trained ones marked", "FILE"}, cmd_data},
      {{"convert", "Turn a GGUF file into a Hugging Face directory", "GGUF"}, cmd_convert},
      {{"diagnose", "Find what a compiler fails on and which parts are wrong; write cases",
        "ACTION",
        "first-failing-node: the smallest graph that the compiler does not take; compare-parts: "
        "each "
        "compiled part against the reference on the same inputs; repro PART: a case for the "
        "vendor"},
       cmd_diagnose},
      {{"ir", "Read a graph, run passes on it, print it", "FILE"}, cmd_ir},
      {{"doctor", "Say what is installed and usable, and how to install the rest", ""}, cmd_doctor},
  };
  return kCommands;
}

namespace {

void print_help() {
  std::cout << "npu-lora " << kVersion
            << ": fine-tune Llama-family models on inference accelerators\n\n"
               "usage: npu-lora COMMAND [OPTIONS]\n\ncommands:\n";
  for (const Command& command : command_table()) {
    std::cout << "  " << command.spec.name << std::string(10 - command.spec.name.size(), ' ')
              << command.spec.help << "\n";
  }
  std::cout << "\n`npu-lora COMMAND --help` lists a command's options with their defaults.\n"
               "exit codes: 0 ok, 1 check failed, 2 usage, 42 not retriable, 75 retriable, "
               "143/130 stopped by a signal after a checkpoint\n";
}

void check_channel(const std::string& channel) {
  if (std::ranges::find(kLogChannels, channel) != std::end(kLogChannels)) return;
  fail(ErrorKind::kUsage, "--log", "unknown channel", "'" + channel + "'",
       "use " + joined(kLogChannels));
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" ||
      arguments[0] == "help") {
    print_help();
    return arguments.empty() ? static_cast<int>(ErrorKind::kUsage) : 0;
  }
  if (arguments[0] == "--version") {
    std::cout << "npu-lora " << kVersion << "\n";
    return 0;
  }
  if (arguments[0] == "compile-worker") return compile_worker_main();
  for (const WorkerEntry& worker : worker_entries()) {
    if (worker.name == arguments[0]) return worker.main({arguments.begin() + 1, arguments.end()});
  }
  for (const Command& command : command_table()) {
    if (command.spec.name != arguments[0]) continue;
    const auto options = Options::parse(command.spec, {arguments.begin() + 1, arguments.end()});
    if (!options) return 0;
    if (options->has("log")) {
      for (const std::string& channel : options->words("log")) check_channel(channel);
      set_log_channels(joined(options->words("log"), ","));
    }
    return command.run(*options);
  }
  std::vector<std::string> names;
  for (const Command& command : command_table()) names.emplace_back(command.spec.name);
  fail(ErrorKind::kUsage, "npu-lora", "unknown command", "'" + arguments[0] + "'",
       did_you_mean(arguments[0], names) + "npu-lora --help lists the commands");
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  try {
    return npu::dispatch({argv + 1, argv + argc});
  } catch (const npu::UserError& error) {
    std::cerr << error.what() << "\n";
    return static_cast<int>(error.error().kind);
  } catch (const npu::InternalError& error) {
    std::cerr << "internal error: " << error.what() << "; this is a bug, please report it\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "npu-lora: out of memory; hint: a smaller --seq-len or --batch, --recompute "
                 "layer, or --weight-dtype bf16\n";
    return static_cast<int>(npu::ErrorKind::kRetriable);
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << error.path1().string() << ": can't be used; got " << error.code().message()
              << "\n";
    return static_cast<int>(npu::errno_kind(error.code().value()));
  } catch (const std::exception& error) {
    std::cerr << "internal error: " << error.what() << "; this is a bug, please report it\n";
  }
  return static_cast<int>(npu::ErrorKind::kBadInput);
}
