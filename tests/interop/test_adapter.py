"""An adapter that npu-lora trained, read by peft + transformers: no warning, the same numbers."""
import json
import logging
import warnings

import pytest
import torch
from conftest import read_jsonl, step_records
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from tokenizers import Tokenizer

CHOICES = (" negative", " positive")
ROWS = 32


class Complaints(logging.Handler):
    """Collects what Python warnings and the libraries' loggers say while it is entered."""

    LOGGERS = ("", "transformers", "peft", "py.warnings")

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = set()

    def emit(self, record):
        self.messages.add(record.getMessage())

    def __enter__(self):
        for name in self.LOGGERS:
            logging.getLogger(name).addHandler(self)
        self.caught = warnings.catch_warnings(record=True)
        self.list = self.caught.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *exception):
        self.caught.__exit__(*exception)
        for name in self.LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self.messages |= {str(warning.message) for warning in self.list}


def base_model(smollm2):
    model = AutoModelForCausalLM.from_pretrained(
        smollm2, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@pytest.fixture(scope="module")
def adapter(run, smollm2, examples_data, tmp_path_factory):
    """Six steps on the film reviews, all linears."""
    out = tmp_path_factory.mktemp("trained") / "adapter"
    run("train", "--model", smollm2, "--data", examples_data / "sst2-train.jsonl", "--out", out,
        "--backend", "cpu", "--seq-len", 128, "--steps", 6, "--rank", 8, "--alpha", 16,
        "--targets", "all", "--lr", 1e-3)
    losses = [s["loss"] for s in step_records(out / "train_log.jsonl")]
    assert losses[-1] < losses[0]
    return out


@pytest.fixture(scope="module")
def peft_model(smollm2, adapter):
    return PeftModel.from_pretrained(base_model(smollm2), adapter).eval()


@pytest.fixture(scope="module")
def rows_file(examples_data, tmp_path_factory):
    lines = (examples_data / "sst2-dev.jsonl").read_text(encoding="utf-8").splitlines()[:ROWS]
    path = tmp_path_factory.mktemp("rows") / "dev.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_loads_without_a_warning(smollm2, adapter, tmp_path):
    # What PEFT says of an adapter that it wrote itself is not about ours.
    get_peft_model(base_model(smollm2), LoraConfig(
        r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"
    )).save_pretrained(tmp_path / "own")
    model = base_model(smollm2)
    with Complaints() as usual:
        PeftModel.from_pretrained(model, tmp_path / "own")
    model = base_model(smollm2)
    with Complaints() as ours:
        PeftConfig.from_pretrained(adapter)
        PeftModel.from_pretrained(model, adapter)
    assert ours.messages <= usual.messages


def test_every_tensor_arrives(peft_model, adapter):
    tensors = load_file(adapter / "adapter_model.safetensors")
    loaded = {name.replace(".default.", "."): parameter
              for name, parameter in peft_model.named_parameters() if "lora_" in name}
    assert tensors.keys() == loaded.keys()
    assert len(tensors) == 30 * 7 * 2
    for name, tensor in tensors.items():
        assert torch.equal(tensor, loaded[name]), name
        assert tensor.abs().max() > 0, f"{name} is zero after training"


def test_config_is_the_stable_subset(adapter, smollm2):
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["r"] == 8 and config["lora_alpha"] == 16
    assert config["peft_type"] == "LORA" and config["task_type"] == "CAUSAL_LM"
    assert config["base_model_name_or_path"] == str(smollm2)
    assert sorted(config["target_modules"]) == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    assert sorted(p.name for p in adapter.glob("adapter_*")) == [
        "adapter_config.json", "adapter_model.safetensors"]


@pytest.fixture(scope="module")
def judgement(peft_model, smollm2, rows_file):
    """Per row: log-probabilities of the response and end token, and of both choices."""
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    choice_ids = [tokenizer.encode(c, add_special_tokens=False).ids for c in CHOICES]
    assert all(len(ids) == 1 for ids in choice_ids)
    end = peft_model.config.eos_token_id
    scores = []
    for row in read_jsonl(rows_file):
        prompt = tokenizer.encode(row["prompt"], add_special_tokens=False).ids
        response = tokenizer.encode(row["response"], add_special_tokens=False).ids
        ids = torch.tensor([prompt + response + [end]])
        with torch.no_grad():
            log_probs = peft_model(input_ids=ids).logits[0].log_softmax(-1)
        trained = range(len(prompt) - 1, ids.shape[1] - 1)
        scores.append({
            "tokens": [log_probs[i, ids[0, i + 1]].item() for i in trained],
            "choices": [log_probs[len(prompt) - 1, c[0]].item() for c in choice_ids]})
    return scores


@pytest.mark.parametrize("backend", ["cpu", "openvino:CPU"])
def test_same_log_probabilities(run, smollm2, adapter, judgement, rows_file, tmp_path, backend):
    common = ("eval", "--model", smollm2, "--adapter", adapter, "--data", rows_file, "--backend",
              backend, "--seq-len", 256, "--json")

    done = run(*common, "--mode", "nll", "--rows", tmp_path / "nll.jsonl")
    for got, right in zip(read_jsonl(tmp_path / "nll.jsonl"), judgement, strict=True):
        assert got["token_log_probs"] == pytest.approx(right["tokens"], abs=1e-3)
    all_tokens = [value for score in judgement for value in score["tokens"]]
    report = json.loads(done.stdout)
    assert report["n"] == len(all_tokens)
    assert report["nll"] == pytest.approx(-sum(all_tokens) / len(all_tokens), abs=1e-3)

    done = run(*common, "--choice", CHOICES[0], "--choice", CHOICES[1], "--rows",
               tmp_path / "choice.jsonl")
    for got, right in zip(read_jsonl(tmp_path / "choice.jsonl"), judgement, strict=True):
        assert [got["log_probs"][c] for c in CHOICES] == pytest.approx(right["choices"], abs=1e-3)
    answers = [CHOICES[s["choices"].index(max(s["choices"]))] for s in judgement]
    responses = [row["response"] for row in read_jsonl(rows_file)]
    right = sum(answer == response for answer, response in zip(answers, responses))
    report = json.loads(done.stdout)
    assert report["n"] == ROWS
    assert report["accuracy"] == right / ROWS


def test_training_continues_from_it(run, smollm2, adapter, examples_data, tmp_path):
    """--init-adapter: with a rate of zero what comes out is what went in."""
    out = tmp_path / "again"
    run("train", "--model", smollm2, "--data", examples_data / "sst2-train.jsonl", "--out", out,
        "--backend", "cpu", "--seq-len", 64, "--steps", 1, "--lr", 0, "--init-adapter", adapter)
    before, after = (load_file(d / "adapter_model.safetensors") for d in (adapter, out))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
