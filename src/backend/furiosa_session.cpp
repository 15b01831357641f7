// Opening cards in turn, and the restart after a part that killed the worker.
#include "backend/furiosa_session.h"

#include <algorithm>

#include "base/log.h"

namespace npu::furiosa {
namespace {

constexpr const char* kOpenAgain =
    "start the command again: a resumed run continues from the last checkpoint";

}  // namespace

Result<std::shared_ptr<Session>> Session::open(const DeviceSettings& settings) {
  std::string tried;
  for (const int card : settings.cards) {
    std::shared_ptr<Session> session(new Session(settings));
    std::optional<Error> failure = session->start(card);
    if (!failure) return session;
    // Another card has the same library.
    if (failure->kind != ErrorKind::kRetriable) return std::move(*failure);
    tried += (tried.empty() ? "" : "; ") + failure->where + ": " + failure->what +
             (failure->got.empty() ? "" : ", " + failure->got);
  }
  return Error{ErrorKind::kRetriable, "furiosa", "no card can be opened", tried,
               "end the program that holds it (furiosa-smi lists them), or name another card"};
}

std::optional<Error> Session::start(int card) {
  card_ = card;
  where_ = "furiosa:" + std::to_string(card);
  auto channel = Channel::start(settings_.worker, settings_.limits);
  if (!channel) {
    Error error = channel.error();
    if (error.hint.empty()) error.hint = "`npu-lora doctor` says how to install it";
    return error;
  }
  channel_ = std::move(channel.value());
  OpenCall call;
  call.card = static_cast<uint64_t>(card);
  call.pes = static_cast<uint64_t>(pes_);
  const Answer answer = channel_->call(Op::kOpen, encode_body(call));
  if (answer.status != Status::kOk) {
    if (answer.status == Status::kBusy) channel_->give_up(answer.body);
    return error_of(answer, "the worker does not come up");
  }
  log(LogLevel::kDebug, "runtime",
      where_ + " with " + std::to_string(pes_) + " PEs: " + answer.body);
  return std::nullopt;
}

Error Session::error_of(const Answer& answer, const std::string& what) const {
  switch (answer.status) {
    case Status::kOk:
      break;
    case Status::kRefused:
      return {ErrorKind::kBadInput, where_, "the runtime refuses the compiled part", answer.body,
              "clear the compile cache, or compile with the runtime's release"};
    case Status::kNoMemory:
      return {ErrorKind::kRetriable, where_, "device memory is exhausted", answer.body,
              "use a smaller --batch or --seq-len"};
    case Status::kBusy:
      return {ErrorKind::kRetriable, where_, "is busy", channel_->lost_why(),
              "end the program that holds it"};
    case Status::kBadResult:
      return {ErrorKind::kBadInput, where_, "the part does not fit its graph", answer.body,
              "clear the compile cache"};
    case Status::kMissing:
      return {ErrorKind::kBadInput, where_, "the worker lacks something", answer.body,
              "`npu-lora doctor` says how to install it"};
    case Status::kFailed:
      return {ErrorKind::kRetriable, where_, what, answer.body,
              "start the command again, with --host-parts or --on-device-error host if it stays"};
    case Status::kLost:
    case Status::kBeat:
      return {ErrorKind::kRetriable, where_, what, answer.body, kOpenAgain};
  }
  return {ErrorKind::kRetriable, where_, what, "", kOpenAgain};
}

Error Session::lost_error() const {
  return {ErrorKind::kRetriable, where_, "the device is lost", channel_->lost_why(), kOpenAgain};
}

std::optional<Error> Session::use_pes(int pes) {
  if (pes == pes_) return std::nullopt;
  if (!loaded_.empty() || !buffers_.empty()) {
    return Error{ErrorKind::kBadInput, where_, "the part is compiled for another number of PEs",
                 std::to_string(pes) + ", the card is in use with " + std::to_string(pes_),
                 "compile all parts for one target"};
  }
  pes_ = pes;
  return restart();
}

std::optional<Error> Session::restart() {
  channel_->give_up("it is started anew");
  // A card is free only when its last owner is gone; give_up() waited for that.
  if (auto failure = start(card_)) return failure;
  for (auto& [name, call] : loaded_) {
    const Answer answer = channel_->call(Op::kLoad, encode_body(call));
    if (answer.status != Status::kOk) return error_of(answer, "the new worker is lost");
  }
  for (const auto& [name, buffer] : buffers_) {
    const Answer answer = channel_->call(Op::kAllocate, encode_body(Window{name, 0, buffer.bytes}));
    if (answer.status != Status::kOk) return error_of(answer, "the new worker is lost");
  }
  return std::nullopt;
}

Result<uint64_t> Session::load(LoadCall call) {
  if (lost()) return lost_error();
  call.executable = ++last_name_;
  const Answer answer = channel_->call(Op::kLoad, encode_body(call));
  if (answer.status == Status::kOk) {
    loaded_.emplace(call.executable, std::move(call));
    return last_name_;
  }
  if (!lost()) return error_of(answer, "the part cannot be loaded");
  const std::string why = channel_->lost_why();
  const bool killed = channel_->killed();
  const bool only_zeros =
      std::ranges::none_of(buffers_, [](const auto& entry) { return entry.second.written; });
  if (!only_zeros) return lost_error();
  log_warn("runtime", where_ + ": the worker is lost loading a part, starting another: " + why);
  if (auto failure = restart()) {
    channel_->give_up("it did not come up again");
    return std::move(*failure);
  }
  if (killed) {  // by the kernel, for memory, or by somebody: that says nothing about the part
    return Error{ErrorKind::kRetriable, where_, "the worker was killed while it loaded a part", why,
                 "start the command again"};
  }
  return Error{ErrorKind::kBadInput, where_, "the runtime dies of the compiled part", why,
               "the part runs on the host"};
}

void Session::unload(uint64_t executable) {
  loaded_.erase(executable);
  RunCall call;
  call.executable = executable;
  channel_->post(Op::kUnload, encode_body(call), Channel::After::kIgnore);
}

Result<uint64_t> Session::allocate(size_t bytes) {
  if (lost()) return lost_error();
  const uint64_t name = ++last_name_;
  const Answer answer = channel_->call(Op::kAllocate, encode_body(Window{name, 0, bytes}));
  if (answer.status == Status::kOk) {
    buffers_[name].bytes = bytes;
    return name;
  }
  return lost() ? lost_error() : error_of(answer, "no memory can be had");
}

void Session::free(uint64_t buffer) {
  buffers_.erase(buffer);
  channel_->post(Op::kFree, encode_body(Window{buffer, 0, 0}), Channel::After::kIgnore);
}

void Session::mark_written(uint64_t buffer) { buffers_.at(buffer).written = true; }

}  // namespace npu::furiosa
