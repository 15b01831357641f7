// The worker over the vendor's C library: one call after the other, in the order in which they
// come. It trusts whoever started it, and nothing that the library gives.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "backend/furiosa_device.h"
#include "backend/furiosa_protocol.h"
#include "backend/furiosa_runtime.h"

namespace npu {
namespace furiosa {
namespace {

constexpr auto kBeatInterval = std::chrono::milliseconds(500);
constexpr size_t kPesOfAGroup = 4;  // a whole card is opened as two
constexpr int kExitNoLibrary = 3, kExitUsage = 2;

struct Answer {
  Status status = Status::kOk;
  std::string body;
};

// Frees what the library made.
template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

class NativeCard {
 public:
  explicit NativeCard(std::unique_ptr<RuntimeLibrary> library) : library_(std::move(library)) {}
  ~NativeCard();

  Answer open(const OpenCall& call);
  Answer allocate(const Window& window);
  Answer free(const Window& window);
  Answer upload(const Transfer& transfer);
  Answer download(const Transfer& transfer);
  Answer load(const LoadCall& call);
  Answer unload(const RunCall& call);
  Answer run(const RunCall& call);

 private:
  // A buffer of the card and the pieces of it that calls have named so far.
  struct Memory {
    Owned<NpuMemory> whole;
    uint64_t bytes;
    std::map<std::pair<uint64_t, uint64_t>, Owned<NpuMemory>> pieces;
  };

  NpuMemory* piece(const Window& window);
  Owned<CpuMemory> staged(size_t bytes);
  bool write(const NpuMemory* to, size_t bytes);
  bool still_works();
  Answer after_failure(const std::string& what, int32_t code);

  std::unique_ptr<RuntimeLibrary> library_;
  RuntimeHandle* runtime_ = nullptr;
  std::byte* shared_ = nullptr;
  size_t shared_bytes_ = 0;
  CpuMemory* staging_ = nullptr;  // everything goes through it: the card cannot reach shared_
  std::byte* staging_data_ = nullptr;
  size_t staging_bytes_ = 0;
  std::map<uint64_t, Memory> memory_;
  std::map<uint64_t, Owned<KernelHandle>> kernels_;
  std::vector<const NpuMemory*> inputs_, outputs_;
};

NativeCard::~NativeCard() {
  kernels_.clear();
  memory_.clear();
  if (staging_ != nullptr) library_->cpu_buffer_free(staging_);
  if (runtime_ != nullptr) library_->free(runtime_);
}

Answer NativeCard::open(const OpenCall& call) {
  shared_bytes_ = call.shared_bytes;
  void* const mapped = ::mmap(nullptr, shared_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED,
                              static_cast<int>(call.descriptor), 0);
  if (mapped == MAP_FAILED) return {Status::kMissing, std::strerror(errno)};
  shared_ = static_cast<std::byte*>(mapped);
  std::vector<NpuDesc> groups;
  for (size_t first = 0; first < call.pes; first += kPesOfAGroup) {
    const size_t last = std::min<size_t>(first + kPesOfAGroup, call.pes) - 1;
    groups.push_back(
        {static_cast<uint8_t>(call.card), static_cast<uint8_t>(first), static_cast<uint8_t>(last)});
  }
  runtime_ = library_->init(groups.data(), groups.size());
  if (runtime_ == nullptr) return {Status::kBusy, "the runtime cannot have it"};
  staging_ = library_->cpu_buffer(shared_bytes_ / 2);
  if (staging_ == nullptr) return {Status::kNoMemory, "no host memory that the card can reach"};
  staging_data_ = reinterpret_cast<std::byte*>(library_->cpu_buffer_addr(staging_));
  staging_bytes_ = library_->cpu_buffer_len(staging_);
  const char* const version = library_->version();
  return {Status::kOk, std::string("device_runtime ") + (version == nullptr ? "?" : version)};
}

Owned<CpuMemory> NativeCard::staged(size_t bytes) {
  return {library_->cpu_buffer_from(reinterpret_cast<uint64_t>(staging_data_), bytes),
          library_->cpu_buffer_free};
}

bool NativeCard::write(const NpuMemory* to, size_t bytes) {
  const Owned<CpuMemory> from = staged(bytes);
  return from != nullptr && library_->write(runtime_, from.get(), to) == 0;
}

NpuMemory* NativeCard::piece(const Window& window) {
  const auto found = memory_.find(window.buffer);
  if (found == memory_.end()) return nullptr;
  Memory& memory = found->second;
  if (window.offset > memory.bytes || window.bytes > memory.bytes - window.offset) return nullptr;
  if (window.offset == 0 && window.bytes == memory.bytes) return memory.whole.get();
  const auto known = memory.pieces.find({window.offset, window.bytes});
  if (known != memory.pieces.end()) return known->second.get();
  const uint64_t at = library_->npu_buffer_offset(memory.whole.get()) + window.offset;
  Owned<NpuMemory> made(library_->npu_buffer_from(runtime_, at, window.bytes),
                        library_->npu_buffer_free);
  NpuMemory* const result = made.get();
  memory.pieces.emplace(std::pair(window.offset, window.bytes), std::move(made));
  return result;
}

Answer NativeCard::allocate(const Window& window) {
  Owned<NpuMemory> made(library_->npu_buffer(runtime_, window.bytes), library_->npu_buffer_free);
  if (made == nullptr) return {Status::kNoMemory, std::to_string(window.bytes) + " bytes wanted"};
  memory_.emplace(window.buffer, Memory{std::move(made), window.bytes, {}});
  std::memset(staging_data_, 0, std::min<size_t>(staging_bytes_, window.bytes));
  for (uint64_t at = 0; at < window.bytes; at += staging_bytes_) {
    const size_t bytes = std::min<uint64_t>(staging_bytes_, window.bytes - at);
    const Owned<NpuMemory> to(
        library_->npu_buffer_from(
            runtime_, library_->npu_buffer_offset(memory_.at(window.buffer).whole.get()) + at,
            bytes),
        library_->npu_buffer_free);
    if (to == nullptr || !write(to.get(), bytes)) {
      return {Status::kLost, "memory of the card cannot be written"};
    }
  }
  return {};
}

Answer NativeCard::free(const Window& window) {
  memory_.erase(window.buffer);
  return {};
}

Answer NativeCard::upload(const Transfer& transfer) {
  const size_t bytes = transfer.window.bytes;
  NpuMemory* const to = piece(transfer.window);
  if (to == nullptr || bytes > staging_bytes_ || transfer.shared_offset + bytes > shared_bytes_) {
    return {Status::kLost, "an upload names no memory"};
  }
  std::memcpy(staging_data_, shared_ + transfer.shared_offset, bytes);
  return write(to, bytes) ? Answer{} : Answer{Status::kLost, "an upload fails"};
}

Answer NativeCard::download(const Transfer& transfer) {
  const size_t bytes = transfer.window.bytes;
  NpuMemory* const from = piece(transfer.window);
  if (from == nullptr || bytes > staging_bytes_ || transfer.shared_offset + bytes > shared_bytes_) {
    return {Status::kLost, "a download names no memory"};
  }
  const Owned<CpuMemory> to = staged(bytes);
  if (to == nullptr || library_->read(runtime_, from, to.get()) != 0) {
    return {Status::kLost, "a download fails"};
  }
  std::memcpy(shared_ + transfer.shared_offset, staging_data_, bytes);
  return {};
}

Answer NativeCard::load(const LoadCall& call) {
  if (call.serialized != 0) {
    return {Status::kRefused,
            "furiosa.torch compiled it, and only furiosa.torch loads that: "
            "NPU_LORA_FURIOSA_WORKER=python, or --compiler tcc"};
  }
  KernelHandle* const kernel = library_->kernel_load(
      runtime_, reinterpret_cast<const uint8_t*>(call.edf.data()), call.edf.size());
  if (kernel == nullptr) return {Status::kRefused, "furiosa_kernel_load gives nothing"};
  kernels_.emplace(call.executable, Owned<KernelHandle>(kernel, library_->kernel_free));
  return {};
}

Answer NativeCard::unload(const RunCall& call) {
  kernels_.erase(call.executable);
  return {};
}

Answer NativeCard::run(const RunCall& call) {
  const auto kernel = kernels_.find(call.executable);
  if (kernel == kernels_.end()) return {Status::kLost, "a call names no loaded part"};
  const auto collect = [this](const std::vector<Window>& windows,
                              std::vector<const NpuMemory*>& pieces) {
    pieces.clear();
    for (const Window& window : windows) pieces.push_back(piece(window));
    return std::ranges::find(pieces, nullptr) == pieces.end();
  };
  if (!collect(call.inputs, inputs_) || !collect(call.outputs, outputs_)) {
    return {Status::kLost, "a call names no memory"};
  }
  const int32_t code = library_->kernel_run(kernel->second.get(), runtime_, inputs_.data(),
                                            inputs_.size(), outputs_.data(), outputs_.size());
  return code == 0 ? Answer{} : after_failure("furiosa_kernel_run", code);
}

// A time-out inside the runtime leaves a process in which nothing works any more.
Answer NativeCard::after_failure(const std::string& what, int32_t code) {
  return {still_works() ? Status::kFailed : Status::kLost, what + " gives " + std::to_string(code)};
}

bool NativeCard::still_works() {
  constexpr std::string_view kText = "still there?";
  const Owned<NpuMemory> scratch(library_->npu_buffer(runtime_, kText.size()),
                                 library_->npu_buffer_free);
  if (scratch == nullptr) return false;
  std::memcpy(staging_data_, kText.data(), kText.size());
  if (!write(scratch.get(), kText.size())) return false;
  std::memset(staging_data_, 0, kText.size());
  const Owned<CpuMemory> to = staged(kText.size());
  return to != nullptr && library_->read(runtime_, scratch.get(), to.get()) == 0 &&
         std::memcmp(staging_data_, kText.data(), kText.size()) == 0;
}

// The socket: calls in, answers and heart-beats out.
class Server {
 public:
  Server(NativeCard& card, int socket)
      : card_(card), socket_(socket), beats_([this](const std::stop_token& stop) { beat(stop); }) {}

  void serve() {
    std::string received;
    for (;;) {
      Result<std::optional<Frame>> frame = take_frame(received);
      if (!frame) return;
      if (frame.value()) {
        if (!answer(*frame.value())) return;
        continue;
      }
      std::array<char, 1 << 16> chunk{};
      const ssize_t got = ::recv(socket_, chunk.data(), chunk.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return;
      received.append(chunk.data(), static_cast<size_t>(got));
    }
  }

 private:
  bool answer(const Frame& frame) {
    set_busy(true);
    const Answer answered = called(frame);
    set_busy(false);
    return send({static_cast<uint64_t>(answered.status), frame.number, answered.body});
  }

  Answer called(const Frame& frame) {
    switch (static_cast<Op>(frame.kind)) {
      case Op::kOpen:
        return with<OpenCall>(frame, &NativeCard::open);
      case Op::kAllocate:
        return with<Window>(frame, &NativeCard::allocate);
      case Op::kFree:
        return with<Window>(frame, &NativeCard::free);
      case Op::kUpload:
        return with<Transfer>(frame, &NativeCard::upload);
      case Op::kDownload:
        return with<Transfer>(frame, &NativeCard::download);
      case Op::kLoad:
        return with<LoadCall>(frame, &NativeCard::load);
      case Op::kUnload:
        return with<RunCall>(frame, &NativeCard::unload);
      case Op::kRun:
        return with<RunCall>(frame, &NativeCard::run);
    }
    return {Status::kLost, "unknown call " + std::to_string(frame.kind)};
  }

  template <class T>
  Answer with(const Frame& frame, Answer (NativeCard::*call)(const T&)) {
    const std::optional<T> message = decode_body<T>(frame.body);
    return message ? (card_.*call)(*message) : Answer{Status::kLost, "a call is damaged"};
  }

  bool send(const Frame& frame) {
    const std::lock_guard lock(sending_);
    const std::string encoded = encode(frame);
    for (std::string_view rest = encoded; !rest.empty();) {
      const ssize_t sent = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      rest.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  void set_busy(bool busy) {
    const std::lock_guard lock(beating_);
    busy_ = busy;
  }

  void beat(const std::stop_token& stop) {
    std::unique_lock lock(beating_);
    while (!stop.stop_requested()) {
      wake_.wait_for(lock, stop, kBeatInterval, [] { return false; });
      if (busy_ && !stop.stop_requested()) send({static_cast<uint64_t>(Status::kBeat), 0, ""});
    }
  }

  NativeCard& card_;
  int socket_;
  std::mutex sending_, beating_;
  std::condition_variable_any wake_;
  bool busy_ = false;
  std::jthread beats_;  // last: it uses the others
};

}  // namespace
}  // namespace furiosa

int furiosa_worker_main(const std::vector<std::string>& arguments) {
  using namespace furiosa;
  if (arguments.empty() || arguments.size() > 2) return kExitUsage;
  auto library = RuntimeLibrary::open(arguments[0]);
  if (!library) {
    std::fprintf(stderr, "%s\n", library.error().text().c_str());
    return kExitNoLibrary;
  }
  if (arguments.size() == 2) return 0;  // it can be opened: that was the question
  // The calls come over stdin, a socket; the library gets a stdin and a stdout that lead nowhere.
  const int socket = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
  const int nowhere = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (socket < 0 || nowhere < 0 || ::dup2(nowhere, STDIN_FILENO) < 0) return kExitUsage;
  NativeCard card(std::move(library.value()));
  Server(card, socket).serve();
  return 0;
}

}  // namespace npu
