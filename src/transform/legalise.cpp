// Tables of rules by vendor failure. Each rule says why in terms of the compiler that needs it.
#include "transform/legalise.h"

#include "ops/ops.h"
#include "transform/rules.h"

namespace npu {
namespace {

using Operands = std::span<const Value>;

Value add_neg(Builder&, const Node& node, Operands in) {
  if (!is(node, "add")) return {};
  if (is(in[1], "neg")) return ops::sub(in[0], operand(in[1], 0));
  if (is(in[0], "neg")) return ops::sub(in[1], operand(in[0], 0));
  return {};
}

// Zeros before and after along one dimension.
Value joined_with_zeros(Builder& builder, Value x, size_t dim, int64_t low, int64_t high) {
  const auto zeros = [&](int64_t count) {
    TensorType type = x.type();
    type.shape[dim] = count;
    return ops::constant(builder, type, 0.0);
  };
  std::vector<Value> pieces;
  if (low > 0) pieces.push_back(zeros(low));
  pieces.push_back(x);
  if (high > 0) pieces.push_back(zeros(high));
  return pieces.size() == 1 ? x : ops::concat(pieces, static_cast<int64_t>(dim));
}

Value pad_zeros(Builder& builder, const Node& node, Operands in) {
  if (!is(node, "pad")) return {};
  const std::vector<int64_t>& low = node.attrs.integers("low");
  const std::vector<int64_t>& high = node.attrs.integers("high");
  Value x = in[0];
  for (size_t d = 0; d < low.size(); ++d) x = joined_with_zeros(builder, x, d, low[d], high[d]);
  return x;
}

constexpr Rule kNegAdd[] = {
    {"add_neg",
     "x + (-y) = x - y by definition (rsub where x is a number); a compiler that rejects a neg "
     "feeding an add, and crashes on a matmul behind it, takes the difference",
     true, add_neg},
};

constexpr Rule kPad[] = {
    {"pad_zeros",
     "padding is joining with zeros; a compiler may list pads among its ops and compile none", true,
     pad_zeros},
};

constexpr Pass kPasses[] = {
    {"fold_neg_add", "for compilers that take no neg feeding an add", kNegAdd},
    {"pad_to_concat", "for compilers that take no pad", kPad},
};

}  // namespace

std::span<const Pass> legalise_passes() { return kPasses; }

std::vector<Pass> legalise_passes(std::span<const std::string> names, const std::string& who) {
  std::vector<Pass> passes;
  std::string known;
  for (const Pass& pass : kPasses) known += (known.empty() ? "" : ", ") + std::string(pass.name);
  for (const std::string& name : names) {
    const Pass* found = nullptr;
    for (const Pass& pass : kPasses) {
      if (pass.name == name) found = &pass;
    }
    if (found == nullptr) {
      fail_input(who + ": legalise", "there is no such pass", "'" + name + "'", "use " + known);
    }
    passes.push_back(*found);
  }
  return passes;
}

}  // namespace npu
