// Makes packed weights and finds them again in their buffers.
#include "backend/cpu_packed_weights.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "backend/cpu_matmul.h"
#include "tensor/tensor.h"

namespace npu::cpu {
namespace {

struct Form {
  PackedWeight weight;                // `input` is 0: graphs number their inputs differently
  std::shared_ptr<std::byte> packed;  // null: the values are more than bf16
};

struct PackedForms : Buffer::Forms {
  std::vector<Form> forms;
};

// Null where another device keeps forms of its own: then the weight is packed on the way.
PackedForms* forms_of(Buffer& buffer) {
  if (buffer.forms() == nullptr) buffer.forms() = std::make_shared<PackedForms>();
  return dynamic_cast<PackedForms*>(buffer.forms().get());
}

std::shared_ptr<std::byte> pack(const PackedWeight& weight, const std::byte* data,
                                ThreadPool& pool) {
  constexpr int64_t kRows = kPieceX;
  const std::byte* const from =
      data + weight.offset * static_cast<int64_t>(dtype_bytes(weight.dtype));
  const auto first_rows_fit = [&] {
    std::shared_ptr<std::byte> tile =
        allocate_aligned(static_cast<size_t>(packed_bytes(DType::kBF16, kRows, weight.k)));
    return pack_weight(weight, from, 0, std::min(kRows, weight.x), tile.get());
  };
  if (weight.dtype != DType::kBF16 && !first_rows_fit()) return nullptr;
  std::shared_ptr<std::byte> packed = allocate_aligned(static_cast<size_t>(packed_bytes(weight)));
  std::atomic<bool> exact = true;
  pool.run((weight.x + kRows - 1) / kRows, [&](int64_t i) {
    const int64_t last = std::min((i + 1) * kRows, weight.x);
    if (!pack_weight(weight, from, i * kRows, last, packed.get())) exact = false;
  });
  return exact ? packed : nullptr;
}

}  // namespace

std::optional<Error> packed_weights(std::span<const PackedWeight> weights,
                                    std::span<Buffer* const> inputs, ThreadPool& pool,
                                    std::vector<const std::byte*>& found) {
  found.assign(weights.size(), nullptr);
  for (size_t i = 0; i < weights.size(); ++i) {
    PackedWeight weight = weights[i];
    Buffer& buffer = *inputs[weight.input];
    if (!buffer.frozen()) continue;
    weight.input = 0;
    try {
      PackedForms* const kept = forms_of(buffer);
      if (kept == nullptr) continue;
      auto form = std::ranges::find(kept->forms, weight, &Form::weight);
      if (form == kept->forms.end()) {
        kept->forms.push_back({weight, pack(weight, buffer.host_pointer(), pool)});
        form = kept->forms.end() - 1;
      }
      found[i] = form->packed.get();
    } catch (const std::bad_alloc&) {
      return Error{ErrorKind::kRetriable, "host memory",
                   "has no room for a frozen weight in packed form",
                   std::to_string(packed_bytes(weight)) + " bytes wanted", "use --prepack off"};
    }
  }
  return std::nullopt;
}

}  // namespace npu::cpu
