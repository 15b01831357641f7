// What this program believes of furiosa-tcc, against the real one, which must be installed with the
// cross compiler: scripts/setup.sh --vendor. Run by `scripts/test.sh vendor`; needs no card.
#include <gtest/gtest.h>

#include "backend/furiosa.h"
#include "backend/furiosa_blob.h"
#include "backend/furiosa_edf.h"
#include "backend/furiosa_tcc.h"
#include "ops/ops.h"
#include "test_environment.h"

namespace npu {
namespace {

Graph product(int64_t rows) {
  Builder b("part");
  const Value x = b.input("i0", {DType::kBF16, {rows, 64}});
  const Value w = b.input("i1", {DType::kBF16, {64, 64}});
  b.output("o0", ops::matmul(x, w, {.transpose_rhs = true}));
  return std::move(b).build();
}

// A text in the vendor's grammar with one axis that `sizes` may leave open.
std::string add_text(const std::string& sizes, const std::string& kind = "Interleaving") {
  return "#tactic_kernel_dsl\ndef sum(\n    a: [M, N]/bf16,\n    b: [M, N]/bf16\n) -> [M, "
         "N]/bf16:\n" +
         sizes + "    y: [M, N]/bf16 = tk." + kind +
         "(\n        %0 = read(a)\n        %1 = read(b)\n        %2 = ve.exec(%0 + %1)\n"
         "        write.to([M, N]/bf16)\n    )\n    return y\n";
}
const std::string kSizes = "    assert M == 64\n    assert N == 128\n";

class FuriosaTcc : public testing::Test {
 protected:
  FuriosaTcc() { job.target = "renegade"; }
  std::string estimate_error(const std::string& text) const {
    const Result<double> cycles = furiosa_estimate_tcl(tcc, text, job);
    EXPECT_FALSE(cycles.ok());
    return cycles.ok() ? "" : cycles.error().text();
  }
  std::string compile_error(const std::string& text) const {
    const Result<TccCode> edf = furiosa_compile_tcl(tcc, text, job);
    EXPECT_FALSE(edf.ok());
    return edf.ok() ? "" : edf.error().text();
  }

  fs::path tcc = find_furiosa_tcc().take();
  TccJob job;
};

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_F(FuriosaTcc, VersionAndCrossCompiler) {
  EXPECT_TRUE(contains(furiosa_tcc_version(tcc).take(), "furiosa-tcc 2026."));
  const auto problem = furiosa_cross_compiler_problem();
  EXPECT_FALSE(problem) << problem->text();
}

TEST_F(FuriosaTcc, APartBecomesAnEdfWithItsPorts) {
  CompileOptions options;
  options.vendor = {{"target", "renegade"}};
  const Blob bytes = make_furiosa_entry()->compile(product(128), options).take();
  const FuriosaBlob blob = decode_furiosa_blob(bytes).take();
  EXPECT_EQ(blob.inputs.size(), 2u);
  EXPECT_EQ(blob.target, "renegade");
}

// An unknown bound is passed over without a word, so only what the search finds shows that a
// release still reads ours.
TEST_F(FuriosaTcc, TheQuickHintBoundsTheSearch) {
  const auto backend = make_furiosa_entry();
  const auto cycles = [&](const char* search) {
    CompileOptions options;
    options.vendor = {{"target", "renegade"}, {"search", search}};
    return backend->code_cycles(backend->compile(product(128), options).take());
  };
  const auto quick = cycles("quick"), full = cycles("full");
  ASSERT_TRUE(quick && full) << "the search says what it comes to";
  EXPECT_NE(*quick, *full);
}

TEST_F(FuriosaTcc, BoundsThatAreNoYamlAreTheUsersError) {
  Environment variables;
  const TempDir folder;
  const fs::path file = folder.path() / "hint.yaml";
  variables.set("TACTIC_HINT_PATH", file.string());
  for (const char* broken : {"global_hint: [\n", "", "nonsense\n", "global_hint: 7\n", "a: b: c\n",
                             "a: \"b\n", "global_hint:\n  max_num_partitioning_axes: many\n"}) {
    publish_text(file, broken);
    const Result<TccCode> code = furiosa_compile_tcl(tcc, add_text(kSizes), job);
    ASSERT_FALSE(code.ok()) << broken;
    EXPECT_EQ(static_cast<int>(code.error().kind), static_cast<int>(ErrorKind::kUsage));
    EXPECT_TRUE(contains(code.error().text(), "TACTIC_HINT_PATH: ")) << code.error().text();
    EXPECT_TRUE(furiosa_estimate_tcl(tcc, add_text(kSizes), job).ok()) << "it does not reach these";
  }
}

TEST_F(FuriosaTcc, EstimatesFallWithPes) {
  double before = 1e30;
  for (const FuriosaTarget& target : furiosa_targets()) {
    CompileOptions options;
    options.vendor = {{"target", std::string(target.name)}};
    const double cycles = make_furiosa_entry()->estimate_cycles(product(4096), options).take();
    EXPECT_LT(cycles, before) << target.name;
    before = cycles;
  }
}

TEST_F(FuriosaTcc, EveryTacticIsAccepted) {
  for (const char* name : {"Default", "NoConstraint", "ForLlmModelComputeIOBalanced",
                           "ForVisionModel", "ForMiscModel"}) {
    job.config = furiosa_tactic_config(name, 0).take();
    const Result<double> cycles = furiosa_estimate_tcl(tcc, add_text(kSizes), job);
    EXPECT_TRUE(cycles.ok()) << name << ": " << cycles.error().text();
  }
  for (const char* name : {"", "ForLlmModelComputeBound", "ForLlmModelIOBound"}) {
    job.config = furiosa_tactic_config(name, 4).take();
    const Result<double> cycles = furiosa_estimate_tcl(tcc, add_text(kSizes), job);
    EXPECT_TRUE(cycles.ok()) << name << ": " << cycles.error().text();
  }
}

TEST_F(FuriosaTcc, ItsErrorsAreUnderstood) {
  const std::string wrong = add_text(kSizes, "Nonsense");
  EXPECT_TRUE(contains(estimate_error(wrong), "does not parse")) << estimate_error(wrong);
  EXPECT_TRUE(contains(compile_error(wrong), "line 8:")) << compile_error(wrong);
  EXPECT_TRUE(contains(estimate_error(add_text("")), "not bound"));
  EXPECT_TRUE(contains(compile_error(add_text("")), "not bound")) << compile_error(add_text(""));
  job.config = "nonsense: 1\n";
  EXPECT_TRUE(contains(estimate_error(add_text(kSizes)), "unknown field `nonsense`"));
  job.config = "";
  job.target = "nonsense";
  EXPECT_TRUE(contains(estimate_error(add_text(kSizes)), "does not know this target"));
  EXPECT_TRUE(contains(compile_error(add_text(kSizes)), "does not know this target"));
}

}  // namespace
}  // namespace npu
