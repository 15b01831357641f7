"""--drift-every through the program: what is logged, and what each action does."""
import json
import shutil
import signal
import subprocess
import time

import pytest
from conftest import REPO, read_jsonl, step_records, write_jsonl
from safetensors.numpy import load_file, save_file

TINY = REPO / "tests/golden/llama_tiny"


@pytest.fixture
def rows(tmp_path):
    ids = load_file(TINY / "batch.safetensors")["input_ids"].tolist()
    return write_jsonl(tmp_path / "rows.jsonl", [{"input_ids": i, "labels": i} for i in ids])


@pytest.fixture
def train(run, rows, tmp_path):
    """train(*options) → (finished process, events of the log by name)."""
    def call(*options, expect=0, out="out", backend="cpu"):
        done = run("train", "--model", TINY, "--data", rows, "--out", tmp_path / out, "--backend",
                   backend, "--seq-len", 32, "--steps", 6, "--targets", "q,v", "--dtype", "bf16",
                   *options, expect=expect)
        events = {}
        for line in read_jsonl(tmp_path / out / "train_log.jsonl"):
            events.setdefault(line.get("event", "step"), []).append(line)
        return done, events

    return call


def test_logged_every_n_steps(train):
    _, events = train("--drift-every", 2)
    assert [e["step"] for e in events["drift"]] == [1, 2, 4, 6]
    for event in events["drift"]:
        assert event["verdict"] == "pass" and 0 <= event["worst_grad_rel"] < 0.05
        assert event["min_cosine"] > 0.99 and abs(event["loss_gap"]) < 0.01
        assert event["seconds"] > 0 and "lora_" in event["worst_grad"]


def test_overflow_of_the_loss_scale_is_no_drift(run, tmp_path):
    """One trained token and a loud head: f16 gradients overflow until the scale has come down."""
    model = tmp_path / "loud"
    untied = REPO / "tests/golden/llama_tiny_untied"
    shutil.copytree(untied, model)
    tensors = load_file(model / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["lm_head.weight"] * 200},
              model / "model.safetensors", metadata={"format": "pt"})
    ids = load_file(untied / "batch.safetensors")["input_ids"].tolist()
    rows = write_jsonl(tmp_path / "one.jsonl",
                       [{"input_ids": i, "labels": [-100] * (len(i) - 1) + i[-1:]} for i in ids])
    run("train", "--model", model, "--data", rows, "--out", tmp_path / "out", "--backend", "cpu",
        "--seq-len", 32, "--dtype", "f16", "--steps", 12, "--drift-every", 1)
    log = read_jsonl(tmp_path / "out/train_log.jsonl")
    overflows = [e["step"] for e in log if e.get("overflow")]
    watched = [e["step"] for e in log if e.get("event") == "drift"]
    assert overflows and watched == [s for s in range(1, 13) if s not in overflows]


def test_changes_no_loss(train):
    _, watched = train("--drift-every", 1, out="a")
    _, plain = train(out="b")
    assert [e["loss"] for e in watched["step"]] == [e["loss"] for e in plain["step"]]
    assert "drift" not in plain


def test_stop_leaves_a_checkpoint_that_continues(train, tmp_path):
    limit = ("--drift-every", 3, "--drift-limit", 1e-12)
    done, events = train(*limit, expect=1)
    assert "the run drifts from the reference; got loss" in done.stderr
    assert events["drift"][-1]["verdict"] == "stop"
    assert [p.name for p in (tmp_path / "out/checkpoints").iterdir()] == ["step-1"]
    _, events = train(*limit, "--drift-action", "warn", "--resume", "auto")
    assert [e["step"] for e in events["step"]] == [1, 2, 3, 4, 5, 6]
    assert events["drift"][-1]["verdict"] == "warn"
    assert (tmp_path / "out/adapter_model.safetensors").exists()


def test_auto_measures_once_where_the_device_is_not_cpu(train):
    _, events = train()
    assert "drift" not in events
    _, events = train(backend="sim:furiosa", out="device")
    assert [(e["step"], e["verdict"]) for e in events["drift"]] == [(1, "pass")]
    # Rounding beyond the limit is said and logged; only what no rounding explains ends the run.
    done, events = train("--host-parts", "none", backend="sim:rbln", out="coarse")
    assert [(e["step"], e["verdict"]) for e in events["drift"]] == [(1, "warn")]
    assert "off the reference at step 1" in done.stderr
    _, events = train("--drift-every", 0, backend="sim:rbln", out="never")
    assert "drift" not in events


def test_host_that_does_not_help_stops(train):
    """The host of a `cpu` run computes what `cpu` computes: no move can help."""
    done, events = train("--drift-every", 2, "--drift-limit", 1e-12, "--drift-action", "host",
                         expect=1)
    assert "moving parts to the host does not help" in done.stderr
    assert "moved_to_host" not in events


def test_host_moves_what_rounds_badly_and_goes_on(train):
    """A simulated chip with all parts on it: the drift is found, groups leave until within limit."""
    bad = ("--host-parts", "none", "--drift-every", 2, "--drift-action", "host")
    _, events = train(*bad, backend="sim:rbln")
    first, moved = events["drift"][:2]
    assert first["verdict"] == "host" and first["worst_grad_rel"] > 0.05
    assert moved["verdict"] == "moved" and moved["worst_grad_rel"] <= 0.05
    groups = [e["group"] for e in events["moved_to_host"]]
    assert groups and set(groups) < {"fwd", "bwd", "rms", "rms-bwd", "ce-grad"}


def test_moved_groups_outlive_a_stop(npu_lora, rows, tmp_path):
    def command(out, *more):
        return [str(a) for a in (
            npu_lora, "train", "--model", TINY, "--data", rows, "--out", tmp_path / out,
            "--backend", "sim:rbln", "--host-parts", "none", "--drift-every", 2, "--drift-action",
            "host", "--seq-len", 32, "--steps", 60, *more)]

    subprocess.run(command("whole"), check=True, capture_output=True, timeout=300)
    log = tmp_path / "cut/train_log.jsonl"
    process = subprocess.Popen(command("cut"), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and len(step_records(log)) >= 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    (checkpoint,) = (tmp_path / "cut/checkpoints").iterdir()
    moved = [e["group"] for e in read_jsonl(log) if e.get("event") == "moved_to_host"]
    assert moved and json.loads((checkpoint / "state.json").read_text())["host_groups"] == moved
    subprocess.run(command("cut", "--resume", "auto"), check=True, capture_output=True, timeout=300)
    # Were the groups back on the device, every later loss would differ.
    adapters = [(tmp_path / out / "adapter_model.safetensors").read_bytes()
                for out in ("whole", "cut")]
    assert adapters[0] == adapters[1]


@pytest.mark.parametrize("options", [("--drift-limit", 0), ("--drift-limit", -1),
                                     ("--drift-action", "panic"), ("--drift-every", -1)])
def test_options_are_checked_before_anything_is_loaded(run, options):
    done = run("train", "--model", "/nonexistent", "--data", "x", "--out", "y", *options, expect=2)
    assert options[0] in done.stderr
