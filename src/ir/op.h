// OpDef: the row type of the one op table. Every fact about an op stands in its row: shape rule,
// meaning (kernel), derivative, lowerings and the samples that test all of these.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace npu {

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  bool operator==(const TensorType&) const = default;
  std::string text() const;  // "f32[128,576]"
  int64_t bytes() const;
};

// Bounds that every type of a graph keeps, so that sizes never overflow: rank at most kMaxRank,
// dimensions positive, at most kMaxTensorBytes in all. The broken bound, or nothing.
inline constexpr size_t kMaxRank = 16;
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 46;  // 64 TiB
std::optional<std::string> broken_type_bound(const TensorType& type);

using AttrValue = std::variant<int64_t, double, std::vector<int64_t>, std::string>;

// The alternatives of AttrValue, in its order.
enum class AttrKind : uint8_t { kInteger, kReal, kIntegers, kString };
std::string_view attr_kind_name(AttrKind kind);  // "integer", "real", "integers", "string"

// An attribute that an op takes. Builder checks presence and kind before the shape rule runs.
struct AttrSpec {
  std::string_view name;
  AttrKind kind;
  bool required = true;
};

// Attributes of one node, sorted by name so that equal nodes print and hash alike.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items);
  void set(std::string name, AttrValue value);
  const AttrValue* find(std::string_view name) const;
  // Typed access; a missing or mistyped attribute without a default is an InternalError, since the
  // verifier runs before anything reads attributes.
  int64_t integer(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise) const;
  double real(std::string_view name) const;
  const std::vector<int64_t>& integers(std::string_view name) const;
  const std::string& string(std::string_view name) const;
  const std::vector<std::pair<std::string, AttrValue>>& items() const { return items_; }
  bool operator==(const Attrs& other) const;  // reals by their bits: 0.0 and -0.0 differ

 private:
  std::vector<std::pair<std::string, AttrValue>> items_;
};

struct Node;
class Builder;
struct Value;

// Writes a graph in another format. ONNX and OpenVINO IR are both lists of typed, attributed nodes
// with constants, so one interface serves both and a lowering is a line or a few in the op's row.
class GraphWriter {
 public:
  using Ref = int;  // a value in the graph being written
  virtual ~GraphWriter() = default;
  virtual Ref node(std::string_view type, std::span<const Ref> inputs, const Attrs& attrs,
                   const TensorType& out) = 0;
  virtual Ref constant(const Tensor& value) = 0;
  // Small helpers for the axes, shapes and permutations that both formats take as constants.
  Ref constant_i64(std::span<const int64_t> values, bool scalar = false);
  Ref constant_f32(float value);  // shape {}
};

struct LowerContext {
  GraphWriter& writer;
  const Node& node;
  std::span<const GraphWriter::Ref> inputs;
  std::span<const TensorType> input_types;
};

// What a derivative rule sees: the node's operands and result rebuilt in `builder`, and the
// cotangent of the result. It returns one cotangent per operand, or an invalid Value for "none".
struct VjpContext {
  Builder& builder;
  const Node& node;
  std::span<const Value> inputs;
  const Value& output;
  const Value& cotangent;
};

// One test case of a row: inputs are made by the test from `inputs` within [low, high].
struct OpSample {
  std::vector<TensorType> inputs = {};
  Attrs attrs = {};
  double low = -1.0, high = 1.0;
  double grad_step = 1e-2;       // step of the central difference
  double grad_tolerance = 2e-3;  // relative, of the directional derivative
};

struct OpTraits {
  bool elementwise = false;  // output element i depends on element i of (broadcast) operands only
  bool commutative = false;
  bool contraction = false;  // counts as a matmul for part limits; never recomputed in backward
  bool movement = false;     // moves or views elements without arithmetic
  bool reduction = false;
};

struct OpDef {
  std::string_view name;
  int arity;  // -1: one or more
  std::span<const AttrSpec> attrs;
  OpTraits traits;
  std::string_view summary;  // one sentence, the meaning; goes into docs/ops.md

  // Output type, or an Error whose `what` is the broken rule; infer_checked adds op and operands.
  using Infer = Result<TensorType> (*)(std::span<const TensorType>, const Attrs&);
  Infer infer;
  // The definition of the op: slow, plain, arithmetic in f32 with one rounding to the output dtype.
  // `out` comes with its type and memory; what it holds before is not read.
  using Kernel = void (*)(std::span<const Tensor>, const Attrs&, Tensor& out);
  Kernel kernel;
  using Vjp = std::vector<Value> (*)(const VjpContext&);
  Vjp vjp;                          // null only with a reason
  std::string_view no_grad_reason;  // why there is no derivative, "" if there is one
  using Lower = GraphWriter::Ref (*)(const LowerContext&);
  Lower onnx;
  Lower openvino;
  using Samples = std::vector<OpSample> (*)();
  Samples samples;
};

// Arity, attributes, shape rule and type bounds in one: the output type, or the broken rule.
Result<TensorType> infer_checked(const OpDef& op, std::span<const TensorType> inputs,
                                 const Attrs& attrs);

}  // namespace npu
