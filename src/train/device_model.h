// The weights of one model on one device, and the buffers that its micro-batches run in.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/weights.h"
#include "train/device_buffers.h"
#include "train/model_graphs.h"
#include "train/workspace.h"

namespace npu {

struct DeviceModel {
  // Errors: a weight missing from the store (kBadInput), device memory (kRetriable), as UserErrors.
  // `adopt`: weights of the right dtype are used in place where the device can. `graphs` must
  // outlive it. `pool` copies weights where the device's memory is the host's.
  DeviceModel(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
              const WeightStore& weights, bool adopt, ThreadPool& pool);
  DeviceModel(const DeviceModel&) = delete;
  DeviceModel& operator=(const DeviceModel&) = delete;
  std::vector<std::pair<std::string, DeviceTensor>> frozen_weights(const ModelConfig& config) const;

  // Of each layer by the graphs' names: frozen weights, and lora_A / lora_B.
  std::vector<std::map<std::string, DeviceTensor, std::less<>>> layers;
  DeviceTensor lora_scale, norm_weight;
  std::map<std::string, DeviceTensor, std::less<>> adapter_gradients;  // of one layer at a time

  // Head. embedding_VH is host memory (the head's own buffer when tied and shared).
  DeviceTensor head;
  std::vector<DeviceTensor> head_chunks;  // views of `head`'s memory, row ranges
  // "column" of a chunk, as arithmetic_head takes it; else null.
  Buffer* columns(size_t chunk) const;
  Tensor embedding_VH, head_VH;

  std::vector<Workspace> workspaces;  // of graphs.buckets, in their order
  int64_t bytes = 0;

 private:
  DeviceTensor columns_, last_columns_;  // the last chunk may go beyond the vocabulary
  struct Copy {
    DeviceTensor to;
    Tensor from;
  };
  bool adopt_ = false;
  ThreadPool& pool_;
  // Makes `target` the stored tensor itself; else adds a copy of it into target's buffer.
  void load_weight(Device& device, DeviceTensor& target, const WeightStore& store,
                   const std::string& name, std::vector<Copy>& copies);
  // Does the copies; their buffers hold what they hold from then on.
  void copy_weights(Device& device, const WeightStore& store, std::vector<Copy> copies);
  DeviceTensor allocate(Device& device, TensorType type, std::string_view what);
  void load_layer(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                  const WeightStore& store, int64_t layer);
  void number_columns(const ModelConfig& config, const ModelGraphs& graphs, Device& device);
  void load_head(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                 const WeightStore& store);
};

}  // namespace npu
