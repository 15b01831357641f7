#!/usr/bin/env bash
# Runs everything that must pass before a change lands, all stages even if one fails.
#   scripts/test.sh             lint, release, sanitize, interop
#   scripts/test.sh STAGE...    only these; and tidy [after release]: clang-tidy on files that differ
#                               from $NPU_TIDY_BASE (default: the last commit); and vendor [after
#                               release]: the real compilers of vendors, without their devices
# Installs what is missing first (scripts/setup.sh --tests). The last line is the total: N passed, N failed.
set -euo pipefail
cd "$(dirname "$0")/.."

results=$PWD/build/test-results
began=$SECONDS
failures=0
# All output of every test, else ctest cuts the lines that test_totals.py counts.
ctest_output=(--test-output-size-passed 10000000 --test-output-size-failed 10000000)

cpp_files() { git ls-files --cached --others --exclude-standard -- '*.cpp' '*.h'; }

stage_lint() {
  python3 tools/layers.py --self-test
  python3 tools/layers.py
  python3 tools/test_totals.py --self-test
  cpp_files | xargs clang-format-15 --dry-run -Werror
}

stage_release() {
  cmake --preset release -DNPU_TESTS=ON >"$results/release-configure.log"
  cmake --build --preset release
  ctest --preset release -j "$(nproc)" "${ctest_output[@]}" --output-junit "$results/ctest-release.xml"
}

stage_sanitize() {
  cmake --preset sanitize >"$results/sanitize-configure.log"
  cmake --build --preset sanitize
  ctest --preset sanitize -j "$(nproc)" "${ctest_output[@]}" --output-junit "$results/ctest-sanitize.xml"
}

stage_interop() {
  scripts/fetch_model.sh
  .venv/bin/python -m pytest tests/interop -q --durations=10 --junitxml="$results/pytest.xml"
}

stage_tidy() {
  git diff --name-only "${NPU_TIDY_BASE:-HEAD}" -- 'src/*.cpp' |
    xargs -r -n 1 -P "$(nproc)" clang-tidy-15 -p build/release --quiet
}

stage_vendor() {
  scripts/setup.sh --vendor
  .venv/bin/python -m pytest tests/vendor -q -p no:cacheprovider --durations=10 --junitxml="$results/pytest-vendor.xml"
}

run_stage() {
  local name=$1 start=$SECONDS status=passed
  echo "== $name"
  # A subshell with its own -e: a failing command ends the stage, not this script.
  set +e
  (set -e; "stage_$name")
  local code=$?
  set -e
  if ((code)); then status="FAILED (exit $code)"; failures=$((failures + 1)); fi
  echo "== $name: $status, $((SECONDS - start)) s"
}

stages=("$@")
((${#stages[@]})) || stages=(lint release sanitize interop)
for stage in "${stages[@]}"; do
  declare -F "stage_$stage" >/dev/null || { echo "unknown stage: $stage" >&2; exit 2; }
done
scripts/setup.sh --tests
rm -rf "$results"
mkdir -p "$results"
for stage in "${stages[@]}"; do run_stage "$stage"; done
echo "all stages: $((SECONDS - began)) s"
python3 tools/test_totals.py --failed-stages "$failures" "$results"
