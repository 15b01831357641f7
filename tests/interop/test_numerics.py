"""Log-probabilities in bf16 under each rounding policy, against the policy written anew in torch.

The two differ in the order of sums inside matmuls; that moves a rounding now and then, by one bf16
step of a logit (2^-5 for logits in [4, 8)) at the most for a model of two layers.
"""
import numpy as np
import policies
import pytest
from conftest import REPO, read_jsonl, write_jsonl
from safetensors.numpy import load_file

BF16_STEP = 2.0 ** -5
TINY = REPO / "tests/golden/llama_tiny"


@pytest.fixture(scope="module")
def sequences():
    return load_file(TINY / "batch.safetensors")["input_ids"].tolist()


def scored(run, tmp_path, sequences, *options):
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"input_ids": s, "labels": s} for s in sequences])
    run("eval", "--model", TINY, "--adapter", TINY / "adapter", "--data", rows, "--mode", "nll",
        "--seq-len", len(sequences[0]), "--rows", tmp_path / "out.jsonl", *options)
    return np.array([row["token_log_probs"] for row in read_jsonl(tmp_path / "out.jsonl")])


def bf16(numerics, backend):
    return ("--dtype", "bf16", "--weight-dtype", "bf16", "--numerics", numerics,
            "--backend", backend)


@pytest.mark.parametrize("backend", ["cpu", "cpu:reference"])
@pytest.mark.parametrize("numerics", ["hf", "vllm"])
def test_policy(run, tmp_path, sequences, numerics, backend):
    got = scored(run, tmp_path, sequences, *bf16(numerics, backend))
    right = np.array([policies.log_probs(TINY, TINY / "adapter", numerics, s).numpy()
                      for s in sequences])
    gap = np.abs(got - right)
    assert gap.max() <= BF16_STEP
    assert gap.mean() <= BF16_STEP / 16


def test_each_policy_is_closest_to_itself(run, tmp_path, sequences):
    """The bound above would not tell the policies apart by itself: their difference does."""
    models = {p: np.array([policies.log_probs(TINY, TINY / "adapter", p, s).numpy()
                           for s in sequences]) for p in ("hf", "vllm")}
    for numerics in ("hf", "vllm"):
        got = scored(run, tmp_path, sequences, *bf16(numerics, "cpu:reference"))
        error = {p: np.sqrt(np.mean((got - right) ** 2)) for p, right in models.items()}
        assert error[numerics] < 0.5 * min(e for p, e in error.items() if p != numerics), error
