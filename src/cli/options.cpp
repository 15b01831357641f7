// Parsing with CLI11, YAML with yaml-cpp, both driven by the table.
#include "cli/options.h"

#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/text.h"

namespace npu {
namespace {

bool lists(const OptionSpec& spec, std::string_view command) {
  std::string_view rest = spec.commands;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (rest.substr(0, end) == command) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

// compile and plan prepare a training run, so they take what it takes; --help shows what they use.
bool takes(const OptionSpec& spec, std::string_view command) {
  return lists(spec, command) ||
         ((command == "compile" || command == "plan") && lists(spec, "train"));
}

const OptionSpec* find_spec(std::string_view name) {
  for (const OptionSpec& spec : option_table()) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

// A second spelling where the contract gives one name two meanings (--batch FILE of check).
std::string_view other_spelling(std::string_view command, std::string_view name) {
  if (command == "check" && name == "batch-file") return "batch";
  if (command == "convert" && name == "save-dtype") return "dtype";
  return "";
}

std::string flag_names(std::string_view command, const OptionSpec& spec) {
  std::string names = "--" + std::string(spec.name);
  const std::string_view other = other_spelling(command, spec.name);
  if (!other.empty()) names += ",--" + std::string(other);
  return names;
}

std::vector<std::string> option_names(std::string_view command) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : option_table()) {
    if (takes(spec, command)) names.emplace_back(spec.name);
  }
  return names;
}

std::map<std::string, std::vector<std::string>> read_yaml(const std::string& path,
                                                          std::string_view command) {
  std::map<std::string, std::vector<std::string>> values;
  try {
    const YAML::Node root = YAML::Load(read_text(path, size_t{1} << 20));
    if (root.IsNull()) return values;
    if (!root.IsMap()) fail(ErrorKind::kUsage, path, "must be a map of option names to values");
    for (const auto& item : root) {
      std::string name = item.first.as<std::string>();
      std::replace(name.begin(), name.end(), '_', '-');
      const std::string where = path + ":" + std::to_string(item.first.Mark().line + 1);
      const OptionSpec* spec = find_spec(name);
      if (spec == nullptr || !takes(*spec, command)) {
        fail(ErrorKind::kUsage, where, "unknown option", "'" + name + "'",
             did_you_mean(name, option_names(command)) + "names are those of `npu-lora " +
                 std::string(command) + " --help` without --");
      }
      if (item.second.IsNull()) continue;
      if (item.second.IsSequence()) {
        for (const auto& element : item.second) values[name].push_back(element.as<std::string>());
      } else if (item.second.IsScalar()) {
        values[name].push_back(item.second.as<std::string>());
      } else {
        fail(ErrorKind::kUsage, where, name + " must be a value or a list of values");
      }
      if (spec->kind == OptionKind::kWords) values[name] = {joined(values[name], ",")};
      if (spec->kind != OptionKind::kList && values[name].size() != 1) {
        fail(ErrorKind::kUsage, where, name + " takes one value",
             "a list of " + std::to_string(values[name].size()));
      }
    }
  } catch (const YAML::Exception& e) {
    fail(ErrorKind::kUsage, path + ":" + std::to_string(e.mark.line + 1), "not valid YAML", e.msg);
  }
  return values;
}

// What CLI11 found wrong, in this program's form.
[[noreturn]] void fail_parse(const CommandSpec& command, const std::vector<std::string>& arguments,
                             const CLI::ParseError& error) {
  std::string what = error.what(), hint;
  std::replace(what.begin(), what.end(), '\n', ' ');
  std::vector<std::string> known = {"--help"};
  for (const std::string& name : option_names(command.name)) known.push_back("--" + name);
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (!hint.empty() || !name.starts_with("--") || std::ranges::count(known, name) > 0) continue;
    hint = did_you_mean(name, known);
  }
  fail(ErrorKind::kUsage, "npu-lora " + std::string(command.name), what, "",
       hint + "see npu-lora " + std::string(command.name) + " --help");
}

}  // namespace

std::optional<Options> Options::parse(const CommandSpec& command,
                                      const std::vector<std::string>& arguments) {
  CLI::App app{std::string(command.help), "npu-lora " + std::string(command.name)};
  app.get_formatter()->column_width(34);
  Options out;
  out.command_ = command.name;
  std::map<std::string, std::vector<std::string>> texts;
  std::map<std::string, bool> flags;
  for (const OptionSpec& spec : option_table()) {
    if (!takes(spec, command.name)) continue;
    const std::string name(spec.name);
    std::string help(spec.help);
    if (!spec.otherwise.empty()) help += " [" + std::string(spec.otherwise) + "]";
    CLI::Option* option = nullptr;
    if (spec.kind == OptionKind::kFlag) {
      option = app.add_flag(flag_names(command.name, spec), flags[name], help);
    } else {
      option =
          app.add_option(flag_names(command.name, spec), texts[name], help)
              ->type_name(std::string(spec.value))
              ->expected(1)
              ->allow_extra_args(false)
              ->multi_option_policy(spec.kind == OptionKind::kList ? CLI::MultiOptionPolicy::TakeAll
                                                                   : CLI::MultiOptionPolicy::Throw);
    }
    if (!lists(spec, command.name)) option->group("");  // out of --help
  }
  if (!command.positional.empty()) {
    app.add_option(std::string(command.positional), out.positional_,
                   std::string(command.positional_help))
        ->type_name("");
  }
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    fail_parse(command, arguments, error);
  }
  std::map<std::string, std::vector<std::string>> yaml;
  if (!texts["config"].empty()) yaml = read_yaml(texts["config"].front(), command.name);
  for (const OptionSpec& spec : option_table()) {
    if (!takes(spec, command.name)) continue;
    const std::string name(spec.name);
    std::vector<std::string>& value = out.values_[name];
    value = texts[name];
    if (spec.kind == OptionKind::kFlag && flags[name]) value = {"true"};
    bool said = !value.empty();
    if (!said && yaml.contains(name)) {
      value = yaml[name];
      // A run writes its effective configuration: what it took from the table was never given.
      said = value != std::vector<std::string>{std::string(spec.otherwise)};
    }
    out.given_[name] = said;
    if (value.empty() && !spec.otherwise.empty()) value = {std::string(spec.otherwise)};
    out.check(spec);
  }
  return out;
}

// Types are checked at once, so that a typo late in a command line never costs a run.
void Options::check(const OptionSpec& spec) const {
  if (!has(spec.name)) return;
  if (spec.kind == OptionKind::kInteger) integer(spec.name, INT64_MIN);
  if (spec.kind == OptionKind::kReal) real(spec.name);
  if (spec.kind == OptionKind::kFlag) flag(spec.name);
}

const std::vector<std::string>& Options::raw(std::string_view name) const {
  const auto found = values_.find(name);
  NPU_CHECK(found != values_.end(), "option " + std::string(name) + " of " + command_);
  return found->second;
}

bool Options::given(std::string_view name) const {
  const auto found = given_.find(name);
  return found != given_.end() && found->second;
}

bool Options::has(std::string_view name) const { return !raw(name).empty(); }

std::string Options::text(std::string_view name) const {
  const auto& values = raw(name);
  if (values.empty()) {
    fail(ErrorKind::kUsage, "--" + std::string(name), "is required", "",
         "see npu-lora " + command_ + " --help");
  }
  return values.front();
}

namespace {

int64_t whole_number(std::string_view name, const std::string& value, int64_t low, int64_t high) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) {
    fail(ErrorKind::kUsage, "--" + std::string(name), "must be a whole number", "'" + value + "'");
  }
  if (number < low || number > high) {
    const std::string range = high == INT64_MAX
                                  ? "at least " + std::to_string(low)
                                  : std::to_string(low) + " to " + std::to_string(high);
    fail(ErrorKind::kUsage, "--" + std::string(name), "must be " + range, value);
  }
  return number;
}

}  // namespace

int64_t Options::integer(std::string_view name, int64_t low, int64_t high) const {
  return whole_number(name, text(name), low, high);
}

std::vector<std::string> Options::words(std::string_view name) const {
  std::vector<std::string> words;
  std::istringstream in(text(name));
  for (std::string word; std::getline(in, word, ',');) {
    const size_t first = word.find_first_not_of(' '), last = word.find_last_not_of(' ');
    if (first != std::string::npos) words.push_back(word.substr(first, last + 1 - first));
  }
  return words;
}

std::vector<int64_t> Options::integers(std::string_view name, int64_t low, int64_t high) const {
  std::vector<int64_t> numbers;
  for (const std::string& word : words(name)) {
    numbers.push_back(whole_number(name, word, low, high));
  }
  if (numbers.empty()) whole_number(name, text(name), low, high);  // which says what is wrong
  return numbers;
}

double Options::real(std::string_view name) const {
  const std::string value = text(name);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(number)) {
    fail(ErrorKind::kUsage, "--" + std::string(name), "must be a finite number", "'" + value + "'");
  }
  return number;
}

bool Options::flag(std::string_view name) const {
  const auto& values = raw(name);
  if (values.empty() || values.front() == "false") return false;
  if (values.front() == "true") return true;
  fail(ErrorKind::kUsage, "--" + std::string(name), "must be true or false",
       "'" + values.front() + "'");
}

std::vector<std::string> Options::list(std::string_view name) const { return raw(name); }

std::string Options::choice(std::string_view name, const std::vector<std::string>& words) const {
  const std::string value = text(name);
  if (std::find(words.begin(), words.end(), value) != words.end()) return value;
  std::string known;
  for (const std::string& word : words) known += (known.empty() ? "" : ", ") + word;
  fail(ErrorKind::kUsage, "--" + std::string(name), "must be one of " + known, "'" + value + "'");
}

std::string Options::yaml() const {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const OptionSpec& spec : option_table()) {
    const auto found = values_.find(spec.name);
    if (found == values_.end() || found->second.empty()) continue;
    out << YAML::Key << std::string(spec.name) << YAML::Value;
    if (spec.kind == OptionKind::kList) {
      out << found->second;
    } else {
      out << found->second.front();
    }
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

}  // namespace npu
