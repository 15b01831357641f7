"""Faults of every kind planted in a simulated device, one after the other. Each must be found and
named by check, compare-parts or first-failing-node; and no training run may pass over it silently: it
goes on with the part on the host and says why, or it stops with a message and a checkpoint."""
import json
import math
import shutil

import pytest
from conftest import REPO, read_jsonl, step_records, write_jsonl

TINY = REPO / "tests/golden/llama_tiny"
RETRIABLE, CHECK_FAILED, BAD = 75, 1, 42
STEPS = 3


class Device:
    """A simulated device with a fault, and the commands under test on it."""

    def __init__(self, run, folder, profile, model=TINY, options=(), memory="device"):
        (folder / "chip.yaml").write_text(f"name: chip\nmemory: {memory}\n" + profile)
        self.run, self.folder, self.options = run, folder, options
        self.model, self.out = model, folder / "out"
        self.backend = f"sim:{folder / 'chip.yaml'}"

    def command(self, *words, expect=0, backend=None):
        return self.run(*words, "--model", self.model, "--backend", backend or self.backend,
                        "--seq-len", 32, *self.options, expect=expect, timeout=300)

    def report(self, *words, expect=0):
        return json.loads(self.command(*words, "--json", expect=expect).stdout)

    def train(self, *more, expect=0, backend=None, save_every=1):
        data = write_jsonl(self.folder / "rows.jsonl", [
            {"input_ids": [2 + (7 * i + j) % 500 for j in range(24)],
             "labels": [2 + (7 * i + j) % 500 for j in range(24)]} for i in range(8)])
        out = self.out if backend is None else self.folder / "other"
        return self.command("train", "--data", data, "--out", out, "--steps", STEPS,
                            "--save-every", save_every, *more, expect=expect, backend=backend)

    def losses(self, out=None):
        return [r["loss"] for r in step_records((out or self.out) / "train_log.jsonl")]

    def checkpoints(self):
        return list((self.out / "checkpoints").iterdir())

    def trains_as_on_the_cpu(self):
        self.train("--overwrite", backend="cpu")
        assert len(self.losses()) == STEPS
        for ours, cpu in zip(self.losses(), self.losses(self.folder / "other")):
            assert abs(ours - cpu) < 1e-3


@pytest.fixture
def device(run, tmp_path):
    return lambda *arguments, **named: Device(run, tmp_path, *arguments, **named)


COMPILE_FAULTS = {
    # how: (outcome that is reported, words that say why)
    "reject": ("rejected", "cannot lower sigmoid"),
    "crash": ("crashed", "SIGSEGV"),
    "hang": ("timed out", "after 2"),
    "out-of-memory": ("out of memory", ""),
}


@pytest.mark.parametrize("how", COMPILE_FAULTS)
def test_compile_fault(device, how):
    outcome, words = COMPILE_FAULTS[how]
    chip = device(f'reject: [{{pattern: sigmoid, how: {how}, reason: "cannot lower sigmoid"}}]\n',
                  options=["--compile-timeout", 2 if how == "hang" else 60])
    report = chip.report("diagnose", "first-failing-node", expect=CHECK_FAILED)
    assert report["failures"], report
    for failure in report["failures"]:
        assert failure["op"] == "sigmoid"
        assert failure["smallest"]["ops"] == ["sigmoid"] and failure["smallest"]["minimal"]
        assert failure["outcome"] == outcome and words in failure["reason"]
    # Training says so, and goes on with that part on the host.
    done = chip.train()
    assert outcome in done.stderr and "host" in done.stderr
    chip.trains_as_on_the_cpu()
    # The check shows what did not run on the device.
    report = chip.report("check")
    assert report["pass"]
    reasons = [reason for group in report["placement"] for reason in group["host_reasons"]]
    assert any(reason.startswith(outcome) for reason in reasons), reasons


def test_a_pattern_of_two_nodes_is_found_with_its_case(device, tmp_path):
    chip = device('reject: [{pattern: sub -> exp => matmul, how: crash, reason: "boom"}]\n')
    report = chip.report("diagnose", "first-failing-node", "--out", tmp_path / "cases",
                         expect=CHECK_FAILED)
    assert report["failures"]
    for failure in report["failures"]:
        ops = failure["smallest"]["ops"]
        assert ops[:2] == ["sub", "exp"] and ops[-1] == "matmul" and len(ops) <= 4
        assert failure["op"] == "matmul" and "boom" in failure["log_tail"]
        readme = (tmp_path / "cases" / failure["part"] / "README.md").read_text()
        assert "SIGSEGV" in readme and "boom" in readme
        assert (tmp_path / "cases" / failure["part"] / "model.onnx").exists()


def test_load_refused(device):
    chip = device('faults: [{when: load, kind: reject, part: "sigmoid("}]\n')
    report = chip.report("check")
    assert report["pass"]
    reasons = [reason for group in report["placement"] for reason in group["host_reasons"]]
    assert any("refuses the compiled part" in reason for reason in reasons), reasons
    done = chip.train()
    assert "refuses the compiled part" in done.stderr
    chip.trains_as_on_the_cpu()


@pytest.mark.parametrize("kind, words, memory", [
    ("timeout", "timed out", "device"), ("lost", "device is lost", "host"),
    ("lost", "device is lost", "device")])
def test_run_fault(device, kind, words, memory):
    # The first call of a check; the second step of a training run of two layers.
    once = device(f'faults: [{{when: run, kind: {kind}, part: "sigmoid(", launch: 1}}]\n',
                  memory=memory)
    for command in (["check"], ["diagnose", "compare-parts"]):
        done = once.command(*command, expect=RETRIABLE)
        last = done.stderr.strip().splitlines()[-1]
        assert words in last and "layer_" in last, last
    chip = device(f'faults: [{{when: run, kind: {kind}, part: "sigmoid(", launch: 4}}]\n',
                  memory=memory)
    done = chip.train(expect=RETRIABLE)
    assert words in done.stderr.strip().splitlines()[-1]
    assert chip.checkpoints()
    assert not (chip.out / "adapter_config.json").exists()
    # Asked to, it goes on without the device, and says so.
    shutil.rmtree(chip.out)
    gone = kind == "lost" and memory == "device"  # and the weights with it
    done = chip.train("--on-device-error", "host", expect=RETRIABLE if gone else 0)
    log = read_jsonl(chip.out / "train_log.jsonl")
    moved = [e for e in log if e.get("event") == "moved_to_host"]
    if gone:
        last = done.stderr.strip().splitlines()[-1]
        assert words in last and "in its own memory" in last and "--resume auto" in last
        assert not moved and chip.checkpoints()
        device("").train("--resume", "auto")  # on a device that answers again
    else:
        assert words in done.stderr and "moves to the host" in done.stderr and moved
    chip.trains_as_on_the_cpu()


# Device calls that are no training step: options, a call of a part that falls there, and the step
# before. Steps make two calls a part of the layers, an evaluation of four batches eight.
BESIDE_STEPS = {
    "evaluation": (["--eval-every", 2], 7, 2),
    "measurement": (["--drift-every", 1], 3, 1),
}


@pytest.mark.parametrize("what", BESIDE_STEPS)
def test_run_fault_beside_the_steps(device, what):
    options, launch, step = BESIDE_STEPS[what]
    fault = f'faults: [{{when: run, kind: timeout, part: "sigmoid(", launch: {launch}}}]\n'
    chip = device(fault)
    ids = list(range(2, 26))
    eval_data = write_jsonl(chip.folder / "eval.jsonl", 4 * [{"input_ids": ids, "labels": ids}])
    options = [*options, "--eval-data", eval_data]
    done = chip.train(*options, save_every=0, expect=RETRIABLE)
    assert "timed out" in done.stderr.strip().splitlines()[-1]
    assert [p.name for p in chip.checkpoints()] == [f"step-{step}"]
    # On a device that is well again the run goes on from there.
    device("").train(*options, "--resume", "auto", save_every=0)
    chip.trains_as_on_the_cpu()
    # Asked to, it goes on at once, and no step or evaluation is missing.
    device(fault).train(*options, "--on-device-error", "host", "--overwrite")
    log = read_jsonl(chip.out / "train_log.jsonl")
    moved = next(i for i, e in enumerate(log) if e.get("event") == "moved_to_host")
    assert log[moved]["group"] == "fwd"
    assert len([e for e in log[:moved] if "event" not in e]) == step
    evaluated = [e["step"] for e in log if e.get("event") == "eval"]
    assert evaluated == ([2, 3] if what == "evaluation" else [3])
    chip.trains_as_on_the_cpu()


@pytest.mark.parametrize("part, group", [("sigmoid(", "fwd"), ("one_hot(", "rms-bwd")])
def test_wrong_result(device, part, group):
    chip = device(f'faults: [{{when: run, kind: wrong, part: "{part}"}}]\n')
    report = chip.report("check", expect=CHECK_FAILED)
    assert report["failures"]
    assert report["worst_grad_rel"] is None or report["worst_grad_rel"] > 0.5
    wrong = {p["part"] for p in report["parts"] if not p["pass"]}
    parts = chip.report("diagnose", "compare-parts", expect=CHECK_FAILED)
    assert parts["failed"] and set(parts["failed"]) == wrong
    assert {p["group"] for p in parts["parts"] if not p["pass"]} >= {group}
    right = {p["part"] for p in parts["parts"] if p["pass"]}
    assert "final_norm.0" in right, "parts without the fault are not accused"
    # Training sees it at its first step, unasked.
    done = chip.train(expect=CHECK_FAILED)
    assert "the run drifts from the reference" in done.stderr.strip().splitlines()[-1]
    assert [p.name for p in chip.checkpoints()] == ["step-1"]
    assert not (chip.out / "adapter_config.json").exists()


def test_wrong_part_is_blamed_on_its_group(device):
    """A fault in one group only: moving that group cures it, and it is named first."""
    chip = device('faults: [{when: run, kind: wrong, part: "exp("}]\n',
                  options=["--host-parts", "fwd,bwd"])
    report = chip.report("check", expect=CHECK_FAILED)
    assert report["blame"][0]["group"] == "ce-grad" and report["blame"][0]["pass"]
    assert report["blame_verdict"].startswith("caused by ce-grad")
    text = chip.command("check", expect=CHECK_FAILED).stdout
    assert "caused by ce-grad" in text and "FAIL: " in text


def test_repro_shows_the_wrong_result(device, tmp_path):
    chip = device('faults: [{when: run, kind: wrong, part: "one_hot("}]\n')
    report = chip.report("diagnose", "repro", "final_norm_bwd.0", "--out", tmp_path / "case",
                         expect=CHECK_FAILED)
    assert report["device"] == "ran" and "error above the limit" in report["title"]
    assert (tmp_path / "case/observed.safetensors").exists()


def test_inputs_dropped_merged_and_reordered(device):
    """A compiler that lists inputs anew: harmless while ports are bound by name, and shown to be."""
    chip = device("inputs: by-use\n")
    assert chip.report("diagnose", "compare-parts")["pass"]
    report = chip.report("check")
    assert report["pass"] and report["worst_grad_rel"] < 1e-4
    chip.train()
    chip.trains_as_on_the_cpu()


BIASED = """rounding:
  matmul: {result: {format: bf16, mode: MODE}}
  elementwise: {result: {format: bf16, mode: MODE}}
"""


@pytest.mark.parametrize("mode, sign", [("away", 1), ("truncate", -1)])
def test_biased_rounding(device, mode, sign):
    chip = device(BIASED.replace("MODE", mode))
    report = chip.report("diagnose", "compare-parts", "--max-error", 1, expect=CHECK_FAILED)
    biased = {p["part"]: p["outputs"] for p in report["parts"]
              if p["verdict"] == "rounding is biased"}
    assert set(report["failed"]) == set(biased)
    assert {"layer_fwd.0", "layer_bwd.0", "final_norm_bwd.0"} <= set(biased)
    # Attention values are products alone, so nothing turns the sign of their errors around.
    v = next(o for o in biased["layer_bwd.0"] if o["name"] == "d_self_attn.v_proj.lora_B")
    assert v["bias"] * sign > 0.9 and v["ulps"] * sign > 0.3
    # The same without bias is no accusation.
    fair = device(BIASED.replace("MODE", "nearest"))
    report = fair.report("diagnose", "compare-parts", "--max-error", 1)
    assert all(p["verdict"] == "pass" for p in report["parts"])


@pytest.fixture
def loud_model(tmp_path):
    """Weights so large that activations leave the range of f16."""
    folder = tmp_path / "loud"
    folder.mkdir()
    config = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"initializer_range": 30.0}))
    return folder


def test_f16_overflow(device, loud_model):
    chip = device("rounding:\n  matmul: {result: {format: f16}}\n", model=loud_model,
                  options=["--random-weights", 1])
    report = chip.report("check", expect=CHECK_FAILED)
    assert any("not finite on sim:" in reason for reason in report["failures"])
    assert report["not_finite"] and report["worst_grad_rel"] is None
    bad = {p["part"]: p for p in report["parts"] if p["verdict"] == "not finite"}
    assert bad and all(o["inf"] + o["nan"] > 0 for o in [p["outputs"][0] for p in bad.values()])


def test_training_stops_on_overflow(device, run, tmp_path):
    """The tiny model's own weights, scaled until f16 overflows: skipped, counted, stopped."""
    from safetensors.torch import load_file, save_file

    model = tmp_path / "loud"
    shutil.copytree(TINY, model)
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    save_file(tensors | {name: tensors[name] * 1e7}, model / "model.safetensors",
              metadata={"format": "pt"})
    chip = device("rounding:\n  matmul: {result: {format: f16}}\n", model=model)
    done = chip.train(expect=CHECK_FAILED)
    assert "not all finite" in done.stderr.strip().splitlines()[-1]
    done = chip.train("--max-bad-steps", 2, "--drift-every", 0, "--overwrite", expect=BAD)
    assert "not finite" in done.stderr.strip().splitlines()[-1]
    assert chip.checkpoints()
    assert not (chip.out / "adapter_config.json").exists()


def test_flushed_subnormals(device):
    chip = device("compute_dtype: f16\narithmetic: [f16, f32]\nrounding:\n  subnormals: flush\n"
                  "  matmul: {result: {format: f16}}\n")
    parts = chip.report("diagnose", "compare-parts", expect=CHECK_FAILED)
    # Gradients of a mean over 31 tokens are small: in f16 some are subnormal numbers.
    flushed = {p["part"]: sum(o["flushed"] for o in p["outputs"]) for p in parts["parts"]}
    assert flushed["final_norm_bwd.0"] > 0
    assert {"layer_bwd.0", "layer_bwd_first.0"} == set(parts["failed"])
    keeps = device("compute_dtype: f16\narithmetic: [f16, f32]\n")
    parts = keeps.report("diagnose", "compare-parts")
    assert sum(o["flushed"] for p in parts["parts"] for o in p["outputs"]) == 0


def test_loss_comes_from_one_source(device):
    """The head on the device or on the host: the same loss, whatever else rounds."""
    chip = device("rounding:\n  matmul: {operands: {format: bf16}}\n")
    on_device = chip.report("check", "--parts", "never")
    on_host = chip.report("check", "--parts", "never", "--host-parts", "ce-grad,ce-stats,rms")
    assert math.isclose(on_device["loss"], on_host["loss"], abs_tol=1e-3)
