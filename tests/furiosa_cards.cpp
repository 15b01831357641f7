// The environment of the stand-ins, and the backend over them.
#include "furiosa_cards.h"

#include "backend/furiosa_blob.h"
#include "backend/furiosa_device.h"
#include "ir/text.h"
#include "tools/fake_rngd.h"

namespace npu {
namespace {

class CardBackend : public Backend {
 public:
  CardBackend() : simulator_(make_backend("sim:furiosa").take()), traits_(simulator_->traits()) {
    traits_.name = "furiosa:auto";
  }
  const Traits& traits() const override { return traits_; }
  Result<std::string> compiler_version() override { return std::string("a graph's text, 1"); }
  std::optional<std::string> unsupported(const Graph& graph, NodeId node,
                                         const CompileOptions& options) override {
    return simulator_->unsupported(graph, node, options);
  }
  Result<Blob> compile(const Graph& part, const CompileOptions& options) override {
    if (Result<Blob> refused = simulator_->compile(part, options); !refused) return refused;
    return fake_blob(part);
  }
  bool compiles_in_process() const override { return true; }
  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override {
    return open_furiosa_device("auto", options);
  }

 private:
  std::unique_ptr<Backend> simulator_;
  Traits traits_;
};

}  // namespace

FakeCards::FakeCards(FakeRuntime runtime) {
  fs::create_directory(nodes());
  add_card(0);
  add_card(1);
  for (const char* name :
       {"FAKE_RNGD_MODE", "FAKE_RNGD_ONLY", "FAKE_RNGD_CALL", "FAKE_RNGD_MEMORY",
        "FAKE_RNGD_RELEASE", "NPU_LORA_RNGD", "NPU_LORA_RNGD_FILE", "NPU_LORA_FURIOSA_SECONDS"}) {
    variables.unset(name);
  }
  variables.set("NPU_LORA_RNGD_NODES", nodes().string());
  variables.set("NPU_LORA_FURIOSA_WORKER", runtime_name(runtime));
  variables.set("FAKE_RNGD_COMPUTE", NPU_FAKE_COMPUTE);
  variables.set("NPU_LORA_FURIOSA_RUNTIME", NPU_FAKE_RUNTIME);
  // With an interpreter that has torch the worker's use of it is tested too.
  const char* const with_torch = std::getenv("NPU_TEST_TORCH_PYTHON");
  const std::string packages = NPU_SOURCE_DIR "/tests/tools/fake_furiosa";
  variables.set("NPU_LORA_FURIOSA_PYTHON", with_torch == nullptr ? "python3" : with_torch);
  variables.set("PYTHONPATH",
                with_torch == nullptr ? packages + ":" + packages + "/shim" : packages);
}

void FakeCards::add_card(int card) {
  publish_text(nodes() / ("npu" + std::to_string(card) + "mgmt"), "");
}

std::optional<int> run_if_device_worker(int argc, char** argv) {
  if (argc < 2 || std::string(argv[1]) != "device-worker") return std::nullopt;
  return furiosa_worker_main({argv + 2, argv + argc});
}

Blob fake_blob(const Graph& part, const std::string& target) {
  FuriosaBlob blob;
  blob.target = target;
  blob.edf = std::string(kFakeEdf) + print_graph(part);
  for (const NodeId id : part.inputs()) blob.inputs.push_back(part.node(id).name);
  for (const GraphOutput& output : part.outputs()) blob.outputs.push_back(output.name);
  return encode_furiosa_blob(blob, "a graph's text, 1");
}

std::unique_ptr<Backend> make_card_backend() { return std::make_unique<CardBackend>(); }

}  // namespace npu
