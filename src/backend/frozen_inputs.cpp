// Frozen buffers are told apart by a form of theirs that holds nothing.
#include "backend/frozen_inputs.h"

#include <algorithm>
#include <string_view>

namespace npu {
namespace {

struct Identity : Buffer::Forms {};

// Lives as long as the buffer; null when another device keeps a form of its own there.
std::shared_ptr<Buffer::Forms> identity_of(Buffer& buffer) {
  std::shared_ptr<Buffer::Forms>& forms = buffer.forms();
  if (forms == nullptr) forms = std::make_shared<Identity>();
  return dynamic_cast<Identity*>(forms.get()) == nullptr ? nullptr : forms;
}

}  // namespace

std::vector<bool> product_weights(const Graph& part) {
  enum class Use { kNone, kWeight, kOther };
  std::vector<Use> uses(part.nodes().size(), Use::kNone);
  const auto note = [&](NodeId id, Use use) {
    Use& known = uses[static_cast<size_t>(id)];
    known = known == Use::kNone || known == use ? use : Use::kOther;
  };
  for (const GraphOutput& output : part.outputs()) note(output.node, Use::kOther);
  for (size_t id = part.nodes().size(); id-- > 0;) {
    const Node& node = part.nodes()[id];
    if (node.is_input()) continue;
    const bool product = node.op->traits.contraction && node.type.shape.size() == 2;
    const bool conversion = std::string_view(node.op->name) == "convert";
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Use use = conversion ? uses[id] : product && i == 1 ? Use::kWeight : Use::kOther;
      if (use != Use::kNone) note(node.inputs[i], use);
    }
  }
  std::vector<bool> inputs;
  for (const NodeId id : part.inputs()) {
    inputs.push_back(uses[static_cast<size_t>(id)] == Use::kWeight);
  }
  return inputs;
}

Error without_constants(Error error) {
  error.what = "with frozen weights as constants: " + error.what;
  error.hint = "leave out --prepack on" + (error.hint.empty() ? "" : ", or " + error.hint);
  return error;
}

FrozenInputs::FrozenInputs(const Graph& part, const std::vector<bool>& weights,
                           std::span<Buffer* const> inputs)
    : part_(part), inputs_(inputs) {
  identities_.resize(inputs.size());
  bool any = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]->frozen() && weights[i]) identities_[i] = identity_of(*inputs[i]);
    any |= identities_[i] != nullptr;
  }
  if (!any) identities_.clear();
}

ConstantInputs FrozenInputs::values() const {
  ConstantInputs values;
  for (size_t i = 0; i < identities_.size(); ++i) {
    if (identities_[i] == nullptr) continue;
    const TensorType& type = part_.node(part_.inputs()[i]).type;
    values.emplace(i, Tensor::borrow(type.dtype, type.shape, inputs_[i]->host_pointer()));
  }
  return values;
}

}  // namespace npu
