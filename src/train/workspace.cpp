// The buffers that micro-batches of one sequence length run in, and what each call binds.
#include "train/workspace.h"

#include <algorithm>

#include "train/device_model.h"
#include "train/lora_state.h"

namespace npu {

DeviceTensor SharedBuffers::get(const std::string& name, const TensorType& type) {
  const auto known = buffers_.find(name);
  if (known != buffers_.end() && known->second.type.bytes() >= type.bytes()) {
    return {device_.view(known->second.buffer, 0, static_cast<size_t>(type.bytes())), type};
  }
  bytes_ += type.bytes();
  return buffers_[name] = allocate_tensor(device_, type, name);
}

int64_t block_bytes(const std::vector<TensorType>& types) {
  constexpr int64_t kAlign = static_cast<int64_t>(kBufferAlignment);
  int64_t size = 0;
  for (const TensorType& type : types) size += (type.bytes() + kAlign - 1) / kAlign * kAlign;
  return std::max(size, kAlign);
}

std::vector<DeviceTensor> block_values(Device& device, const DeviceTensor& block,
                                       const std::vector<TensorType>& types) {
  std::vector<DeviceTensor> values;
  int64_t offset = 0;
  for (const TensorType& type : types) {
    values.push_back(
        {device.view(block.buffer, static_cast<size_t>(offset), static_cast<size_t>(type.bytes())),
         type});
    offset += block_bytes({type});
  }
  return values;
}

std::vector<DeviceTensor> SharedBuffers::get_block(const std::string& name,
                                                   const std::vector<TensorType>& types) {
  return block_values(device_, get(name, {DType::kU8, {block_bytes(types)}}), types);
}

Workspace::Workspace(const ModelConfig& config, const ModelGraphs& graphs,
                     const BucketGraphs& own_bucket, DeviceModel& model, Device& device,
                     SharedBuffers& shared)
    : bucket(own_bucket) {
  const LayerOptions& o = graphs.options.layer;
  const DType compute = o.compute_dtype();
  const TensorType activation{o.stream_dtype(), {o.batch * bucket.seq_len, config.hidden_size}};
  cos = shared.get("cos", {compute, {o.batch, 1, bucket.seq_len, config.head_dim}});
  sin = shared.get("sin", cos.type);
  mask = shared.get("mask", {compute, {o.batch, 1, bucket.seq_len, bucket.seq_len}});
  const int64_t kept = graphs.options.train ? config.num_hidden_layers + 1 : 2;
  for (int64_t i = 0; i < kept; ++i) {
    activations_.push_back(shared.get("activations " + std::to_string(i), activation));
  }
  if (graphs.options.train) {
    for (size_t i = 0; i < 2; ++i) {
      gradients_[i] = shared.get("activation gradients " + std::to_string(i), activation);
    }
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    layers.push_back(
        {shared.get_block(layer_name(layer, "saved tensors"), bucket.saved_types), {}, {}, {}});
    bind_layer(graphs, model, layer);
  }
  place_head(config, graphs, device, shared);
}

void Workspace::bind_layer(const ModelGraphs& graphs, DeviceModel& model, int64_t layer) {
  LayerCall& call = layers[static_cast<size_t>(layer)];
  Runtime::Bindings common = {{"cos", cos.buffer.get()},
                              {"sin", sin.buffer.get()},
                              {"mask", mask.buffer.get()},
                              {"lora_scale", model.lora_scale.buffer.get()},
                              {"x", layer_input(layer).buffer.get()}};
  for (auto& [name, tensor] : model.layers[static_cast<size_t>(layer)]) {
    common[name] = tensor.buffer.get();
  }
  call.eval = common;
  call.eval["y"] = layer_input(layer + 1).buffer.get();
  if (!graphs.options.train) return;
  for (size_t i = 0; i < bucket.saved.size(); ++i) {
    common[bucket.saved[i]] = call.saved[i].buffer.get();
  }
  call.forward = common;
  call.forward["y"] = layer_input(layer + 1).buffer.get();
  call.backward = common;
  call.backward["d_y"] = layer_gradient(layer).buffer.get();
  call.backward["d_x"] = layer_gradient(layer - 1).buffer.get();
  for (auto& [name, tensor] : model.adapter_gradients) call.backward[name] = tensor.buffer.get();
}

void Workspace::place_head(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                           SharedBuffers& shared) {
  const LayerOptions& o = graphs.options.layer;
  const int64_t rows_R = bucket.loss_rows, hidden = config.hidden_size;
  const TensorType column{DType::kF32, {rows_R, 1}},
      hidden_rows{o.compute_dtype(), {rows_R, hidden}};
  const TensorType picked{o.compute_dtype(), {rows_R, o.batch * bucket.seq_len}};
  rows = shared.get("rows", o.arithmetic_head ? picked : TensorType{DType::kI32, {rows_R}});
  targets = shared.get("targets", {o.arithmetic_head ? DType::kF32 : DType::kI32, {rows_R, 1}});
  h = shared.get("h", hidden_rows);
  max = shared.get("max", column);
  sum = shared.get("sum", column);
  target_logit = shared.get("target_logit", column);
  argmax = shared.get("argmax", column);
  if (o.head_logits) {
    const DeviceTensor widest = shared.get("logits", {DType::kF32, {rows_R, graphs.chunks[0]}});
    for (const int64_t chunk : graphs.chunks) {
      const TensorType type{DType::kF32, {rows_R, chunk}};
      logits.push_back({device.view(widest.buffer, 0, static_cast<size_t>(type.bytes())), type});
    }
  }
  if (!graphs.options.train) return;
  d_h = shared.get("d_h", hidden_rows);
  u = shared.get("u", {o.arithmetic_head ? o.compute_dtype() : DType::kF32, hidden_rows.shape});
  d_x_head = shared.get("d_x of the head", layer_input(0).type);
}

}  // namespace npu
