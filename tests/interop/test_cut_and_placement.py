"""Compilers and devices that fail, through the program: what is cut, shown, placed and survived."""
import json

import pytest
from conftest import REPO, read_jsonl, write_jsonl
from fake_vllm import FakeVllm

TINY = REPO / "tests/golden/llama_tiny"
SHAPE = ("--model", TINY, "--seq-len", 32)

EXACT_DEVICE = """name: {name}
compute_dtype: f32
memory: {memory}
costs: {{launch_seconds: 1.0e-5, flops_per_second: 1.0e12}}
"""


def profile(folder, name, extra="", memory="device"):
    path = folder / f"{name}.yaml"
    path.write_text(EXACT_DEVICE.format(name=name, memory=memory) + extra)
    return f"sim:{path}"


@pytest.fixture
def data(tmp_path):
    rows = [{"prompt": f"{i} plus {i} is", "response": f" {2 * i}"} for i in range(12)]
    return write_jsonl(tmp_path / "rows.jsonl", rows)


def train(run, data, out, backend, *more, expect=0):
    done = run("train", *SHAPE, "--data", data, "--out", out, "--steps", 4, "--train-on", "all",
               "--backend", backend, "--cache-dir", data.parent / "cache", *more, expect=expect)
    log = read_jsonl(out / "train_log.jsonl")
    return [line["loss"] for line in log if "event" not in line], log, done


def close(losses, expected):
    return len(losses) == len(expected) and all(
        abs(a - b) <= 1e-4 * abs(b) for a, b in zip(losses, expected))


def parts_of(plan):
    return [part for group in plan["groups"] for part in group["placed"]]


@pytest.mark.parametrize("how", ["reject", "crash"])
def test_a_failing_op_is_cut_out_remembered_and_shown(run, data, tmp_path, how):
    backend = profile(tmp_path, how, f'reject: [{{pattern: exp, how: {how}, reason: "no exp"}}]\n')
    where = (*SHAPE, "--backend", backend, "--cache-dir", tmp_path / "cache", "--json")
    before = json.loads(run("plan", *where).stdout)
    assert not any(part["compiled"] or part["on_host"] for part in parts_of(before))

    first = json.loads(run("compile", *where, "--jobs", 2, expect=1).stdout)
    assert first["cut"] and first["failed"] and first["built"] > len(before["groups"])
    again = json.loads(run("compile", *where, "--expect-cached", expect=1).stdout)
    assert again["built"] == 0 and again["cached"] == first["built"]
    assert again["cut"] == first["cut"] and again["failed"] == first["failed"]

    shown = parts_of(json.loads(run("plan", *where).stdout))
    on_host = [part for part in shown if part["on_host"]]
    assert on_host and all("no exp" in part["host_reason"] or how in part["host_reason"]
                           for part in on_host)
    assert any(part["cut_reason"] and not part["on_host"] for part in shown)
    text = run("plan", *where[:-1]).stdout
    assert "; cut: " in text and " on the host" in text

    losses, _, _ = train(run, data, tmp_path / "out", backend)
    expected, _, _ = train(run, data, tmp_path / "cpu", "cpu")
    assert close(losses, expected)


def test_without_the_cut_the_whole_part_goes(run, tmp_path):
    backend = profile(tmp_path, "whole", 'reject: [{pattern: exp, reason: "no exp"}]\n')
    report = json.loads(run("compile", *SHAPE, "--backend", backend, "--cache-dir", tmp_path / "c",
                            "--json", "--no-adaptive-cut", expect=1).stdout)
    assert report["cut"] == []
    assert "layer_fwd.0" in {f["part"] for f in report["failed"]}


@pytest.mark.parametrize("kind, memory", [("timeout", "device"), ("lost", "host")])
def test_a_run_goes_on_when_the_device_fails(run, data, tmp_path, kind, memory):
    expected, _, _ = train(run, data, tmp_path / "cpu", "cpu")
    backend = profile(tmp_path, kind, f"faults: [{{when: run, kind: {kind}, launch: 7}}]\n", memory)
    train(run, data, tmp_path / "stops", backend, expect=75)
    assert list((tmp_path / "stops" / "checkpoints").iterdir())
    losses, log, _ = train(run, data, tmp_path / "out", backend, "--on-device-error", "host")
    assert close(losses, expected)
    moved = [line for line in log if line.get("event") == "moved_to_host"]
    assert moved and all(line["group"] and line["error"] for line in moved)


def test_a_run_stops_when_the_weights_are_lost_with_the_device(run, data, tmp_path):
    """Also when asked to go on: the host has no copy of what lay in the device's own memory."""
    backend = profile(tmp_path, "lost", "faults: [{when: run, kind: lost, launch: 7}]\n")
    losses, log, done = train(run, data, tmp_path / "out", backend, "--on-device-error", "host",
                              expect=75)
    assert "lost with weights and activations in its own memory" in done.stderr
    assert not any(line.get("event") == "moved_to_host" for line in log)
    assert list((tmp_path / "out" / "checkpoints").iterdir())
    # The device is well again.
    profile(tmp_path, "lost")
    losses, _, _ = train(run, data, tmp_path / "out", backend, "--on-device-error", "host",
                         "--resume", "auto")
    assert close(losses, train(run, data, tmp_path / "cpu", "cpu")[0])


def test_a_part_that_the_device_refuses_runs_on_the_host(run, data, tmp_path):
    expected, _, _ = train(run, data, tmp_path / "cpu", "cpu")
    backend = profile(tmp_path, "refuses", 'faults: [{when: load, kind: reject, part: "= exp("}]\n')
    losses, _, done = train(run, data, tmp_path / "out", backend)
    assert close(losses, expected)
    assert "goes to the host: refused at load" in done.stderr


def test_auto_finds_a_placement_that_passes_and_keeps_its_evidence(run, tmp_path):
    command = ("check", *SHAPE, "--backend", "sim:rbln", "--cache-dir", tmp_path, "--json")
    none = json.loads(run(*command, "--host-parts", "none", expect=1).stdout)
    assert none["worst_grad_rel"] > 0.05
    auto = json.loads(run(*command, "--host-parts", "auto").stdout)
    assert auto["pass"] and auto["worst_grad_rel"] < 0.05 and auto["estimated_step_seconds"] > 0
    (file,) = (tmp_path / "placement").iterdir()
    evidence = json.loads(file.read_text())
    passed = [t for t in evidence["trials"] if t["pass"]]
    assert evidence["host_groups"] in [t["host_groups"] for t in passed]
    assert evidence["step_seconds"] == min(t["step_seconds"] for t in passed)
    on_host = {p["group"] for p in auto["placement"] if p["host_parts"]}
    assert on_host == set(evidence["host_groups"]) - {"ce-stats"}  # no part of training

    measured = file.read_text()
    run(*command, "--host-parts", "auto")
    assert file.read_text() == measured
    where = (*SHAPE, "--backend", "sim:rbln", "--cache-dir", tmp_path, "--host-parts", "auto")
    assert json.loads(run("plan", *where, "--json").stdout)["placement"] == evidence
    assert "chosen: " in run("plan", *where).stdout
    # Elsewhere nothing is known, which is said.
    undecided = run("plan", *where[:-4], "--host-parts", "auto", "--cache-dir", tmp_path / "other")
    assert "decided at the first run" in undecided.stderr


def test_a_resumed_run_keeps_its_placement(run, data, tmp_path):
    """What changes a device's arithmetic belongs to the checkpoint, evidence or not."""
    out = tmp_path / "out"
    fault = "faults: [{when: run, kind: timeout, launch: 3}]\n"
    backend = profile(tmp_path, "chip", fault)
    here = ("--host-parts", "fwd,rms")
    train(run, data, out, backend, *here, expect=75)
    profile(tmp_path, "chip")
    for other, words in ((("--host-parts", "none"), "--host-parts fwd,rms"),
                         ((*here, "--max-mm", 1), "max-mm=1"),
                         ((*here, "--disable-pass", "algebra"), "disable-pass=algebra")):
        _, _, done = train(run, data, out, backend, *other, "--resume", "auto", expect=42)
        assert words in done.stderr.strip().splitlines()[-1]
    # With auto the groups of the checkpoint are taken; nothing is measured.
    train(run, data, out, backend, "--host-parts", "auto", "--resume", "auto")
    assert not (tmp_path / "cache" / "placement").exists()


def test_every_command_that_runs_decides_a_placement(run, tmp_path):
    where = ("--model", TINY, "--seq-len", 32, "--backend", "sim:rbln", "--host-parts", "auto")
    run("diagnose", "repro", "layer_bwd.0", *where, "--cache-dir", tmp_path / "repro", "--out",
        tmp_path / "case", expect=1)
    assert len(list((tmp_path / "repro/placement").iterdir())) == 1
    ids = list(range(5, 25))
    rows = write_jsonl(tmp_path / "gap.jsonl", [{"input_ids": ids, "labels": ids}])
    with FakeVllm(lambda ids: [-1.0] * (len(ids) - 1)) as fake:
        run("check", *where, "--serve-gap", fake.url, "--data", rows, "--cache-dir",
            tmp_path / "gap")
    assert len(list((tmp_path / "gap/placement").iterdir())) == 3  # one a rounding policy


def test_a_run_after_compile_finds_everything(run, data, tmp_path):
    """Measuring needs all groups on the device, whatever is chosen then."""
    run("compile", *SHAPE, "--data", data, "--train-on", "all", "--backend", "sim:rbln",
        "--host-parts", "auto", "--cache-dir", tmp_path / "cache")
    losses, _, _ = train(run, data, tmp_path / "out", "sim:rbln", "--host-parts", "auto",
                         "--expect-cached")
    assert len(losses) == 4
