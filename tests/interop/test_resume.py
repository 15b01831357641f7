"""Stopping and continuing: a run that was stopped by a signal ends as if it never had been."""
import signal
import subprocess
import time

import pytest
from conftest import step_records, write_jsonl
from safetensors.numpy import load_file

STEPS = 200


@pytest.fixture
def command(npu_lora, tiny, tmp_path):
    batch = load_file(tiny / "batch.safetensors")
    rows = write_jsonl(tmp_path / "rows.jsonl",
                       [{"input_ids": (ids[i:] if i < 16 else ids).tolist()}
                        for i in range(20) for ids in batch["input_ids"]])

    def arguments(out, *more):
        return [str(a) for a in
                (npu_lora, "train", "--model", tiny, "--data", rows, "--out", out, "--backend",
                 "cpu", "--seq-len", 32, "--steps", STEPS, "--schedule", "cosine", "--warmup", 5,
                 "--accum", 2, "--cache-dir", tmp_path / "cache", *more)]
    return arguments


def wait_for_steps(log, count, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and len(step_records(log)) >= count:
            return
        time.sleep(0.01)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_run_continues_bit_for_bit(command, tmp_path, number, code):
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True, timeout=300)
    out = tmp_path / "stopped"
    process = subprocess.Popen(command(out), stderr=subprocess.PIPE, text=True)
    wait_for_steps(out / "train_log.jsonl", 5, process)
    process.send_signal(number)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == code, errors
    assert list((out / "checkpoints").iterdir()), "no checkpoint"
    assert not (out / "adapter_config.json").exists()

    subprocess.run(command(out, "--resume", "auto"), check=True, capture_output=True, timeout=300)
    whole = (tmp_path / "whole/adapter_model.safetensors").read_bytes()
    assert (out / "adapter_model.safetensors").read_bytes() == whole
    losses = {s["step"]: s["loss"] for s in step_records(out / "train_log.jsonl")}
    assert losses == {s["step"]: s["loss"]
                      for s in step_records(tmp_path / "whole/train_log.jsonl")}


def test_a_finished_run_is_left_alone(command, tmp_path):
    out = tmp_path / "out"
    subprocess.run(command(out), check=True, capture_output=True, timeout=300)
    log = (out / "train_log.jsonl").read_bytes()
    again = subprocess.run(command(out, "--resume", "auto"), capture_output=True, timeout=300)
    assert again.returncode == 0
    assert (out / "train_log.jsonl").read_bytes() == log
    refused = subprocess.run(command(out), capture_output=True, text=True, timeout=300)
    assert refused.returncode == 2 and "--overwrite" in refused.stderr


def test_other_options_or_data_are_refused(command, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(command(out), stderr=subprocess.DEVNULL)
    wait_for_steps(out / "train_log.jsonl", 3, process)
    process.terminate()
    assert process.wait(timeout=120) == 143
    other = subprocess.run(command(out, "--resume", "auto", "--lr", "1e-3"), capture_output=True,
                           text=True, timeout=300)
    assert other.returncode == 42 and "other options" in other.stderr


def test_bad_options_fail_before_anything_runs(command, tmp_path):
    for option, value in (("--keep", 0), ("--grad-clip", -1), ("--accum", 0), ("--epochs", -1)):
        result = subprocess.run(command(tmp_path / "out", option, value), capture_output=True,
                                text=True, timeout=60)
        assert result.returncode == 2 and option in result.stderr
        assert not (tmp_path / "out").exists()
