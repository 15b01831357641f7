// The device over a session: buffers and parts by name, calls in order of submission.
#include "backend/furiosa_device.h"

#include <algorithm>
#include <utility>

#include "backend/furiosa_blob.h"
#include "backend/furiosa_session.h"
#include "backend/furiosa_setup.h"
#include "backend/furiosa_tcc.h"
#include "backend/host_device.h"

namespace npu {
namespace furiosa {
namespace {

// Memory of the card, freed with the last window into it.
struct Memory {
  Memory(std::shared_ptr<Session> of, uint64_t given) : session(std::move(of)), name(given) {}
  ~Memory() {
    const std::lock_guard lock(session->mutex());
    session->free(name);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::shared_ptr<Session> session;
  uint64_t name;
};

class CardBuffer : public Buffer {
 public:
  CardBuffer(std::shared_ptr<const Memory> memory, size_t offset, size_t bytes)
      : memory_(std::move(memory)), offset_(offset), bytes_(bytes) {}
  size_t bytes() const override { return bytes_; }
  std::byte* host_pointer() override { return nullptr; }
  const std::shared_ptr<const Memory>& memory() const { return memory_; }
  size_t offset() const { return offset_; }
  Window window(size_t bytes) const { return {memory_->name, offset_, bytes}; }

 private:
  std::shared_ptr<const Memory> memory_;
  size_t offset_, bytes_;
};

struct CardExecutable : Executable {
  CardExecutable(std::shared_ptr<Session> of, uint64_t given, Graph of_part)
      : session(std::move(of)), name(given), part(std::move(of_part)) {}
  ~CardExecutable() override {
    const std::lock_guard lock(session->mutex());
    session->unload(name);
  }
  CardExecutable(const CardExecutable&) = delete;
  CardExecutable& operator=(const CardExecutable&) = delete;

  std::shared_ptr<Session> session;
  uint64_t name;
  Graph part;
  std::vector<size_t> inputs, outputs;  // for each port of the EDF, its number in the part
};

// The part's port of each name, and its type.
struct Ports {
  std::vector<size_t> numbers;
  std::vector<PortType> types;
};

Result<Ports> map_ports(const std::vector<std::string>& names,
                        const std::vector<std::pair<std::string, TensorType>>& known,
                        const char* what) {
  Ports ports;
  for (const std::string& name : names) {
    const auto found =
        std::ranges::find_if(known, [&](const auto& port) { return port.first == name; });
    if (found == known.end()) {
      return Error{ErrorKind::kBadInput, "furiosa blob",
                   std::string("the part has no such ") + what, "port \"" + name + "\"",
                   "clear the compile cache"};
    }
    ports.numbers.push_back(static_cast<size_t>(found - known.begin()));
    PortType type{std::string(dtype_name(found->second.dtype)), {}};
    for (const int64_t dim : found->second.shape) type.dims.push_back(static_cast<uint64_t>(dim));
    ports.types.push_back(std::move(type));
  }
  return ports;
}

class CardDevice : public Device {
 public:
  explicit CardDevice(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  Result<std::unique_ptr<Executable>> load(const Blob& blob, const Graph& part) override;
  Result<std::shared_ptr<Buffer>> allocate(size_t bytes) override;
  Result<std::shared_ptr<Buffer>> adopt(const Tensor& host) override;
  std::shared_ptr<Buffer> view(std::shared_ptr<Buffer> whole, size_t offset, size_t bytes) override;
  void upload(Buffer& to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, Buffer& from) override;
  Result<Ticket> submit(Executable& executable, std::span<Buffer* const> inputs,
                        std::span<Buffer* const> outputs) override;
  std::optional<Error> wait(Ticket ticket) override;
  bool lost() const override {
    const std::lock_guard lock(session_->mutex());
    return session_->lost();
  }

 private:
  CardBuffer& ours(Buffer& buffer) const {
    auto* card_buffer = dynamic_cast<CardBuffer*>(&buffer);
    NPU_CHECK(card_buffer != nullptr && card_buffer->memory()->session == session_,
              "the buffer is of another device");
    return *card_buffer;
  }
  std::optional<Error> check_size(const CardExecutable& executable, const std::string& name,
                                  const TensorType& type, const Buffer& buffer) const;

  std::shared_ptr<Session> session_;
};

Result<std::unique_ptr<Executable>> CardDevice::load(const Blob& blob, const Graph& part) {
  const Result<FuriosaBlob> decoded = decode_furiosa_blob(blob);
  if (!decoded) return decoded.error();
  const Result<FuriosaTarget> target = find_furiosa_target(decoded.value().target);
  if (!target) return target.error();
  std::vector<std::pair<std::string, TensorType>> inputs, outputs;
  for (const NodeId id : part.inputs()) {
    inputs.emplace_back(part.node(id).name, part.node(id).type);
  }
  for (const GraphOutput& output : part.outputs()) {
    outputs.emplace_back(output.name, part.node(output.node).type);
  }
  Result<Ports> in = map_ports(decoded.value().inputs, inputs, "input");
  if (!in) return in.error();
  Result<Ports> out = map_ports(decoded.value().outputs, outputs, "output");
  if (!out) return out.error();
  if (out.value().numbers.size() != outputs.size()) {
    return Error{ErrorKind::kBadInput, "furiosa blob", "outputs are missing", "",
                 "clear the compile cache"};
  }
  const std::lock_guard lock(session_->mutex());
  if (auto error = session_->use_pes(target.value().pes)) return std::move(*error);
  const bool serialized = decoded.value().container == FuriosaContainer::kRunnable;
  const Result<uint64_t> name =
      session_->load({0, decoded.value().edf, std::move(in.value().types),
                      std::move(out.value().types), serialized ? uint64_t{1} : 0});
  if (!name) return name.error();
  auto executable = std::make_unique<CardExecutable>(session_, name.value(), part);
  executable->inputs = std::move(in.value().numbers);
  executable->outputs = std::move(out.value().numbers);
  return std::unique_ptr<Executable>(std::move(executable));
}

Result<std::shared_ptr<Buffer>> CardDevice::allocate(size_t bytes) {
  uint64_t name = 0;
  {
    const std::lock_guard lock(session_->mutex());
    const Result<uint64_t> allocated = session_->allocate(bytes);
    if (!allocated) return allocated.error();
    name = allocated.value();
  }
  return std::shared_ptr<Buffer>(
      std::make_shared<CardBuffer>(std::make_shared<const Memory>(session_, name), 0, bytes));
}

Result<std::shared_ptr<Buffer>> CardDevice::adopt(const Tensor& host) {
  Result<std::shared_ptr<Buffer>> copy = allocate(host.bytes());
  if (copy) upload(*copy.value(), {host.data(), host.bytes()});
  return copy;
}

std::shared_ptr<Buffer> CardDevice::view(std::shared_ptr<Buffer> whole, size_t offset,
                                         size_t bytes) {
  check_view(*whole, offset, bytes);
  const CardBuffer& of = ours(*whole);
  return std::make_shared<CardBuffer>(of.memory(), of.offset() + offset, bytes);
}

void CardDevice::upload(Buffer& to, std::span<const std::byte> from) {
  NPU_CHECK(from.size() <= to.bytes(), "upload is larger than its buffer");
  NPU_CHECK(!to.frozen(), "upload to a frozen buffer");
  const CardBuffer& buffer = ours(to);
  const std::lock_guard lock(session_->mutex());
  session_->mark_written(buffer.memory()->name);
  session_->channel().upload(buffer.memory()->name, buffer.offset(), from);
}

void CardDevice::download(std::span<std::byte> to, Buffer& from) {
  NPU_CHECK(to.size() <= from.bytes(), "download is larger than its buffer");
  const CardBuffer& buffer = ours(from);
  const std::lock_guard lock(session_->mutex());
  if (session_->channel().download(to, buffer.memory()->name, buffer.offset())) return;
  session_->channel().give_up("a download failed");
  std::ranges::fill(to, std::byte{0xff});  // NaN, so that nobody goes on with it unnoticed
}

std::optional<Error> CardDevice::check_size(const CardExecutable& executable,
                                            const std::string& name, const TensorType& type,
                                            const Buffer& buffer) const {
  if (buffer.bytes() >= static_cast<size_t>(type.bytes())) return std::nullopt;
  return Error{ErrorKind::kBadInput, executable.part.name(),
               name + " needs " + std::to_string(type.bytes()) + " bytes",
               std::to_string(buffer.bytes()), ""};
}

Result<Device::Ticket> CardDevice::submit(Executable& executable, std::span<Buffer* const> inputs,
                                          std::span<Buffer* const> outputs) {
  auto* loaded = dynamic_cast<CardExecutable*>(&executable);
  NPU_CHECK(loaded != nullptr && loaded->session == session_, "the part is of another device");
  const Graph& part = loaded->part;
  NPU_CHECK(inputs.size() == part.inputs().size() && outputs.size() == part.outputs().size(),
            "a call binds another number of buffers than the part has ports");
  RunCall call;
  call.executable = loaded->name;
  for (const size_t i : loaded->inputs) {
    const Node& port = part.node(part.inputs()[i]);
    CardBuffer& buffer = ours(*inputs[i]);
    if (auto error = check_size(*loaded, port.name, port.type, buffer)) return std::move(*error);
    call.inputs.push_back(buffer.window(static_cast<size_t>(port.type.bytes())));
  }
  for (const size_t i : loaded->outputs) {
    const GraphOutput& port = part.outputs()[i];
    const TensorType& type = part.node(port.node).type;
    CardBuffer& buffer = ours(*outputs[i]);
    if (auto error = check_size(*loaded, port.name, type, buffer)) return std::move(*error);
    call.outputs.push_back(buffer.window(static_cast<size_t>(type.bytes())));
  }
  const std::lock_guard lock(session_->mutex());
  if (session_->lost()) return session_->lost_error();
  for (const Window& output : call.outputs) session_->mark_written(output.buffer);
  return session_->channel().post(Op::kRun, encode_body(std::move(call)));
}

std::optional<Error> CardDevice::wait(Ticket ticket) {
  const std::lock_guard lock(session_->mutex());
  const Answer answer = session_->channel().wait(ticket);
  switch (answer.status) {
    case Status::kOk:
      return std::nullopt;
    case Status::kLost:
      return session_->lost_error();
    case Status::kBadResult:
      return Error{ErrorKind::kBadInput, session_->where(),
                   "the part gave other outputs than it has", answer.body,
                   "`npu-lora diagnose compare-parts` shows which part is wrong"};
    case Status::kNoMemory:
      return Error{ErrorKind::kRetriable, session_->where(), "device memory is exhausted",
                   answer.body, "use a smaller --batch or --seq-len"};
    default:
      return Error{ErrorKind::kRetriable, session_->where(), "the call failed", answer.body,
                   "start the command again, with --on-device-error host if it stays"};
  }
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(const DeviceSettings& settings) {
  Result<std::shared_ptr<Session>> session = Session::open(settings);
  if (!session) return session.error();
  return std::unique_ptr<Device>(std::make_unique<CardDevice>(std::move(session.value())));
}

}  // namespace furiosa

Result<std::unique_ptr<Device>> open_furiosa_device(const std::string& which,
                                                    const DeviceOptions&) {
  using namespace furiosa;
  Result<std::vector<int>> cards = cards_to_try(which);
  if (!cards) return cards.error();
  Result<WorkerProgram> program = worker_program();
  if (!program) return program.error();
  return open_device({std::move(cards.value()), std::move(program.value()), worker_limits()});
}

std::optional<Error> probe_furiosa_device() {
  using namespace furiosa;
  if (Result<std::vector<int>> cards = cards_to_try("auto"); !cards) return cards.error();
  Result<WorkerProgram> program = worker_program();
  if (!program) return program.error();
  return try_worker(program.value());
}

}  // namespace npu
