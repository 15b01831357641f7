// The buffers of one model on one device, and the bindings that tie each layer's call to them.
#include "train/device_model.h"

#include <algorithm>

#include "train/lora_state.h"

namespace npu {
namespace {

bool is_adapter(std::string_view input) {
  return input.ends_with(".lora_A") || input.ends_with(".lora_B");
}

// Inputs of the layer graph that are weights on disk.
bool is_stored_weight(std::string_view input) {
  return input.ends_with(".weight") || input.ends_with(".bias");
}

const std::string kEmbedding = "model.embed_tokens.weight", kHead = "lm_head.weight";

}  // namespace

DeviceTensor DeviceModel::allocate(Device& device, TensorType type, std::string_view what) {
  bytes += type.bytes();
  return allocate_tensor(device, std::move(type), what);
}

std::vector<DeviceTensor> DeviceModel::allocate_block(Device& device,
                                                      const std::vector<TensorType>& types,
                                                      std::string_view what) {
  constexpr int64_t kAlign = static_cast<int64_t>(kBufferAlignment);
  int64_t size = 0;
  std::vector<int64_t> offsets;
  for (const TensorType& type : types) {
    offsets.push_back(size);
    size += (type.bytes() + kAlign - 1) / kAlign * kAlign;
  }
  const DeviceTensor block = allocate(device, {DType::kU8, {std::max(size, kAlign)}}, what);
  std::vector<DeviceTensor> values;
  for (size_t i = 0; i < types.size(); ++i) {
    values.push_back({device.view(block.buffer, static_cast<size_t>(offsets[i]),
                                  static_cast<size_t>(types[i].bytes())),
                      types[i]});
  }
  return values;
}

DeviceModel::DeviceModel(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                         const WeightStore& store, bool adopt)
    : adopt_(adopt) {
  const LayerOptions& o = graphs.options.layer;
  const DType compute = o.compute_dtype();
  const int64_t rows_M = o.batch * o.seq_len, hidden = config.hidden_size;
  const TensorType activation{o.stream_dtype(), {rows_M, hidden}};

  cos = allocate(device, {compute, {o.batch, 1, o.seq_len, config.head_dim}}, "cos");
  sin = allocate(device, cos.type, "sin");
  mask = allocate(device, {compute, {o.batch, 1, o.seq_len, o.seq_len}}, "mask");
  lora_scale = allocate(device, {DType::kF32, {1, 1}}, "lora_scale");
  upload_tensor(device, lora_scale, Tensor::scalar_f32(static_cast<float>(o.lora.scale())));
  norm_weight = allocate(device, {compute, {1, hidden}}, "model.norm.weight");
  upload_tensor(device, norm_weight, store.get("model.norm.weight"));

  const int64_t kept = graphs.options.train ? config.num_hidden_layers + 1 : 2;
  for (int64_t i = 0; i < kept; ++i) {
    activations.push_back(allocate(device, activation, "activations"));
  }
  if (graphs.options.train) {
    for (DeviceTensor& g : gradients) g = allocate(device, activation, "activation gradients");
    const Graph& backward = graphs.graph(kLayerBackward);
    for (const GraphOutput& output : backward.outputs()) {
      if (output.name == "d_x") continue;
      adapter_gradients[output.name] =
          allocate(device, backward.node(output.node).type, output.name);
    }
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    load_layer(config, graphs, device, store, layer);
  }
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) bind_layer(graphs, layer);
  load_head(config, graphs, device, store);
}

DeviceTensor& DeviceModel::layer_input(int64_t layer) {
  return activations[static_cast<size_t>(layer) % activations.size()];
}
const DeviceTensor& DeviceModel::layer_input(int64_t layer) const {
  return activations[static_cast<size_t>(layer) % activations.size()];
}

void DeviceModel::load_weight(Device& device, DeviceTensor& target, const WeightStore& store,
                              const std::string& name) {
  const Tensor stored = store.get(name);
  if (adopt_ && stored.dtype() == target.type.dtype &&
      stored.size() == num_elements(target.type.shape)) {
    target.buffer = device.adopt(stored).take();
    target.buffer->freeze();
    return;
  }
  if (target.buffer == nullptr) target = allocate(device, target.type, name);
  upload_tensor(device, target, stored);
  target.buffer->freeze();
  store.release(stored);
}

std::vector<std::pair<std::string, DeviceTensor>> DeviceModel::frozen_weights(
    const ModelConfig& config) const {
  std::vector<std::pair<std::string, DeviceTensor>> out = {{"model.norm.weight", norm_weight}};
  out.emplace_back(config.tie_word_embeddings ? kEmbedding : kHead, head);
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [name, weight] : layers[i].weights) {
      if (!is_adapter(name)) out.emplace_back(layer_name(static_cast<int64_t>(i), name), weight);
    }
  }
  return out;
}

void DeviceModel::load_layer(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                             const WeightStore& store, int64_t layer) {
  LayerCall call;
  const Graph forward = layer_forward(config, graphs.options.layer);
  std::vector<std::string> names;
  std::vector<TensorType> types;
  for (const NodeId id : forward.inputs()) {
    const Node& input = forward.node(id);
    if (!is_adapter(input.name) && !is_stored_weight(input.name)) continue;
    names.push_back(input.name);
    types.push_back(input.type);
  }
  std::vector<DeviceTensor> weights;
  if (adopt_) {
    for (const TensorType& type : types) weights.push_back({nullptr, type});
  } else {
    weights = allocate_block(device, types, layer_name(layer, "weights"));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (is_stored_weight(names[i])) {
      load_weight(device, weights[i], store, layer_name(layer, names[i]));
    } else if (adopt_) {
      weights[i] = allocate(device, types[i], names[i]);
    }
    call.weights[names[i]] = std::move(weights[i]);
  }
  call.saved = allocate_block(device, graphs.saved_types, layer_name(layer, "saved tensors"));
  layers.push_back(std::move(call));
}

void DeviceModel::bind_layer(const ModelGraphs& graphs, int64_t layer) {
  LayerCall& call = layers[static_cast<size_t>(layer)];
  Runtime::Bindings shared = {{"cos", cos.buffer.get()},
                              {"sin", sin.buffer.get()},
                              {"mask", mask.buffer.get()},
                              {"lora_scale", lora_scale.buffer.get()},
                              {"x", layer_input(layer).buffer.get()}};
  for (auto& [name, tensor] : call.weights) shared[name] = tensor.buffer.get();
  call.eval = shared;
  call.eval["y"] = layer_input(layer + 1).buffer.get();
  if (!graphs.options.train) return;
  for (size_t i = 0; i < graphs.saved.size(); ++i) {
    shared[graphs.saved[i]] = call.saved[i].buffer.get();
  }
  call.forward = shared;
  call.forward["y"] = layer_input(layer + 1).buffer.get();
  call.backward = shared;
  call.backward["d_y"] = layer_gradient(layer).buffer.get();
  call.backward["d_x"] = layer_gradient(layer - 1).buffer.get();
  for (auto& [name, tensor] : adapter_gradients) call.backward[name] = tensor.buffer.get();
}

void DeviceModel::load_head(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                            const WeightStore& store) {
  const LayerOptions& o = graphs.options.layer;
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  const int64_t rows_R = graphs.options.loss_rows;
  const std::string& head_name = config.tie_word_embeddings ? kEmbedding : kHead;
  head.type = {o.weight_dtype, {vocab, hidden}};
  load_weight(device, head, store, head_name);
  head_VH = read_tensor(device, head);
  embedding_VH = config.tie_word_embeddings ? head_VH : store.get(kEmbedding);

  size_t offset = 0;
  for (const int64_t chunk : graphs.chunks) {
    const TensorType type{o.weight_dtype, {chunk, hidden}};
    const size_t size = static_cast<size_t>(type.bytes());
    head_chunks.push_back({device.view(head.buffer, offset, size), type});
    head_chunks.back().buffer->freeze();
    offset += size;
  }
  const TensorType column{DType::kF32, {rows_R, 1}},
      hidden_rows{o.compute_dtype(), {rows_R, hidden}};
  rows = allocate(device, {DType::kI32, {rows_R}}, "rows");
  targets = allocate(device, {DType::kI32, {rows_R, 1}}, "targets");
  h = allocate(device, hidden_rows, "h");
  max = allocate(device, column, "max");
  sum = allocate(device, column, "sum");
  target_logit = allocate(device, column, "target_logit");
  argmax = allocate(device, column, "argmax");
  if (o.head_logits) {
    const DeviceTensor widest =
        allocate(device, {DType::kF32, {rows_R, graphs.chunks[0]}}, "logits");
    for (const int64_t chunk : graphs.chunks) {
      const TensorType type{DType::kF32, {rows_R, chunk}};
      logits.push_back({device.view(widest.buffer, 0, static_cast<size_t>(type.bytes())), type});
    }
  }
  if (!graphs.options.train) return;
  d_h = allocate(device, hidden_rows, "d_h");
  u = allocate(device, {DType::kF32, {rows_R, hidden}}, "u");
  d_x_head = allocate(device, layer_input(0).type, "d_x of the head");
}

}  // namespace npu
