// The buffers of one model on one device, and the bindings that tie each layer's call to them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/plan.h"
#include "model/weights.h"
#include "train/device_buffers.h"
#include "train/model_graphs.h"

namespace npu {

// All layers run the same graphs; what differs is which buffers a call binds.
struct LayerCall {
  std::map<std::string, DeviceTensor, std::less<>> weights;  // frozen, and lora_A / lora_B
  std::vector<DeviceTensor> saved;                           // kept from forward to backward
  Runtime::Bindings forward, backward, eval;
};

struct DeviceModel {
  // Errors: a weight missing from the store (kBadInput), device memory (kRetriable), as UserErrors.
  // `adopt`: weights of the right dtype are used in place where the device can.
  DeviceModel(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
              const WeightStore& weights, bool adopt);
  std::vector<std::pair<std::string, DeviceTensor>> frozen_weights(const ModelConfig& config) const;

  // x of every layer where backward needs them (train), else two that take turns.
  DeviceTensor& layer_input(int64_t layer);
  const DeviceTensor& layer_input(int64_t layer) const;
  // Gradient of the output of `layer`; two buffers take turns.
  DeviceTensor& layer_gradient(int64_t layer) {
    return gradients[static_cast<size_t>((layer + 1) % 2)];
  }

  std::vector<LayerCall> layers;
  DeviceTensor cos, sin, mask, lora_scale, norm_weight;
  std::vector<DeviceTensor> activations;  // layer_input's buffers
  DeviceTensor gradients[2];
  std::map<std::string, DeviceTensor, std::less<>> adapter_gradients;  // of one layer at a time

  // Head. embedding_VH is host memory (the head's own buffer when tied and shared).
  DeviceTensor head;
  std::vector<DeviceTensor> head_chunks;  // views of `head`, row ranges
  Tensor embedding_VH, head_VH;
  DeviceTensor rows, targets, h, d_h, d_x_head, max, sum, target_logit, argmax, u;
  std::vector<DeviceTensor> logits;  // of each chunk, all in one buffer; with head_logits only

  int64_t bytes = 0;

 private:
  bool adopt_ = false;
  // Fills `name`'s buffer, or makes `target` the stored tensor itself.
  void load_weight(Device& device, DeviceTensor& target, const WeightStore& store,
                   const std::string& name);
  DeviceTensor allocate(Device& device, TensorType type, std::string_view what);
  // Several values in one block: large blocks lie on huge pages, many small ones would not.
  std::vector<DeviceTensor> allocate_block(Device& device, const std::vector<TensorType>& types,
                                           std::string_view what);
  void load_layer(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                  const WeightStore& store, int64_t layer);
  void load_head(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                 const WeightStore& store);
  void bind_layer(const ModelGraphs& graphs, int64_t layer);
};

}  // namespace npu
