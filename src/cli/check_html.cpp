// The page of a check: one file, no script, nothing loaded from elsewhere.
#include <algorithm>
#include <cmath>

#include "cli/check_report.h"

namespace npu {
namespace {

constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>npu-lora check</title>
<style>
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2em .7em; border-bottom: 1px solid #ddd; white-space: nowrap; }
td.n, th.n { text-align: right; } td.w { white-space: normal; }
.bar { display: inline-block; height: .8em; background: #4a7; vertical-align: middle; }
.bad .bar { background: #c43; } .bad { background: #fdf0ee; }
.verdict { padding: .6em 1em; border-radius: .3em; background: #e8f5ee; }
.verdict.fail { background: #fbe3df; }
</style>
</head>
<body>
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

class Page {
 public:
  void heading(std::string_view text) { out_ += "<h2>" + escaped(text) + "</h2>\n"; }
  void paragraph(std::string_view text, std::string_view style = "") {
    out_ += "<p" + (style.empty() ? "" : " class=\"" + std::string(style) + "\"") + ">" +
            escaped(text) + "</p>\n";
  }
  // Columns whose name starts with '#' hold numbers.
  void begin_table(const std::vector<std::string>& columns) {
    out_ += "<table>\n<tr>";
    numeric_.clear();
    for (const std::string& column : columns) {
      numeric_.push_back(column.starts_with('#'));
      out_ += numeric_.back() ? "<th class=\"n\">" : "<th>";
      out_ += escaped(numeric_.back() ? column.substr(1) : column) + "</th>";
    }
    out_ += "</tr>\n";
  }
  // `bar`: length in the last column, of the largest 1; negative for none.
  void row(const std::vector<std::string>& cells, bool bad, double bar = -1) {
    out_ += bad ? "<tr class=\"bad\">" : "<tr>";
    for (size_t i = 0; i < cells.size(); ++i) {
      out_ += numeric_[i] ? "<td class=\"n\">" : "<td class=\"w\">";
      out_ += escaped(cells[i]) + "</td>";
    }
    if (bar >= 0) {
      out_ += "<td><span class=\"bar\" style=\"width:" + number_text("%.1f", 16 * bar) +
              "em\"></span></td>";
    }
    out_ += "</tr>\n";
  }
  void end_table() { out_ += "</table>\n"; }
  std::string take() && { return std::string(kHead) + std::move(out_) + "</body>\n</html>\n"; }

 private:
  std::string out_;
  std::vector<bool> numeric_;
};

double bar_length(double value, double largest) {
  if (!std::isfinite(value)) return 1;
  return largest > 0 ? std::min(1.0, value / largest) : 0;
}

double largest_finite(const std::vector<GradientError>& grads) {
  double largest = 0;
  for (const GradientError& g : grads) {
    if (std::isfinite(g.rel)) largest = std::max(largest, g.rel);
  }
  return largest;
}

void add_summary(Page& page, const CheckReport& r) {
  page.begin_table({"comparison", "#loss", "#reference loss", "#loss error", "#worst gradient",
                    "#least cosine"});
  const auto add = [&page](const std::string& title, const Comparison& c, bool bad) {
    page.row({title, number_text("%.6f", c.loss), number_text("%.6f", c.reference_loss),
              percent_text(c.loss_rel), percent_text(c.worst_grad_rel),
              number_text("%.7f", c.min_cosine)},
             bad);
  };
  add(r.backend + " against " + r.reference, r.versus_reference, !r.pass());
  add(r.backend + " against f32", r.versus_fp32, false);
  if (r.reference_versus_fp32) {
    add(r.reference + " against f32", *r.reference_versus_fp32, false);
  }
  if (r.seeds.size() > 1) {
    for (const CheckReport::Seed& s : r.seeds) {
      add("seed " + std::to_string(s.seed), s.comparison, !s.comparison.pass(r.limits));
    }
  }
  page.end_table();
}

void add_blame(Page& page, const CheckReport& r) {
  if (r.blame.empty()) return;
  page.heading("One group at a time on the host");
  page.paragraph(r.blame_verdict());
  double largest = r.versus_reference.worst_grad_rel;
  if (!std::isfinite(largest)) largest = r.limits.grad_rel;
  page.begin_table({"group on the host", "#worst gradient", "#loss error", "#least cosine", ""});
  for (const GroupBlame& b : r.blame) {
    page.row({b.group, percent_text(b.on_host.worst_grad_rel), percent_text(b.on_host.loss_rel),
              number_text("%.7f", b.on_host.min_cosine)},
             !b.on_host.pass(r.limits), bar_length(b.on_host.worst_grad_rel, largest));
  }
  page.end_table();
}

void add_parts(Page& page, const CheckReport& r) {
  if (r.parts_judge.empty()) return;
  page.heading("Parts alone, against " + r.parts_judge + " on the same inputs");
  page.begin_table({"part", "worst output", "#calls", "#max abs", "#relative", "#limit", "#bias",
                    "#ulps", "#NaN", "#inf", "#flushed", "verdict"});
  for (const PartError& p : r.parts) {
    const OutputError& e = p.worst();
    page.row(
        {p.part, e.name + " " + std::string(dtype_name(e.dtype)), std::to_string(p.calls),
         number_text("%.2e", e.max_abs), number_text("%.2e", e.rel), number_text("%.1e", p.limit),
         number_text("%+.2f", e.bias), number_text("%+.2g", e.ulps), std::to_string(e.nan),
         std::to_string(e.inf), std::to_string(e.flushed), std::string(verdict_text(p.verdict))},
        p.verdict != PartVerdict::kPass);
  }
  page.end_table();
}

void add_gradients(Page& page, const CheckReport& r) {
  page.heading("Gradients against " + r.reference + ", worst first");
  const std::vector<GradientError>& grads = r.versus_reference.grads;
  const double largest = largest_finite(grads);
  page.begin_table({"gradient", "#relative error", "#cosine", ""});
  for (const GradientError& g : grads) {
    page.row({g.name, percent_text(g.rel), number_text("%.7f", g.cosine)},
             !(g.rel <= r.limits.grad_rel), bar_length(g.rel, largest));
  }
  page.end_table();
}

}  // namespace

std::string check_html(const CheckReport& r) {
  Page page;
  page.paragraph("npu-lora check: " + r.model + " on " + r.backend, "");
  page.paragraph(std::to_string(r.layers) + " layers, batch " + std::to_string(r.batch) + " x " +
                 std::to_string(r.seq_len) + " tokens, activations " + r.dtype + ", weights " +
                 r.weight_dtype + ", numerics " + r.numerics);
  if (r.pass()) {
    page.paragraph("pass: loss within " + percent_text(r.limits.loss_rel) +
                       ", every gradient within " + percent_text(r.limits.grad_rel),
                   "verdict");
  }
  for (const std::string& reason : r.failures()) page.paragraph("FAIL: " + reason, "verdict fail");
  add_summary(page, r);
  page.heading("Placement");
  page.begin_table({"group", "#parts", "#on the host", "reasons"});
  for (const GroupPlacement& g : r.placement) {
    std::string reasons;
    for (const std::string& reason : g.host_reasons) {
      reasons += (reasons.empty() ? "" : "; ") + reason;
    }
    page.row({g.group, std::to_string(g.parts), std::to_string(g.host_parts), reasons}, false);
  }
  page.end_table();
  add_blame(page, r);
  add_parts(page, r);
  add_gradients(page, r);
  return std::move(page).take();
}

}  // namespace npu
