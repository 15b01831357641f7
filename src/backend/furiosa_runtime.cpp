// The functions by name. The library is never closed: it has threads of its own.
#include "backend/furiosa_runtime.h"

#include <dlfcn.h>

namespace npu::furiosa {

Result<std::unique_ptr<RuntimeLibrary>> RuntimeLibrary::open(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return Error{ErrorKind::kBadInput, path, "can't be opened", why == nullptr ? "" : why,
                 "install the driver and the runtime of one release"};
  }
  auto functions = std::make_unique<RuntimeLibrary>();
  std::string missing;
  const auto bind = [&](auto& function, const char* name) {
    void* const symbol = dlsym(library, name);
    if (symbol == nullptr && missing.empty()) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  bind(functions->version, "furiosa_version");
  bind(functions->init, "furiosa_runtime_init");
  bind(functions->free, "furiosa_runtime_free");
  bind(functions->kernel_load, "furiosa_kernel_load");
  bind(functions->kernel_run, "furiosa_kernel_run");
  bind(functions->kernel_free, "furiosa_kernel_free");
  bind(functions->npu_buffer, "furiosa_npu_buffer");
  bind(functions->npu_buffer_from, "furiosa_npu_buffer_from");
  bind(functions->npu_buffer_offset, "furiosa_npu_buffer_offset");
  bind(functions->npu_buffer_free, "furiosa_npu_buffer_free");
  bind(functions->cpu_buffer, "furiosa_cpu_buffer");
  bind(functions->cpu_buffer_from, "furiosa_cpu_buffer_from");
  bind(functions->cpu_buffer_addr, "furiosa_cpu_buffer_addr");
  bind(functions->cpu_buffer_len, "furiosa_cpu_buffer_len");
  bind(functions->cpu_buffer_free, "furiosa_cpu_buffer_free");
  bind(functions->write, "furiosa_write");
  bind(functions->read, "furiosa_read");
  if (!missing.empty()) {
    return Error{ErrorKind::kBadInput, path, "lacks " + missing, "",
                 "install a release whose device_runtime.h says VERSION 2"};
  }
  return functions;
}

}  // namespace npu::furiosa
