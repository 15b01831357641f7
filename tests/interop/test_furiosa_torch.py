"""Training through furiosa.torch as the compiler: parts rebuilt of torch ops, exported by real torch, and
computed by it behind a stand-in for furiosa.torch and its cards."""
import json
import os
import sys

import pytest
from conftest import REPO, existing, write_jsonl

MODEL = REPO / "tests/golden/llama_tiny"
BUILD = REPO / "build/release/tests"
SIZES = ["--model", MODEL, "--seq-len", 32, "--loss-rows", 16, "--vocab-chunk", 256]
USAGE = 2


@pytest.fixture
def card(tmp_path, monkeypatch):
    """A card, a Python with furiosa.torch, no furiosa-tcc; returns the calls of the compiler so far."""
    fakes = REPO / "tests/tools/fake_furiosa"
    nodes = tmp_path / "rngd"
    nodes.mkdir()
    (nodes / "npu0mgmt").touch()
    log = tmp_path / "calls"
    compute = os.environ.get("NPU_FAKE_COMPUTE", BUILD / "fake_rngd_compute")
    for name, value in {"NPU_LORA_RNGD_NODES": nodes, "NPU_LORA_FURIOSA_PYTHON": sys.executable,
                        "NPU_LORA_FURIOSA_WORKER": "python", "PYTHONPATH": f"{fakes}:{fakes}/packages",
                        "FAKE_TORCH_LOG": log, "FAKE_RNGD_COMPUTE": existing(compute, "cmake --build --preset release"),
                        "NPU_LORA_FURIOSA_TCC": "/nonexistent", "NPU_LORA_CACHE": tmp_path / "cache"}.items():
        monkeypatch.setenv(name, str(value))
    for name in ("FAKE_RNGD_RELEASE", "FAKE_RNGD_MODE", "FAKE_TORCH_MODE", "NPU_COMPILER_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    return lambda: log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def tcc(card, tmp_path, monkeypatch):
    """furiosa-tcc beside it, as a stand-in; returns its compiles so far."""
    fake = os.environ.get("NPU_FAKE_TCC", BUILD / "fake_furiosa_tcc")
    (tmp_path / "bin").mkdir()
    cross = tmp_path / "bin/aarch64-linux-gnu-gcc"
    cross.write_text("#!/bin/sh\n")
    cross.chmod(0o755)
    log = tmp_path / "tcc_calls"
    monkeypatch.setenv("NPU_LORA_FURIOSA_TCC", existing(fake, "cmake --build --preset release"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_TCC_LOG", str(log))
    return lambda: [line for line in log.read_text().splitlines() if line.startswith("compile")]


@pytest.fixture
def checked(run, tmp_path):
    """checked(*options): loss and all gradients against the reference, within the bounds of bf16."""
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"input_ids": [3 + (7 * i + i * i) % 90 for i in range(32)]}])
    return lambda *options: json.loads(run("check", *SIZES, "--data", rows, "--backend", "furiosa:0", "--jobs", 2,
                                           "--json", *options).stdout)


def test_all_parts_through_torch_train_as_the_reference(checked, card):
    report = checked("--compiler", "torch", "--max-mm", 0)
    assert report["pass"] and report["worst_grad_rel"] < 0.02, report
    assert len(card()) > 4


@pytest.mark.parametrize("release", ["2026.4", "2026.2"])
def test_releases_name_things_differently(checked, card, monkeypatch, release):
    monkeypatch.setenv("FAKE_RNGD_RELEASE", release)
    assert checked("--compiler", "torch", "--max-mm", 0, "--targets", "q,v")["pass"]


def test_auto_leaves_to_tcl_what_it_has_words_for(run, checked, card, tcc):
    """Which is all of a step; what it has none for is in tests/furiosa_torch_test.cpp."""
    assert checked()["pass"]
    assert tcc() and not card()
    compiled = json.loads(run("compile", *SIZES, "--backend", "furiosa:0", "--json").stdout)
    assert compiled["failed"] == []


def test_what_was_compiled_is_kept(run, card):
    arguments = ["compile", *SIZES, "--backend", "furiosa", "--compiler", "torch", "--max-mm", 0, "--json"]
    built = json.loads(run(*arguments).stdout)["built"]
    assert built == len(card()) > 0
    assert json.loads(run(*arguments, "--expect-cached").stdout)["built"] == 0
    assert len(card()) == built


def test_options(run, card):
    done = run("compile", *SIZES, "--backend", "furiosa", "--compiler", "gcc", expect=USAGE)
    assert "--compiler: no such compiler; got gcc; hint: use auto, tcc or torch" in done.stderr
    done = run("compile", *SIZES, "--backend", "cpu", "--compiler", "torch", expect=USAGE)
    assert "--compiler: is no option of the backend's compiler" in done.stderr
