// The compile half of the furiosa backend over a stand-in for furiosa-tcc: what it makes of a part,
// and that every way in which the compiler can fail ends as a value that says so.
#include "furiosa_test.h"

#include "backend/furiosa.h"
#include "backend/furiosa_blob.h"
#include "backend/furiosa_edf.h"
#include "backend/furiosa_options.h"
#include "backend/furiosa_tcc.h"
#include "backend/tcl_writer.h"

namespace npu {
namespace {

std::unique_ptr<Backend> furiosa() { return make_furiosa_entry(); }

CompileOptions with(std::vector<std::pair<std::string, std::string>> vendor) {
  CompileOptions options;
  options.vendor = std::move(vendor);
  return options;
}

Error error_of(const auto& result) {
  EXPECT_FALSE(result.ok());
  return result.ok() ? Error{} : result.error();
}

void expect_says(const Error& error, ErrorKind kind, const std::string& words) {
  EXPECT_EQ(static_cast<int>(error.kind), static_cast<int>(kind)) << error.text();
  EXPECT_NE(error.text().find(words), std::string::npos) << error.text();
}

// ---- what a compile makes ----------------------------------------------------------------------

TEST_F(FuriosaTest, ABlobHoldsTheEdfAndHowToBindIt) {
  const Blob bytes = furiosa()->compile(bf16_product(), with({{"target", "renegade"}})).take();
  const FuriosaBlob blob = decode_furiosa_blob(bytes).take();
  EXPECT_EQ(blob.target, "renegade");
  EXPECT_EQ(blob.inputs, (std::vector<std::string>{"i0", "i1"}));
  EXPECT_EQ(blob.outputs, std::vector<std::string>{"o0"});
  EXPECT_EQ(blob.compiler.substr(0, 20), "furiosa-tcc 2026.4.0");
  EXPECT_EQ(read_edf_ports(blob.edf).take().inputs.size(), 2u);
  ASSERT_EQ(calls().size(), 1u);
  EXPECT_EQ(calls()[0].substr(0, 16), "compile renegade");
  EXPECT_GT(blob.cycles.value(), 3000);
  EXPECT_EQ(furiosa()->code_cycles(bytes), blob.cycles);
  const Blob full = furiosa()->compile(bf16_product(), with({{"search", "full"}})).take();
  EXPECT_NE(furiosa()->code_cycles(full), blob.cycles);
}

TEST_F(FuriosaTest, CodeThatSaysNothingOfItsScheduleIsCodeAllTheSame) {
  for (const char* mode :
       {"no-schedule", "uncompilable-schedule", "cut-schedule", "zero-schedule", "huge-schedule",
        "negative-schedule", "text-schedule", "endless-schedule"}) {
    misbehave(mode);
    const Blob code = furiosa()->compile(bf16_product(), {}).take();
    EXPECT_EQ(decode_furiosa_blob(code).take().cycles, std::nullopt) << mode;
    EXPECT_EQ(furiosa()->code_cycles(code), std::nullopt) << mode;
  }
  EXPECT_EQ(furiosa()->code_cycles("nonsense"), std::nullopt);
}

TEST_F(FuriosaTest, ADamagedBlobIsFound) {
  FuriosaBlob blob;
  blob.target = "renegade";
  blob.edf = std::string("\0edf\n", 5);
  blob.inputs = {"a,b", ""};
  blob.outputs = {"c"};
  blob.cycles = 12345678901.0;
  const Blob bytes = encode_furiosa_blob(blob, "tcc 1");
  const FuriosaBlob again = decode_furiosa_blob(bytes).take();
  EXPECT_EQ(again.edf, blob.edf);
  EXPECT_EQ(again.inputs, blob.inputs);
  EXPECT_EQ(again.compiler, "tcc 1");
  EXPECT_EQ(again.cycles, blob.cycles);
  for (size_t at = 0; at < bytes.size(); ++at) {
    Blob flipped = bytes;
    flipped[at] ^= 1;
    EXPECT_FALSE(decode_furiosa_blob(flipped).ok()) << at;
    EXPECT_FALSE(decode_furiosa_blob(bytes.substr(0, at)).ok()) << at;
  }
  EXPECT_FALSE(decode_furiosa_blob(bytes + "x").ok());
}

TEST_F(FuriosaTest, AnEdfThatIsCutOrHostileIsAnError) {
  const Blob bytes = furiosa()->compile(bf16_product(), {}).take();
  const std::string edf = decode_furiosa_blob(bytes).take().edf;
  const EdfPorts ports = read_edf_ports(edf).take();
  EXPECT_EQ(ports.outputs.at(0).element_type, "Bfloat16");
  const auto framed = [](const std::string& body) {
    std::string out;
    for (int shift = 0; shift < 64; shift += 8) {
      out += static_cast<char>(body.size() >> shift & 255);
    }
    return out + body + std::string(16, '\0');
  };
  const std::string body = edf.substr(8, edf.size() - 24);
  ASSERT_EQ(framed(body), edf);
  for (size_t at = 0; at < body.size(); ++at) {
    EXPECT_FALSE(read_edf_ports(framed(body.substr(0, at))).ok()) << at;
    EXPECT_FALSE(read_edf_ports(edf.substr(0, at)).ok()) << at;
    std::string flipped = body;
    flipped[at] = static_cast<char>(~flipped[at]);
    read_edf_ports(framed(flipped)).ok();  // an error or other shapes, but it comes back
  }
  const std::string start =
      "\xa1\x63"
      "Edf";
  const std::string huge = start + "\x9b\xff\xff\xff\xff\xff\xff\xff\xff";
  const std::string deep = start + std::string(100000, '\x81');
  for (const std::string& hostile : {start + "\xf6", huge, deep}) {
    EXPECT_FALSE(read_edf_ports(framed(hostile)).ok());
  }
}

// ---- how it fails ------------------------------------------------------------------------------

struct Misbehaviour {
  const char* mode;
  ErrorKind kind;
  const char* words;
};

TEST_F(FuriosaTest, EveryFailureOfACompileIsAValue) {
  using enum ErrorKind;
  const Misbehaviour all[] = {
      {"panic", kBadInput, "panicked; got called `Option::unwrap()` on a `None` value"},
      {"crash", kBadInput, "crashed; got killed by SIGSEGV"},
      {"parse", kBadInput, "does not parse the part's text; got line 2: def "},
      {"refuse", kBadInput, "no tactic found for operator 3"},
      {"no-cross", kRetriable, "apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"},
      {"no-output", kRetriable, "left no EDF"},
      {"garbage", kBadInput, "EDF: must be as long as it says"},
      {"short", kBadInput, "EDF: must be as long as it says"},
      {"damaged", kBadInput, "EDF: must hold a signature of shapes and types"},
      {"drop-input", kBadInput, "must keep 2 inputs; got 1"},
      {"other-type", kBadInput, "must keep the type and size of o0"},
      {"no-version", kRetriable, "does not say its version"},
  };
  for (const Misbehaviour& wrong : all) {
    SCOPED_TRACE(wrong.mode);
    misbehave(wrong.mode);
    expect_says(error_of(furiosa()->compile(bf16_product(), {})), wrong.kind, wrong.words);
  }
}

TEST_F(FuriosaTest, EveryFailureOfAnEstimateIsAValue) {
  using enum ErrorKind;
  const Misbehaviour all[] = {
      {"panic", kBadInput, "panicked"},
      {"crash", kBadInput, "SIGSEGV"},
      {"parse", kBadInput, "does not parse"},
      {"zero", kBadInput, "estimates 0 cycles, as for a size that is not bound"},
      {"garbage", kBadInput, "must print a number of cycles; got about 12"},
      {"hang", kRetriable, "did not end; got timed out after"},
  };
  CompileOptions options;
  options.seconds_limit = 1;
  for (const Misbehaviour& wrong : all) {
    SCOPED_TRACE(wrong.mode);
    misbehave(wrong.mode);
    expect_says(error_of(furiosa()->estimate_cycles(bf16_product(), options)), wrong.kind,
                wrong.words);
  }
}

// The stand-in prints 0 for a text with a size that no line binds, as the real one does.
TEST_F(FuriosaTest, ASizeThatIsNotBoundIsNoEstimate) {
  const std::string text =
      "#tactic_kernel_dsl\ndef f(\n    x: [M, K]/bf16\n) -> [M, K]/bf16:\n"
      "    assert M == 4\n    y: [M, K]/bf16 = tk.Elementwise(\n    )\n    return y\n";
  TccJob job;
  job.target = "renegade";
  expect_says(error_of(furiosa_estimate_tcl(NPU_FAKE_TCC, text, job)), ErrorKind::kBadInput,
              "not bound");
  expect_says(error_of(furiosa_compile_tcl(NPU_FAKE_TCC, text, job)), ErrorKind::kBadInput,
              "not bound");
}

// ---- what is looked for ------------------------------------------------------------------------

TEST_F(FuriosaTest, WhereTheCompilerIsLookedFor) {
  variables.set("NPU_LORA_FURIOSA_TCC", (folder.path() / "nothing").string());
  expect_says(error_of(find_furiosa_tcc()), ErrorKind::kBadInput,
              "NPU_LORA_FURIOSA_TCC: must name");
  variables.unset("NPU_LORA_FURIOSA_TCC");
  variables.set("PATH", bin().string());
  expect_says(error_of(furiosa()->compiler_version()), ErrorKind::kBadInput,
              "pip install furiosa-tcc");
  const fs::path active = folder.path() / "venv";
  fs::create_directories(active / "bin");
  write_program(active / "bin/furiosa-tcc");
  variables.set("VIRTUAL_ENV", active.string());
  EXPECT_EQ(find_furiosa_tcc().take(), active / "bin/furiosa-tcc");
  publish_text(bin() / "furiosa-tcc", "not executable");
  EXPECT_EQ(find_furiosa_tcc().take(), active / "bin/furiosa-tcc");
  write_program(bin() / "furiosa-tcc");
  EXPECT_EQ(find_furiosa_tcc().take(), bin() / "furiosa-tcc");
}

TEST_F(FuriosaTest, TheCrossCompilerIsAskedForFirstButNotForEstimates) {
  fs::remove(bin() / "aarch64-linux-gnu-gcc");
  variables.set("PATH", bin().string());
  const auto backend = furiosa();
  const auto problem = backend->cannot_compile({});
  ASSERT_TRUE(problem);
  expect_says(*problem, ErrorKind::kBadInput,
              "apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross");
  expect_says(error_of(backend->compile(bf16_product(), {})), ErrorKind::kRetriable,
              "aarch64-linux-gnu-gcc");
  EXPECT_TRUE(calls().empty()) << "nothing was started";
  EXPECT_TRUE(backend->estimate_cycles(bf16_product(), {}).ok());
}

TEST_F(FuriosaTest, DoctorNamesAllThatIsMissing) {
  variables.unset("NPU_LORA_FURIOSA_TCC");
  variables.set("PATH", folder.path().string());
  variables.set("NPU_LORA_RNGD_NODES", folder.path().string());
  const auto problem = probe_furiosa();
  ASSERT_TRUE(problem);
  for (const char* words :
       {"furiosa-tcc: was not found", "pip install furiosa-tcc",
        "aarch64-linux-gnu-gcc: ", "apt install gcc-aarch64", "furiosa:auto: has no device node"}) {
    EXPECT_NE(problem->text().find(words), std::string::npos) << words << "\n" << problem->text();
  }
  EXPECT_TRUE(calls().empty());
}

// ---- options -----------------------------------------------------------------------------------

TEST_F(FuriosaTest, TargetsScaleEstimatesAndPeak) {
  const auto backend = furiosa();
  double before = 1e30, peak = 0;
  for (const FuriosaTarget& target : furiosa_targets()) {
    const CompileOptions options = with({{"target", std::string(target.name)}});
    const double cycles = backend->estimate_cycles(bf16_product(4096), options).take();
    const CostRates rates = backend->cost_rates(options).value();
    EXPECT_LT(cycles, before);
    EXPECT_GT(rates.flops_per_second, peak);
    before = cycles;
    peak = rates.flops_per_second;
  }
  EXPECT_EQ(peak, 256e12);
  EXPECT_EQ(backend->cost_rates({})->flops_per_second, peak) << "the default is a whole card";
}

TEST_F(FuriosaTest, OptionsThatItDoesNotTake) {
  using enum ErrorKind;
  const struct {
    std::vector<std::pair<std::string, std::string>> vendor;
    const char* words;
  } all[] = {
      {{{"target", "nonsense"}}, "--target: is none of one RNGD card; got nonsense"},
      {{{"tactic", "Fast"}}, "--tactic: no such hint; got Fast"},
      {{{"tactic", "ForLlmModelComputeBound"}}, "--max-shapes: must be given"},
      {{{"tactic", "NoConstraint"}, {"max-shapes", "4"}}, "--max-shapes: must not be given"},
      {{{"max-shapes", "0"}}, "--max-shapes: must be a whole number from 1"},
      {{{"search", "full"}, {"max-shapes", "0"}}, "--max-shapes: must be a whole number from 1"},
      {{{"search", "fast"}}, "--search: no such search; got fast"},
      {{{"search", "quick"}, {"tactic", "NoConstraint"}}, "--tactic: is for --search full"},
  };
  for (const auto& wrong : all) {
    const auto backend = furiosa();
    const auto problem = backend->cannot_compile(with(wrong.vendor));
    ASSERT_TRUE(problem) << wrong.words;
    expect_says(*problem, kUsage, wrong.words);
    expect_says(error_of(backend->estimate_cycles(bf16_product(), with(wrong.vendor))), kUsage,
                wrong.words);
  }
}

TEST_F(FuriosaTest, ATacticBecomesTheCompilersConfiguration) {
  EXPECT_EQ(furiosa_tactic_config("ForLlmModelComputeBound", 4).take(),
            "tactic_hint:\n  ForLlmModelComputeBound: 4\n");
  EXPECT_EQ(furiosa_tactic_config("NoConstraint", 0).take(), "tactic_hint: NoConstraint\n");
  EXPECT_EQ(furiosa_tactic_config("", 8).take(),
            "tactic_hint:\n  DefaultWithMaxNumUniqueShapes: 8\n");
  EXPECT_EQ(furiosa_tactic_config("", 0).take(), "");
  EXPECT_TRUE(furiosa()->compile(bf16_product(), with({{"tactic", "NoConstraint"}})).ok());
}

TEST_F(FuriosaTest, TheSearchIsQuickUnlessSomethingElseSaysHow) {
  // How many shapes of a tensor the hint that reached the compiler allows; "" without one.
  const auto hinted = [&](const CompileOptions& options) {
    EXPECT_TRUE(furiosa()->compile(bf16_product(), options).ok());
    const size_t at = calls().back().find(" hinted ");
    return at == std::string::npos ? "" : calls().back().substr(at + 8);
  };
  EXPECT_EQ(hinted({}), "8");
  EXPECT_EQ(hinted(with({{"search", "quick"}, {"max-shapes", "32"}})), "32");
  EXPECT_EQ(hinted(with({{"search", "full"}})), "");
  EXPECT_EQ(hinted(with({{"tactic", "NoConstraint"}})), "");

  const fs::path config = folder.path() / "config.yaml";
  publish_text(config, "tactic_hint: Default\n");
  variables.set("NPU_COMPILER_CONFIG_PATH", config.string());
  EXPECT_EQ(hinted({}), "");
  EXPECT_EQ(hinted(with({{"search", "quick"}})), "8");
  variables.unset("NPU_COMPILER_CONFIG_PATH");

  EXPECT_EQ(furiosa_quick_hint(32),
            "global_hint:\n  max_num_partitioning_axes: 1\n  max_num_unique_shapes: 32\n"
            "  use_efficiently_broadcasted_tactic: true\n"
            "global_einsum_hint:\n  max_num_partitioning_axes: 1\n  max_num_unique_shapes: 32\n"
            "  use_efficiently_broadcasted_tactic: true\n");
  EXPECT_LT(furiosa()->cost_rates({})->compile_seconds,
            furiosa()->cost_rates(with({{"search", "full"}}))->compile_seconds);
}

TEST_F(FuriosaTest, AHintOfTheUsersOwnIsAnotherCompiler) {
  const auto backend = furiosa();
  const std::string plain = backend->compiler_version().take();
  const fs::path file = folder.path() / "hint.yaml";
  publish_text(file, "global_hint:\n  max_num_unique_shapes: 3\n");
  variables.set("TACTIC_HINT_PATH", file.string());
  EXPECT_NE(backend->compiler_version().take(), plain);
  ASSERT_TRUE(backend->compile(bf16_product(), {}).ok());
  EXPECT_TRUE(calls().back().ends_with(" hinted 3"));
  expect_says(*backend->cannot_compile(with({{"search", "quick"}})), ErrorKind::kUsage,
              "quick can't be had beside TACTIC_HINT_PATH");
  expect_says(*backend->cannot_compile(with({{"max-shapes", "4"}})), ErrorKind::kUsage,
              "--max-shapes: can't be given beside TACTIC_HINT_PATH without --tactic");
  EXPECT_FALSE(
      backend->cannot_compile(with({{"tactic", "ForLlmModelComputeBound"}, {"max-shapes", "4"}})));
  for (const char* broken : {"global_hint: [\n", ""}) {
    publish_text(file, broken);
    const Error error = error_of(backend->compile(bf16_product(), {}));
    expect_says(error, ErrorKind::kUsage,
                "TACTIC_HINT_PATH: the compiler does not take the bounds in " + file.string());
    EXPECT_EQ(error.hint, "correct the file, or unset the variable");
  }
}

// The search's bounds have no part in the planner's model.
TEST_F(FuriosaTest, NoHintReachesAnEstimate) {
  const double cycles = furiosa()->estimate_cycles(bf16_product(), {}).take();
  EXPECT_EQ(calls().back().find("hinted"), std::string::npos);
  const fs::path file = folder.path() / "hint.yaml";
  publish_text(file, "global_hint: [\n");
  variables.set("TACTIC_HINT_PATH", file.string());
  EXPECT_EQ(furiosa()->estimate_cycles(bf16_product(), {}).take(), cycles);
  EXPECT_EQ(calls().back().find("hinted"), std::string::npos);
}

// What keys hold is what the options come to, however that was said.
TEST_F(FuriosaTest, OptionsThatComeToTheSameAreTheSame) {
  const auto key = [](KeyUse use, std::vector<std::pair<std::string, std::string>> vendor) {
    return furiosa()->key_options(with(std::move(vendor)), use);
  };
  using enum KeyUse;
  const VendorOptions plain = key(kCode, {}), full = key(kCode, {{"search", "full"}});
  EXPECT_EQ(key(kCode, {{"target", "renegade-8pe"}, {"search", "quick"}, {"max-shapes", "8"}}),
            plain);
  EXPECT_EQ(key(kCode, {{"compiler", "tcc"}}), plain) << "the key names the compiler itself";
  EXPECT_NE(key(kCode, {{"max-shapes", "9"}}), plain);
  EXPECT_NE(full, plain);
  EXPECT_NE(key(kCode, {{"target", "renegade"}}), plain);
  const VendorOptions tactic = key(kCode, {{"tactic", "NoConstraint"}});
  EXPECT_EQ(key(kCode, {{"search", "full"}, {"tactic", "NoConstraint"}}), tactic);
  EXPECT_NE(tactic, full);
  EXPECT_EQ(key(kCode, {{"search", "full"}, {"max-shapes", "4"}}),
            key(kCode, {{"tactic", "DefaultWithMaxNumUniqueShapes"}, {"max-shapes", "4"}}));

  const VendorOptions forecast = key(kForecast, {});
  EXPECT_EQ(key(kForecast, {{"search", "full"}}), forecast);
  EXPECT_EQ(key(kForecast, {{"max-shapes", "9"}}), forecast);
  EXPECT_NE(key(kForecast, {{"tactic", "NoConstraint"}}), forecast);
  EXPECT_NE(key(kForecast, {{"target", "renegade"}}), forecast);
}

TEST_F(FuriosaTest, ACompileThatDoesNotEndIsToldOfTheQuickSearch) {
  misbehave("hang");
  const std::string text = write_tcl(bf16_product()).take().text;
  for (const auto& [search, told] : {std::pair{"full", true}, std::pair{"quick", false}}) {
    TccJob job = furiosa_tcc_job(with({{"search", search}})).take();
    job.seconds_limit = 0.5;
    const Error error = error_of(furiosa_compile_tcl(NPU_FAKE_TCC, text, job));
    expect_says(error, ErrorKind::kRetriable, "did not end");
    EXPECT_EQ(error.hint.find("--search quick") != std::string::npos, told) << error.hint;
  }
}

TEST_F(FuriosaTest, AConfigurationOfTheUsersOwnIsAnotherCompiler) {
  const auto backend = furiosa();
  const std::string plain = backend->compiler_version().take();
  const fs::path file = folder.path() / "config.yaml";
  publish_text(file, "tactic_hint: Default\n");
  variables.set("NPU_COMPILER_CONFIG_PATH", file.string());
  const std::string first = backend->compiler_version().take();
  EXPECT_NE(first, plain);
  expect_says(*backend->cannot_compile(with({{"tactic", "NoConstraint"}})), ErrorKind::kUsage,
              "--tactic: can't be given beside NPU_COMPILER_CONFIG_PATH");
  expect_says(*backend->cannot_compile(with({{"max-shapes", "4"}})), ErrorKind::kUsage,
              "--max-shapes: can't be given beside NPU_COMPILER_CONFIG_PATH");
  EXPECT_FALSE(backend->cannot_compile(with({{"search", "quick"}, {"max-shapes", "4"}})));
  publish_text(file, "nonsense: 1\n");
  EXPECT_NE(backend->compiler_version().take(), first);
  expect_says(error_of(backend->compile(bf16_product(), {})), ErrorKind::kUsage,
              "does not take its configuration; got unknown field `nonsense`");
  variables.set("NPU_COMPILER_CONFIG_PATH", (folder.path() / "absent").string());
  EXPECT_FALSE(backend->compiler_version().ok());
}

TEST_F(FuriosaTest, ThreadsAreSharedByCompilesAtTheSameTime) {
  variables.set("RAYON_NUM_THREADS", "7");
  CompileOptions options;
  for (const int jobs : {1, 3, 20}) {
    options.jobs = jobs;
    ASSERT_TRUE(furiosa()->compile(bf16_product(), options).ok());
  }
  ASSERT_EQ(calls().size(), 3u);
  EXPECT_NE(calls()[0].find("threads 7 "), std::string::npos);
  EXPECT_NE(calls()[1].find("threads 2 "), std::string::npos);
  EXPECT_NE(calls()[2].find("threads 1 "), std::string::npos);
}

// ---- cards -------------------------------------------------------------------------------------

TEST_F(FuriosaTest, NamesOfCards) {
  for (const char* name : {"furiosa", "furiosa:auto", "furiosa:0", "furiosa:12"}) {
    const auto backend = make_backend(name).take();
    EXPECT_EQ(backend->traits().name, name);
    EXPECT_EQ(backend->traits().code_name, "furiosa");
    EXPECT_FALSE(backend->traits().host_memory);
  }
  for (const char* name : {"furiosa:", "furiosa:x", "furiosa:-1", "furiosa:0:1", "furiosa:99999"}) {
    expect_says(error_of(make_backend(name)), ErrorKind::kUsage, "no such card");
  }
}

TEST_F(FuriosaTest, ACardWithoutADeviceNodeIsAnError) {
  variables.set("NPU_LORA_RNGD_NODES", folder.path().string());
  expect_says(error_of(make_backend("furiosa:3").take()->open({})), ErrorKind::kBadInput,
              "furiosa:3: has no device node in ");
}

}  // namespace
}  // namespace npu
