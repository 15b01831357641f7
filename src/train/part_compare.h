// Every call of a compiled part judged alone: the judge runs the same part on the same inputs, so
// that what one part does wrong is not hidden, or caused, by the others.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "compile/plan.h"

namespace npu {

// Errors of one output of a distinct part over all its calls.
struct OutputError {
  std::string name;  // in the graph of the part's first use
  DType dtype = DType::kF32;
  int64_t elements = 0, differing = 0;  // over all calls
  double max_abs = 0;
  double rel = 0;  // ‖x − y‖₂ / ‖y‖₂ over elements finite on both sides, of the worst call
  // Rounding bias: Σ sgn(y)(x − y) / Σ|x − y| ∈ [−1, 1]. 0 is balanced, +1 rounds away from zero,
  // −1 towards it. ulps: Σ sgn(y)(x − y) / Σ ulp(y), ulp of the output's dtype.
  double bias = 0, ulps = 0;
  int64_t nan = 0, inf = 0;  // of the part, where the judge is finite
  int64_t flushed = 0;       // zeros of the part where the judge has a subnormal number
};

// Of one result alone.
OutputError output_error(const Tensor& result, const Tensor& judged);

enum class PartVerdict { kPass, kError, kBiased, kNotFinite };
std::string_view verdict_text(PartVerdict verdict);
// Biased: at least 64 elements differ by more than the noise of f32 sums, and |bias| is above 0.25
// plus four times what chance gives that many.
PartVerdict verdict_of(const OutputError& error, double limit);

struct PartError {
  std::string part, group;  // first use, "layer_fwd.2"
  int64_t calls = 0;
  std::vector<OutputError> outputs;  // worst first
  double limit = 0;                  // on rel, of the worst output
  PartVerdict verdict = PartVerdict::kPass;
  const OutputError& worst() const { return outputs.front(); }
};

// The largest relative error that an output may have on a device whose arithmetic is as good as
// `precision` (Traits::precision): four times the unit roundoff of the coarser dtype, or 2e-4 in
// f32 for sums in another order.
double part_error_limit(DType output, DType precision);

// Compares calls as they happen: give it to Runtime::set_probe by reference.
class PartComparer {
 public:
  // Parts on the host are not judged. `judge` is the name of a CPU backend, `precision` as for
  // part_error_limit, which `limit` replaces.
  PartComparer(const Plan& plan, Device& device, const std::string& judge, DType precision,
               std::optional<double> limit, int threads);
  ~PartComparer();
  void compare(const Runtime::PartCall& call);
  // Failures first, then by error in units of the limit.
  std::vector<PartError> results() const;

 private:
  struct Judged;
  Judged& judged(const Runtime::PartCall& call);
  PartError summary(const Judged& part) const;

  const Plan& plan_;
  Device& device_;
  DType precision_;
  std::optional<double> limit_;
  int threads_;
  std::unique_ptr<Backend> judge_;
  std::unique_ptr<Device> judge_device_;
  std::map<size_t, Judged> parts_;  // by index into plan_.distinct
};

// The value in a buffer: borrowed while the buffer lives where it is host memory, else a copy.
Tensor buffer_tensor(Device& device, Buffer& buffer, const TensorType& type);

// Runs one part on a device; the outputs in the part's order.
Result<std::vector<Tensor>> run_part(Device& device, Executable& executable, const Graph& part,
                                     std::span<const Tensor> inputs);

}  // namespace npu
