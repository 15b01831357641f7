// One table of options feeds parsing, --help, YAML files and the record of a run: an option is a
// row, and no other place lists names or defaults.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace npu {

// kWords: one text of words with commas between them, in YAML also a list. kList: may repeat.
enum class OptionKind { kText, kInteger, kReal, kFlag, kWords, kList };

struct OptionSpec {
  std::string_view name;  // "lr": --lr on the command line, lr: in YAML
  OptionKind kind;
  std::string_view otherwise;  // default; "" means none
  std::string_view value;      // what stands for the value in --help: "X", "DIR"
  std::string_view commands;   // space-separated names of the commands that take it
  std::string_view help;
};
std::span<const OptionSpec> option_table();

struct CommandSpec {
  std::string_view name;
  std::string_view help;
  std::string_view positional;  // "" or the name of the positional arguments, "FILE"
  std::string_view positional_help = "";
};

// Values of one invocation: the command line over the YAML file over the defaults.
class Options {
 public:
  // argv without the program's and the command's names. Errors are kUsage UserErrors. A request for
  // --help prints to stdout and returns nothing.
  static std::optional<Options> parse(const CommandSpec& command,
                                      const std::vector<std::string>& arguments);

  bool given(std::string_view name) const;  // on the command line or in the YAML file
  bool has(std::string_view name) const;    // given, or with a default
  std::string text(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t low = 0, int64_t high = INT64_MAX) const;
  std::vector<std::string> words(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name, int64_t low, int64_t high) const;
  double real(std::string_view name) const;
  bool flag(std::string_view name) const;
  std::vector<std::string> list(std::string_view name) const;
  const std::vector<std::string>& positional() const { return positional_; }
  // One of `words`, or a kUsage error that lists them.
  std::string choice(std::string_view name, const std::vector<std::string>& words) const;

  // The effective configuration as YAML, in the order of the table.
  std::string yaml() const;
  const std::map<std::string, std::vector<std::string>, std::less<>>& values() const {
    return values_;
  }

 private:
  const std::vector<std::string>& raw(std::string_view name) const;
  void check(const OptionSpec& spec) const;

  std::string command_;
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::map<std::string, bool, std::less<>> given_;
  std::vector<std::string> positional_;
};

}  // namespace npu
