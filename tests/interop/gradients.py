"""Comparing a dump of `npu-lora check` with reference values."""
import numpy as np


def assert_gradients(got, expected, loss_rel, grad_rel, cosine):
    """`expected` holds loss, each gradient under its PEFT name, and perhaps logits."""
    names = {name for name in expected if "lora_" in name}
    assert {name for name in got if "lora_" in name} == names
    loss, right = float(got["loss"]), float(expected["loss"])
    assert abs(loss - right) <= loss_rel * abs(right), f"loss {loss}, expected {right}"
    offences = []
    for name in sorted(names):
        a, b = (np.asarray(x[name], dtype=np.float64).ravel() for x in (got, expected))
        assert a.shape == b.shape and np.isfinite(a).all(), name
        norm = np.linalg.norm(b)
        assert norm > 0, f"{name}: the reference gradient is zero and proves nothing"
        rel = np.linalg.norm(a - b) / norm
        cos = a @ b / (np.linalg.norm(a) * norm)
        if rel > grad_rel or cos < cosine:
            offences.append(f"{name}: relative error {rel:.2e}, cosine {cos:.8f}")
    assert not offences, "\n".join(offences)
