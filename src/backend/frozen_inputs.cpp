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

std::vector<bool> product_operands(const Graph& part) {
  std::vector<bool> read(part.nodes().size(), false);
  for (size_t id = part.nodes().size(); id-- > 0;) {
    const Node& node = part.nodes()[id];
    if (node.is_input()) continue;
    const bool passes_on = read[id] && std::string_view(node.op->name) == "convert";
    if (!node.op->traits.contraction && !passes_on) continue;
    for (const NodeId in : node.inputs) read[static_cast<size_t>(in)] = true;
  }
  std::vector<bool> inputs;
  for (const NodeId id : part.inputs()) inputs.push_back(read[static_cast<size_t>(id)]);
  return inputs;
}

Error without_constants(Error error) {
  error.what = "with frozen weights as constants: " + error.what;
  error.hint = "leave out --prepack on" + (error.hint.empty() ? "" : ", or " + error.hint);
  return error;
}

FrozenInputs::FrozenInputs(const Graph& part, std::span<Buffer* const> inputs)
    : part_(part), inputs_(inputs) {
  if (std::none_of(inputs.begin(), inputs.end(), [](Buffer* b) { return b->frozen(); })) return;
  const std::vector<bool> of_product = product_operands(part);
  identities_.resize(inputs.size());
  bool worth_it = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i]->frozen()) identities_[i] = identity_of(*inputs[i]);
    worth_it |= identities_[i] != nullptr && of_product[i];
  }
  if (!worth_it) identities_.clear();
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
