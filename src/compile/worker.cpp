// Both sides of the compile child. The child answers on the stdout that it was given, and hands the
// compiler stderr in its place: vendor compilers print wherever they like.
#include "compile/worker.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <new>

#include "base/log.h"
#include "base/process.h"
#include "compile/fields.h"
#include "ir/text.h"
#include "ops/table.h"

namespace npu {
namespace {

using Kind = CompileOutcome::Kind;

constexpr std::string_view kJobTag = "npu-compile-job-2", kReplyTag = "npu-compile-reply-1";
constexpr size_t kJobLimit = size_t{1} << 30;

// Exit code of a child whose allocation failed: no words left to say it with.
constexpr int kExitNoMemory = 74;

constexpr std::string_view kBuilt = "built", kRejected = "rejected", kUnavailable = "unavailable";

JobResult refusal(const Error& error) {
  JobResult result;
  result.outcome.kind = Kind::kRejected;
  result.outcome.reason = error.text();
  result.lasting = error.kind == ErrorKind::kBadInput;
  return result;
}

std::string job_message(const std::string& backend_name, const std::string& part_text,
                        const CompileOptions& options, int jobs) {
  std::vector<std::string> fields = {std::string(kJobTag), backend_name, part_text,
                                     std::to_string(options.threads), std::to_string(jobs)};
  for (const auto& [name, value] : options.vendor) {
    fields.push_back(name);
    fields.push_back(value);
  }
  return pack_fields(fields);
}

// The child's reply, when all of it came.
std::optional<JobResult> read_reply(const ChildResult& child) {
  const auto fields = unpack_fields(child.out);
  if (!fields || fields->size() != 3 || (*fields)[0] != kReplyTag || child.out_cut) {
    return std::nullopt;
  }
  JobResult result;
  if ((*fields)[1] == kBuilt) {
    result.outcome.kind = Kind::kBuilt;
    result.outcome.blob = (*fields)[2];
  } else {
    result.outcome.kind = Kind::kRejected;
    result.outcome.reason = (*fields)[2];
    result.lasting = (*fields)[1] == kRejected;
  }
  return result;
}

JobResult judge(const ChildResult& child) {
  // Also of a child that then fell over: libraries that crash while they are unloaded are common.
  if (auto reply = read_reply(child)) return std::move(*reply);
  JobResult result;
  result.outcome.kind = Kind::kCrashed;
  result.outcome.reason = child.describe();
  switch (child.end) {
    case ChildResult::End::kTimedOut:
      result.outcome.kind = Kind::kTimedOut;
      break;
    case ChildResult::End::kOutOfMemory:
      result.outcome.kind = Kind::kOutOfMemory;
      break;
    case ChildResult::End::kNotStarted:
    case ChildResult::End::kAbandoned:
      result.lasting = false;
      break;
    case ChildResult::End::kExited:
      if (child.exit_code == kExitNoMemory) {
        result.outcome.kind = Kind::kOutOfMemory;
        result.outcome.reason = "an allocation failed";
      } else if (child.exit_code == 0) {
        result.outcome.reason = "ended without a complete reply";
      }
      break;
    case ChildResult::End::kSignaled:
      // Sent by the kernel when memory is short, or by somebody: not by the compiler itself.
      result.lasting = child.signal != SIGKILL && child.signal != SIGTERM &&
                       child.signal != SIGINT && child.signal != SIGHUP;
      break;
  }
  return result;
}

std::string read_all(int fd) {
  std::string bytes;
  std::array<char, 1 << 16> chunk{};
  while (bytes.size() <= kJobLimit) {
    const ssize_t got = ::read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    bytes.append(chunk.data(), static_cast<size_t>(got));
  }
  return bytes;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// The job of a message done by this process.
JobResult do_job(std::string_view message, const MakeBackend& make) {
  const auto fields = unpack_fields(message);
  if (!fields || fields->size() < 5 || fields->size() % 2 != 1 || (*fields)[0] != kJobTag) {
    return refusal({ErrorKind::kUsage, "compile-worker", "stdin holds no compile job", "",
                    "this command is for npu-lora's own use"});
  }
  CompileOptions options;
  options.threads = std::atoi(std::string((*fields)[3]).c_str());
  options.jobs = std::atoi(std::string((*fields)[4]).c_str());
  for (size_t i = 5; i < fields->size(); i += 2) {
    options.vendor.emplace_back((*fields)[i], (*fields)[i + 1]);
  }
  Result<std::unique_ptr<Backend>> backend = make((*fields)[1]);
  if (!backend) return refusal(backend.error());
  const Result<Graph> part = parse_graph((*fields)[2], find_op, "part");
  if (!part) return refusal(part.error());
  return compile_here(*backend.value(), part.value(), options);
}

}  // namespace

JobResult compile_here(Backend& backend, const Graph& part, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  Result<Blob> blob = backend.compile(part, options);
  if (!blob) return refusal(blob.error());
  JobResult result;
  result.outcome.kind = Kind::kBuilt;
  result.outcome.blob = std::move(blob.value());
  result.outcome.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

JobResult compile_in_child(const std::string& backend_name, const std::string& part_text,
                           const CompileOptions& options, const CompileSettings& settings) {
  ChildOptions child_options;
  child_options.limits = {settings.seconds_limit, settings.memory_limit_bytes};
  child_options.input = job_message(backend_name, part_text, options, settings.jobs);
  child_options.max_output_bytes = size_t{1} << 34;
  child_options.on_error_line = [](std::string_view line) {
    log(LogLevel::kDebug, "compile", line);
  };
  const ChildResult child = run_child(settings.worker, child_options);
  JobResult result = judge(child);
  result.outcome.log_tail = child.err_tail;
  result.outcome.seconds = child.seconds;
  result.outcome.peak_memory_bytes = child.peak_memory_bytes;
  result.outcome.seconds_limit = settings.seconds_limit;
  result.outcome.memory_limit_bytes = settings.memory_limit_bytes;
  return result;
}

int serve_compile_job(const MakeBackend& make) {
  const int reply_fd = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (reply_fd < 0 || ::dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return 1;
  set_log_channels("compile");  // whether they are shown is the parent's choice
  try {
    const JobResult result = do_job(read_all(STDIN_FILENO), make);
    const std::string_view status = result.outcome.built() ? kBuilt
                                    : result.lasting       ? kRejected
                                                           : kUnavailable;
    const std::string& content =
        result.outcome.built() ? result.outcome.blob : result.outcome.reason;
    const std::string reply = pack_fields({std::string(kReplyTag), std::string(status), content});
    return write_all(reply_fd, reply) ? 0 : 1;
  } catch (const std::bad_alloc&) {
    return kExitNoMemory;
  } catch (const std::exception& e) {
    log(LogLevel::kError, "compile", e.what());
    return 1;
  }
}

int compile_worker_main() { return serve_compile_job(make_backend); }

}  // namespace npu
