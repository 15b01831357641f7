// Weights of a geometry without a checkpoint: what the family's initialiser would draw.
#include <algorithm>
#include <map>

#include "base/random.h"
#include "io/hf_model.h"
#include "io/hf_weights.h"

namespace npu {
namespace {

// Draws on demand: each value depends on (seed, name, position) alone, so no order of reading
// matters and nothing is kept.
class RandomWeights : public WeightStore {
 public:
  RandomWeights(const ModelConfig& config, uint64_t seed)
      : initializer_range_(config.initializer_range), seed_(seed) {
    for (auto& [name, shape] : expected_weights(config)) {
      order_.push_back(name);
      shapes_.emplace(std::move(name), std::move(shape));
    }
  }

  bool has(std::string_view name) const override { return shapes_.contains(name); }

  Tensor get(std::string_view name) const override {
    const auto found = shapes_.find(name);
    if (found == shapes_.end())
      fail_input(std::string(name), "the model has no tensor of this name");
    Tensor tensor(DType::kF32, found->second);
    const std::span<float> values = tensor.mutable_values<float>();
    if (name.ends_with("norm.weight")) {
      std::ranges::fill(values, 1.0f);
    } else if (!name.ends_with(".bias")) {  // biases start at zero
      const RandomStream stream(seed_, name);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(initializer_range_ * stream.normal(i));
    }
    return tensor;
  }

  void release(const Tensor&) const override {}
  std::vector<std::string> names() const override { return order_; }

 private:
  double initializer_range_;
  uint64_t seed_;
  std::vector<std::string> order_;
  std::map<std::string, Shape, std::less<>> shapes_;
};

}  // namespace

std::unique_ptr<WeightStore> random_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomWeights>(config, seed);
}

}  // namespace npu
