// Writing a case for the vendor.
#include <algorithm>

#include "backend/graph_writers.h"
#include "base/version.h"
#include "cli/diagnose.h"
#include "io/safetensors.h"
#include "ir/text.h"

namespace npu {
namespace {

constexpr std::string_view kFiles =
    "| file | what it is |\n| --- | --- |\n"
    "| `graph.ir` | the graph as text: one line a node, types spelt out |\n"
    "| `model.onnx` | the same graph as ONNX, opset 17 |\n";

constexpr std::string_view kTensorFiles =
    "| `inputs.safetensors` | a value for every input, from one training step |\n"
    "| `expected.safetensors` | the outputs by the definition of every op |\n";

constexpr std::string_view kRunOnnx = R"(
To run `model.onnx` on these inputs (Python; pip install onnxruntime safetensors numpy):

```python
import numpy, onnxruntime
from safetensors.numpy import load_file

session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
outputs = session.run(None, load_file("inputs.safetensors"))
for meta, value in zip(session.get_outputs(), outputs):
    expected = load_file("expected.safetensors")[meta.name]
    print(meta.name, numpy.linalg.norm(value - expected) / numpy.linalg.norm(expected))
```
)";

constexpr std::string_view kCaseFiles[] = {
    "graph.ir", "model.onnx", "inputs.safetensors", "expected.safetensors", "observed.safetensors",
    "README.md"};

// Replacing a directory takes everything in it along, so it must hold nothing else.
void refuse_other_files(const fs::path& directory) {
  if (!fs::is_directory(directory)) return;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::find(kCaseFiles, name) != std::end(kCaseFiles)) continue;
    fail(ErrorKind::kUsage, "--out", "holds files that are not of such a case",
         entry.path().string(), "give another directory");
  }
}

// A cell of a Markdown table: one line, no column separator.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string readme(const VendorCase& content) {
  std::string text = "# " + cell(content.title) + "\n\n| | |\n| --- | --- |\n";
  for (const auto& [name, value] : content.facts) {
    text += "| " + name + " | " + cell(value) + " |\n";
  }
  text += "\n" + content.details + "\n" + std::string(kFiles);
  if (content.tensors.contains("inputs.safetensors")) {
    text += kTensorFiles;
    if (content.tensors.contains("observed.safetensors")) {
      text += "| `observed.safetensors` | the outputs of the device |\n";
    }
    text += kRunOnnx;
  }
  text +=
      "\nThe text is read by `npu-lora ir graph.ir`; `npu-lora ir graph.ir --emit onnx` writes "
      "`model.onnx` again.\n";
  return text;
}

}  // namespace

void write_case(const fs::path& directory, const VendorCase& content) {
  refuse_other_files(directory);
  StagedDirectory staged(directory);
  publish_text(staged.path() / "graph.ir", print_graph(content.graph));
  publish_text(staged.path() / "model.onnx", write_onnx(content.graph));
  for (const auto& [file, tensors] : content.tensors) {
    write_safetensors(staged.path() / file, tensors);
  }
  publish_text(staged.path() / "README.md", readme(content));
  staged.commit();
}

void check_case_directory(const Options& options, const fs::path& directory) {
  if (!fs::exists(directory) || options.flag("overwrite")) return;
  fail(ErrorKind::kUsage, "--out", "exists", directory.string(),
       "--overwrite replaces it as a whole, or give another directory");
}

std::string command_line(const Options& options, std::string_view command) {
  std::string text = "npu-lora " + std::string(command);
  for (const std::string& word : options.positional()) text += " " + word;
  for (const OptionSpec& spec : option_table()) {
    const auto found = options.values().find(spec.name);
    if (found == options.values().end() || !options.given(spec.name)) continue;
    for (const std::string& value : found->second) {
      text += " --" + std::string(spec.name);
      if (spec.kind != OptionKind::kFlag) text += " " + value;
    }
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> version_facts(Backend& backend) {
  const Result<std::string> compiler = backend.compiler_version();
  return {{"backend", backend.traits().name},
          {"compiler", compiler ? compiler.value() : compiler.error().text()},
          {"program", "npu-lora " + std::string(kVersion)}};
}

}  // namespace npu
