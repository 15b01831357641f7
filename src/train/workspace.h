// The buffers that micro-batches of one sequence length run in, and what each call binds. The
// longest bucket's buffers are the only ones: shorter buckets see windows of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compile/plan.h"
#include "train/device_buffers.h"
#include "train/model_graphs.h"

namespace npu {

// Buffers that several buckets use in turn, by name: the first to ask allocates.
class SharedBuffers {
 public:
  explicit SharedBuffers(Device& device) : device_(device) {}
  // Of its own where an earlier one is too small.
  DeviceTensor get(const std::string& name, const TensorType& type);
  // Several values in one buffer: large ones lie on huge pages, many small ones would not.
  std::vector<DeviceTensor> get_block(const std::string& name,
                                      const std::vector<TensorType>& types);
  int64_t bytes() const { return bytes_; }  // allocated

 private:
  Device& device_;
  std::map<std::string, DeviceTensor> buffers_;
  int64_t bytes_ = 0;
};

// Types of a block's values one after another, each aligned; and views of them.
int64_t block_bytes(const std::vector<TensorType>& types);
std::vector<DeviceTensor> block_values(Device& device, const DeviceTensor& block,
                                       const std::vector<TensorType>& types);

struct DeviceModel;

struct Workspace {
  // Bound to the weights of `model`, which are there already.
  Workspace(const ModelConfig& config, const ModelGraphs& graphs, const BucketGraphs& bucket,
            DeviceModel& model, Device& device, SharedBuffers& shared);

  const BucketGraphs& bucket;
  DeviceTensor cos, sin, mask;
  // All layers run the same graphs; what differs is which buffers a call binds.
  struct LayerCall {
    std::vector<DeviceTensor> saved;  // kept from forward to backward
    Runtime::Bindings forward, backward, eval;
  };
  std::vector<LayerCall> layers;

  // Head.
  DeviceTensor rows, targets, h, d_h, d_x_head, max, sum, target_logit, argmax, u;
  std::vector<DeviceTensor> logits;  // of each chunk, all in one buffer; with head_logits only

  // x of every layer where backward needs them (train), else two that take turns.
  DeviceTensor& layer_input(int64_t layer) {
    return activations_[static_cast<size_t>(layer) % activations_.size()];
  }
  // Gradient of the output of `layer`; two buffers take turns.
  DeviceTensor& layer_gradient(int64_t layer) {
    return gradients_[static_cast<size_t>((layer + 1) % 2)];
  }

 private:
  std::vector<DeviceTensor> activations_;
  DeviceTensor gradients_[2];
  void bind_layer(const ModelGraphs& graphs, DeviceModel& model, int64_t layer);
  void place_head(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                  SharedBuffers& shared);
};

}  // namespace npu
