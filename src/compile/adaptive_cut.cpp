// The tree of cuts of each part, and the plan that its leaves make.
#include "compile/adaptive_cut.h"

#include <algorithm>

#include "base/log.h"

namespace npu {
namespace {

// Cuts that one part may cost. A fault that sits in one place takes about ten: halving a layer's
// hundred nodes. Many more mean a compiler that takes next to nothing.
constexpr size_t kMostCuts = 32;

std::vector<CanonicalPart> pieces_of(const Graph& part, const PartLimits& limits) {
  const Result<PartLabels> labels = partition(part, limits);
  std::vector<CanonicalPart> pieces;
  if (!labels || labels.value().count < 2) return pieces;
  for (const Part& piece : split(part, labels.value())) pieces.push_back(canonicalize(piece.graph));
  return pieces;
}

// The next "t<N>" that names nothing in the graph.
std::string fresh_name(const PlannedGraph& graph) {
  for (size_t number = graph.temporaries.size();; ++number) {
    std::string name = std::string("t").append(std::to_string(number));
    if (!graph.temporaries.contains(name) && graph.graph.find_input(name) < 0 &&
        graph.graph.find_output(name) < 0) {
      return name;
    }
  }
}

}  // namespace

std::vector<CanonicalPart> cut_in_two(const Graph& part, const PartLimits& limits) {
  if (const int64_t contractions = part.num_contractions(); contractions > 1) {
    PartLimits half = limits;
    half.contractions = (contractions + 1) / 2;
    if (auto pieces = pieces_of(part, half); !pieces.empty()) return pieces;
  }
  const auto nodes = static_cast<int64_t>(part.nodes().size() - part.inputs().size());
  // Constants count in each part that reads them, so half may be too few for any node at all.
  for (int64_t most = (nodes + 1) / 2; most < nodes; ++most) {
    PartLimits half = limits;
    half.nodes = most;
    if (auto pieces = pieces_of(part, half); !pieces.empty()) return pieces;
  }
  return {};
}

AdaptiveCut::AdaptiveCut(Plan& plan, Backend& backend, const CompileOptions& options, bool enabled)
    : plan_(plan), enabled_(enabled), parts_(plan.distinct, backend, options) {
  std::set<size_t> roots;
  for (const PlannedGraph& graph : plan_.graphs) {
    if (!graph.host_reason.empty()) continue;
    for (const PlannedPart& part : graph.parts) {
      if (roots.insert(part.distinct).second) roots_.push_back({part.distinct, {}});
    }
  }
  for (size_t i = 0; i < plan_.distinct.size(); ++i) {
    const std::optional<CompileOutcome>& outcome = plan_.distinct[i].outcome;
    if (outcome && outcome->built()) built(i);
  }
}

AdaptiveCut::State& AdaptiveCut::state(size_t distinct) {
  while (states_.size() <= distinct) {
    State state;
    const std::string& unsupported = plan_.distinct[states_.size()].unsupported;
    if (!unsupported.empty()) {
      state = {State::Verdict::kFailed, "unsupported: " + unsupported, true, std::nullopt};
    }
    states_.push_back(std::move(state));
  }
  return states_[distinct];
}

void AdaptiveCut::built(size_t distinct) { state(distinct).verdict = State::Verdict::kBuilt; }

void AdaptiveCut::failed(size_t distinct, std::string reason, bool cutting_helps) {
  State& failing = state(distinct);
  failing.verdict = State::Verdict::kFailed;
  failing.reason = std::move(reason);
  failing.cutting_helps = cutting_helps;
}

void AdaptiveCut::not_tried(size_t distinct, std::string reason) {
  failed(distinct, std::move(reason), false);
  state(distinct).verdict = State::Verdict::kNotTried;
}

const std::vector<AdaptiveCut::Piece>& AdaptiveCut::pieces(size_t distinct) {
  if (!state(distinct).pieces) {
    std::vector<Piece> pieces;
    const std::string group = plan_.distinct[distinct].group;
    const std::string name = plan_.distinct[distinct].first_use;
    for (CanonicalPart& piece : cut_in_two(plan_.distinct[distinct].graph, plan_.limits)) {
      const size_t index = parts_.find_or_add(std::move(piece.graph), group,
                                              name + "/" + std::to_string(pieces.size()));
      pieces.push_back({index, std::move(piece.input_names), std::move(piece.output_names)});
    }
    state(distinct).pieces = std::move(pieces);
  }
  return *state(distinct).pieces;
}

// Breadth first, so that the bound on cuts falls on the smallest pieces, and so that the cut
// follows from the verdicts alone.
std::vector<size_t> AdaptiveCut::grow(Root& root) {
  root.cut.clear();
  root.used_up = false;
  std::vector<size_t> open, queue = {root.distinct};
  for (size_t i = 0; i < queue.size(); ++i) {
    const size_t part = queue[i];
    if (state(part).verdict == State::Verdict::kOpen) open.push_back(part);
    if (!enabled_ || !fails(part) || !state(part).cutting_helps || pieces(part).empty()) continue;
    if (root.cut.size() == kMostCuts) {
      root.used_up = true;
      continue;
    }
    root.cut.insert(part);
    for (const Piece& piece : pieces(part)) {
      if (std::find(queue.begin(), queue.end(), piece.distinct) == queue.end()) {
        queue.push_back(piece.distinct);
      }
    }
  }
  return open;
}

std::vector<size_t> AdaptiveCut::open() {
  std::vector<size_t> all;
  for (Root& root : roots_) {
    for (const size_t part : grow(root)) {
      if (std::find(all.begin(), all.end(), part) == all.end()) all.push_back(part);
    }
  }
  return all;
}

// Whether the device gets any of it.
bool AdaptiveCut::useful(const Root& root, size_t distinct) {
  if (!root.cut.contains(distinct)) return !fails(distinct);
  const std::vector<Piece>& below = pieces(distinct);
  return std::any_of(below.begin(), below.end(),
                     [&](const Piece& piece) { return useful(root, piece.distinct); });
}

bool AdaptiveCut::untried_below(const Root& root, size_t distinct, std::string& why) {
  if (!root.cut.contains(distinct)) {
    why = state(distinct).reason;
    return state(distinct).verdict == State::Verdict::kNotTried;
  }
  const std::vector<Piece>& below = pieces(distinct);
  return std::any_of(below.begin(), below.end(),
                     [&](const Piece& piece) { return untried_below(root, piece.distinct, why); });
}

std::string AdaptiveCut::host_reason(const Root& root, size_t distinct) {
  const std::string& reason = state(distinct).reason;
  const bool cut = root.cut.contains(distinct);
  if (std::string why; cut && untried_below(root, distinct, why)) {
    return reason + "; its pieces: " + why;
  }
  if (root.used_up && state(distinct).cutting_helps && !pieces(distinct).empty()) {
    return reason + "; not cut further: " + plan_.distinct[root.distinct].first_use + " took " +
           std::to_string(kMostCuts) + " cuts";
  }
  return reason + (cut ? "; none of its pieces can be compiled either" : "");
}

// Appends to `out` what stands for `use`: itself, or its pieces under names of the graph. Parts
// that several uses share are named after the first in order, not after the one that was compiled
// first.
void AdaptiveCut::place(const Root& root, const PlannedPart& use, PlannedGraph& graph,
                        std::vector<PlannedPart>& out, CompileReport& report) {
  const bool first = named_.insert(use.distinct).second;
  if (first) plan_.distinct[use.distinct].first_use = use.name;
  if (!root.cut.contains(use.distinct) || !useful(root, use.distinct)) {
    out.push_back(use);
    out.back().on_host = fails(use.distinct);
    out.back().host_reason = out.back().on_host ? host_reason(root, use.distinct) : "";
    return;
  }
  if (first) note_cut(use, report);
  std::map<std::string, std::string> names;  // of the cut part's values → of the graph's
  const Graph& whole = plan_.distinct[use.distinct].graph;
  for (size_t i = 0; i < use.input_names.size(); ++i) {
    names[whole.node(whole.inputs()[i]).name] = use.input_names[i];
  }
  for (size_t i = 0; i < use.output_names.size(); ++i) {
    names[whole.outputs()[i].name] = use.output_names[i];
  }
  size_t number = 0;
  for (const Piece& piece : pieces(use.distinct)) {
    PlannedPart part;
    part.distinct = piece.distinct;
    part.name = use.name + "/" + std::to_string(number++);
    part.cut_reason = state(use.distinct).reason;
    const Graph& content = plan_.distinct[piece.distinct].graph;
    for (size_t i = 0; i < piece.output_names.size(); ++i) {
      std::string& name = names[piece.output_names[i]];
      if (name.empty()) {
        name = fresh_name(graph);
        graph.temporaries[name] = content.node(content.outputs()[i].node).type;
      }
      part.output_names.push_back(name);
    }
    for (const std::string& name : piece.input_names) part.input_names.push_back(names.at(name));
    place(root, part, graph, out, report);
  }
}

void AdaptiveCut::cut_graph(PlannedGraph& graph, CompileReport& report) {
  std::vector<PlannedPart> parts;
  for (const PlannedPart& part : graph.parts) {
    const auto root = std::find_if(roots_.begin(), roots_.end(),
                                   [&](const Root& r) { return r.distinct == part.distinct; });
    place(*root, part, graph, parts, report);
  }
  graph.parts = std::move(parts);
}

void AdaptiveCut::note_cut(const PlannedPart& part, CompileReport& report) {
  const std::string& reason = state(part.distinct).reason;
  const size_t count = pieces(part.distinct).size();
  report.cuts.push_back({part.name, reason, count});
  log_info("compile", part.name + " is cut in " + std::to_string(count) + ": " + reason);
}

void AdaptiveCut::note_failure(const PlannedPart& part, CompileReport& report) {
  const DistinctPart& distinct = plan_.distinct[part.distinct];
  if (!distinct.unsupported.empty()) return;  // known before compiling
  const auto same = [&](const CompileReport::Failure& f) { return f.part == distinct.first_use; };
  if (std::any_of(report.failed.begin(), report.failed.end(), same)) return;
  const bool tried = distinct.outcome.has_value();
  report.failed.push_back({distinct.first_use,
                           tried ? std::string(outcome_name(distinct.outcome->kind)) : "not tried",
                           tried ? distinct.outcome->reason : part.host_reason});
  log_warn("compile", distinct.first_use + " goes to the host: " + part.host_reason);
}

void AdaptiveCut::apply(CompileReport& report) {
  open();  // brings the roots up to the last verdicts
  for (PlannedGraph& graph : plan_.graphs) {
    if (!graph.host_reason.empty()) continue;
    cut_graph(graph, report);
    for (const PlannedPart& part : graph.parts) {
      if (part.on_host) note_failure(part, report);
    }
  }
  drop_unused();
}

void AdaptiveCut::drop_unused() {
  for (DistinctPart& part : plan_.distinct) part.uses = 0;
  for (const PlannedGraph& graph : plan_.graphs) {
    for (const PlannedPart& part : graph.parts) ++plan_.distinct[part.distinct].uses;
  }
  std::vector<size_t> moved(plan_.distinct.size());
  std::vector<DistinctPart> kept;
  for (size_t i = 0; i < plan_.distinct.size(); ++i) {
    moved[i] = kept.size();
    if (plan_.distinct[i].uses > 0) kept.push_back(std::move(plan_.distinct[i]));
  }
  plan_.distinct = std::move(kept);
  for (PlannedGraph& graph : plan_.graphs) {
    for (PlannedPart& part : graph.parts) part.distinct = moved[part.distinct];
  }
}

}  // namespace npu
