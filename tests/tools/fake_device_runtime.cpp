// A stand-in for libdevice_runtime.so, the C library that runs compiled code on RNGD cards. See
// fake_rngd.h for what it computes and how it misbehaves. It is exclusive as the real one is: a
// card is the lock on its device node.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

constexpr size_t kCardBytes = size_t{1} << 32;
constexpr size_t kPage = 4096;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void hang() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

struct NpuDesc {
  uint8_t chip, pe_start, pe_end;
};

// fake_rngd_compute at the other end of two pipes, over the same memory.
class Compute {
 public:
  explicit Compute(int memory) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) std::abort();
    const std::string program = environment("FAKE_RNGD_COMPUTE");
    if (::fork() == 0) {
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      const std::string descriptor = std::to_string(memory), bytes = std::to_string(kCardBytes);
      ::execl(program.c_str(), program.c_str(), descriptor.c_str(), bytes.c_str(), nullptr);
      ::_exit(1);
    }
    ::close(to[0]);
    ::close(from[1]);
    out_ = ::fdopen(to[1], "wb");
    in_ = ::fdopen(from[0], "rb");
  }
  void write(const void* data, size_t bytes) {
    if (std::fwrite(data, 1, bytes, out_) != bytes) std::abort();
  }
  void read(void* data, size_t bytes) {
    std::fflush(out_);
    if (std::fread(data, 1, bytes, in_) != bytes) std::abort();
  }

 private:
  FILE *out_, *in_;
};

}  // namespace

struct NpuBuffer {
  uint64_t offset;
  size_t bytes;
  bool owns;
};
struct CpuBuffer {
  std::byte* data;
  size_t bytes;
  bool owns;
};
struct Runtime {
  Runtime(std::byte* mapped, int descriptor) : memory(mapped), compute(descriptor) {}
  std::vector<int> nodes;  // locked
  std::byte* memory;
  size_t limit = kCardBytes, used = 0;
  uint64_t next = kPage;
  bool poisoned = false;
  Compute compute;
  uint64_t loaded = 0;
};
struct Kernel {
  uint64_t number;
  std::string edf;
  std::vector<size_t> inputs, outputs;  // bytes
  int calls = 0;
};

namespace {

Runtime* the_runtime = nullptr;

bool misbehaves(std::string_view mode, const std::string& edf = "", int call = 0) {
  if (environment("FAKE_RNGD_MODE") != mode) return false;
  const std::string wanted = environment("FAKE_RNGD_CALL");
  return edf.find(environment("FAKE_RNGD_ONLY")) != std::string::npos &&
         (wanted.empty() || call == 0 || std::stoi(wanted) == call);
}

void write_nonsense_into_sockets() {
  const std::string nonsense(100, '?');
  for (int fd = 0; fd < 64; ++fd) {
    if (::send(fd, nonsense.data(), nonsense.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) continue;
  }
}

size_t bytes_of(const std::string& dtype) {
  if (dtype == "f32" || dtype == "i32") return 4;
  if (dtype == "bf16" || dtype == "f16") return 2;
  return dtype == "i64" ? 8 : 1;
}

// What fails before the call starts.
int32_t fail_before(Runtime* runtime, const Kernel& kernel) {
  if (misbehaves("hang_run", kernel.edf, kernel.calls)) hang();
  if (misbehaves("slow_run", kernel.edf, kernel.calls)) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
  }
  if (misbehaves("freeze_run", kernel.edf, kernel.calls)) std::raise(SIGSTOP);
  if (misbehaves("kill_run", kernel.edf, kernel.calls)) std::raise(SIGKILL);
  if (misbehaves("abort_run", kernel.edf, kernel.calls)) {
    std::fputs("panic in a function that cannot unwind\n", stderr);
    std::abort();
  }
  if (misbehaves("garbage_run", kernel.edf, kernel.calls)) write_nonsense_into_sockets();
  if (misbehaves("noisy_run", kernel.edf, kernel.calls)) {
    for (int i = 0; i < 20000; ++i) std::printf("line %d of what nobody asked for\n", i);
    std::fflush(stdout);
  }
  if (misbehaves("poison", kernel.edf, kernel.calls)) runtime->poisoned = true;
  if (runtime->poisoned) return -110;
  return misbehaves("fail_run", kernel.edf, kernel.calls) ? -5 : 0;
}

}  // namespace

extern "C" {

const char* furiosa_version() { return "0.0-fake"; }

#ifdef FAKE_LACKS_SYMBOLS
#define furiosa_runtime_init furiosa_runtime_open
#endif
Runtime* furiosa_runtime_init(const NpuDesc* npus, size_t count) {
  if (misbehaves("hang_open")) hang();
  if (misbehaves("slow_open")) std::this_thread::sleep_for(std::chrono::seconds(1));
  const bool groups_fit = count == 1 ? npus[0].pe_start == 0 && npus[0].pe_end < 4
                                     : count == 2 && npus[0].pe_start == 0 && npus[0].pe_end == 3 &&
                                           npus[1].pe_start == 4 && npus[1].pe_end == 7;
  if (!groups_fit || the_runtime != nullptr) return nullptr;
  const std::string node =
      environment("NPU_LORA_RNGD_NODES") + "/npu" + std::to_string(npus[0].chip) + "mgmt";
  const int fd = ::open(node.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) != 0) return nullptr;
  const int descriptor = ::memfd_create("fake-card", 0);
  if (descriptor < 0 || ::ftruncate(descriptor, kCardBytes) != 0) return nullptr;
  void* const memory =
      ::mmap(nullptr, kCardBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memset(memory, 0xee, size_t{1} << 20);  // a card's memory is not zero
  const std::string limit = environment("FAKE_RNGD_MEMORY");
  the_runtime = new Runtime(static_cast<std::byte*>(memory), descriptor);
  the_runtime->nodes = {fd};
  if (!limit.empty()) the_runtime->limit = std::stoull(limit);
  return the_runtime;
}
void furiosa_runtime_free(Runtime* runtime) {
  for (const int fd : runtime->nodes) ::close(fd);
}

Kernel* furiosa_kernel_load(const Runtime*, const uint8_t* edf, size_t length) {
  auto* kernel =
      new Kernel{the_runtime->loaded, {reinterpret_cast<const char*>(edf), length}, {}, {}};
  if (misbehaves("abort_load", kernel->edf)) {
    std::fputs("panic in a function that cannot unwind\n", stderr);
    std::abort();
  }
  if (misbehaves("hang_load", kernel->edf)) hang();
  if (the_runtime->poisoned || misbehaves("refuse_load", kernel->edf)) return nullptr;
  Compute& compute = the_runtime->compute;
  const uint64_t bytes = length;
  compute.write("L", 1);
  compute.write(&bytes, sizeof bytes);
  compute.write(edf, length);
  uint64_t answer = 0;
  compute.read(&answer, sizeof answer);
  std::string ports(answer, '\0');
  compute.read(ports.data(), ports.size());
  if (ports.empty()) return nullptr;
  std::istringstream lines(ports);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string side, dtype;
    words >> side >> dtype;
    size_t size = bytes_of(dtype);
    for (size_t dim = 0; words >> dim;) size *= dim;
    (side == "in" ? kernel->inputs : kernel->outputs).push_back(size);
  }
  ++the_runtime->loaded;
  return kernel;
}
void furiosa_kernel_free(Kernel* kernel) { delete kernel; }

int32_t furiosa_kernel_run(const Kernel* constant, Runtime* runtime, const NpuBuffer* const* in,
                           size_t num_in, const NpuBuffer* const* out, size_t num_out) {
  auto* kernel = const_cast<Kernel*>(constant);
  ++kernel->calls;
  if (const int32_t code = fail_before(runtime, *kernel); code != 0) return code;
  // The real one would read and write beyond: nothing checks sizes for us.
  if (num_in != kernel->inputs.size() || num_out != kernel->outputs.size()) std::abort();
  Compute& compute = runtime->compute;
  compute.write("R", 1);
  compute.write(&kernel->number, sizeof kernel->number);
  for (size_t i = 0; i < num_in; ++i) {
    if (in[i]->bytes != kernel->inputs[i]) std::abort();
    compute.write(&in[i]->offset, sizeof in[i]->offset);
  }
  for (size_t i = 0; i < num_out; ++i) {
    if (out[i]->bytes != kernel->outputs[i]) std::abort();
    compute.write(&out[i]->offset, sizeof out[i]->offset);
  }
  uint64_t done = 1;
  compute.read(&done, sizeof done);
  if (done != 0) std::abort();
  if (misbehaves("wrong_values", kernel->edf, kernel->calls)) {
    for (size_t i = 0; i < num_out; ++i) {
      std::memset(runtime->memory + out[i]->offset, 0, out[i]->bytes);
    }
  }
  return 0;
}

NpuBuffer* furiosa_npu_buffer(const Runtime*, size_t bytes) {
  Runtime& runtime = *the_runtime;
  if (runtime.poisoned || runtime.used + bytes > runtime.limit) return nullptr;
  runtime.used += bytes;
  const uint64_t offset = runtime.next;
  runtime.next += (bytes + kPage - 1) / kPage * kPage;
  if (runtime.next > kCardBytes) std::abort();
  return new NpuBuffer{offset, bytes, true};
}
NpuBuffer* furiosa_npu_buffer_from(const Runtime*, uint64_t offset, size_t bytes) {
  return new NpuBuffer{offset, bytes, false};
}
uint64_t furiosa_npu_buffer_offset(const NpuBuffer* buffer) { return buffer->offset; }
size_t furiosa_npu_buffer_len(const NpuBuffer* buffer) { return buffer->bytes; }
void furiosa_npu_buffer_free(NpuBuffer* buffer) {
  if (buffer->owns) the_runtime->used -= buffer->bytes;
  delete buffer;
}

CpuBuffer* furiosa_cpu_buffer(size_t bytes) {
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  return new CpuBuffer{static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)), rounded, true};
}
CpuBuffer* furiosa_cpu_buffer_from(uint64_t address, size_t bytes) {
  return new CpuBuffer{reinterpret_cast<std::byte*>(address), bytes, false};
}
uint64_t furiosa_cpu_buffer_addr(const CpuBuffer* buffer) {
  return reinterpret_cast<uint64_t>(buffer->data);
}
size_t furiosa_cpu_buffer_len(const CpuBuffer* buffer) { return buffer->bytes; }
void furiosa_cpu_buffer_free(CpuBuffer* buffer) {
  if (buffer->owns) std::free(buffer->data);
  delete buffer;
}

int32_t furiosa_write(const Runtime* runtime, const CpuBuffer* from, const NpuBuffer* to) {
  if (runtime->poisoned) return -110;
  if (from->bytes != to->bytes) return -22;
  std::memcpy(runtime->memory + to->offset, from->data, to->bytes);
  return 0;
}
int32_t furiosa_read(const Runtime* runtime, const NpuBuffer* from, const CpuBuffer* to) {
  if (runtime->poisoned) return -110;
  if (from->bytes != to->bytes) return -22;
  std::memcpy(to->data, runtime->memory + from->offset, from->bytes);
  return 0;
}
}
