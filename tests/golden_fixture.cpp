// Loads a golden folder and runs its model on any backend.
#include "golden_fixture.h"

namespace npu {
namespace {

std::vector<int32_t> tokens(const SafetensorsFile& file, const char* name) {
  std::vector<int32_t> out;
  const Tensor tensor = file.get(name);
  for (const int64_t v : tensor.values<int64_t>()) out.push_back(static_cast<int32_t>(v));
  return out;
}

}  // namespace

Batch whole_sequences(int64_t batch, int64_t seq_len, std::vector<int32_t> input_ids,
                      std::vector<int32_t> labels) {
  Batch out = padding_batch(batch, seq_len);
  out.input_ids = std::move(input_ids);
  out.labels = std::move(labels);
  for (size_t i = 0; i < out.input_ids.size(); ++i) {
    out.segments[i] = 0;
    out.positions[i] = static_cast<int32_t>(i % static_cast<size_t>(seq_len));
  }
  out.num_documents = batch;
  return out;
}

Golden::Golden(const std::string& folder)
    : directory(fs::path(NPU_SOURCE_DIR) / "tests/golden" / folder),
      model(load_model(directory.string())),
      adapter(read_peft_adapter(directory / "adapter", model.config)),
      expected(SafetensorsFile::open(directory / "golden.safetensors")) {
  const SafetensorsFile file = SafetensorsFile::open(directory / "batch.safetensors");
  const Shape shape = file.get("input_ids").shape();
  batch = whole_sequences(shape[0], shape[1], tokens(file, "input_ids"), tokens(file, "labels"));
}

std::vector<Parameter> Golden::parameters() const {
  return lora_from_tensors(model.config, adapter.lora, adapter.tensors);
}

std::unique_ptr<ModelRunner> Golden::runner(const GoldenRun& run) const {
  const TempDir cache;
  SessionOptions session;
  session.backend = run.backend;
  session.threads = 2;
  session.prepack = run.prepack;
  session.max_contractions = run.max_contractions;
  session.activation_dtype = run.activation_dtype;
  session.compile.cache_dir = cache.path();
  session.graphs.layer.lora = adapter.lora;
  session.graphs.layer.batch = run.batch > 0 ? run.batch : batch.batch;
  session.graphs.layer.seq_len = run.seq_len > 0 ? run.seq_len : batch.seq_len;
  session.graphs.layer.weight_dtype = run.weight_dtype;
  session.graphs.layer.numerics = run.numerics;
  session.graphs.recompute = run.recompute;
  session.graphs.loss_rows = run.loss_rows;
  session.graphs.shorter = run.shorter;
  session.graphs.vocab_chunk = run.vocab_chunk;
  session.graphs.eval = run.eval;
  Prepared prepared = prepare(model.config, session);
  const CompileReport report = compile(prepared);
  NPU_CHECK(report.failed.empty(), report.failed.empty() ? "" : report.failed[0].reason);
  return load(model.config, std::move(prepared), *model.weights);
}

std::vector<std::string> backends_under_test() {
  std::vector<std::string> names = {"cpu:reference", "cpu"};
  for (const BackendEntry& entry : backend_entries()) {
    const bool runtime_on_cpu = entry.pattern == "openvino:CPU" || entry.pattern == "ort";
    if (runtime_on_cpu && !entry.probe()) names.emplace_back(entry.pattern);
  }
  return names;
}

}  // namespace npu
