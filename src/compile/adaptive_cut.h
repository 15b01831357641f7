// Parts that their compiler can't take are cut in pieces of about half their size, and these again,
// until what still fails is a single node: only that runs on the host
// (docs/decisions/008-adaptive-cut-and-placement.md).
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compile/distinct.h"
#include "compile/plan.h"

namespace npu {

// The part in two, seldom more, pieces that keep to `limits`: with half of its contractions each,
// or with half of its nodes when it has one contraction or none. Names of inputs and outputs are of
// `part`'s values; those that cross are no input or output of it. Empty when it can't be cut.
std::vector<CanonicalPart> cut_in_two(const Graph& part, const PartLimits& limits);

// Follows a plan's parts from their verdicts to the final cut. Verdicts may come in any order and
// lead to the same cut.
class AdaptiveCut {
 public:
  // With `enabled` false, a part that fails goes to the host whole.
  AdaptiveCut(Plan& plan, Backend& backend, const CompileOptions& options, bool enabled);

  // Distinct parts that the cut needs and that have no verdict, larger pieces first. New ones come
  // up when parts fail; plan.distinct grows with them.
  std::vector<size_t> open();

  void built(size_t distinct);
  // `cutting_helps` is false when the failure says nothing about the part (a missing library).
  void failed(size_t distinct, std::string reason, bool cutting_helps);
  // Not compiled, and not to be: the reason says why.
  void not_tried(size_t distinct, std::string reason);

  // Writes the cut into the plan: graphs run the pieces that could be built on the device and the
  // rest on the host, each with its reason; what no graph uses any more is dropped. Parts without a
  // verdict stay on the device. Fills `cuts` and `failed` of the report.
  void apply(CompileReport& report);

 private:
  // One piece of a cut part; names are of that part's graph.
  struct Piece {
    size_t distinct;
    std::vector<std::string> input_names, output_names;
  };
  struct State {
    enum class Verdict { kOpen, kBuilt, kFailed, kNotTried };
    Verdict verdict = Verdict::kOpen;
    std::string reason;  // "rejected: exp: is not accepted"
    bool cutting_helps = false;
    std::optional<std::vector<Piece>> pieces;  // set when they were asked for
  };
  // A part as the passes and limits left it, and which of it and its pieces are cut in the end.
  struct Root {
    size_t distinct;
    std::set<size_t> cut;
    bool used_up = false;  // it reached the bound on cuts
  };

  State& state(size_t distinct);
  bool fails(size_t distinct) { return state(distinct).verdict >= State::Verdict::kFailed; }
  const std::vector<Piece>& pieces(size_t distinct);
  std::vector<size_t> grow(Root& root);
  bool useful(const Root& root, size_t distinct);
  bool untried_below(const Root& root, size_t distinct, std::string& why);
  std::string host_reason(const Root& root, size_t distinct);
  void place(const Root& root, const PlannedPart& use, PlannedGraph& graph,
             std::vector<PlannedPart>& out, CompileReport& report);
  void cut_graph(PlannedGraph& graph, CompileReport& report);
  void note_cut(const PlannedPart& part, CompileReport& report);
  void note_failure(const PlannedPart& part, CompileReport& report);
  void drop_unused();

  Plan& plan_;
  bool enabled_;
  DistinctParts parts_;
  std::deque<State> states_;  // references stay valid while plan.distinct grows
  std::vector<Root> roots_;
  std::set<size_t> named_;  // parts that have their final name
};

}  // namespace npu
