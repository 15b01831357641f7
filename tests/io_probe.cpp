// What this program reads from a model file, as JSON for the interop tests: one command a call, a
// refusal is data ("error"), not a failure.
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/random.h"
#include "io/gguf.h"
#include "io/hf_model.h"
#include "io/peft.h"
#include "io/safetensors.h"

namespace npu {
namespace {

std::string digest(const Tensor& tensor) {
  return sha256_hex(std::span<const std::byte>(tensor.data(), tensor.bytes()));
}

Json describe(const Tensor& tensor) {
  return {
      {"dtype", dtype_name(tensor.dtype())}, {"shape", tensor.shape()}, {"sha256", digest(tensor)}};
}

Json read_safetensors(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Json tensors = Json::object();
  for (const std::string& name : file.names())
    if (dtype_from_safetensors(file.entry(name).dtype)) tensors[name] = describe(file.get(name));
  return {{"names", file.names()}, {"tensors", tensors}, {"metadata", file.metadata()}};
}

Json read_gguf(const std::string& path) {
  const auto file = FileBytes::open(path);
  const Gguf gguf = parse_gguf(file->bytes(), path);
  Json tensors = Json::object();
  for (const GgufTensor& tensor : gguf.tensors) {
    Tensor values(DType::kF32, tensor.shape);
    dequantize(tensor.type, file->bytes().subspan(tensor.begin, tensor.bytes),
               values.mutable_values<float>());
    tensors[tensor.name] = describe(values);
  }
  return {{"version", gguf.version}, {"tensors", tensors}};
}

Json read_model(const std::string& where) {
  const HfModel model = load_model(where);
  Json tensors = Json::object();
  for (const std::string& name : model.weights->names())
    tensors[name] = describe(model.weights->get(name));
  return {{"tensors", tensors}, {"eos_token_id", model.tokenizer.eos_token_id}};
}

Json read_adapter(const std::string& directory, const std::string& model) {
  const Adapter adapter = read_peft_adapter(directory, load_model(model, false).config);
  Json tensors = Json::object();
  for (const auto& [name, tensor] : adapter.tensors) tensors[name] = describe(tensor);
  return {{"tensors", tensors},
          {"rank", adapter.lora.rank},
          {"scale", adapter.lora.scale()},
          {"targets", adapter.lora.targets}};
}

// An adapter for all linears with values in [-0.05, 0.05) that depend on the name alone.
Json write_adapter(const std::string& directory, const std::string& model, int64_t rank,
                   bool rslora) {
  const ModelConfig config = load_model(model, false).config;
  Adapter adapter;
  adapter.lora = {rank, 2.0 * static_cast<double>(rank), rslora, parse_targets("all")};
  adapter.base_model_name = model;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    for (const Linear& linear : linears())
      for (const bool is_a : {true, false}) {
        const std::string name = "model.layers." + std::to_string(layer) + "." +
                                 std::string(linear.module) + (is_a ? ".lora_A" : ".lora_B");
        Tensor tensor(DType::kF32,
                      is_a ? Shape{rank, linear.in(config)} : Shape{linear.out(config), rank});
        const RandomStream stream(1, name);
        size_t i = 0;
        for (float& value : tensor.mutable_values<float>())
          value = static_cast<float>(stream.uniform(i++) - 0.5) * 0.1f;
        adapter.tensors.emplace(name, tensor);
      }
  write_peft_adapter(directory, adapter, config);
  return read_adapter(directory, model);
}

// F32, BF16, F16, I64, I32, U8 and BOOL tensors, a scalar and an empty one, written by our writer.
Json write_samples(const std::string& path) {
  std::map<std::string, Tensor> tensors;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32,
                            DType::kU8, DType::kPred}) {
    Tensor tensor(dtype, {3, 5});
    for (int64_t i = 0; i < tensor.size(); ++i)
      set_element(tensor, i,
                  dtype == DType::kPred ? static_cast<double>(i % 2) : static_cast<double>(i));
    tensors.emplace(dtype_name(dtype), tensor);
  }
  tensors.emplace("scalar", Tensor::scalar_f32(2.5f));
  tensors.emplace("empty", Tensor(DType::kF32, {0, 4}));
  tensors.emplace("이름", Tensor::from_f32({1}, std::vector<float>{1.0f}));
  write_safetensors(path, tensors, {{"made by", "io_probe"}});
  return read_safetensors(path);
}

Json convert(const std::string& gguf, const std::string& out, const std::string& dtype) {
  convert_gguf(gguf, out, parse_dtype(dtype).value());
  return {{"out", out}};
}

Json run(const std::vector<std::string>& args) {
  const std::string command = args.empty() ? "" : args[0];
  if (command == "safetensors" && args.size() == 2) return read_safetensors(args[1]);
  if (command == "gguf" && args.size() == 2) return read_gguf(args[1]);
  if (command == "model" && args.size() == 2) return read_model(args[1]);
  if (command == "adapter" && args.size() == 3) return read_adapter(args[1], args[2]);
  if (command == "write_adapter" && args.size() == 5)
    return write_adapter(args[1], args[2], std::stoll(args[3]), args[4] == "rslora");
  if (command == "write_samples" && args.size() == 2) return write_samples(args[1]);
  if (command == "convert" && args.size() == 4) return convert(args[1], args[2], args[3]);
  fail(ErrorKind::kUsage, "io_probe", "unknown command", command);
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  npu::Json answer;
  try {
    answer = npu::run({argv + 1, argv + argc});
  } catch (const npu::UserError& error) {
    answer = {{"error", error.what()}};
  }
  std::cout << answer.dump() << "\n";
}
