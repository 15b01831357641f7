// The weights of one model on one device, and the buffers that its micro-batches run in.
#include "train/device_model.h"

#include <algorithm>
#include <numeric>

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

DeviceModel::DeviceModel(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                         const WeightStore& store, bool adopt, ThreadPool& pool)
    : adopt_(adopt), pool_(pool) {
  const LayerOptions& o = graphs.options.layer;
  lora_scale = allocate(device, {DType::kF32, {1, 1}}, "lora_scale");
  upload_tensor(device, lora_scale, Tensor::scalar_f32(static_cast<float>(o.lora.scale())));
  norm_weight = allocate(device, {o.compute_dtype(), {1, config.hidden_size}}, "model.norm.weight");
  upload_tensor(device, norm_weight, store.get("model.norm.weight"));
  if (graphs.options.train) {
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
  load_head(config, graphs, device, store);
  SharedBuffers shared(device);
  workspaces.reserve(graphs.buckets.size());
  for (const BucketGraphs& bucket : graphs.buckets) {
    workspaces.emplace_back(config, graphs, bucket, *this, device, shared);
  }
  bytes += shared.bytes();
}

void DeviceModel::load_weight(Device& device, DeviceTensor& target, const WeightStore& store,
                              const std::string& name, std::vector<Copy>& copies) {
  Tensor stored = store.get(name);
  if (adopt_ && stored.dtype() == target.type.dtype &&
      stored.size() == num_elements(target.type.shape)) {
    target.buffer = device.adopt(stored).take();
    target.buffer->freeze();
    return;
  }
  if (target.buffer == nullptr) target = allocate(device, target.type, name);
  copies.push_back({target, std::move(stored)});
}

void DeviceModel::copy_weights(Device& device, const WeightStore& store, std::vector<Copy> copies) {
  // Pieces of some rows, for the threads to share: most of the time goes into the pages' first use.
  constexpr int64_t kPieceBytes = 1 << 21;
  std::vector<Copy> pieces;
  for (Copy& copy : copies) {
    const Shape& shape = copy.from.shape();
    if (copy.to.buffer->host_pointer() == nullptr) {
      upload_tensor(device, copy.to, copy.from);
    } else if (shape.size() != 2 || shape != copy.to.type.shape) {
      pieces.push_back(copy);
    } else {
      const int64_t row_bytes = copy.to.type.bytes() / shape[0];
      const int64_t step = std::max<int64_t>(1, kPieceBytes / row_bytes);
      for (int64_t row = 0; row < shape[0]; row += step) {
        const int64_t end = std::min(shape[0], row + step);
        const TensorType type{copy.to.type.dtype, {end - row, shape[1]}};
        pieces.push_back({{device.view(copy.to.buffer, static_cast<size_t>(row * row_bytes),
                                       static_cast<size_t>(type.bytes())),
                           type},
                          copy.from.rows(row, end)});
      }
    }
  }
  pool_.run(static_cast<int64_t>(pieces.size()), [&](int64_t i) {
    Copy& piece = pieces[static_cast<size_t>(i)];
    upload_tensor(device, piece.to, piece.from);
  });
  for (Copy& copy : copies) {
    copy.to.buffer->freeze();
    store.release(copy.from);
  }
}

std::vector<std::pair<std::string, DeviceTensor>> DeviceModel::frozen_weights(
    const ModelConfig& config) const {
  std::vector<std::pair<std::string, DeviceTensor>> out = {{"model.norm.weight", norm_weight}};
  out.emplace_back(config.tie_word_embeddings ? kEmbedding : kHead, head);
  for (size_t i = 0; i < layers.size(); ++i) {
    for (const auto& [name, weight] : layers[i]) {
      if (!is_adapter(name)) out.emplace_back(layer_name(static_cast<int64_t>(i), name), weight);
    }
  }
  return out;
}

void DeviceModel::load_layer(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                             const WeightStore& store, int64_t layer) {
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
    const TensorType block{DType::kU8, {block_bytes(types)}};
    weights = block_values(device, allocate(device, block, layer_name(layer, "weights")), types);
  }
  std::vector<Copy> copies;
  auto& by_name = layers.emplace_back();
  for (size_t i = 0; i < names.size(); ++i) {
    if (is_stored_weight(names[i])) {
      load_weight(device, weights[i], store, layer_name(layer, names[i]), copies);
    } else if (adopt_) {
      weights[i] = allocate(device, types[i], names[i]);
    }
    by_name[names[i]] = std::move(weights[i]);
  }
  copy_weights(device, store, std::move(copies));
}

void DeviceModel::load_head(const ModelConfig& config, const ModelGraphs& graphs, Device& device,
                            const WeightStore& store) {
  const LayerOptions& o = graphs.options.layer;
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  const std::string& head_name = config.tie_word_embeddings ? kEmbedding : kHead;
  head.type = {o.weight_dtype, {vocab, hidden}};
  // Rows beyond the vocabulary, which the last chunk may have, stay 0.
  const int64_t rows = std::accumulate(graphs.chunks.begin(), graphs.chunks.end(), int64_t{0});
  std::shared_ptr<Buffer> whole;
  std::vector<Copy> copies;
  if (rows == vocab) {
    load_weight(device, head, store, head_name, copies);
    whole = head.buffer;
  } else {
    whole = allocate(device, {o.weight_dtype, {rows, hidden}}, head_name).buffer;
    head.buffer = device.view(whole, 0, static_cast<size_t>(head.type.bytes()));
    copies.push_back({head, store.get(head_name)});
  }
  copy_weights(device, store, std::move(copies));
  head_VH = read_tensor(device, head);
  embedding_VH = config.tie_word_embeddings ? head_VH : store.get(kEmbedding);

  size_t offset = 0;
  for (const int64_t chunk : graphs.chunks) {
    const TensorType type{o.weight_dtype, {chunk, hidden}};
    const size_t size = static_cast<size_t>(type.bytes());
    head_chunks.push_back({device.view(whole, offset, size), type});
    head_chunks.back().buffer->freeze();
    offset += size;
  }
  if (o.arithmetic_head) number_columns(config, graphs, device);
}

void DeviceModel::number_columns(const ModelConfig& config, const ModelGraphs& graphs,
                                 Device& device) {
  const auto numbered = [&](int64_t first) {
    const int64_t chunk = graphs.chunks.front();
    Tensor numbers(DType::kF32, {1, chunk});
    for (int64_t i = 0; i < chunk; ++i) {
      set_element(numbers, i, first + i < config.vocab_size ? static_cast<double>(i) : kNoColumn);
    }
    DeviceTensor columns = allocate(device, {DType::kF32, numbers.shape()}, "columns");
    upload_tensor(device, columns, numbers);
    return columns;
  };
  const auto chunks = static_cast<int64_t>(graphs.chunks.size());
  columns_ = numbered(0);
  last_columns_ = numbered((chunks - 1) * graphs.chunks.front());
}

Buffer* DeviceModel::columns(size_t chunk) const {
  return (chunk + 1 < head_chunks.size() ? columns_ : last_columns_).buffer.get();
}

}  // namespace npu
