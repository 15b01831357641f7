// What a run tells while it goes.
#include "cli/run_log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>

namespace npu {
namespace {

constexpr size_t kLogLimit = size_t{1} << 32;

std::atomic<int> g_stop_signal = 0;  // the only process-wide state: signal handlers need it

void on_stop_signal(int signal) {
  if (g_stop_signal.exchange(signal) != 0) _exit(128 + signal);
}

struct LogLine {
  int64_t step = -1;
  std::string event;  // "" for a step's own line
  bool finished = false;
};

// Nothing for what is no line of a log, such as one that was torn.
std::optional<LogLine> read_line(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("progress") || !json["progress"].is_string()) {
    return std::nullopt;
  }
  LogLine line;
  const std::string progress = json["progress"].get<std::string>();  // "7/400"
  const char* const end = progress.data() + progress.size();
  const auto [slash, error] = std::from_chars(progress.data(), end, line.step);
  if (error != std::errc() || slash == end || *slash != '/') return std::nullopt;
  if (json.contains("event") && json["event"].is_string()) {
    line.event = json["event"].get<std::string>();
  }
  line.finished = line.event == "end" && json.contains("exit_code") && json["exit_code"] == 0;
  return line;
}

struct KeptLines {
  size_t bytes = 0;  // of the log, from its start
  bool evaluated = false;
};

// What stays for a run that goes on from `step`: read backwards, up to the last line of that step.
KeptLines kept_lines(std::string_view text, int64_t step) {
  const size_t whole = text.rfind('\n') + 1;  // without a torn line; npos + 1 is 0
  std::optional<size_t> end_of_step;
  bool evaluated = false;
  for (size_t end = whole, begin = 0; end > 0; end = begin) {
    begin = end < 2 ? 0 : text.rfind('\n', end - 2) + 1;
    const auto line = read_line(text.substr(begin, end - 1 - begin));
    if (!line) continue;
    if (line->finished || line->step < step) break;
    if (line->step > step) continue;
    if (!end_of_step) end_of_step = end;
    evaluated = evaluated || line->event == "eval";
  }
  return {end_of_step.value_or(whole), evaluated};
}

}  // namespace

Json json_number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

int stop_signal() { return g_stop_signal.load(); }

void install_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

RunLog::RunLog(const fs::path& path, int64_t steps, bool quiet)
    : path_(path), steps_(steps), bar_(!quiet && isatty(STDERR_FILENO) != 0), quiet_(quiet) {
  file_.open(path, std::ios::app);
  if (!file_) {
    fail(ErrorKind::kRetriable, path.string(), "cannot be written", "",
         "give another --out or --log-file");
  }
}

RunLog::~RunLog() {
  if (bar_) std::cerr << "\n";
}

bool RunLog::rewind(int64_t step) {
  std::error_code error;
  if (!fs::is_regular_file(path_, error)) return false;  // a pipe keeps nothing
  const std::string text = read_text(path_, kLogLimit);
  const KeptLines kept = kept_lines(text, step);
  if (kept.bytes < text.size()) fs::resize_file(path_, kept.bytes, error);
  if (error) {
    fail(ErrorKind::kRetriable, path_.string(), "the log cannot be cut to the checkpoint's step",
         error.message());
  }
  return kept.evaluated;
}

void RunLog::write(const Json& line) {
  const std::string text = line.dump();
  file_ << text << "\n" << std::flush;
  if (!file_) {
    fail(ErrorKind::kRetriable, path_.string(), "writing the log failed", "", "is the disk full?");
  }
  if (!quiet_ && !bar_) std::cerr << text << "\n";
}

void RunLog::event(std::string_view name, const Json& fields, int64_t step) {
  Json line = {{"progress", std::to_string(step) + "/" + std::to_string(steps_)},
               {"event", std::string(name)}};
  line.update(fields);
  write(line);
}

void RunLog::step(const StepReport& r, double epoch, double total_tokens) {
  const double tokens_per_s = static_cast<double>(r.tokens) / r.step_seconds;
  Json line = {{"progress", std::to_string(r.step) + "/" + std::to_string(steps_)},
               {"step", r.step},
               {"loss", json_number(r.loss)},
               {"lr", r.lr},
               {"grad_norm", json_number(r.grad_norm)},
               {"tokens_per_s", tokens_per_s},
               {"step_seconds", r.step_seconds},
               {"num_tokens", total_tokens},
               {"trained_tokens", r.trained_tokens},
               {"epoch", epoch},
               {"parts_device_s", r.device_seconds},
               {"parts_host_s", r.host_seconds},
               {"transfer_s", r.transfer_seconds},
               {"optimizer_s", r.optimizer_seconds},
               {"data_s", r.data_seconds},
               {"cpu_s", r.cpu_seconds}};
  if (r.skipped) line["nonfinite"] = true;
  if (r.loss_scale != 1) line["loss_scale"] = r.loss_scale;
  if (r.overflow) line["overflow"] = true;
  write(line);
  if (bar_) draw(r, tokens_per_s);
}

void RunLog::draw(const StepReport& r, double tokens_per_s) {
  constexpr int kWidth = 24;
  mean_step_seconds_ =
      mean_step_seconds_ == 0 ? r.step_seconds : 0.9 * mean_step_seconds_ + 0.1 * r.step_seconds;
  const int64_t left =
      static_cast<int64_t>(mean_step_seconds_ * static_cast<double>(steps_ - r.step));
  const int filled = static_cast<int>(kWidth * r.step / std::max<int64_t>(1, steps_));
  char text[256];
  std::snprintf(text, sizeof text,
                "\r\033[K[%s%s] %lld/%lld  loss %.4f  lr %.2e  %.0f tok/s  ETA %lld:%02lld",
                std::string(static_cast<size_t>(filled), '#').c_str(),
                std::string(static_cast<size_t>(kWidth - filled), '.').c_str(),
                static_cast<long long>(r.step), static_cast<long long>(steps_), r.loss, r.lr,
                tokens_per_s, static_cast<long long>(left / 60), static_cast<long long>(left % 60));
  std::cerr << text << std::flush;
}

}  // namespace npu
