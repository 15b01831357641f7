"""What commands say and record beside their main work."""
import fcntl
import json
import os
import pty
import subprocess

import pytest
from conftest import REPO, write_jsonl

USAGE = 2
TINY = REPO / "tests/golden/llama_tiny"
ROW = {"input_ids": list(range(2, 20))}


@pytest.mark.parametrize("backend, compiler", [("cpu", "cpu 2, "), ("openvino:CPU", "openvino ")])
def test_run_json_says_what_ran(run, tmp_path, backend, compiler):
    data = write_jsonl(tmp_path / "rows.jsonl", [ROW])
    run("train", "--model", TINY, "--data", data, "--out", tmp_path / "out", "--backend", backend,
        "--seq-len", 32, "--steps", 1, "--seed", 7)
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["backend"] == backend
    assert record["compiler"].startswith(compiler)
    assert record["seeds"] == {"adapter": 7, "shuffle": 7}
    assert record["threads"] >= 1 and record["host"]["usable_cpus"] >= 1
    assert ", products " in record["libraries"]["host_backend"]
    assert record["exit_code"] == 0 and record["steps"] == 1


# ---- the output directory of a run --------------------------------------------------------------

def train_command(tmp_path, out, *more):
    data = write_jsonl(tmp_path / "rows.jsonl", [ROW])
    return ["train", "--model", TINY, "--data", data, "--out", out, "--backend", "cpu",
            "--seq-len", 32, "--steps", 2, *more]


def test_a_runs_own_configuration_starts_it_again(run, tmp_path):
    run(*train_command(tmp_path, tmp_path / "first"))
    config = tmp_path / "first/config.yaml"
    run("train", "--config", config, "--out", tmp_path / "second")
    run("plan", "--config", config)
    adapters = [(tmp_path / name / "adapter_model.safetensors").read_bytes()
                for name in ("first", "second")]
    assert adapters[0] == adapters[1]


def test_a_models_directory_takes_no_adapter(run, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    done = run(*train_command(tmp_path, model), expect=USAGE)
    assert "must not be a model's directory" in done.stderr
    assert [path.name for path in model.iterdir()] == ["config.json"]


def test_two_runs_do_not_share_a_directory(run, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    descriptor = os.open(out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    done = run(*train_command(tmp_path, out), expect=75)
    assert "another run is writing there" in done.stderr
    os.close(descriptor)
    run(*train_command(tmp_path, out))


def test_refused_rows_leave_no_directory(run, tmp_path):
    command = train_command(tmp_path, tmp_path / "out")
    write_jsonl(tmp_path / "rows.jsonl", [{"foo": 1}])
    run(*command, expect=42)
    assert not (tmp_path / "out").exists()


def test_a_cache_that_keeps_nothing_fails_compile(run, tmp_path):
    (tmp_path / "file").write_text("")
    done = run("compile", "--model", TINY, "--seq-len", 32, "--backend", "openvino:CPU",
               "--cache-dir", tmp_path / "file", expect=75)
    assert "could not keep" in done.stderr.strip().splitlines()[-1]


# ---- eval ---------------------------------------------------------------------------------------

def eval_command(tmp_path, *more):
    return ["eval", "--model", TINY, "--data", tmp_path / "rows.jsonl", "--backend", "cpu",
            "--seq-len", 32, *more]


@pytest.fixture
def questions(tmp_path):
    return write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a b", "response": " yes"},
                                                 {"prompt": "b c", "response": " no", "label": 0}])


@pytest.mark.parametrize("mode, option, value", [
    ("choice", "--max-new-tokens", 3), ("choice", "--date", "2026-01-01"),
    ("choice", "--train-on", "all"), ("keyword", "--choice", " yes"),
    ("keyword", "--date", "2026-01-01"), ("nll", "--choice", " yes"),
    ("nll", "--max-new-tokens", 3)])
def test_eval_refuses_what_its_mode_ignores(run, tmp_path, questions, mode, option, value):
    done = run(*eval_command(tmp_path, "--mode", mode, option, value), expect=USAGE)
    assert f"{option}: has no use in --mode {mode}" in done.stderr


@pytest.mark.parametrize("mode", ["choice", "keyword", "nll"])
def test_eval_passes_over_bad_rows_in_every_mode(run, tmp_path, mode):
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a b", "response": " yes"}, {"foo": 1}])
    run(*eval_command(tmp_path, "--mode", mode), expect=42)
    done = run(*eval_command(tmp_path, "--mode", mode, "--skip-bad-rows", 1))
    assert "rows.jsonl:2" in done.stderr


def stderr_on_a_terminal(command):
    master, slave = pty.openpty()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 4096):
            text += chunk
    except OSError:  # how the end reads on Linux
        pass
    os.close(master)
    assert process.wait(timeout=60) == 0, text
    return text


def test_quiet_eval_draws_no_bar(npu_lora, tmp_path, questions):
    command = [npu_lora, *eval_command(tmp_path)]
    assert b"\033[Keval " in stderr_on_a_terminal(command)
    assert stderr_on_a_terminal([*command, "--quiet"]) == b""


# ---- help and data ------------------------------------------------------------------------------

def test_help_lists_what_a_command_uses(run):
    train, compiling = run("train", "--help").stdout, run("compile", "--help").stdout
    assert "f32, bf16, f16" in train
    assert "--data" in compiling and "--packing" in compiling and "--compile-memory" in compiling
    assert "--warmup" in train and "--warmup" not in compiling  # taken, for it is of train


def test_data_shows_characters_of_several_tokens_whole(npu_lora, tmp_path):
    """A byte-level token may end inside a character; the terminal must not see its bytes."""
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "리뷰 \x1b[2J\n", "response": " 긍 é"}])
    done = subprocess.run([npu_lora, "data", rows, "--model", TINY], capture_output=True,
                          timeout=60, check=True)
    text = done.stdout.decode("utf-8")  # fails on broken bytes
    assert "리{3}|뷰{3}|" in text and "긍{3}]" in text, text
    assert "\\n" in text and "\x1b" not in text and "\\x1B" in text


def test_data_shows_a_torn_character_as_bytes(run, tmp_path):
    ids = json.loads(run("data", write_jsonl(tmp_path / "a.jsonl", [{"text": "리"}]), "--model", TINY,
                         "--json").stdout)["input_ids"]
    rows = write_jsonl(tmp_path / "b.jsonl", [{"input_ids": ids[:2]}])
    assert "[\\xEB][\\xA6]" in run("data", rows, "--model", TINY).stdout
