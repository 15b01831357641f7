#include "random_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/ops.h"
#include "ops/table.h"

namespace npu {
namespace {

constexpr int64_t kMaxElements = 300;

class GraphMaker {
 public:
  GraphMaker(uint64_t seed, RandomOps ops)
      : dice_(seed, "graph"), smooth_(ops == RandomOps::kSmooth), builder_("random") {}

  Graph make() && {
    const size_t num_inputs = 1 + dice_.roll(3);
    for (size_t i = 0; i < num_inputs; ++i) {
      const DType dtype = random_dtype();
      keep(builder_.input("x" + std::to_string(i), {dtype, random_shape(1 + dice_.roll(4))}));
    }
    if (!smooth_) index_ = builder_.input("index", {DType::kI32, {4}});
    const size_t wanted = 3 + dice_.roll(smooth_ ? 23 : 38);
    for (size_t tries = 0; values_.size() < num_inputs + wanted && tries < 40 * wanted; ++tries) {
      const Value next = random_value();
      if (next.valid() && num_elements(next.shape()) <= kMaxElements) keep(next);
    }
    const size_t num_outputs = 1 + dice_.roll(smooth_ ? 2 : 5);
    for (size_t i = 0; i < num_outputs; ++i)
      builder_.output("y" + std::to_string(i), i == 0 ? values_.back() : recent());
    return std::move(builder_).build();
  }

 private:
  void keep(Value value) { values_.push_back(value); }

  DType random_dtype() {
    if (smooth_ || dice_.chance(0.7)) return DType::kF32;
    return dice_.chance(0.6) ? DType::kBF16 : DType::kF16;
  }

  Shape random_shape(size_t rank) {
    Shape shape(rank);
    for (int64_t& size : shape) size = 1 + static_cast<int64_t>(dice_.roll(4));
    return shape;
  }

  // Rather one of the last values, so that graphs are deep and patterns meet.
  Value recent() {
    const size_t window = dice_.chance(0.7) ? std::min<size_t>(4, values_.size()) : values_.size();
    return values_[values_.size() - 1 - dice_.roll(window)];
  }

  // A value of x's type, x itself at worst.
  Value recent_like(Value x) {
    const Value other = recent();
    return other.type() == x.type() ? other : x;
  }

  Value random_value() {
    const Value x = recent();
    switch (dice_.roll(smooth_ ? 7 : 9)) {
      case 0:
      case 1:
        return binary(x, recent());
      case 2:
        return unary(x);
      case 3:
        return matmul(x, recent());
      case 4:
      case 5:
        return movement(x);
      case 6:
        return reduction(x);
      case 7:
        return choice(x, recent());
      default:
        return other(x);
    }
  }

  Value binary(Value a, Value b) {
    if (dice_.chance(0.4)) b = constant_beside(a);
    if (dice_.chance(0.2)) std::swap(a, b);
    static constexpr std::string_view kAll[] = {"add", "sub", "mul", "div", "max", "min"};
    static constexpr std::string_view kSmooth[] = {"add", "sub", "mul"};
    const std::string_view name = smooth_ ? dice_.pick(kSmooth) : dice_.pick(kAll);
    return attempt(name, {a, b});
  }

  Value constant_beside(Value x) {
    static constexpr double kNumbers[] = {1.0, 0.0, -0.0, 2.0, 0.5, 0.1, -1.0};
    const Shape ones(x.shape().size(), 1);
    const Shape& shape = dice_.chance(0.7) ? ones : x.shape();
    const Value number = ops::constant(builder_, {x.dtype(), shape}, dice_.pick(kNumbers));
    if (dice_.chance(0.1)) keep(number);
    return number;
  }

  Value unary(Value x) {
    if (smooth_) {
      // sigmoid and a shift keep log, sqrt and rsqrt away from their singularities.
      const Value tame = ops::sigmoid(x);
      const bool even = x.shape().back() % 2 == 0;
      switch (dice_.roll(8)) {
        case 0:
          return ops::exp(tame);
        case 1:
          return ops::log(ops::add_scalar(tame, 0.5));
        case 2:
          return ops::sqrt(ops::add_scalar(tame, 0.5));
        case 3:
          return ops::rsqrt(ops::add_scalar(tame, 0.5));
        case 4:
          return ops::neg(x);
        case 5:
          return ops::softmax(x);
        case 6:
          return even ? ops::add(ops::mul(x, recent_like(x)), ops::rotate_half(x)) : tame;
        default:
          return tame;
      }
    }
    static constexpr std::string_view kUnary[] = {"neg", "neg",  "neg",   "exp",
                                                  "log", "sqrt", "rsqrt", "sigmoid"};
    return attempt(dice_.pick(kUnary), {x});
  }

  Value matmul(Value a, Value b) {
    Attrs attrs;
    if (dice_.chance(0.5)) attrs.set("transpose_lhs", int64_t{1});
    if (dice_.chance(0.5)) attrs.set("transpose_rhs", int64_t{1});
    return attempt("matmul", {a, b}, attrs);
  }

  Value movement(Value x) {
    const Shape& shape = x.shape();
    const size_t rank = shape.size();
    switch (dice_.roll(7)) {
      case 0:
        return ops::reshape(x, reshaped(shape));
      case 1:
      case 2:
        return ops::transpose(x, random_perm(rank));
      case 3: {
        // A dimension at a time, so that broadcasts stand on broadcasts.
        Value wide = x;
        for (size_t d = 0; d < rank; ++d) {
          if (shape[d] != 1 || dice_.chance(0.4)) continue;
          Shape wider = wide.shape();
          wider[d] = 1 + static_cast<int64_t>(dice_.roll(3));
          wide = ops::broadcast(wide, wider);
        }
        return wide;
      }
      case 4:
        return random_slice(x);
      case 5: {
        std::vector<Value> parts = {x};
        const size_t count = dice_.roll(3);
        for (size_t i = 0; i < count; ++i) parts.push_back(dice_.chance(0.5) ? x : recent());
        return attempt("concat", parts, {{"axis", static_cast<int64_t>(dice_.roll(rank))}});
      }
      default:
        return random_pad(x);
    }
  }

  Value random_pad(Value x) {
    const size_t rank = x.shape().size();
    Shape low(rank, 0), high(rank, 0);
    const size_t axis = dice_.roll(rank);
    if (dice_.chance(0.3)) {  // as the backward of two slices that tile a tensor
      const Shape none(rank, 0);
      low[axis] = high[axis] = x.shape()[axis];
      return ops::add(ops::pad(x, low, none), ops::pad(ops::neg(x), none, high));
    }
    low[axis] = static_cast<int64_t>(dice_.roll(3));
    high[dice_.roll(rank)] = static_cast<int64_t>(dice_.roll(3));
    return ops::pad(x, low, high);
  }

  // Moves factors of the sizes around, or adds or drops a dimension of size 1.
  Shape reshaped(Shape shape) {
    if (dice_.chance(0.3)) return {num_elements(shape)};
    if (dice_.chance(0.5) && shape.size() < 5)
      shape.insert(shape.begin() + static_cast<int64_t>(dice_.roll(shape.size() + 1)), 1);
    if (shape.size() >= 2 && dice_.chance(0.5)) {
      const size_t at = dice_.roll(shape.size() - 1);
      shape[at] *= shape[at + 1];
      shape.erase(shape.begin() + static_cast<int64_t>(at) + 1);
    }
    return shape;
  }

  std::vector<int64_t> random_perm(size_t rank) {
    std::vector<int64_t> perm(rank);
    for (size_t i = 0; i < rank; ++i) perm[i] = static_cast<int64_t>(i);
    if (rank >= 2 && dice_.chance(0.5)) {
      std::swap(perm[rank - 1], perm[rank - 2]);
    } else {
      for (size_t i = rank; i > 1; --i) std::swap(perm[i - 1], perm[dice_.roll(i)]);
    }
    return perm;
  }

  Value random_slice(Value x) {
    const Shape& shape = x.shape();
    Shape starts(shape.size(), 0), limits = shape;
    const size_t axis = dice_.roll(shape.size());
    const int64_t size = shape[axis];
    if (size >= 2 && dice_.chance(0.5)) {
      // Two slices that tile x, and with luck joined again.
      limits[axis] = 1 + static_cast<int64_t>(dice_.roll(static_cast<size_t>(size - 1)));
      Shape later(shape.size(), 0);
      later[axis] = limits[axis];
      keep(ops::slice(x, starts, limits));
      keep(ops::slice(x, later, shape));
      const Value parts[] = {values_[values_.size() - 2], values_.back()};
      return dice_.chance(0.5) ? ops::concat(parts, static_cast<int64_t>(axis)) : Value{};
    }
    starts[axis] = static_cast<int64_t>(dice_.roll(static_cast<size_t>(size)));
    return ops::slice(x, starts, limits);
  }

  Value reduction(Value x) {
    std::vector<int64_t> axes;
    for (size_t d = 0; d < x.shape().size(); ++d)
      if (dice_.chance(0.4)) axes.push_back(static_cast<int64_t>(d));
    if (axes.empty()) axes.push_back(static_cast<int64_t>(x.shape().size()) - 1);
    return attempt(smooth_ || dice_.chance(0.6) ? "reduce_sum" : "reduce_max", {x},
                   {{"axes", axes}});
  }

  Value choice(Value a, Value b) {
    static constexpr std::string_view kKinds[] = {"eq", "ne", "lt", "le", "gt", "ge"};
    const Value pred = attempt("compare", {a, b}, {{"kind", std::string(dice_.pick(kKinds))}});
    if (!pred.valid()) return {};
    return dice_.chance(0.3) ? ops::convert(pred, random_dtype()) : attempt("select", {pred, b, a});
  }

  Value other(Value x) {
    switch (dice_.roll(5)) {
      case 0:
        return x.shape()[0] >= 2 ? attempt("gather", {x, index_}) : Value{};
      case 1:
        return ops::one_hot(index_, 3, random_dtype());
      case 2:
        return ops::iota(builder_, x.type(), 0);
      case 3:
        return ops::stop_gradient(x);
      default:
        return ops::convert(x, random_dtype());
    }
  }

  // The op where its shape rule holds, else nothing.
  Value attempt(std::string_view name, std::vector<Value> operands, Attrs attrs = {}) {
    const Result<Value> result =
        builder_.try_apply(*find_op(name), std::move(operands), std::move(attrs));
    return result.ok() ? result.value() : Value{};
  }

  Dice dice_;
  bool smooth_;
  Builder builder_;
  std::vector<Value> values_;  // all float, so that any may be an operand
  Value index_;
};

std::string place(const std::string& name, int64_t index, double got, double expected) {
  return name + "[" + std::to_string(index) + "] is " + std::to_string(got) + ", expected " +
         std::to_string(expected);
}

bool same_element(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class Same>
std::string first_difference(const NamedTensors& got, const NamedTensors& expected, Same&& same) {
  for (const auto& [name, tensor] : expected)
    if (!got.contains(name)) return name + " is missing";
  for (const auto& [name, tensor] : got) {
    const auto other = expected.find(name);
    if (other == expected.end()) return name + " is not expected";
    if (tensor.dtype() != other->second.dtype() || tensor.shape() != other->second.shape())
      return name + " has another type";
    double largest = 0;
    for (int64_t i = 0; i < tensor.size(); ++i)
      largest = std::max(largest, std::abs(element(other->second, i)));
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const double a = element(tensor, i), b = element(other->second, i);
      if (!same(a, b, largest)) return place(name, i, a, b);
    }
  }
  return "";
}

}  // namespace

Graph random_graph(uint64_t seed, RandomOps ops) { return GraphMaker(seed, ops).make(); }

NamedTensors random_inputs(const Graph& graph, uint64_t seed, bool special) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {0.0, -0.0, 1.0, -1.0, 1e-40, -1e30, kInfinity, -kInfinity};
  NamedTensors inputs;
  for (NodeId id : graph.inputs()) {
    const Node& node = graph.node(id);
    Dice dice(seed, node.name);
    Tensor tensor(node.type.dtype, node.type.shape);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const bool is_special = special && dice.chance(0.2);
      const double number = is_special ? dice.pick(kSpecial) : dice.normal();
      set_element(tensor, i,
                  is_float(node.type.dtype) ? number : static_cast<double>(dice.roll(2)));
    }
    inputs[node.name] = tensor;
  }
  return inputs;
}

NamedTensors run_graph(const Graph& graph, const NamedTensors& inputs) {
  const std::vector<Tensor> results = interpret(graph, inputs);
  NamedTensors named;
  for (size_t i = 0; i < results.size(); ++i) named[graph.outputs()[i].name] = results[i];
  return named;
}

NamedTensors run_parts(const std::vector<Graph>& parts, const NamedTensors& inputs) {
  NamedTensors values = inputs;
  NamedTensors written;
  for (const Graph& part : parts) {
    for (auto& [name, tensor] : run_graph(part, values)) {
      NPU_CHECK(written.emplace(name, tensor).second, name + " is written twice");
      // An output may carry the name of an input, which later parts still mean.
      if (!inputs.contains(name)) values[name] = tensor;
    }
  }
  return written;
}

std::string bit_difference(const NamedTensors& got, const NamedTensors& expected) {
  return first_difference(got, expected,
                          [](double a, double b, double) { return same_element(a, b); });
}

std::string value_difference(const NamedTensors& got, const NamedTensors& expected,
                             double tolerance) {
  return first_difference(got, expected, [&](double a, double b, double largest) {
    return std::abs(a - b) <= tolerance * largest || same_element(a, b);
  });
}

}  // namespace npu
