"""Ten AdamW steps against torch's, with warm-up, linear decay, weight decay and clipping in use."""
import json

import numpy as np
import pytest
from conftest import step_records, write_jsonl
from safetensors.numpy import load_file


@pytest.fixture
def rows(tiny, tmp_path):
    batch = load_file(tiny / "batch.safetensors")
    return write_jsonl(tmp_path / "rows.jsonl",
                       [{"input_ids": ids.tolist(), "labels": labels.tolist()}
                        for ids, labels in zip(batch["input_ids"], batch["labels"])])


def train(run, tiny, rows, out, backend, *more):
    out.parent.mkdir(exist_ok=True)
    s = json.loads((tiny / "golden.json").read_text())["settings"]
    run("train", "--model", tiny, "--data", rows, "--out", out, "--backend", backend,
        "--seq-len", 32, "--packing", "none", "--init-adapter", tiny / "adapter",
        "--steps", s["steps"], "--lr", s["lr"], "--warmup", s["warmup"],
        "--schedule", s["schedule"], "--weight-decay", s["weight_decay"],
        "--betas", " ".join(map(str, s["betas"])), "--eps", s["eps"],
        "--grad-clip", s["grad_clip"], "--log-file", out.parent / "log.jsonl", *more)
    return step_records(out.parent / "log.jsonl")


# The rows train different numbers of tokens: two micro-batches of one row give the same loss only
# as a mean over all tokens of the step, not as a mean of means.
@pytest.mark.parametrize("shape", [("--batch", 2, "--accum", 1), ("--batch", 1, "--accum", 2)],
                         ids=["batch-2", "accum-2"])
@pytest.mark.parametrize("backend", ["cpu:reference", "cpu", "openvino:CPU", "ort"])
def test_losses(run, tiny, rows, tmp_path, backend, shape):
    golden = json.loads((tiny / "golden.json").read_text())
    steps = train(run, tiny, rows, tmp_path / "out", backend, *shape)
    assert [s["step"] for s in steps] == list(range(1, 11))
    np.testing.assert_allclose([s["loss"] for s in steps], golden["losses"], rtol=0, atol=1e-4)
    np.testing.assert_allclose([s["grad_norm"] for s in steps], golden["grad_norms"], rtol=1e-3)
    np.testing.assert_allclose([s["lr"] for s in steps], golden["lrs"], rtol=1e-9)


def test_final_adapter(run, tiny, rows, tmp_path):
    train(run, tiny, rows, tmp_path / "out", "cpu", "--batch", 2)
    got = load_file(tmp_path / "out/adapter_model.safetensors")
    expected = load_file(tiny / "final_adapter/adapter_model.safetensors")
    start = load_file(tiny / "adapter/adapter_model.safetensors")
    assert got.keys() == expected.keys()
    for name, right in expected.items():
        moved = np.linalg.norm(right - start[name])
        assert np.linalg.norm(got[name] - right) <= 0.01 * moved, name


def test_same_seed_same_bits(run, tiny, rows, tmp_path):
    first = train(run, tiny, rows, tmp_path / "a/out", "cpu", "--batch", 1, "--seed", 5)
    second = train(run, tiny, rows, tmp_path / "b/out", "cpu", "--batch", 1, "--seed", 5)
    assert [s["loss"] for s in first] == [s["loss"] for s in second]
    a, b = ((tmp_path / x / "out/adapter_model.safetensors").read_bytes() for x in "ab")
    assert a == b
