// A stand-in for libonnxruntime.so that knows one graph, y = x·wᵀ with x [16,64] and w [32,64], and
// misbehaves as its build says. It lets the loader and its checks be tested without ONNX Runtime.
//   FAKE_OLD            knows no interface as new as the one that is asked for
//   FAKE_ROUNDS         multiplies in bf16
//   FAKE_F32_NUMBER     number of the element type f32, 1 by default
//   FAKE_REFUSES        fails to read any graph, with a message
//   FAKE_FAILS_TO_RUN   fails every call, with a message
//   FAKE_ROUNDS_CONSTANTS   multiplies in bf16 where w was handed over as a constant
//   FAKE_REFUSES_CONSTANTS  fails to read any graph with constants, with a message
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fake_rounding.h"

#ifndef FAKE_F32_NUMBER
#define FAKE_F32_NUMBER 1
#endif

namespace {

constexpr int64_t kRows = 16, kInner = 64, kColumns = 32;
constexpr size_t kSlots = 217;
#ifdef FAKE_OLD
constexpr bool kOld = true;
#else
constexpr bool kOld = false;
#endif

using Status = std::string;
struct Binding {
  float *x = nullptr, *w = nullptr, *y = nullptr;
};
struct Options {
  const float* w = nullptr;  // handed over as a constant
};
using Session = Options;
struct Info {
  char side;  // 'x', 'w' or 'y'
};
int object;  // stands for whatever has no state

Status* ok() { return nullptr; }
Status* say(const char* text) { return new Status(text); }

template <class... Args>
Status* make_object(Args... args) {
  void** out = nullptr;
  ((out = reinterpret_cast<void**>(args)), ...);  // the last argument
  *out = &object;
  return ok();
}

Status* create_env(int, const char*, void** out) { return make_object(out); }
Status* create_options(Options** out) {
  *out = new Options;
  return ok();
}
Status* add_initializers(Options* options, const char* const* names, const void* const* values,
                         size_t count) {
  if (count != 1 || *names[0] != 'w') return say("only w can be a constant");
  options->w = static_cast<const float*>(values[0]);
  return ok();
}
Status* create_memory(int, int, void** out) { return make_object(out); }
Status* default_allocator(void** out) { return make_object(out); }
Status* set_number(void*, int) { return ok(); }
Status* add_config(void*, const char* key, const char*) {
  return std::string(key).starts_with("no.such") ? say("no such\nentry") : ok();
}
Status* append_provider(void*, const char* name, const char* const*, const char* const*, size_t) {
  static std::string text;
  text = std::string("provider ") + name + " is not in this build";
  return say(text.c_str());
}
Status* create_session(const void*, const void*, size_t, const Options* options, Session** out) {
#ifdef FAKE_REFUSES
  (void)options, (void)out;
  return say("the fake\nsays no");
#else
#ifdef FAKE_REFUSES_CONSTANTS
  if (options->w != nullptr) return say("too many constants");
#endif
  *out = new Session(*options);
  return ok();
#endif
}
Status* output_count(const void*, size_t* count) {
  *count = 1;
  return ok();
}
Status* input_info(const void*, size_t index, void** out) {
  *out = new Info{index == 0 ? 'x' : 'w'};
  return ok();
}
Status* output_info(const void*, size_t, void** out) {
  *out = new Info{'y'};
  return ok();
}
Status* output_name(const void*, size_t, void*, char** out) {
  *out = strdup("y");
  return ok();
}
Status* allocator_free(void*, void* memory) {
  std::free(memory);
  return ok();
}
Status* tensor_info(void* info, const void** out) {
  *out = info;
  return ok();
}
Status* element_type(const void*, int* type) {
  *type = FAKE_F32_NUMBER;
  return ok();
}
Status* num_dims(const void*, size_t* rank) {
  *rank = 2;
  return ok();
}
Status* dims(const void* info, int64_t* out, size_t) {
  const char side = static_cast<const Info*>(info)->side;
  out[0] = side == 'w' ? kColumns : kRows;
  out[1] = side == 'y' ? kColumns : kInner;
  return ok();
}
Status* create_tensor(const void*, void* data, size_t, const int64_t*, size_t, int, void** out) {
  *out = data;
  return ok();
}
Status* providers(char*** names, int* count) {
  *names = static_cast<char**>(std::malloc(sizeof(char*)));
  (*names)[0] = strdup("CPUExecutionProvider");
  *count = 1;
  return ok();
}
Status* release_providers(char** names, int count) {
  for (int i = 0; i < count; ++i) std::free(names[i]);
  std::free(names);
  return ok();
}
Status* create_binding(void*, Binding** out) {
  *out = new Binding;
  return ok();
}
Status* bind(Binding* binding, const char* name, const void* data) {
  float* values = static_cast<float*>(const_cast<void*>(data));
  (*name == 'x' ? binding->x : *name == 'w' ? binding->w : binding->y) = values;
  return ok();
}
Status* run(const Session* session, const void*, const Binding* b) {
#ifdef FAKE_FAILS_TO_RUN
  (void)session, (void)b;
  return say("the device is gone");
#else
  const bool constant = session->w != nullptr;
  const float* w = constant ? session->w : b->w;
  const bool rounds = kRounds || (constant && kRoundsConstants);
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t n = 0; n < kColumns; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < kInner; ++k) {
        sum += rounded(b->x[m * kInner + k], rounds) * rounded(w[n * kInner + k], rounds);
      }
      b->y[m * kColumns + n] = sum;
    }
  }
  return ok();
#endif
}
const char* error_message(const Status* status) { return status->c_str(); }
void release_nothing(void*) {}
void release_options(Options* options) { delete options; }
Status* register_allocator(void*, const void*, const void*) { return ok(); }
void release_status(Status* status) { delete status; }
void release_info(Info* info) { delete info; }
void release_binding(Binding* binding) { delete binding; }

const void* table[kSlots];

template <class Function>
void put(size_t slot, Function* function) {
  table[slot] = reinterpret_cast<const void*>(function);
}

const void* const* get_api(uint32_t) {
  put(2, error_message);
  put(3, create_env);
  put(8, create_session);
  put(10, create_options);
  for (const size_t slot : {22, 23, 24, 25}) put(slot, set_number);
  put(31, output_count);
  put(33, input_info);
  put(34, output_info);
  put(37, output_name);
  put(49, create_tensor);
  put(55, tensor_info);
  put(60, element_type);
  put(61, num_dims);
  put(62, dims);
  put(69, create_memory);
  put(76, allocator_free);
  put(78, default_allocator);
  for (const size_t slot : {92, 94, 96}) put(slot, release_nothing);
  for (const size_t slot : {95, 100}) put(slot, release_options);
  put(93, release_status);
  put(98, release_info);
  put(125, providers);
  put(126, release_providers);
  put(130, add_config);
  put(133, run);
  put(134, create_binding);
  put(135, release_binding);
  put(136, bind);
  put(137, bind);
  put(144, register_allocator);
  put(210, add_initializers);
  put(216, append_provider);
  return kOld ? nullptr : table;
}

struct ApiBase {
  const void* const* (*get)(uint32_t);
  const char* (*version)();
};
constexpr ApiBase kBase = {get_api, [] { return "0.0-fake"; }};

}  // namespace

extern "C" const ApiBase* OrtGetApiBase() { return &kBase; }
