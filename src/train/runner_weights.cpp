// The frozen weights of a runner as a store.
#include "train/runner_weights.h"

#include <algorithm>
#include <map>

namespace npu {
namespace {

class RunnerWeights : public WeightStore {
 public:
  RunnerWeights(std::map<std::string, Tensor, std::less<>> held, const WeightStore& otherwise)
      : held_(std::move(held)), otherwise_(otherwise) {}

  bool has(std::string_view name) const override {
    return held_.contains(name) || otherwise_.has(name);
  }
  Tensor get(std::string_view name) const override {
    const auto found = held_.find(name);
    return found != held_.end() ? found->second : otherwise_.get(name);
  }
  void release(const Tensor& view) const override {
    const bool held = std::any_of(held_.begin(), held_.end(), [&](const auto& entry) {
      return entry.second.data() == view.data();
    });
    if (!held) otherwise_.release(view);
  }
  std::vector<std::string> names() const override { return otherwise_.names(); }

 private:
  std::map<std::string, Tensor, std::less<>> held_;
  const WeightStore& otherwise_;
};

}  // namespace

std::unique_ptr<WeightStore> weights_of(const ModelRunner& runner, const WeightStore& otherwise) {
  std::map<std::string, Tensor, std::less<>> held;
  for (const auto& [name, weight] : runner.frozen_weights()) {
    const std::byte* memory = weight.buffer->host_pointer();
    if (memory == nullptr) continue;
    held[name] = Tensor(weight.type.dtype, weight.type.shape, weight.buffer, memory);
  }
  return std::make_unique<RunnerWeights>(std::move(held), otherwise);
}

}  // namespace npu
