// FuriosaAI's C library for running compiled code, opened at run time. Called in a worker process
// only: it may abort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"

namespace npu::furiosa {

// Types of the vendor's interface, version 2. The objects are opaque.
struct NpuDesc {
  uint8_t chip, pe_start, pe_end;
};
struct RuntimeHandle;
struct KernelHandle;
struct NpuMemory;
struct CpuMemory;

struct RuntimeLibrary {
  // Errors (kBadInput): it does not open, or lacks a function.
  static Result<std::unique_ptr<RuntimeLibrary>> open(const std::string& path);

  const char* (*version)();
  RuntimeHandle* (*init)(const NpuDesc* npus, size_t count);  // null when a chip is busy
  void (*free)(RuntimeHandle*);
  KernelHandle* (*kernel_load)(const RuntimeHandle*, const uint8_t* edf, size_t length);
  int32_t (*kernel_run)(const KernelHandle*, RuntimeHandle*, const NpuMemory* const* inputs,
                        size_t num_inputs, const NpuMemory* const* outputs, size_t num_outputs);
  void (*kernel_free)(KernelHandle*);
  NpuMemory* (*npu_buffer)(const RuntimeHandle*, size_t bytes);
  // A window of the card's memory, which it does not keep allocated.
  NpuMemory* (*npu_buffer_from)(const RuntimeHandle*, uint64_t offset, size_t bytes);
  uint64_t (*npu_buffer_offset)(const NpuMemory*);
  void (*npu_buffer_free)(NpuMemory*);
  CpuMemory* (*cpu_buffer)(size_t bytes);  // that the card can reach
  CpuMemory* (*cpu_buffer_from)(uint64_t address, size_t bytes);
  uint64_t (*cpu_buffer_addr)(const CpuMemory*);
  size_t (*cpu_buffer_len)(const CpuMemory*);  // may be more than was asked for
  void (*cpu_buffer_free)(CpuMemory*);
  int32_t (*write)(const RuntimeHandle*, const CpuMemory* from, const NpuMemory* to);
  int32_t (*read)(const RuntimeHandle*, const NpuMemory* from, const CpuMemory* to);
};

}  // namespace npu::furiosa
