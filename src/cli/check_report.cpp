// The text and the JSON of a check.
#include "cli/check_report.h"

#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>

namespace npu {
namespace {

constexpr int kNameWidth = 52;

std::string first_of(const std::vector<std::string>& words, size_t most) {
  std::string text = joined(std::span(words).first(std::min(most, words.size())));
  if (words.size() > most) text += " and " + std::to_string(words.size() - most) + " more";
  return text;
}

Json comparison_json(const Comparison& c) {
  Json out = {{"loss", c.loss},
              {"reference_loss", c.reference_loss},
              {"loss_rel", c.loss_rel},
              {"worst_grad_rel", c.worst_grad_rel},
              {"min_cosine", c.min_cosine},
              {"not_finite", c.not_finite},
              {"grads", Json::array()}};
  for (const GradientError& g : c.grads) {
    out["grads"].push_back({{"name", g.name}, {"rel", g.rel}, {"cosine", g.cosine}});
  }
  return out;
}

void print_comparison(std::ostream& out, const std::string& title, const Comparison& c,
                      size_t top) {
  out << title << "\n  loss " << number_text("%.6f", c.loss) << ", reference "
      << number_text("%.6f", c.reference_loss) << ", relative difference "
      << number_text("%.2e", c.loss_rel) << "\n  gradients, worst first ("
      << std::min(top, c.grads.size()) << " of " << c.grads.size() << "):\n";
  for (size_t i = 0; i < std::min(top, c.grads.size()); ++i) {
    const GradientError& g = c.grads[i];
    out << "    " << std::left << std::setw(kNameWidth) << g.name << std::right << " rel "
        << (g.finite ? number_text("%.2e", g.rel) : "not finite") << "  cosine "
        << number_text("%.7f", g.cosine) << "\n";
  }
}

void print_blame(std::ostream& out, const CheckReport& report) {
  out << "one group at a time on the host, the one that helps most first\n";
  for (const GroupBlame& b : report.blame) {
    out << "    " << std::left << std::setw(10) << b.group << std::right << " worst gradient "
        << percent_text(b.on_host.worst_grad_rel) << ", loss " << percent_text(b.on_host.loss_rel)
        << (b.on_host.pass(report.limits) ? ", passes" : "") << "\n";
  }
  out << "  " << report.blame_verdict() << "\n";
}

}  // namespace

std::string number_text(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string percent_text(double ratio) {
  return std::isfinite(ratio) ? number_text("%.3g %%", 100 * ratio) : "not finite";
}

std::vector<std::string> CheckReport::failures() const {
  const Comparison& c = versus_reference;
  std::vector<std::string> reasons;
  if (!c.not_finite.empty()) {
    reasons.push_back("not finite on " + backend + ": " + first_of(c.not_finite, 4));
  } else if (!c.finite) {
    reasons.push_back("not finite on " + reference + ": the model or the batch, not " + backend);
  }
  if (c.loss_rel > limits.loss_rel) {
    reasons.push_back("loss differs by " + percent_text(c.loss_rel) + ", limit " +
                      percent_text(limits.loss_rel));
  }
  std::vector<std::string> bad;
  for (const GradientError& g : c.grads) {
    if (g.rel > limits.grad_rel) bad.push_back(g.name + " (" + percent_text(g.rel) + ")");
  }
  if (!bad.empty()) {
    reasons.push_back(std::to_string(bad.size()) + " of " + std::to_string(c.grads.size()) +
                      " gradients differ by more than " + percent_text(limits.grad_rel) + ": " +
                      first_of(bad, 3));
  }
  return reasons;
}

std::string CheckReport::blame_verdict() const {
  if (blame.empty()) return "";
  if (pass()) return "nothing to blame: the check passes";
  const Comparison& now = versus_reference;
  const GroupBlame& best = blame.front();
  const std::string change =
      "the worst gradient error goes from " + percent_text(now.worst_grad_rel) + " to " +
      percent_text(best.on_host.worst_grad_rel) + ", the loss error from " +
      percent_text(now.loss_rel) + " to " + percent_text(best.on_host.loss_rel);
  // Half of the error gone is what makes a group its cause.
  if (best.on_host.severity(limits) <= 0.5 * now.severity(limits)) {
    return "caused by " + best.group + ": with it on the host " + change;
  }
  return "no single group is the cause; best is " + best.group + ": with it on the host " + change;
}

Json placement_json(const std::vector<GroupPlacement>& placement) {
  Json out = Json::array();
  for (const GroupPlacement& g : placement) {
    out.push_back({{"group", g.group},
                   {"parts", g.parts},
                   {"host_parts", g.host_parts},
                   {"host_reasons", g.host_reasons}});
  }
  return out;
}

void print_placement(std::ostream& out, const std::vector<GroupPlacement>& placement) {
  out << "placement\n";
  for (const GroupPlacement& g : placement) {
    out << "    " << std::left << std::setw(10) << g.group << std::right;
    if (g.host_parts == 0) {
      out << "device, " << g.parts << (g.parts == 1 ? " part\n" : " parts\n");
      continue;
    }
    out << "host, " << g.host_parts << " of " << g.parts << (g.parts == 1 ? " part" : " parts");
    for (const std::string& reason : g.host_reasons) out << "; " << reason;
    out << "\n";
  }
}

Json part_errors_json(const std::vector<PartError>& parts) {
  Json out = Json::array();
  for (const PartError& p : parts) {
    Json outputs = Json::array();
    for (const OutputError& e : p.outputs) {
      outputs.push_back({{"name", e.name},
                         {"dtype", dtype_name(e.dtype)},
                         {"max_abs", e.max_abs},
                         {"rel", e.rel},
                         {"bias", e.bias},
                         {"ulps", e.ulps},
                         {"differing", e.differing},
                         {"elements", e.elements},
                         {"nan", e.nan},
                         {"inf", e.inf},
                         {"flushed", e.flushed}});
    }
    out.push_back({{"part", p.part},
                   {"group", p.group},
                   {"calls", p.calls},
                   {"limit", p.limit},
                   {"pass", p.verdict == PartVerdict::kPass},
                   {"verdict", verdict_text(p.verdict)},
                   {"outputs", std::move(outputs)}});
  }
  return out;
}

void print_part_errors(std::ostream& out, const std::vector<PartError>& parts, size_t top) {
  if (parts.empty()) {
    out << "    none ran on the device\n";
    return;
  }
  out << "    " << std::left << std::setw(20) << "part" << std::setw(28) << "worst output"
      << std::right << std::setw(6) << "calls" << std::setw(11) << "max abs" << std::setw(11)
      << "rel" << std::setw(7) << "bias" << std::setw(10) << "ulps" << std::setw(6) << "NaN"
      << std::setw(6) << "inf" << std::setw(9) << "flushed"
      << "  verdict\n";
  for (size_t i = 0; i < std::min(top, parts.size()); ++i) {
    const PartError& p = parts[i];
    const OutputError& e = p.worst();
    const std::string name = e.name + " " + std::string(dtype_name(e.dtype));
    out << "    " << std::left << std::setw(20) << p.part << std::setw(28) << name << std::right
        << std::setw(6) << p.calls << std::setw(11) << number_text("%.2e", e.max_abs)
        << std::setw(11) << number_text("%.2e", e.rel) << std::setw(7)
        << number_text("%+.2f", e.bias) << std::setw(10) << number_text("%+.2g", e.ulps)
        << std::setw(6) << e.nan << std::setw(6) << e.inf << std::setw(9) << e.flushed << "  "
        << verdict_text(p.verdict) << "\n";
  }
  if (parts.size() > top) out << "    … and " << parts.size() - top << " more (--top)\n";
}

Json check_json(const CheckReport& r) {
  Json out = {{"pass", r.pass()}, {"backend", r.backend}, {"reference", r.reference}};
  out.update(comparison_json(r.versus_reference));
  out["fp32"] = comparison_json(r.versus_fp32);
  if (r.reference_versus_fp32) out["reference_fp32"] = comparison_json(*r.reference_versus_fp32);
  out["limits"] = {{"loss_rel", r.limits.loss_rel}, {"grad_rel", r.limits.grad_rel}};
  out["failures"] = r.failures();
  out["dtype"] = r.dtype;
  out["weight_dtype"] = r.weight_dtype;
  out["numerics"] = r.numerics;
  out["seeds"] = Json::array();
  for (const CheckReport::Seed& s : r.seeds) {
    out["seeds"].push_back({{"seed", s.seed},
                            {"pass", s.comparison.pass(r.limits)},
                            {"loss", s.comparison.loss},
                            {"reference_loss", s.comparison.reference_loss},
                            {"loss_rel", s.comparison.loss_rel},
                            {"worst_grad_rel", s.comparison.worst_grad_rel},
                            {"min_cosine", s.comparison.min_cosine}});
  }
  out["placement"] = placement_json(r.placement);
  out["estimated_step_seconds"] = r.step_seconds;
  out["blame"] = Json::array();
  for (const GroupBlame& b : r.blame) {
    out["blame"].push_back({{"group", b.group},
                            {"pass", b.on_host.pass(r.limits)},
                            {"loss_rel", b.on_host.loss_rel},
                            {"worst_grad_rel", b.on_host.worst_grad_rel},
                            {"min_cosine", b.on_host.min_cosine}});
  }
  out["blame_verdict"] = r.blame_verdict();
  out["parts_judge"] = r.parts_judge;
  out["parts"] = part_errors_json(r.parts);
  return out;
}

void print_check(std::ostream& out, const CheckReport& r, size_t top) {
  print_comparison(out, r.backend + " against " + r.reference, r.versus_reference, top);
  if (r.seeds.size() > 1) {
    out << "  worst of " << r.seeds.size() << " seeds:\n";
    for (const CheckReport::Seed& s : r.seeds) {
      out << "    seed " << s.seed << ": loss " << percent_text(s.comparison.loss_rel)
          << ", worst gradient " << percent_text(s.comparison.worst_grad_rel) << ", least cosine "
          << number_text("%.7f", s.comparison.min_cosine) << "\n";
    }
  }
  const size_t few = std::min<size_t>(3, top);
  print_comparison(out, r.backend + " against f32", r.versus_fp32, few);
  if (r.reference_versus_fp32) {
    print_comparison(out, r.reference + " against f32", *r.reference_versus_fp32, few);
  }
  print_placement(out, r.placement);
  out << "  parts of a step: " << number_text("%.4g", r.step_seconds) << " s\n";
  if (!r.parts_judge.empty()) {
    out << "parts alone, against " << r.parts_judge << " on the same inputs\n";
    print_part_errors(out, r.parts, top);
  }
  if (!r.blame.empty()) print_blame(out, r);
  if (r.pass()) {
    out << "pass\n";
    return;
  }
  for (const std::string& reason : r.failures()) out << "FAIL: " << reason << "\n";
}

}  // namespace npu
