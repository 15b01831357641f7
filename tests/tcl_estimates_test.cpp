// Every part of the real models has the vendor's estimate on record: a text that differs from what
// the vendor's compiler was shown has none. With an argument: writes the texts into that directory,
// for tests/vendor/estimates.py to show them.
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tools/tcl_geometry.h"

namespace npu {
namespace {

TEST(TclEstimates, EveryPartOfTheRealModelsHasOne) {
  std::ifstream file(fs::path(NPU_SOURCE_DIR) / "tests/vendor/estimates.json");
  const nlohmann::json record = nlohmann::json::parse(file);
  const nlohmann::json& cycles = record.at("cycles");
  const std::map<std::string, GeometryText> texts = geometry_texts();
  EXPECT_GT(texts.size(), 60u);
  size_t on_record = 0;
  for (const auto& [hash, text] : texts) {
    const auto found = cycles.find(hash);
    const bool known = found != cycles.end();
    EXPECT_TRUE(known) << text.use
                       << ": the text differs from what the vendor's compiler was shown; show it "
                          "with tests/vendor/estimates.py";
    if (!known) continue;
    ++on_record;
    for (const auto& target : record.at("targets")) {
      EXPECT_GT(found->at(target.get<std::string>()).get<int64_t>(), 0) << text.use;
    }
  }
  EXPECT_EQ(on_record, cycles.size()) << "texts on record that nothing writes any more";
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 1) return RUN_ALL_TESTS();
  const npu::fs::path directory = argv[1];
  npu::fs::create_directories(directory);
  for (const auto& [hash, text] : npu::geometry_texts()) {
    npu::publish_text(directory / (hash + ".tc"), text.text);
    std::cout << hash << " " << text.use << "\n";
  }
  return 0;
}
