// npu-lora convert: a GGUF file becomes a Hugging Face directory.
#include <iostream>

#include "base/log.h"
#include "cli/commands.h"

namespace npu {

int cmd_convert(const Options& options) {
  if (options.flag("quiet")) set_log_level(LogLevel::kWarn);
  if (options.positional().size() != 1) {
    fail(ErrorKind::kUsage, "npu-lora convert", "needs one GGUF file",
         std::to_string(options.positional().size()), "npu-lora convert FILE.gguf --out DIR");
  }
  const fs::path out = options.text("out");
  if (fs::exists(out) && !options.flag("overwrite") && !fs::is_empty(out)) {
    fail(ErrorKind::kUsage, "--out", "exists and is not empty", out.string(),
         "--overwrite replaces it");
  }
  const std::string dtype = options.choice("save-dtype", {"bf16", "f16", "f32"});
  convert_gguf(options.positional().front(), out, *parse_dtype(dtype));
  std::cout << out.string() << "\n";
  return 0;
}

}  // namespace npu
