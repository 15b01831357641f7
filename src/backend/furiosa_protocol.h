// What a device and its worker say to each other. A message is a frame: magic, kind, number and
// length of the body, then the body; numbers are of 8 bytes, low byte first, and texts and lists
// come after their length. workers/furiosa_worker.py has the same in Python. Tensors travel through
// memory that both map.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace npu::furiosa {

enum class Op : uint64_t {
  kOpen = 1,  // OpenCall; the answer is the runtime's name and release
  kAllocate,  // Window; zero-filled
  kFree,      // Window
  kUpload,    // Transfer
  kDownload,  // Transfer
  kLoad,      // LoadCall
  kUnload,    // RunCall without buffers
  kRun,       // RunCall
};

// The body of any answer but kOk's is a text.
enum class Status : uint64_t {
  kOk = 0,
  kRefused,    // this part cannot be loaded
  kNoMemory,   // of the card
  kBusy,       // the card is another's, or not there
  kFailed,     // this call failed, the card still answers
  kLost,       // the runtime does nothing any more
  kBadResult,  // the part gave other outputs than it should
  kMissing,    // a library or package
  kBeat,       // no answer: the worker is alive and working (number 0)
};

inline constexpr uint64_t kMagic = 0x31444557'55504e21;  // "!NPUWED1"
inline constexpr size_t kHeaderBytes = 32;
inline constexpr uint64_t kMostBodyBytes = uint64_t{1} << 30;

struct Frame {
  uint64_t kind = 0;  // an Op or a Status
  uint64_t number = 0;
  std::string body;
};
std::string encode(const Frame& frame);
// Takes the first whole frame off the front of `bytes`; nothing while it is not all there. Error:
// these are no frames.
Result<std::optional<Frame>> take_frame(std::string& bytes);

struct OpenCall {
  uint64_t card = 0, pes = 0;  // PEs: 1, 2, 4 or 8
  uint64_t descriptor = 0, shared_bytes = 0;
  template <class Fields>
  void visit(Fields& f) {
    f(card), f(pes), f(descriptor), f(shared_bytes);
  }
};

// A piece of a buffer. Buffers are named by whoever asks for them.
struct Window {
  uint64_t buffer = 0, offset = 0, bytes = 0;
  template <class Fields>
  void visit(Fields& f) {
    f(buffer), f(offset), f(bytes);
  }
};

struct Transfer {
  Window window;
  uint64_t shared_offset = 0;
  template <class Fields>
  void visit(Fields& f) {
    f(window), f(shared_offset);
  }
};

struct PortType {
  std::string dtype;  // as our graphs' texts name it
  std::vector<uint64_t> dims;
  template <class Fields>
  void visit(Fields& f) {
    f(dtype), f(dims);
  }
};

struct LoadCall {
  uint64_t executable = 0;
  std::string edf;
  std::vector<PortType> inputs, outputs;  // in the EDF's order
  uint64_t serialized = 0;                // 1: not an EDF, but what furiosa.torch serialized
  template <class Fields>
  void visit(Fields& f) {
    f(executable), f(edf), f(inputs), f(outputs), f(serialized);
  }
};

struct RunCall {
  uint64_t executable = 0;
  std::vector<Window> inputs, outputs;  // in the EDF's order, of exactly their ports' sizes
  template <class Fields>
  void visit(Fields& f) {
    f(executable), f(inputs), f(outputs);
  }
};

class FieldWriter {
 public:
  void operator()(uint64_t number);
  void operator()(std::string& text);
  template <class T>
  void operator()(std::vector<T>& list) {
    (*this)(list.size());
    for (T& item : list) (*this)(item);
  }
  template <class T>
  void operator()(T& message) {
    message.visit(*this);
  }
  std::string bytes;
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view body) : rest_(body) {}
  void operator()(uint64_t& number);
  void operator()(std::string& text);
  template <class T>
  void operator()(std::vector<T>& list) {
    uint64_t size = 0;
    (*this)(size);
    if (size > rest_.size()) good_ = false;  // an item takes a byte at least
    for (uint64_t i = 0; good_ && i < size; ++i) (*this)(list.emplace_back());
  }
  template <class T>
  void operator()(T& message) {
    message.visit(*this);
  }
  bool read_all() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

template <class T>
std::string encode_body(T message) {
  FieldWriter writer;
  writer(message);
  return std::move(writer.bytes);
}

// Nothing when `body` is no such message.
template <class T>
std::optional<T> decode_body(std::string_view body) {
  T message;
  FieldReader reader(body);
  reader(message);
  if (!reader.read_all()) return std::nullopt;
  return message;
}

}  // namespace npu::furiosa
