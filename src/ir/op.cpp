// Types, attributes and the checks that stand before every shape rule.
#include "ir/op.h"

#include <algorithm>
#include <bit>

namespace npu {

std::string TensorType::text() const { return std::string(dtype_name(dtype)) + shape_text(shape); }

int64_t TensorType::bytes() const {
  return num_elements(shape) * static_cast<int64_t>(dtype_bytes(dtype));
}

std::optional<std::string> broken_type_bound(const TensorType& type) {
  if (type.shape.size() > kMaxRank) {
    return "a tensor has at most " + std::to_string(kMaxRank) + " dimensions";
  }
  int64_t bytes = static_cast<int64_t>(dtype_bytes(type.dtype));
  for (const int64_t dim : type.shape) {
    if (dim < 1) return "dimensions are positive";
    if (dim > kMaxTensorBytes / bytes) return "a tensor has at most 2^46 bytes";
    bytes *= dim;
  }
  return std::nullopt;
}

std::string_view attr_kind_name(AttrKind kind) {
  switch (kind) {
    case AttrKind::kInteger:
      return "integer";
    case AttrKind::kReal:
      return "real";
    case AttrKind::kIntegers:
      return "integers";
    case AttrKind::kString:
      return "string";
  }
  return "?";
}

Attrs::Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items) {
  for (const auto& [name, value] : items) set(name, value);
}

void Attrs::set(std::string name, AttrValue value) {
  const auto at =
      std::lower_bound(items_.begin(), items_.end(), name,
                       [](const auto& item, const auto& key) { return item.first < key; });
  if (at != items_.end() && at->first == name) {
    at->second = std::move(value);
  } else {
    items_.emplace(at, std::move(name), std::move(value));
  }
}

const AttrValue* Attrs::find(std::string_view name) const {
  for (const auto& [key, value] : items_) {
    if (key == name) return &value;
  }
  return nullptr;
}

namespace {

template <class T>
const T& typed(const Attrs& attrs, std::string_view name) {
  const AttrValue* value = attrs.find(name);
  NPU_CHECK(value != nullptr, "no attribute " + std::string(name));
  const T* of_type = std::get_if<T>(value);
  NPU_CHECK(of_type != nullptr, "attribute " + std::string(name) + " has another type");
  return *of_type;
}

bool same_bits(const AttrValue& a, const AttrValue& b) {
  const double* real_a = std::get_if<double>(&a);
  const double* real_b = std::get_if<double>(&b);
  if (real_a == nullptr || real_b == nullptr) return a == b;
  return std::bit_cast<uint64_t>(*real_a) == std::bit_cast<uint64_t>(*real_b);
}

}  // namespace

int64_t Attrs::integer(std::string_view name) const { return typed<int64_t>(*this, name); }

int64_t Attrs::integer(std::string_view name, int64_t otherwise) const {
  return find(name) == nullptr ? otherwise : typed<int64_t>(*this, name);
}

double Attrs::real(std::string_view name) const { return typed<double>(*this, name); }

const std::vector<int64_t>& Attrs::integers(std::string_view name) const {
  return typed<std::vector<int64_t>>(*this, name);
}

const std::string& Attrs::string(std::string_view name) const {
  return typed<std::string>(*this, name);
}

bool Attrs::operator==(const Attrs& other) const {
  return std::equal(items_.begin(), items_.end(), other.items_.begin(), other.items_.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && same_bits(a.second, b.second);
                    });
}

GraphWriter::Ref GraphWriter::constant_i64(std::span<const int64_t> values, bool scalar) {
  NPU_CHECK(!scalar || values.size() == 1, "a scalar constant has one value");
  Tensor tensor(DType::kI64, scalar ? Shape{} : Shape{static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.mutable_values<int64_t>().begin());
  return constant(tensor);
}

GraphWriter::Ref GraphWriter::constant_f32(float value) {
  return constant(Tensor::scalar_f32(value));
}

namespace {

Error broken_rule(const OpDef& op, std::span<const TensorType> inputs, std::string what) {
  std::string got;
  for (const TensorType& type : inputs) {
    if (!got.empty()) got += ", ";
    got += type.text();
  }
  Error error;
  error.where = std::string(op.name);
  error.what = std::move(what);
  error.got = inputs.empty() ? "no operands" : got;
  return error;
}

// What is wrong with the attributes: an unknown, missing or mistyped one.
std::optional<std::string> broken_attrs(const OpDef& op, const Attrs& attrs) {
  for (const auto& [name, value] : attrs.items()) {
    const auto spec = std::find_if(op.attrs.begin(), op.attrs.end(),
                                   [&](const AttrSpec& s) { return s.name == name; });
    if (spec == op.attrs.end()) return "there is no attribute \"" + name + "\"";
    if (static_cast<size_t>(spec->kind) != value.index()) {
      return "attribute \"" + name + "\" is of kind " + std::string(attr_kind_name(spec->kind));
    }
  }
  for (const AttrSpec& spec : op.attrs) {
    if (spec.required && attrs.find(spec.name) == nullptr) {
      return "attribute \"" + std::string(spec.name) + "\" is needed";
    }
  }
  return std::nullopt;
}

}  // namespace

Result<TensorType> infer_checked(const OpDef& op, std::span<const TensorType> inputs,
                                 const Attrs& attrs) {
  const bool arity_fits =
      op.arity < 0 ? !inputs.empty() : inputs.size() == static_cast<size_t>(op.arity);
  if (!arity_fits) {
    const std::string count = op.arity < 0 ? "one or more" : std::to_string(op.arity);
    return broken_rule(op, inputs, "takes " + count + " operands");
  }
  if (auto broken = broken_attrs(op, attrs)) return broken_rule(op, inputs, *broken);
  Result<TensorType> type = op.infer(inputs, attrs);
  if (!type.ok()) return broken_rule(op, inputs, type.error().what);
  if (auto broken = broken_type_bound(type.value())) return broken_rule(op, inputs, *broken);
  return type;
}

}  // namespace npu
