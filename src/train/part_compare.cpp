// Judging single parts.
#include "train/part_compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace npu {
namespace {

struct FloatFormat {
  int mantissa_bits, min_exponent;
};

FloatFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return {7, -126};
    case DType::kF16:
      return {10, -14};
    default:
      return {23, -126};
  }
}

// Spacing of the numbers of a dtype around |y|.
double ulp(double y, const FloatFormat& format) {
  return std::ldexp(1.0, std::max(std::ilogb(y), format.min_exponent) - format.mantissa_bits);
}

// Fewer differing elements say nothing of a bias, nor do errors at the noise of f32 sums.
constexpr int64_t kEnoughDifferences = 64;
constexpr double kRoundingNoise = 0x1p-13;

// A balanced device shows a bias of about 1/√n by chance; four times that never happens.
bool is_biased(const OutputError& e) {
  return e.differing >= kEnoughDifferences && e.rel > kRoundingNoise &&
         std::abs(e.bias) > 0.25 + 4 / std::sqrt(static_cast<double>(e.differing));
}

// Not-finite first, then errors, then bias.
int rank(PartVerdict verdict) {
  switch (verdict) {
    case PartVerdict::kNotFinite:
      return 0;
    case PartVerdict::kError:
      return 1;
    case PartVerdict::kBiased:
      return 2;
    case PartVerdict::kPass:
      break;
  }
  return 3;
}

// Running sums of one output.
struct Sums {
  OutputError error;
  double signed_sum = 0, absolute_sum = 0, ulp_sum = 0;

  void add(const Tensor& result, const Tensor& judged);
};

void Sums::add(const Tensor& result, const Tensor& judged) {
  const FloatFormat format = format_of(error.dtype);
  const double smallest_normal = std::ldexp(1.0, format.min_exponent);
  double difference_squared = 0, judged_squared = 0;
  for (int64_t i = 0; i < result.size(); ++i) {
    const double x = element(result, i), y = element(judged, i);
    if (!std::isfinite(y)) continue;
    if (!std::isfinite(x)) {
      ++(std::isnan(x) ? error.nan : error.inf);
      continue;
    }
    if (x == 0 && y != 0 && std::abs(y) < smallest_normal) ++error.flushed;
    const double d = x - y, outward = y < 0 ? -d : d;
    error.max_abs = std::max(error.max_abs, std::abs(d));
    if (d != 0) ++error.differing;
    difference_squared += d * d;
    judged_squared += y * y;
    if (y == 0) continue;
    signed_sum += outward;
    absolute_sum += std::abs(d);
    ulp_sum += ulp(y, format);
  }
  error.elements += result.size();
  if (difference_squared == 0) return;
  error.rel =
      std::max(error.rel, judged_squared > 0 ? std::sqrt(difference_squared / judged_squared)
                                             : std::numeric_limits<double>::infinity());
}

OutputError with_ratios(const Sums& sums) {
  OutputError e = sums.error;
  if (sums.absolute_sum > 0) e.bias = sums.signed_sum / sums.absolute_sum;
  if (sums.ulp_sum > 0) e.ulps = sums.signed_sum / sums.ulp_sum;
  return e;
}

}  // namespace

OutputError output_error(const Tensor& result, const Tensor& judged) {
  Sums sums;
  sums.error.dtype = judged.dtype();
  sums.add(result, judged);
  return with_ratios(sums);
}

PartVerdict verdict_of(const OutputError& e, double limit) {
  if (e.nan + e.inf > 0) return PartVerdict::kNotFinite;
  if (!(e.rel <= limit)) return PartVerdict::kError;
  return is_biased(e) ? PartVerdict::kBiased : PartVerdict::kPass;
}

std::string_view verdict_text(PartVerdict verdict) {
  switch (verdict) {
    case PartVerdict::kPass:
      return "pass";
    case PartVerdict::kError:
      return "error above the limit";
    case PartVerdict::kBiased:
      return "rounding is biased";
    case PartVerdict::kNotFinite:
      return "not finite";
  }
  return "";
}

double part_error_limit(DType output, DType precision) {
  const int bits = std::min(format_of(output).mantissa_bits, format_of(precision).mantissa_bits);
  return bits == 23 ? 2e-4 : std::ldexp(4.0, -bits - 1);
}

Tensor buffer_tensor(Device& device, Buffer& buffer, const TensorType& type) {
  if (std::byte* memory = buffer.host_pointer()) {
    return Tensor::borrow(type.dtype, type.shape, memory);
  }
  Tensor copy(type.dtype, type.shape);
  device.download({copy.mutable_data(), copy.bytes()}, buffer);
  return copy;
}

Result<std::vector<Tensor>> run_part(Device& device, Executable& executable, const Graph& part,
                                     std::span<const Tensor> inputs) {
  NPU_CHECK(inputs.size() == part.inputs().size(), "inputs of another part");
  std::vector<std::shared_ptr<Buffer>> held;
  std::vector<Buffer*> input_buffers, output_buffers;
  for (const Tensor& tensor : inputs) {
    auto adopted = device.adopt(tensor);
    if (!adopted) return adopted.error();
    held.push_back(std::move(adopted.value()));
    input_buffers.push_back(held.back().get());
  }
  for (const GraphOutput& output : part.outputs()) {
    auto allocated = device.allocate(static_cast<size_t>(part.node(output.node).type.bytes()));
    if (!allocated) return allocated.error();
    held.push_back(std::move(allocated.value()));
    output_buffers.push_back(held.back().get());
  }
  const auto ticket = device.submit(executable, input_buffers, output_buffers);
  if (!ticket) return ticket.error();
  if (auto error = device.wait(ticket.value())) return *error;
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < output_buffers.size(); ++i) {
    const TensorType& type = part.node(part.outputs()[i].node).type;
    outputs.emplace_back(type.dtype, type.shape);
    device.download({outputs.back().mutable_data(), outputs.back().bytes()}, *output_buffers[i]);
  }
  return outputs;
}

struct PartComparer::Judged {
  std::unique_ptr<Executable> executable;
  int64_t calls = 0;
  std::vector<Sums> outputs;
};

PartComparer::PartComparer(const Plan& plan, Device& device, const std::string& judge,
                           DType precision, std::optional<double> limit, int threads)
    : plan_(plan),
      device_(device),
      precision_(precision),
      limit_(limit),
      threads_(threads),
      judge_(make_backend(judge).take()),
      judge_device_(judge_->open({.threads = threads}).take()) {}
PartComparer::~PartComparer() = default;

PartComparer::Judged& PartComparer::judged(const Runtime::PartCall& call) {
  const PlannedPart& planned = call.graph.parts[call.part];
  const auto [found, is_new] = parts_.try_emplace(planned.distinct);
  Judged& part = found->second;
  if (!is_new) return part;
  const Graph& graph = plan_.distinct[planned.distinct].graph;
  CompileOptions options;
  options.threads = threads_;
  part.executable = judge_device_->load(judge_->compile(graph, options).take(), graph).take();
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    Sums sums;
    sums.error.name = planned.output_names[i];
    sums.error.dtype = graph.node(graph.outputs()[i].node).type.dtype;
    part.outputs.push_back(std::move(sums));
  }
  return part;
}

void PartComparer::compare(const Runtime::PartCall& call) {
  const PlannedPart& planned = call.graph.parts[call.part];
  if (planned.on_host) return;
  const Graph& graph = plan_.distinct[planned.distinct].graph;
  Judged& part = judged(call);
  ++part.calls;
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    inputs.push_back(buffer_tensor(device_, *call.inputs[i], graph.node(graph.inputs()[i]).type));
  }
  const std::vector<Tensor> expected =
      run_part(*judge_device_, *part.executable, graph, inputs).take();
  for (size_t i = 0; i < expected.size(); ++i) {
    const TensorType& type = graph.node(graph.outputs()[i].node).type;
    part.outputs[i].add(buffer_tensor(device_, *call.outputs[i], type), expected[i]);
  }
}

PartError PartComparer::summary(const Judged& part) const {
  PartError result;
  result.calls = part.calls;
  const auto limit_of = [this](const OutputError& e) {
    return limit_.value_or(part_error_limit(e.dtype, precision_));
  };
  for (const Sums& sums : part.outputs) {
    result.outputs.push_back(with_ratios(sums));
  }
  std::ranges::stable_sort(result.outputs, [&](const OutputError& a, const OutputError& b) {
    const double x = limit_of(a), y = limit_of(b);
    return std::tuple(rank(verdict_of(a, x)), -a.rel / x) <
           std::tuple(rank(verdict_of(b, y)), -b.rel / y);
  });
  result.limit = limit_of(result.worst());
  result.verdict = verdict_of(result.worst(), result.limit);
  return result;
}

std::vector<PartError> PartComparer::results() const {
  std::vector<PartError> results;
  for (const auto& [distinct, part] : parts_) {
    results.push_back(summary(part));
    results.back().part = plan_.distinct[distinct].first_use;
    results.back().group = plan_.distinct[distinct].group;
  }
  std::ranges::stable_sort(results, [](const PartError& a, const PartError& b) {
    return std::tuple(rank(a.verdict), -a.worst().rel / a.limit) <
           std::tuple(rank(b.verdict), -b.worst().rel / b.limit);
  });
  return results;
}

}  // namespace npu
