"""`compile` and `plan` for FuriosaAI RNGD over a stand-in for the vendor's compiler: no device, no SDK."""
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import REPO, existing

MODEL = REPO / "tests/golden/llama_tiny"
CHECK_FAILED, USAGE, NOT_RETRIABLE = 1, 2, 42
SIZES = ["--model", MODEL, "--seq-len", 32, "--loss-rows", 16, "--vocab-chunk", 256]
ON_CARD = [*SIZES, "--backend", "furiosa"]


@pytest.fixture
def tcc(tmp_path, monkeypatch):
    """The stand-in in place, with a cross compiler beside it; returns what it was called for so far."""
    fake = os.environ.get("NPU_FAKE_TCC", REPO / "build/release/tests/fake_furiosa_tcc")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "aarch64-linux-gnu-gcc").write_text("#!/bin/sh\n")
    (tools / "aarch64-linux-gnu-gcc").chmod(0o755)
    log = tmp_path / "calls"
    monkeypatch.setenv("NPU_LORA_FURIOSA_TCC", existing(fake, "cmake --build --preset release --target fake_furiosa_tcc"))
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_TCC_LOG", str(log))
    monkeypatch.setenv("NPU_LORA_CACHE", str(tmp_path / "cache"))
    for variable in ("NPU_COMPILER_CONFIG_PATH", "TACTIC_HINT_PATH"):
        monkeypatch.delenv(variable, raising=False)

    def calls(kind):
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.startswith(kind)]

    calls.tools = tools
    return calls


def compiled(run, *more, sizes=ON_CARD, expect=0):
    return json.loads(run("compile", *sizes, *more, "--json", expect=expect).stdout)


def alive(pid):
    """A zombie that nobody waits for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ")[1][0] not in "ZX"
    except OSError:
        return False


def stored_parts(folder):
    """Entries of compiled parts; estimates and cuts lie beside them."""
    return [path for path in folder.glob("*.json") if '"use"' not in path.read_text()]


# ---- compile ------------------------------------------------------------------------------------
def test_a_second_compile_builds_nothing(run, tcc):
    first = compiled(run)
    assert first["built"] > 0 and first["failed"] == []
    assert len(tcc("compile")) == first["built"]
    assert compiled(run)["built"] == 0
    assert compiled(run, sizes=[*SIZES, "--backend", "furiosa:2"])["cached"] == first["built"]
    run("compile", *ON_CARD, "--expect-cached")
    assert len(tcc("compile")) == first["built"]


def test_a_target_is_another_part(run, tcc):
    compiled(run, "--target", "renegade")
    done = run("compile", *ON_CARD, "--expect-cached", expect=CHECK_FAILED)
    assert "option target changed: renegade-8pe (was renegade)" in done.stderr


def test_a_killed_compile_goes_on_where_it_was(run, npu_lora, tcc, monkeypatch, tmp_path):
    total = compiled(run, "--cache-dir", tmp_path / "other")["built"]
    already = len(tcc("compile"))
    monkeypatch.setenv("FAKE_TCC_SECONDS", "0.5")
    process = subprocess.Popen([npu_lora, "compile", *map(str, ON_CARD)], stderr=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL)
    parts = tmp_path / "cache/parts"
    until = time.monotonic() + 120
    while time.monotonic() < until and len(stored_parts(parts)) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(stored_parts(parts))
    assert 2 <= kept < total
    monkeypatch.delenv("FAKE_TCC_SECONDS")
    again = compiled(run)
    assert again["cached"] == kept and again["built"] == total - kept
    assert len(tcc("compile")) - already <= total + 1, "only the interrupted part was built twice"


def test_a_bundle_carries_parts_to_another_machine(run, tcc, tmp_path):
    built = compiled(run, "--export", tmp_path / "parts.bundle")["built"]
    there = compiled(run, "--cache-dir", tmp_path / "there", "--import", tmp_path / "parts.bundle")
    assert there["cached"] == built and there["built"] == 0


@pytest.mark.parametrize("mode, words", [
    ("panic", "panicked; got called `Option::unwrap()`"),
    ("refuse", "no tactic found for operator 3"),
    ("crash", "killed by SIGSEGV"),
    ("short", "EDF: must be as long as it says"),
    ("drop-input", "inputs; got "),
])
def test_what_the_compiler_does_not_take_is_said(run, tcc, monkeypatch, mode, words):
    monkeypatch.setenv("FAKE_TCC_MODE", mode)
    report = compiled(run, "--no-adaptive-cut", expect=CHECK_FAILED)
    assert report["built"] == 0 and report["failed"]
    assert all(words in failure["reason"] for failure in report["failed"])


def test_a_hanging_compiler_ends_with_its_limit(run, tcc, monkeypatch):
    monkeypatch.setenv("FAKE_TCC_MODE", "hang")
    report = compiled(run, "--no-adaptive-cut", "--compile-timeout", 1, "--jobs", 4,
                      expect=CHECK_FAILED)
    assert all(failure["outcome"] == "timed out" for failure in report["failed"])
    pids = [line.split(" pid ")[1].split()[0] for line in tcc("compile")]
    assert pids and [pid for pid in pids if alive(pid)] == []


def test_progress_is_shown_on_request(run, tcc):
    assert "[5/13]" in run("compile", *ON_CARD, "--log", "compile").stderr


def test_the_cross_compiler_is_missed_before_anything_starts(run, tcc, monkeypatch):
    (tcc.tools / "aarch64-linux-gnu-gcc").unlink()
    monkeypatch.setenv("PATH", str(tcc.tools))
    done = run("compile", *ON_CARD, expect=NOT_RETRIABLE)
    assert "apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross" in done.stderr
    assert tcc("compile") == []
    assert "tok/s" in run("plan", *ON_CARD).stdout


def test_without_the_compiler(run, tcc, monkeypatch):
    monkeypatch.delenv("NPU_LORA_FURIOSA_TCC")
    monkeypatch.setenv("PATH", str(tcc.tools))
    monkeypatch.setenv("VIRTUAL_ENV", "/nonexistent")
    assert "pip install furiosa-tcc" in run("compile", *ON_CARD, expect=NOT_RETRIABLE).stderr
    done = run("plan", *ON_CARD)
    assert "no estimate of the step: furiosa-tcc: was not found" in done.stderr
    rows = json.loads(run("doctor", "--json").stdout)["backends"]
    row = next(row for row in rows if row["name"] == "furiosa")
    assert not row["usable"] and "pip install furiosa-tcc" in row["hint"]


# ---- options ------------------------------------------------------------------------------------
@pytest.mark.parametrize("options, words", [
    (["--target", "nonsense"], "--target: is none of one RNGD card; got nonsense"),
    (["--target", "renegade,renegade-8pe"], "--target: is none of one RNGD card"),
    (["--tactic", "Fast"], "--tactic: no such hint; got Fast; hint: use one of Default"),
    (["--tactic", "ForLlmModelIOBound"], "--max-shapes: must be given with --tactic"),
    (["--search", "fast"], "--search: no such search; got fast; hint: use quick or full"),
    (["--search", "quick", "--tactic", "NoConstraint"], "--tactic: is for --search full"),
    (["--backend", "cpu", "--target", "renegade"], "--target: is no option of the backend's compiler; got cpu"),
    (["--backend", "furiosa:x"], "no such card"),
])
def test_options_that_it_does_not_take(run, tcc, options, words):
    sizes = SIZES if "--backend" in options else ON_CARD
    assert words in run("compile", *sizes, *options, expect=USAGE).stderr
    assert tcc("compile") == []


def test_a_tactic_reaches_the_compiler_and_the_key(run, tcc):
    compiled(run)
    hinted = compiled(run, "--tactic", "ForLlmModelComputeBound", "--max-shapes", 4)
    assert hinted["built"] > 0 and hinted["cached"] == 0


def test_a_full_search_is_other_code(run, tcc):
    quick = compiled(run, "--max-mm", 2)
    assert all(line.endswith(" hinted 8") for line in tcc("compile"))
    full = compiled(run, "--max-mm", 2, "--search", "full")
    assert full["built"] == quick["built"] and full["cached"] == 0
    assert sum(" hinted" in line for line in tcc("compile")) == quick["built"]
    done = run("compile", *ON_CARD, "--max-mm", 2, "--max-shapes", 4, "--expect-cached", expect=CHECK_FAILED)
    assert "option max-shapes changed: 4 (was 8)" in done.stderr


def test_what_comes_to_the_same_is_the_same_code(run, tcc):
    built = compiled(run, "--max-mm", 2)["built"]
    for same in (["--search", "quick"], ["--max-shapes", 8], ["--target", "renegade-8pe"], ["--compiler", "tcc"]):
        assert compiled(run, "--max-mm", 2, *same)["cached"] == built, same
    estimates = len(tcc("evaluate"))
    price = json.loads(run("plan", *ON_CARD, "--max-mm", 2, "--json").stdout)["estimates"][0]
    asked = len(tcc("evaluate"))
    assert asked > estimates
    full = json.loads(run("plan", *ON_CARD, "--max-mm", 2, "--search", "full", "--json").stdout)["estimates"][0]
    assert len(tcc("evaluate")) == asked, "a forecast is of the chip, not of a search"
    assert full["cycles_per_step"] == price["cycles_per_step"]


def test_a_hint_that_is_no_yaml_is_the_users_to_mend(run, tcc, monkeypatch, tmp_path):
    hint = tmp_path / "hint.yaml"
    hint.write_text("global_hint: [\n")
    monkeypatch.setenv("TACTIC_HINT_PATH", str(hint))
    report = compiled(run, "--max-mm", 2, "--no-adaptive-cut", expect=CHECK_FAILED)
    assert all("TACTIC_HINT_PATH: the compiler does not take the bounds in " in row["reason"] for row in report["failed"])
    hint.write_text("global_hint:\n  max_num_unique_shapes: 2\n")
    assert compiled(run, "--max-mm", 2)["failed"] == []


def test_a_configuration_that_makes_the_search_full_is_said(run, tcc, monkeypatch, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("tactic_hint: Default\n")
    monkeypatch.setenv("NPU_COMPILER_CONFIG_PATH", str(config))
    words = "the search is full, as NPU_COMPILER_CONFIG_PATH is set; --search quick keeps it short"
    assert run("compile", *ON_CARD, "--max-mm", 2).stderr.count(words) == 1
    assert words not in run("compile", *ON_CARD, "--max-mm", 2, "--search", "quick").stderr


# ---- plan ---------------------------------------------------------------------------------------
def test_plan_prices_the_step_for_each_target(run, tcc):
    arguments = ["plan", *ON_CARD, "--target", "renegade,renegade-8pe", "--max-mm", 2]  # one cut for both
    plan = json.loads(run(*arguments, "--json").stdout)
    one, eight = plan["estimates"]
    assert (one["target"], eight["target"]) == ("renegade", "renegade-8pe")
    assert eight["cycles_per_step"] < one["cycles_per_step"]
    assert eight["peak_flops_per_second"] == 256e12 == 8 * one["peak_flops_per_second"]
    for price in (one, eight):
        assert all(graph["unpriced"] == [] for graph in price["graphs"])
        assert price["launches_per_step"] == sum(
            graph["calls_per_step"] * graph["launches_per_call"] for graph in price["graphs"])
        assert price["cycles_per_step"] == pytest.approx(
            sum(graph["calls_per_step"] * graph["cycles_per_call"] for graph in price["graphs"]))
        seconds = price["cycles_per_step"] / 1e9 + 10e-6 * price["launches_per_step"] + (
            price["transfer_bytes_per_step"] / 20e9)
        assert price["step_seconds"] == pytest.approx(seconds)
        assert price["tok_s"] == pytest.approx(32 / seconds)
        assert price["peak_share"] == pytest.approx(
            sum(graph["calls_per_step"] * graph["flops_per_call"] for graph in price["graphs"])
            / seconds / price["peak_flops_per_second"])
    asked = len(tcc("evaluate"))
    assert asked > 0 and asked % 2 == 0
    text = run(*arguments).stdout
    assert len(tcc("evaluate")) == asked
    assert "estimate for renegade-8pe: 8 PEs" in text and "of 256 TFLOP/s" in text


def test_plan_says_what_compiled_code_takes(run, tcc):
    def price(*more):
        return json.loads(run("plan", *ON_CARD, *more, "--json").stdout)["estimates"][0]

    before = price()
    assert before["compiled_parts"] == 0 and "scheduled_tok_s" not in before
    assert "as compiled" not in run("plan", *ON_CARD).stdout
    compiled(run)
    after = price()
    parts = sum(graph["launches_per_call"] for graph in after["graphs"])
    assert after["parts"] == after["compiled_parts"] == after["scheduled_parts"] == parts
    assert after["scheduled_cycles_per_step"] == sum(
        graph["calls_per_step"] * graph["scheduled_cycles_per_call"] for graph in after["graphs"])
    assert after["scheduled_cycles_per_step"] > 3000 * after["launches_per_step"]  # by the stand-in, more for more blocks
    assert after["scheduled_step_seconds"] == pytest.approx(
        after["step_seconds"] + (after["scheduled_cycles_per_step"] - after["cycles_per_step"]) / 1e9)
    assert after["scheduled_tok_s"] == pytest.approx(32 / after["scheduled_step_seconds"])
    ratio = after["scheduled_cycles_per_step"] / after["cycles_per_step"]
    assert after["scheduled_over_estimate"] == pytest.approx(ratio)
    assert f"{after['scheduled_tok_s']:.0f} tok/s; {ratio:.2f} x the estimate" in run("plan", *ON_CARD).stdout
    assert price("--max-mm", 2)["compiled_parts"] < price("--max-mm", 2)["parts"]


def test_plan_says_what_code_of_each_search_and_target_takes(run, tcc):
    same = ["--max-mm", 2]

    def prices(*more):
        return json.loads(run("plan", *ON_CARD, *same, *more, "--json").stdout)["estimates"]

    compiled(run, *same)
    (full,) = prices("--search", "full")
    assert full["compiled_parts"] == 0
    compiled(run, *same, "--search", "full")
    (full,), (quick,) = prices("--search", "full"), prices()
    assert full["scheduled_cycles_per_step"] < quick["scheduled_cycles_per_step"]
    one, eight = prices("--target", "renegade,renegade-8pe")
    assert one["compiled_parts"] == 0 and eight["compiled_parts"] == eight["parts"] > 0


def test_plan_counts_what_has_no_schedule_or_no_estimate(run, tcc, monkeypatch, tmp_path):
    """Parts with a norm are those that lack something; the others have all."""
    def price(cache):
        arguments = ["plan", *ON_CARD, "--max-mm", 2, "--no-adaptive-cut", "--cache-dir", tmp_path / cache]
        (line,) = (line for line in run(*arguments).stdout.splitlines() if line.startswith("as compiled"))
        return json.loads(run(*arguments, "--json").stdout)["estimates"][0], line

    def spoilt(mode, command, cache, expect=0):
        with monkeypatch.context() as spoil:
            spoil.setenv("FAKE_TCC_MODE", mode)
            spoil.setenv("FAKE_TCC_ONLY", "sqrt")
            run(command, *ON_CARD, "--max-mm", 2, "--cache-dir", tmp_path / cache, "--no-adaptive-cut", expect=expect)

    run("compile", *ON_CARD, "--max-mm", 2, "--cache-dir", tmp_path / "whole")
    whole, line = price("whole")

    spoilt("no-schedule", "compile", "silent")
    silent, line = price("silent")
    assert silent["compiled_parts"] == silent["parts"] > silent["scheduled_parts"] > 0
    assert "scheduled_tok_s" not in silent
    count = silent["parts"] - silent["scheduled_parts"]
    assert (f"{silent['parts']} of {silent['parts']} parts so far, {count} without a word of their schedule; "
            f"{silent['scheduled_over_estimate']:.2f} x the estimate") in line

    spoilt("zero", "plan", "unpriced")
    run("compile", *ON_CARD, "--max-mm", 2, "--cache-dir", tmp_path / "unpriced")
    unpriced, line = price("unpriced")
    assert not unpriced["complete"] and unpriced["cycles_per_step"] < whole["cycles_per_step"]
    assert unpriced["scheduled_cycles_per_step"] == whole["scheduled_cycles_per_step"]
    assert unpriced["scheduled_over_estimate"] == pytest.approx(silent["scheduled_over_estimate"])
    assert "at most" not in line  # every part says what it takes

    spoilt("refuse", "compile", "host", expect=CHECK_FAILED)
    host, line = price("host")
    assert sum(graph["host_parts"] for graph in host["graphs"]) == count
    assert host["scheduled_cycles_per_step"] < whole["scheduled_cycles_per_step"]
    assert f"at most {host['scheduled_tok_s']:.0f} tok/s" in line


def test_plan_says_what_is_not_in_the_price(run, tcc, monkeypatch):
    monkeypatch.setenv("FAKE_TCC_MODE", "zero")
    text = run("plan", *ON_CARD, "--host-parts", "ce-grad").stdout
    assert "not in it: parts on the host: " in text
    assert "not in it: layer_fwd.0: furiosa-tcc: estimates 0 cycles" in text
    assert "at most" in text


# ---- without a card -----------------------------------------------------------------------------
def test_training_needs_a_card(run, tcc, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"input_ids": list(range(2, 20))}) + "\n")
    done = run("train", *ON_CARD, "--data", rows, "--out", tmp_path / "out", "--steps", 1, expect=NOT_RETRIABLE)
    assert "furiosa" in done.stderr
