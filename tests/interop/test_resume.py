"""Stopping and continuing: a run that was stopped by a signal ends as if it never had been."""
import signal
import subprocess
import time

import pytest
from conftest import read_jsonl, step_records, write_jsonl
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
                 "cpu", *([] if "--seq-len" in more else ["--seq-len", 32]), "--steps", STEPS, "--schedule", "cosine", "--warmup", 5,
                 "--accum", 2, "--cache-dir", tmp_path / "cache", *more)]
    return arguments


def wait_for_steps(log, count, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and len(step_records(log)) >= count:
            return
        time.sleep(0.01)


BUCKETS = ["--seq-len", "20,24,32", "--packing", "none"]


@pytest.mark.parametrize("number, code, more", [
    (signal.SIGTERM, 143, []), (signal.SIGINT, 130, []), (signal.SIGTERM, 143, BUCKETS)])
def test_stopped_run_continues_bit_for_bit(command, tmp_path, number, code, more):
    subprocess.run(command(tmp_path / "whole", *more), check=True, capture_output=True, timeout=300)
    out = tmp_path / "stopped"
    process = subprocess.Popen(command(out, *more), stderr=subprocess.PIPE, text=True)
    wait_for_steps(out / "train_log.jsonl", 5, process)
    process.send_signal(number)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == code, errors
    assert list((out / "checkpoints").iterdir()), "no checkpoint"
    assert not (out / "adapter_config.json").exists()

    subprocess.run(command(out, *more, "--resume", "auto"), check=True, capture_output=True,
                   timeout=300)
    whole = (tmp_path / "whole/adapter_model.safetensors").read_bytes()
    assert (out / "adapter_model.safetensors").read_bytes() == whole
    losses = {s["step"]: s["loss"] for s in step_records(out / "train_log.jsonl")}
    assert losses == {s["step"]: s["loss"]
                      for s in step_records(tmp_path / "whole/train_log.jsonl")}


@pytest.mark.parametrize("own_log", [True, False])
def test_killed_run_leaves_each_step_once_in_its_log(command, tmp_path, own_log):
    """SIGKILL between checkpoints: the log has steps after the last one, and its end is torn."""
    out = tmp_path / "out"
    log = out / "train_log.jsonl" if own_log else tmp_path / "all.jsonl"
    options = ["--save-every", 20] + ([] if own_log else ["--log-file", log])
    if not own_log:  # a finished run stands in the file already
        subprocess.run(command(tmp_path / "earlier", "--log-file", log), check=True,
                       capture_output=True, timeout=300)
    earlier = log.read_bytes() if not own_log else b""
    process = subprocess.Popen(command(out, *options), stderr=subprocess.DEVNULL)
    wait_for_steps(log, len(step_records(log)) + 25 if log.exists() else 25, process)
    process.kill()
    process.wait(timeout=60)
    assert (out / "checkpoints").is_dir() and not (out / "adapter_config.json").exists()
    with open(log, "ab") as file:
        file.write(b'{"progress":"77/200","step":77,"lo')
    subprocess.run(command(out, *options, "--resume", "auto"), check=True, capture_output=True,
                   timeout=300)
    assert log.read_bytes().startswith(earlier)
    records = read_jsonl(log)[earlier.count(b"\n"):]
    assert [r["step"] for r in records if "loss" in r] == list(range(1, STEPS + 1))
    assert [r["event"] for r in records if "event" in r].count("resume") == 1


# A pass over these held-out rows takes far longer than it takes to send a signal.
MANY = 20_000


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_an_evaluation(command, tmp_path, number, code):
    out, log = tmp_path / "out", tmp_path / "out/train_log.jsonl"
    long_rows = write_jsonl(tmp_path / "long.jsonl",
                            [{"input_ids": [2 + i % 300 for i in range(32)]}] * MANY)
    short_rows = write_jsonl(tmp_path / "short.jsonl", [{"input_ids": [5, 6, 7, 8]}])
    process = subprocess.Popen(command(out, "--eval-data", long_rows, "--eval-every", 3),
                               stderr=subprocess.PIPE, text=True)
    wait_for_steps(log, 3, process)
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == code, errors
    assert [p.name for p in (out / "checkpoints").iterdir()] == ["step-3"]
    assert not any(r.get("event") == "eval" for r in read_jsonl(log))
    # The evaluation that was cut short comes first when the run goes on.
    subprocess.run(command(out, "--eval-data", short_rows, "--eval-every", 3, "--resume", "auto"),
                   check=True, capture_output=True, timeout=300)
    evaluated = [r["step"] for r in read_jsonl(log) if r.get("event") == "eval"]
    assert evaluated == [*range(3, STEPS, 3), STEPS]


def test_a_signal_ends_the_last_evaluation(command, tmp_path):
    out, log = tmp_path / "out", tmp_path / "out/train_log.jsonl"
    long_rows = write_jsonl(tmp_path / "long.jsonl",
                            [{"input_ids": [2 + i % 300 for i in range(32)]}] * MANY)
    process = subprocess.Popen(command(out, "--eval-data", long_rows), stderr=subprocess.DEVNULL)
    wait_for_steps(log, STEPS, process)
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert not (out / "adapter_config.json").exists()
    subprocess.run(command(out, "--resume", "auto"), check=True, capture_output=True, timeout=300)
    assert (out / "adapter_model.safetensors").exists()
    assert len(step_records(log)) == STEPS


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
