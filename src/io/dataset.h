// JSON lines → tokens and labels → micro-batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "io/chat_template.h"
#include "io/tokenizer.h"
#include "model/batch.h"

namespace npu {

struct TokenRow {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;  // kNoLoss where no loss is taken
  bool cut = false;             // shortened to the length limit
  bool dropped = false;         // no trained token left
  std::string where;            // "file:line"
};

struct DatasetOptions {
  int64_t max_length = 512;   // rows are cut at the end to this many tokens
  bool train_on_all = false;  // --train-on all
  int64_t skip_bad_rows = 0;  // tolerated bad rows; the next one is an error
  std::string template_date;
  int64_t vocab_size = 0;  // ids of tokenised rows are checked against it
};

struct Dataset {
  std::vector<TokenRow> rows;  // file order, dropped ones included
  int64_t cut = 0, dropped = 0, bad = 0;
  std::string sha256;                 // of the files' bytes
  std::vector<std::string> warnings;  // "no row trains an end token", …
  int64_t trained_tokens() const;
};
// Rows: {"text"}, {"prompt","response"|"completion"}, {"messages"}, {"input_ids","labels"}; rules
// of product.md section 4. Errors are UserErrors "file:line: what; got …; hint".
Dataset load_dataset(const std::vector<fs::path>& files, const Tokenizer& tokenizer,
                     const TokenizerFiles& files_of_tokenizer, const DatasetOptions& options);

enum class Packing { kBestFit, kWrap, kNone };

struct BatcherOptions {
  int64_t seq_len = 512;              // at least the length of the longest row, but for kWrap
  std::vector<int64_t> shorter = {};  // lengths of sequences that need less, rising
  int64_t batch = 1;
  Packing packing = Packing::kBestFit;
  uint64_t seed = 0;
  int32_t pad_id = 0;

  // Of `lengths`, rising and not empty, the last is seq_len and the others are `shorter`.
  void set_seq_lens(std::vector<int64_t> lengths) {
    seq_len = lengths.back();
    lengths.pop_back();
    shorter = std::move(lengths);
  }
};

// An endless, seeded stream of micro-batches: each epoch is shuffled anew, then packed. next()
// after seek(position) gives what it would have given without interruption. Dropped rows are left
// out. Rows are packed into sequences of seq_len; sequences that need less run in shorter ones
// (group_sequences); one micro-batch of an epoch may be filled up with empty sequences.
class Batcher {
 public:
  // `dataset` must outlive the batcher. A data set without a trained token is a UserError.
  Batcher(const Dataset& dataset, BatcherOptions options);
  ~Batcher();

  Batch next();
  // Where next() will go on. At the end of an epoch batch_in_epoch is its number of batches.
  struct Position {
    int64_t epoch = 0, batch_in_epoch = 0;
  };
  Position position() const;
  // A position that this data and these options do not have (of another run) is a UserError.
  void seek(Position position);
  // Of the current epoch:
  int64_t batches_per_epoch() const;
  double fill_ratio() const;  // tokens that are not padding
  // The micro-batches of one sequence length.
  struct Bucket {
    int64_t seq_len = 0;
    int64_t sequences = 0, documents = 0;
    std::vector<int64_t> loss_rows;  // rows with loss of each micro-batch
  };
  std::vector<Bucket> buckets() const;  // every length, the longest first

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace npu
