// Backends "furiosa", "furiosa:auto" and "furiosa:N": FuriosaAI RNGD. Parts become TCL text, which
// the vendor's native compiler turns into an EDF with no card present (docs/furiosa.md).
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "backend/backend.h"

namespace npu {

// `card` is what follows "furiosa:": a number, or "auto". Errors: anything else.
Result<std::unique_ptr<Backend>> make_furiosa(std::string_view card);

std::unique_ptr<Backend> make_furiosa_entry();
// All that is missing for training here: compiler, cross compiler, card. Opens no card.
std::optional<Error> probe_furiosa();

}  // namespace npu
