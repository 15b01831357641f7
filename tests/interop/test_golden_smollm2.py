"""The real model: loss and every LoRA gradient against transformers + PEFT computed here, in f32."""
import make_golden
import pytest
import torch
from conftest import read_jsonl
from gradients import assert_gradients
from safetensors.numpy import load_file
from safetensors.torch import save_file
from tokenizers import Tokenizer

SEQ_LEN = 128
RANK = 16


def text_batch(model, rows):
    """Two sequences of film reviews; the second is trained in its second half only."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = []
    for row in rows:
        ids += tokenizer.encode(row["prompt"] + row["response"], add_special_tokens=False).ids
    ids = torch.tensor(ids[: 2 * SEQ_LEN]).reshape(2, SEQ_LEN)
    labels = ids.clone()
    labels[1, : SEQ_LEN // 2] = make_golden.IGNORED
    return {"input_ids": ids, "labels": labels}


@pytest.fixture(scope="module", params=["q,v", "all"])
def case(request, smollm2, examples_data, tmp_path_factory):
    """(folder with adapter and batch, what transformers + PEFT say about them)."""
    folder = tmp_path_factory.mktemp("golden")
    make_golden.make_adapter(smollm2, folder / "adapter", RANK,
                             make_golden.parse_targets(request.param), seed=3, b_std=0.01)
    batch = text_batch(smollm2, read_jsonl(examples_data / "sst2-dev.jsonl")[:40])
    save_file(batch, folder / "batch.safetensors")
    expected = make_golden.loss_and_gradients(smollm2, folder / "adapter", batch)
    return folder, {name: tensor.numpy() for name, tensor in expected.items()}


@pytest.mark.parametrize("backend", ["cpu", "openvino:CPU"])
def test_gradients(run, smollm2, case, tmp_path, backend):
    folder, expected = case
    dump = tmp_path / "out.safetensors"
    run("check", "--model", smollm2, "--batch", folder / "batch.safetensors",
        "--adapter", folder / "adapter", "--backend", backend, "--reference", "none",
        "--dump", dump)
    assert_gradients(load_file(dump), expected, loss_rel=1e-5, grad_rel=1e-4, cosine=0.99999)
