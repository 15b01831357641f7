"""Loss and every LoRA gradient of the tiny models against the committed transformers + PEFT values."""
import pytest
from safetensors.numpy import load_file

from gradients import assert_gradients


@pytest.mark.parametrize("backend", ["cpu:reference", "cpu", "openvino:CPU", "ort"])
@pytest.mark.parametrize("recompute", ["none", "layer"])
def test_gradients(run, tiny, tmp_path, backend, recompute):
    dump = tmp_path / "out.safetensors"
    run("check", "--model", tiny, "--batch", tiny / "batch.safetensors",
        "--adapter", tiny / "adapter", "--backend", backend, "--recompute", recompute,
        "--reference", "none", "--dump", dump)
    assert_gradients(load_file(dump), load_file(tiny / "golden.safetensors"),
                     loss_rel=1e-5, grad_rel=1e-4, cosine=0.99999)


@pytest.mark.parametrize("chunk", [64, 100])
def test_vocabulary_chunks_change_nothing(run, tiny, tmp_path, chunk):
    dump = tmp_path / "out.safetensors"
    run("check", "--model", tiny, "--batch", tiny / "batch.safetensors",
        "--adapter", tiny / "adapter", "--backend", "cpu", "--vocab-chunk", chunk,
        "--loss-rows", 7, "--reference", "none", "--dump", dump)
    assert_gradients(load_file(dump), load_file(tiny / "golden.safetensors"),
                     loss_rel=1e-5, grad_rel=1e-4, cosine=0.99999)
