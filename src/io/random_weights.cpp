// Weights of a geometry without a checkpoint: what the family's initialiser would draw.
#include <algorithm>
#include <map>

#include "base/random.h"
#include "base/thread_pool.h"
#include "io/hf_model.h"
#include "io/hf_weights.h"

namespace npu {
namespace {

// Each value depends on (seed, name, position) alone, so neither the order of reading nor the
// number of threads matters. What was drawn is kept, as a mapped file would keep it: checks read
// every weight several times, and drawing a large embedding takes seconds.
class RandomWeights : public WeightStore {
 public:
  RandomWeights(const ModelConfig& config, uint64_t seed)
      : initializer_range_(config.initializer_range), dtype_(config.storage_dtype), seed_(seed) {
    for (auto& [name, shape] : expected_weights(config)) {
      order_.push_back(name);
      shapes_.emplace(std::move(name), std::move(shape));
    }
  }

  bool has(std::string_view name) const override { return shapes_.contains(name); }

  Tensor get(std::string_view name) const override {
    if (const auto known = drawn_.find(name); known != drawn_.end()) return known->second;
    const auto found = shapes_.find(name);
    if (found == shapes_.end())
      fail_input(std::string(name), "the model has no tensor of this name");
    return drawn_.emplace(name, draw(name, found->second)).first->second;
  }

  void release(const Tensor&) const override {}
  std::vector<std::string> names() const override { return order_; }

 private:
  Tensor draw(std::string_view name, const Shape& shape) const {
    Tensor tensor(dtype_, shape);
    if (name.ends_with(".bias")) return tensor;  // biases start at zero
    const bool is_norm = name.ends_with("norm.weight");
    const RandomStream stream(seed_, name);
    constexpr int64_t kBlock = 4096;
    pool_.for_range(tensor.size(), kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double value =
            is_norm ? 1.0 : initializer_range_ * stream.normal(static_cast<uint64_t>(i));
        set_element(tensor, i, static_cast<float>(value));
      }
    });
    return tensor;
  }

  double initializer_range_;
  DType dtype_;  // the values that a checkpoint of this model would hold
  uint64_t seed_;
  std::vector<std::string> order_;
  std::map<std::string, Shape, std::less<>> shapes_;
  mutable std::map<std::string, Tensor, std::less<>> drawn_;
  mutable ThreadPool pool_;
};

}  // namespace

std::unique_ptr<WeightStore> random_weights(const ModelConfig& config, uint64_t seed) {
  return std::make_unique<RandomWeights>(config, seed);
}

}  // namespace npu
