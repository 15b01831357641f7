// A stand-in for furiosa-tcc with its command line, its words and its exit codes (release
// 2026.4.0). It compiles nothing: its EDF has the real frame and signature, and the TCL text for a
// body.
//
// FAKE_TCC_MODE makes it misbehave, FAKE_TCC_ONLY only on texts that contain this, FAKE_TCC_SECONDS
// makes each compile last, FAKE_TCC_LOG names a file that gets a line for each call.
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void die(int code, const std::string& words) {
  std::cerr << words << "\n";
  std::exit(code);
}

[[noreturn]] void panic(const std::string& words) {
  die(101, "\nthread 'main' (7) panicked at crates/somewhere/src/mod.rs:873:33:\n" + words +
               "\nnote: run with `RUST_BACKTRACE=1` environment variable to display a backtrace");
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) die(1, "No such file or directory (os error 2)");
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Port {
  std::vector<std::string> axes;
  std::string type;
};

struct Function {
  std::vector<Port> inputs, outputs;
  std::map<std::string, int64_t> sizes;
  int blocks = 0;
  bool bound = true;

  int64_t elements(const Port& port) {
    int64_t count = 1;
    for (const std::string& axis : port.axes) {
      bound = bound && sizes.contains(axis);
      count *= bound ? sizes[axis] : 0;
    }
    return count;
  }
};

// All "[A, B]/type" of a piece of text, in order.
std::vector<Port> ports_of(const std::string& text) {
  std::vector<Port> ports;
  for (size_t at = text.find('['); at != std::string::npos; at = text.find('[', at + 1)) {
    const size_t close = text.find("]/", at);
    if (close == std::string::npos) break;
    Port port;
    std::istringstream axes(text.substr(at + 1, close - at - 1));
    for (std::string axis; std::getline(axes, axis, ',');) {
      const size_t first = axis.find_first_not_of(' ');
      if (first != std::string::npos) port.axes.push_back(axis.substr(first));
    }
    size_t end = close + 2;
    while (end < text.size() && std::isalnum(static_cast<unsigned char>(text[end])) != 0) ++end;
    port.type = text.substr(close + 2, end - close - 2);
    ports.push_back(std::move(port));
    at = end - 1;
  }
  return ports;
}

Function parse(const std::string& text) {
  Function function;
  const size_t define = text.find("def "), open = text.find('(', define),
               arrow = text.find(") ->", open), body = text.find(":\n", arrow);
  if (define == std::string::npos || body == std::string::npos) {
    die(1, "Compilation failed: failed to parse input: unexpected input at line 1, col 1");
  }
  function.inputs = ports_of(text.substr(open, arrow - open));
  function.outputs = ports_of(text.substr(arrow, body - arrow));
  for (size_t at = text.find("assert "); at != std::string::npos;
       at = text.find("assert ", at + 1)) {
    std::istringstream words(text.substr(at + 7, 80));
    std::string axis, equals;
    int64_t size = 0;
    if (words >> axis >> equals >> size) function.sizes[axis] = size;
  }
  for (size_t at = text.find("= tk."); at != std::string::npos; at = text.find("= tk.", at + 1)) {
    ++function.blocks;
  }
  return function;
}

// ---- the EDF ------------------------------------------------------------------------------------

std::string head(int major, uint64_t number) {
  std::string out;
  if (number < 24) return out += static_cast<char>(major << 5 | static_cast<int>(number));
  out += static_cast<char>(major << 5 | 27);
  for (int shift = 56; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 255);
  return out;
}

std::string text_item(const std::string& text) { return head(3, text.size()) + text; }
std::string array(const std::vector<std::string>& items) {
  std::string out = head(4, items.size());
  for (const std::string& item : items) out += item;
  return out;
}
std::string map(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string out = head(5, items.size());
  for (const auto& [key, value] : items) out += text_item(key) + value;
  return out;
}

std::string tensor(Function& function, const Port& port) {
  std::vector<std::string> axes;
  for (const std::string& axis : port.axes) {
    axes.push_back(map({{"tag", text_item(axis)},
                        {"size", head(0, static_cast<uint64_t>(function.sizes[axis]))}}));
  }
  const std::map<std::string, std::string> names = {{"bf16", "Bfloat16"}, {"f32", "Float32"}};
  const auto name = names.find(port.type);
  return map(
      {{"original_tensor", map({{"TaggedShape", map({{"inner", map({{"inner", array(axes)}})}})}})},
       {"element_type", text_item(name == names.end() ? port.type : name->second)}});
}

std::string edf(Function& function, const std::string& text) {
  std::vector<std::string> inputs, outputs;
  for (const Port& port : function.inputs) {
    inputs.push_back(array({tensor(function, port), head(7, 20)}));
  }
  for (const Port& port : function.outputs) outputs.push_back(tensor(function, port));
  const std::string body =
      map({{"Edf",
            map({{"nodes", array({map({{"Fake", text_item(text)}})})},
                 {"signature", map({{"inputs", array(inputs)}, {"outputs", array(outputs)}})}})}});
  std::string out;
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(body.size() >> shift & 255);
  return out + body + std::string(16, '\0');
}

// ---- the program --------------------------------------------------------------------------------

struct Arguments {
  std::string target = "renegade", output, input;
  bool evaluate = false;
};

Arguments parse_arguments(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool value_follows = argument == "--target-npu" || argument == "--output";
    if (value_follows && i + 1 == argc) die(2, "error: a value is required for " + argument);
    if (argument == "--target-npu") {
      out.target = argv[++i];
    } else if (argument == "--output") {
      out.output = argv[++i];
    } else if (argument == "--evaluate-tcl") {
      out.evaluate = true;
    } else if (argument.starts_with("--") && argument != "--no-compiler-cache") {
      die(2, "error: unexpected argument '" + argument + "' found");
    } else if (!argument.starts_with("--")) {
      out.input = argument;
    }
  }
  return out;
}

int pes_of(const std::string& target) {
  const std::map<std::string, int> known = {
      {"renegade", 1}, {"renegade-2pe", 2}, {"renegade-4pe", 4}, {"renegade-8pe", 8}};
  const auto found = known.find(target);
  return found == known.end() ? 0 : found->second;
}

void check_configuration() {
  const char* path = std::getenv("NPU_COMPILER_CONFIG_PATH");
  if (path == nullptr) return;
  std::ifstream in(path);
  std::string key;
  if (in && std::getline(in, key, ':') && key == "tactic_hint") return;
  panic(std::string("cannot load compiler config from a file. (NPU_COMPILER_CONFIG_PATH=") + path +
        "\n\nCaused by:\n    unknown field `" + key + "`, expected one of `progress_mode`");
}

// As the real one takes it: what is no YAML ends the compile, an unknown key does nothing.
void check_hint() {
  const std::string path = environment("TACTIC_HINT_PATH");
  if (path.empty()) return;
  std::ifstream in(path);
  if (!in) die(1, "Compilation failed: No such file or directory (os error 2)");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (text.empty()) die(1, "Compilation failed: EOF while parsing a value");
  const size_t open = text.find('[');
  if (open != std::string::npos && text.find(']', open) == std::string::npos) {
    die(1,
        "Compilation failed: while parsing a node, did not find expected node content at line 2 "
        "column 1");
  }
}

// " hinted N" of a file that allows N shapes of a tensor, for the log.
std::string hint_words() {
  const std::string path = environment("TACTIC_HINT_PATH");
  if (path.empty()) return "";
  std::ifstream in(path);
  std::string word;
  while (in >> word && word != "max_num_unique_shapes:") {
  }
  in >> word;
  return " hinted " + word;
}

// What the text and the search come to; a full search's schedule is better.
int64_t scheduled(const Function& function, const std::string& text) {
  const bool quick = !environment("TACTIC_HINT_PATH").empty();
  return 3000 * function.blocks + static_cast<int64_t>(text.size()) + (quick ? 500 : 0);
}

// What the search says of the schedule that it chose, in its debugging output.
void write_schedule(const std::string& mode, int64_t cycles) {
  const std::string folder = environment("DUMP_TACTIC_DEBUG");
  if (folder.empty() || mode == "no-schedule") return;
  const std::filesystem::path graph = std::filesystem::path(folder) / "graph_0";
  std::filesystem::create_directories(graph);
  std::ofstream out(graph / "meta.json");
  const std::map<std::string, std::string> odd = {{"zero-schedule", "0"},
                                                  {"negative-schedule", "-5"},
                                                  {"huge-schedule", "1e30"},
                                                  {"text-schedule", "\"many\""}};
  const auto found = odd.find(mode);
  const std::string time = found == odd.end() ? std::to_string(cycles) : found->second;
  if (mode == "uncompilable-schedule") {
    out << R"({"baseline": {"cost": "Uncompilable"}})";
  } else if (mode == "cut-schedule") {
    out << R"({"baseline": {"cost": {"Compilable")";
  } else if (mode == "endless-schedule") {
    out << std::string(size_t{33} << 20, ' ');
  } else {
    out << R"({"baseline": {"cost": {"Compilable": {"cycle": {"execution_time": )" << time
        << "}}}}}";
  }
}

// Ways to fail that a compile and an estimate share.
void misbehave(const std::string& mode) {
  if (mode == "panic") panic("called `Option::unwrap()` on a `None` value");
  if (mode == "crash") {
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  }
  if (mode == "hang") {
    while (true) sleep(1000);
  }
  if (mode == "memory") {
    std::vector<std::unique_ptr<char[]>> held;
    for (int i = 0; i < 64; ++i) {
      held.push_back(std::make_unique<char[]>(size_t{16} << 20));  // zeroed, so resident
      usleep(20000);
    }
    panic("memory allocation failed");
  }
  if (mode == "parse") {
    die(1,
        "Compilation failed: failed to parse input: unexpected input at line 2, col 5\n\n>>> 2 "
        "|\n");
  }
  if (mode == "refuse") die(1, "Compilation failed: no tactic found for operator 3");
}

int evaluate(const Arguments& arguments, const std::string& text, const std::string& mode) {
  Function function = parse(text);
  if (mode == "garbage") {
    std::cout << "about 12\n";
    return 0;
  }
  int64_t bytes = 0;
  for (const auto& list : {function.inputs, function.outputs}) {
    for (const Port& port : list) bytes += 2 * function.elements(port);
  }
  const int64_t cycles = 2000 * function.blocks + bytes / 163 / pes_of(arguments.target);
  std::cout << (function.bound && mode != "zero" ? cycles : 0) << "\n";
  return 0;
}

int compile(const Arguments& arguments, const std::string& text, const std::string& mode) {
  Function function = parse(text);
  for (int step = 1; step <= 13; ++step) {
    std::cerr << "[" << step << "/13] 🔍   Compiling from one to another\n";
    if (step == 5)
      usleep(static_cast<useconds_t>(1e6 * std::atof(environment("FAKE_TCC_SECONDS").c_str())));
    std::cerr << "Done in 0.01s\n";
  }
  write_schedule(mode, scheduled(function, text));
  if (mode == "no-cross") die(1, "Compilation failed: No such file or directory (os error 2)");
  for (const auto& list : {function.inputs, function.outputs}) {
    for (const Port& port : list) function.elements(port);
  }
  if (!function.bound) {
    panic("tensor shape(Dynamic[M, N]) can not be converted into tagged shape");
  }
  if (mode == "no-output") return 0;
  if (mode == "drop-input" && !function.inputs.empty()) function.inputs.pop_back();
  if (mode == "other-type" && !function.outputs.empty()) function.outputs[0].type = "i8";
  std::string bytes = edf(function, text);
  if (mode == "garbage") bytes = "not an EDF, and longer than forty bytes by a few";
  if (mode == "short") bytes.resize(bytes.size() / 2);
  if (mode == "damaged") bytes[bytes.find("original_tensor")] = 'x';
  std::ofstream(arguments.output, std::ios::binary) << bytes;
  std::cerr << "✨  Finished in 0.1s\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = environment("FAKE_TCC_MODE");
  if (argc == 2 && std::string(argv[1]) == "--version") {
    const std::string release = mode == "other-release" ? "2026.5.0" : "2026.4.0";
    std::cout << (mode == "no-version"
                      ? "something else 1.0\n"
                      : "tcc v" + release + " (fake), furiosa-compiler " + release + " (fake)\n");
    return 0;
  }
  const Arguments arguments = parse_arguments(argc, argv);
  const std::string text = read_file(arguments.input);
  if (const std::string log = environment("FAKE_TCC_LOG"); !log.empty()) {
    std::ofstream(log, std::ios::app)
        << (arguments.evaluate ? "evaluate " : "compile ") << arguments.target << " threads "
        << environment("RAYON_NUM_THREADS") << " pid " << getpid() << hint_words() << "\n";
  }
  check_configuration();
  if (!arguments.evaluate) check_hint();  // an estimate does not read it
  if (pes_of(arguments.target) == 0) {
    die(1, "Compilation failed: unknown target NPU: " + arguments.target);
  }
  const std::string only = environment("FAKE_TCC_ONLY");
  const std::string how = text.find(only) == std::string::npos ? "" : mode;
  misbehave(how);
  return arguments.evaluate ? evaluate(arguments, text, how) : compile(arguments, text, how);
}
