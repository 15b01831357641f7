// Which stages of one product can be run together.
#include "backend/cpu_side_by_side.h"

#include <algorithm>

#include "backend/cpu_touch.h"

namespace npu::cpu {
namespace {

using Steps = std::vector<size_t>;  // of one stage

// Whether the order of two steps matters.
bool depend(const Step& a, const Step& b) {
  const std::vector<Touch> of_a = touches(a), of_b = touches(b);
  return std::ranges::any_of(of_a, [&](const Touch& x) {
    return std::ranges::any_of(
        of_b, [&](const Touch& y) { return x.storage == y.storage && (x.written || y.written); });
  });
}

class Joiner {
 public:
  explicit Joiner(Plan& plan) : plan_(plan) {
    for (const Stage& stage : plan.stages) {
      Steps steps;
      for (size_t i = stage.first; i < stage.last; ++i) steps.push_back(i);
      stages_.push_back(std::move(steps));
    }
  }

  void run() {
    std::vector<bool> joined(stages_.size(), false);
    for (size_t a = 0; a < stages_.size(); ++a) {
      if (!alone(stages_[a])) continue;
      for (size_t b = a + 1; b < stages_.size();) {
        if (!alone(stages_[b]) || !fits(a, b)) {
          ++b;
          continue;
        }
        stages_[a].push_back(stages_[b][0]);
        joined[a] = true;
        stages_.erase(stages_.begin() + static_cast<std::ptrdiff_t>(b));
        joined.erase(joined.begin() + static_cast<std::ptrdiff_t>(b));
      }
    }
    rebuild(joined);
  }

 private:
  const GemmStep* product(const Steps& steps) const {
    return steps.empty() ? nullptr : std::get_if<GemmStep>(&plan_.steps[steps[0]].work);
  }
  // One product, not one of a batch as attention's are.
  bool alone(const Steps& steps) const {
    const GemmStep* const gemm = product(steps);
    return gemm != nullptr && steps.size() == 1 && gemm->space.sizes.size() == 1;
  }

  // Whether the product of stage `b` may be run with what stage `a` holds by now.
  bool fits(size_t a, size_t b) const {
    const GemmStep &first = *product(stages_[a]), &other = *product(stages_[b]);
    const bool one_input = first.lhs.storage == other.lhs.storage;
    if (!one_input && b != a + 1) return false;  // its result would wait in memory for long
    for (size_t s = a; s < b; ++s) {
      for (const size_t step : stages_[s]) {
        if (depend(plan_.steps[step], plan_.steps[stages_[b][0]])) return false;
      }
    }
    return true;
  }

  void rebuild(const std::vector<bool>& joined) {
    std::vector<Step> steps;
    plan_.stages.clear();
    for (size_t s = 0; s < stages_.size(); ++s) {
      const size_t first = steps.size();
      for (const size_t step : stages_[s]) steps.push_back(std::move(plan_.steps[step]));
      plan_.stages.push_back({first, steps.size(), joined[s], {}, std::nullopt});
    }
    plan_.steps = std::move(steps);
  }

  Plan& plan_;
  std::vector<Steps> stages_;
};

}  // namespace

void join_products(Plan& plan) { Joiner(plan).run(); }

}  // namespace npu::cpu
