// A model on a device: weights in buffers, activations that flow from layer to layer, and the two
// things one does with it: a micro-batch's loss and gradients, and log-probabilities of tokens.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "compile/plan.h"
#include "model/batch.h"
#include "model/weights.h"
#include "train/device_buffers.h"
#include "train/model_graphs.h"
#include "train/optimizer.h"

namespace npu {

struct LossSum {
  double nats = 0;     // Σ −log p over the rows with loss
  int64_t tokens = 0;  // rows with loss
};

struct TokenScore {
  float log_prob = 0;  // nats
  int32_t argmax = 0;  // the likeliest next token
};

class ModelRunner {
 public:
  // Uploads the weights once, converted to the graphs' dtypes. `runtime` was made from `graphs`'s
  // plan. Out of device memory is a kRetriable UserError naming the tensor. `adopt_weights`: the
  // device uses tensors of `weights` in place where it can and their dtype is the graphs'.
  // `threads`: of the host, for what is done there; 0 = all.
  ModelRunner(const ModelConfig& config, ModelGraphs graphs, std::unique_ptr<Runtime> runtime,
              const WeightStore& weights, bool adopt_weights, int threads);
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  const ModelConfig& config() const;
  const ModelGraphs& graphs() const;
  Runtime& runtime();
  ThreadPool& host_threads();
  int64_t batch_size() const;
  int64_t seq_len() const;                // of the longest bucket
  std::vector<int64_t> seq_lens() const;  // of every bucket, rising

  // Uploads A and B of every adapted linear. `parameters` are init_lora's, in its order.
  void set_adapter(std::span<const Parameter> parameters);

  // Adds d(w·Σ −log p)/dparameter to each parameter's grad. The batch has the length of a bucket.
  // Errors of the device are values.
  Result<LossSum> forward_backward(const Batch& batch, double w, std::span<Parameter> parameters);

  // Scores of (row, next token) pairs after one forward pass; needs graphs built with `eval`.
  Result<std::vector<TokenScore>> score(const Batch& batch, std::span<const RowTarget> targets);

  // Where the last call spent its time.
  struct Phases {
    double input_seconds = 0;  // embedding rows, RoPE tables, mask
    double head_seconds = 0;   // the host's half of the loss
    double grad_seconds = 0;   // reading and adding adapter gradients
  };
  const Phases& phases() const;
  int64_t device_bytes() const;  // of all buffers held here
  // By their Hugging Face names, as they lie in device buffers.
  std::vector<std::pair<std::string, DeviceTensor>> frozen_weights() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace npu
