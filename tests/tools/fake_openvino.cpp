// A stand-in for libopenvino_c.so that knows one graph, y = x·wᵀ with x [16,64] and w [32,64], and
// misbehaves as its build says. It lets the loader and its checks be tested without OpenVINO.
//   FAKE_PRECISION       what INFERENCE_PRECISION_HINT reads back as, "f32" by default
//   FAKE_ROUNDS          multiplies in bf16, whatever it reads back
//   FAKE_F32_NUMBER      number of the element type f32, 4 by default
//   FAKE_LACKS_SYMBOLS   exports nothing but the version
//   FAKE_REFUSES         fails to compile, with a message
//   FAKE_ROUNDS_CONSTANTS   multiplies in bf16 where w is a constant of the graph
//   FAKE_REFUSES_CONSTANTS  fails to compile graphs where w is a constant
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fake_rounding.h"

#ifndef FAKE_PRECISION
#define FAKE_PRECISION "f32"
#endif
#ifndef FAKE_F32_NUMBER
#define FAKE_F32_NUMBER 4
#endif

namespace {

constexpr int64_t kRows = 16, kInner = 64, kColumns = 32;

struct Shape {
  int64_t rank;
  int64_t* dims;
};
struct Version {
  const char* build;
  const char* description;
};
struct Port {
  char side;  // 'x', 'w' or 'y'
};
struct Model {
  const float* constant_w = nullptr;  // where it is not an input
};
struct Request {
  float* x = nullptr;
  const float* w = nullptr;
  float* y = nullptr;
  bool rounds = false;
};
struct Object {};

}  // namespace

extern "C" {

int ov_get_openvino_version(Version* version) {
  *version = {"0.0-fake", "fake"};
  return 0;
}

#ifndef FAKE_LACKS_SYMBOLS
void ov_version_free(Version*) {}
const char* ov_get_last_err_msg() {
  static const char message[] =
      "Exception from src/core.cpp:1:\nException from src/plugin.cpp:2:\nthe fake\nsays no\n";
  char* copy = static_cast<char*>(std::malloc(sizeof message));
  std::memcpy(copy, message, sizeof message);
  return copy;
}
const char* ov_get_error_info(int) { return "general error"; }
void ov_free(const char* text) { std::free(const_cast<char*>(text)); }

int ov_core_create(Object** core) {
  *core = new Object;
  return 0;
}
void ov_core_free(Object* core) { delete core; }
int ov_core_set_property(const Object*, const char* device, ...) {
  va_list arguments;
  va_start(arguments, device);
  const char* key = va_arg(arguments, const char*);
  va_end(arguments);
  return std::strcmp(key, "NO_SUCH_KEY") == 0 ? -1 : 0;
}
int ov_core_get_property(const Object*, const char* device, const char*, char** value) {
  if (std::strcmp(device, "CPU") != 0) return -1;
  *value = static_cast<char*>(std::calloc(1, 8));
  std::memcpy(*value, "a CPU", 6);
  return 0;
}
int ov_core_read_model_from_memory_buffer(const Object*, const char* xml, size_t,
                                          const void* constants, Model** model) {
  const bool is_input = std::strstr(xml, "name=\"w\" type=\"Parameter\"") != nullptr;
  *model = new Model{is_input ? nullptr : static_cast<const float*>(constants)};
  return 0;
}
void ov_model_free(Model* model) { delete model; }
int ov_core_compile_model(const Object*, const Model* model, const char*, size_t, Model** compiled,
                          ...) {
#ifdef FAKE_REFUSES
  return -1;
#endif
#ifdef FAKE_REFUSES_CONSTANTS
  if (model->constant_w != nullptr) return -1;
#endif
  *compiled = new Model(*model);
  return 0;
}
int ov_compiled_model_export_model(const Object*, const char* path) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return -1;
  std::fputs("fake blob", file);
  return std::fclose(file);
}
int ov_core_import_model(const Object*, const char* bytes, size_t size, const char*,
                         Model** compiled) {
  if (size != 9 || std::memcmp(bytes, "fake blob", 9) != 0) return -1;
  *compiled = new Model;
  return 0;
}
void ov_compiled_model_free(Model* compiled) { delete compiled; }
int ov_compiled_model_get_property(const Object*, const char*, char** value) {
  *value = static_cast<char*>(std::calloc(1, sizeof FAKE_PRECISION));
  std::memcpy(*value, FAKE_PRECISION, sizeof FAKE_PRECISION);
  return 0;
}
int ov_compiled_model_outputs_size(const Object*, size_t* size) {
  *size = 1;
  return 0;
}
int ov_compiled_model_input_by_name(const Object*, const char* name, Port** port) {
  *port = new Port{name[0]};
  return 0;
}
int ov_compiled_model_output_by_index(const Object*, size_t, Port** port) {
  *port = new Port{'y'};
  return 0;
}
void ov_output_const_port_free(Port* port) { delete port; }
int ov_port_get_element_type(const Port*, int* type) {
  *type = FAKE_F32_NUMBER;
  return 0;
}
int ov_const_port_get_shape(const Port* port, Shape* shape) {
  shape->rank = 2;
  shape->dims = static_cast<int64_t*>(std::malloc(2 * sizeof(int64_t)));
  shape->dims[0] = port->side == 'w' ? kColumns : kRows;
  shape->dims[1] = port->side == 'y' ? kColumns : kInner;
  return 0;
}
int ov_shape_free(Shape* shape) {
  std::free(shape->dims);
  return 0;
}
int ov_compiled_model_create_infer_request(const Model* compiled, Request** request) {
  *request = new Request;
  (*request)->w = compiled->constant_w;
  (*request)->rounds = kRounds || (compiled->constant_w != nullptr && kRoundsConstants);
  return 0;
}
void ov_infer_request_free(Request* request) { delete request; }
// A tensor is the address of its memory.
int ov_tensor_create_from_host_ptr(int, Shape, void* data, void** tensor) {
  *tensor = data;
  return 0;
}
void ov_tensor_free(void*) {}
int ov_tensor_data(void* tensor, void** data) {
  *data = tensor;
  return 0;
}
int ov_tensor_get_byte_size(const void*, size_t* size) {
  *size = kRows * kColumns * sizeof(float);
  return 0;
}
int ov_infer_request_set_tensor_by_const_port(Request* request, const Port* port, void* tensor) {
  if (port->side == 'x') request->x = static_cast<float*>(tensor);
  if (port->side == 'w') request->w = static_cast<float*>(tensor);
  return 0;
}
int ov_infer_request_set_output_tensor_by_index(Request* request, size_t, void* tensor) {
  request->y = static_cast<float*>(tensor);
  return 0;
}
int ov_infer_request_get_output_tensor_by_index(const Request* request, size_t, void** tensor) {
  *tensor = request->y;
  return 0;
}
int ov_infer_request_infer(Request* request) {
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t n = 0; n < kColumns; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < kInner; ++k) {
        sum += rounded(request->x[m * kInner + k], request->rounds) *
               rounded(request->w[n * kInner + k], request->rounds);
      }
      request->y[m * kColumns + n] = sum;
    }
  }
  return 0;
}
#endif  // FAKE_LACKS_SYMBOLS

}  // extern "C"
