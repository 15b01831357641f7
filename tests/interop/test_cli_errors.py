"""Faulty input: one line that says where, what, what was found or what to do; the right exit code;
and nothing left behind."""
import json
import re
import shutil
import struct

import pytest
import torch
from conftest import REPO, write_jsonl
from safetensors.torch import load_file, save_file

USAGE = 2
TINY = REPO / "tests/golden/llama_tiny"
GOOD_ROW = {"input_ids": list(range(2, 20)), "labels": list(range(2, 20))}


class Case:
    """Paths and edits for one faulty run."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "out"
        self.data = write_jsonl(folder / "data.jsonl", [GOOD_ROW])

    def rows(self, *rows):
        return write_jsonl(self.data, rows)

    def raw(self, data):
        self.data.write_bytes(data)
        return self.data

    def model(self):
        """A private copy of the tiny model."""
        copy = self.folder / "model"
        if not copy.exists():
            shutil.copytree(TINY, copy)
        return copy

    def model_config(self, **changes):
        return self.edit(self.model() / "config.json", **changes)

    def adapter(self):
        copy = self.folder / "adapter"
        if not copy.exists():
            shutil.copytree(TINY / "adapter", copy)
        return copy

    def adapter_config(self, **changes):
        return self.edit(self.adapter() / "adapter_config.json", **changes)

    @staticmethod
    def edit(path, **changes):
        config = json.loads(path.read_text())
        config.update(changes)
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
        return path.parent

    def tensors(self, path, change):
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})
        return path.parent

    @staticmethod
    def batch_file(path, token, labels=True):
        ids = torch.full((1, 8), token)
        save_file({"input_ids": ids, "labels": ids.clone()} if labels else {"input_ids": ids}, path)
        return path

    def train(self, *more, model=TINY, backend="cpu"):
        return ["train", "--model", model, "--data", self.data, "--out", self.out, "--backend",
                backend, "--seq-len", 32, "--steps", 1, *more]

    def show(self, *more):
        return ["data", self.data, "--model", TINY, *more]


def rename(old, new):
    def change(tensors):
        tensors[new] = tensors.pop(old)
    return change


def drop(name):
    return lambda tensors: tensors.pop(name)


def reshape(name):
    def change(tensors):
        tensors[name] = tensors[name][:-1].contiguous()
    return change


def text(path, content):
    path.write_text(content, encoding="utf-8")
    return path


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])
    return path.parent


NORM = "model.norm.weight"
LORA = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"

# name: (exit code, a piece of the message, case → command line)
FAULTS = {
    # rows
    "row-not-json": (42, ":2: ", lambda c: (c.raw(b'{"text": "a"}\n{"text": \n'), c.train())[1]),
    "row-bad-utf8": (42, ":1: ", lambda c: (c.raw(b'{"text": "\xff\xfe"}\n'), c.train())[1]),
    "row-duplicate-key": (42, ":1: ", lambda c: (c.raw(b'{"text": "a", "text": "b"}\n'), c.train())[1]),
    "row-deep": (42, ":1: ", lambda c: (c.raw(b'{"text": ' + b"[" * 10**5 + b"\n"), c.train())[1]),
    "row-not-object": (42, ":1: ", lambda c: (c.raw(b'["text"]\n'), c.train())[1]),
    "row-no-fields": (42, ":1: ", lambda c: (c.rows({"foo": 1}), c.train())[1]),
    "row-wrong-type": (42, "text", lambda c: (c.rows({"text": 5}), c.train())[1]),
    "row-no-response": (42, "response", lambda c: (c.rows({"prompt": "a"}), c.train())[1]),
    "row-no-messages": (42, "messages", lambda c: (c.rows({"messages": []}), c.train())[1]),
    "row-no-template": (42, "template", lambda c: (
        c.rows({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
        c.train())[1]),
    "row-token-too-large": (42, "512", lambda c: (
        c.rows({"input_ids": [1, 512], "labels": [1, 2]}), c.train())[1]),
    "row-token-negative": (42, ":1: ", lambda c: (
        c.rows({"input_ids": [1, -3], "labels": [1, 2]}), c.train())[1]),
    "row-labels-short": (42, "labels", lambda c: (
        c.rows({"input_ids": [1, 2, 3], "labels": [1, 2]}), c.train())[1]),
    "row-second-bad-one": (42, ":3: ", lambda c: (
        c.rows(GOOD_ROW, {"text": 1}, {"text": 2}), c.train("--skip-bad-rows", 1))[1]),
    "rows-none": (42, "data.jsonl", lambda c: (c.raw(b""), c.train())[1]),
    "rows-train-nothing": (42, "train", lambda c: (
        c.rows({"input_ids": [1, 2, 3], "labels": [-100] * 3}), c.train())[1]),
    "rows-missing-file": (42, "data.jsonl", lambda c: (c.data.unlink(), c.train())[1]),
    "rows-are-a-folder": (42, "data.jsonl", lambda c: (c.data.unlink(), c.data.mkdir(), c.train())[2]),
    # model files
    "model-missing": (42, "nowhere", lambda c: c.train(model=c.folder / "nowhere")),
    "model-no-config": (42, "config.json", lambda c: (
        (c.model() / "config.json").unlink(), c.train(model=c.model()))[1]),
    "model-config-not-json": (42, "config.json", lambda c: (
        text(c.model() / "config.json", "{"), c.train(model=c.model()))[1]),
    "model-type": (42, "model_type", lambda c: c.train(model=c.model_config(model_type="gpt2"))),
    "model-rope": (42, "yarn", lambda c: c.train(
        model=c.model_config(rope_scaling={"rope_type": "yarn", "factor": 2.0}))),
    "model-activation": (42, "hidden_act", lambda c: c.train(model=c.model_config(hidden_act="gelu"))),
    "model-quantized": (42, "quantization_config", lambda c: c.train(
        model=c.model_config(quantization_config={"quant_method": "gptq"}))),
    "model-heads": (42, "num_key_value_heads", lambda c: c.train(
        model=c.model_config(num_key_value_heads=3))),
    "model-size-absent": (42, "hidden_size", lambda c: c.train(model=c.model_config(hidden_size=...))),
    "weights-missing": (42, "safetensors", lambda c: (
        (c.model() / "model.safetensors").unlink(), c.train(model=c.model()))[1]),
    "weights-cut": (42, "model.safetensors", lambda c: c.train(
        model=cut(c.model() / "model.safetensors", 100_000))),
    "weights-huge-header": (42, "model.safetensors", lambda c: (
        (c.model() / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}"),
        c.train(model=c.model()))[1]),
    "weights-tensor-missing": (42, NORM, lambda c: c.train(
        model=c.tensors(c.model() / "model.safetensors", drop(NORM)))),
    "weights-tensor-shape": (42, NORM, lambda c: c.train(
        model=c.tensors(c.model() / "model.safetensors", reshape(NORM)))),
    "weights-shard-outside": (42, "..", lambda c: (
        (c.model() / "model.safetensors").rename(c.folder / "model.safetensors"),
        text(c.model() / "model.safetensors.index.json",
             json.dumps({"weight_map": {NORM: "../model.safetensors"}})),
        c.train(model=c.model()))[2]),
    "tokenizer-not-json": (42, "tokenizer.json", lambda c: (
        text(c.model() / "tokenizer.json", "{]"), c.train(model=c.model()))[1]),
    "tokenizer-unigram": (42, "Unigram", lambda c: c.train(
        model=c.edit(c.model() / "tokenizer.json", model={"type": "Unigram", "vocab": []}))),
    "gguf-cut": (42, "cut.gguf", lambda c: (
        (c.folder / "cut.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1)),
        ["convert", c.folder / "cut.gguf", "--out", c.out])[1]),
    "gguf-not-one": (42, "not.gguf", lambda c: (
        text(c.folder / "not.gguf", "hello"), ["convert", c.folder / "not.gguf", "--out", c.out])[1]),
    # adapters
    "adapter-missing": (42, "nowhere", lambda c: c.train("--init-adapter", c.folder / "nowhere")),
    "adapter-dora": (42, "use_dora", lambda c: c.train(
        "--init-adapter", c.adapter_config(use_dora=True))),
    "adapter-bias": (42, "bias", lambda c: c.train("--init-adapter", c.adapter_config(bias="all"))),
    "adapter-pattern": (42, "rank_pattern", lambda c: c.train(
        "--init-adapter", c.adapter_config(rank_pattern={"q_proj": 8}))),
    "adapter-rank": (42, "lora_", lambda c: c.train("--init-adapter", c.adapter_config(r=8))),
    "adapter-no-rank": (42, "r", lambda c: c.train("--init-adapter", c.adapter_config(r=...))),
    "adapter-type": (42, "peft_type", lambda c: c.train(
        "--init-adapter", c.adapter_config(peft_type="IA3"))),
    "adapter-tensor-missing": (42, LORA, lambda c: c.train("--init-adapter", c.tensors(
        c.adapter() / "adapter_model.safetensors", drop(LORA)))),
    "adapter-tensor-misspelt": (42, "q_porj", lambda c: c.train("--init-adapter", c.tensors(
        c.adapter() / "adapter_model.safetensors", rename(LORA, LORA.replace("q_proj", "q_porj"))))),
    # options
    "option-unknown": (2, "--foo", lambda c: c.train("--foo", 1)),
    "option-misspelt": (2, "did you mean --warmup?", lambda c: c.train("--warmpu", 1)),
    "option-yaml-misspelt": (2, "did you mean grad-clip?", lambda c: c.train(
        "--config", text(c.folder / "c.yaml", "grad_clipp: 1\n"))),
    "option-log-channel": (2, "'cahce'", lambda c: c.train("--log", "compile,cahce")),
    "option-not-number": (2, "--lr", lambda c: c.train("--lr", "fast")),
    "option-not-whole": (2, "--rank", lambda c: c.train("--rank", "1.5")),
    "option-zero-rank": (2, "--rank", lambda c: c.train("--rank", 0)),
    "option-zero-batch": (2, "--batch", lambda c: c.train("--batch", 0)),
    "option-seq-len": (2, "'x'", lambda c: c.show("--seq-len", "128,x")),
    "option-seq-len-range": (2, "2 to", lambda c: c.show("--seq-len", "128,1")),
    "option-seq-len-empty": (2, "--seq-len", lambda c: c.show("--seq-len", ",")),
    "option-seq-lens": (2, "--seq-len", lambda c: ["check", "--model", TINY, "--seq-len", "16,32"]),
    "option-target": (2, "x", lambda c: c.train("--targets", "q,x")),
    "option-backend": (2, "toaster", lambda c: c.train(backend="toaster")),
    "option-schedule": (2, "zigzag", lambda c: c.train("--schedule", "zigzag")),
    "option-betas": (2, "--betas", lambda c: c.train("--betas", "0.9")),
    "option-packing": (2, "--packing", lambda c: c.train("--packing", "tight")),
    "option-out-absent": (2, "--out", lambda c: ["train", "--model", TINY, "--data", c.data]),
    "option-out-is-file": (2, "--out", lambda c: ["train", "--model", TINY, "--data", c.data,
                                                  "--out", c.data, "--backend", "cpu"]),
    "option-yaml-unknown": (2, "colour", lambda c: c.train(
        "--config", text(c.folder / "c.yaml", "lr: 1e-4\ncolour: red\n"))),
    "option-yaml-broken": (2, "c.yaml", lambda c: c.train(
        "--config", text(c.folder / "c.yaml", "lr: [1e-4\n"))),
    "command-misspelt": (2, "did you mean train?", lambda c: ["trian"]),
    "command-unknown": (2, "trian", lambda c: ["trian"]),
    # check and eval
    "check-batch-token": (42, "512", lambda c: [
        "check", "--model", TINY, "--backend", "cpu", "--batch",
        c.batch_file(c.folder / "b.safetensors", 512)]),
    "check-batch-tensor": (42, "labels", lambda c: [
        "check", "--model", TINY, "--backend", "cpu", "--batch",
        c.batch_file(c.folder / "b.safetensors", 5, labels=False)]),
    "eval-not-a-choice": (42, "maybe", lambda c: (
        c.rows({"prompt": "a", "response": "maybe"}),
        ["eval", "--model", TINY, "--data", c.data, "--choice", "yes", "--choice", "no",
         "--backend", "cpu"])[1]),
}


MESSAGE = re.compile(r"^\S.*: .+")


@pytest.mark.parametrize("name", FAULTS)
def test_fault(run, tmp_path, name):
    code, piece, build = FAULTS[name]
    case = Case(tmp_path)
    command = build(case)
    done = run(*command, expect=code, timeout=60)
    line = done.stderr.strip().splitlines()[-1]
    assert MESSAGE.match(line), line
    assert "; got " in line or "hint: " in line, line
    assert piece in line, line
    assert "internal error" not in done.stderr, done.stderr
    assert done.stdout == ""
    left = sorted(p.name for p in case.out.rglob("*")) if case.out.is_dir() else []
    assert left == []


def test_results_of_an_earlier_run_are_kept(run, tmp_path):
    case = Case(tmp_path)
    run(*case.train())
    before = {p: p.read_bytes() for p in case.out.rglob("*") if p.is_file()}
    done = run(*case.train(), expect=USAGE)
    assert "--overwrite" in done.stderr
    assert {p: p.read_bytes() for p in case.out.rglob("*") if p.is_file()} == before


def test_tolerated_rows(run, tmp_path):
    case = Case(tmp_path)
    case.rows(GOOD_ROW, {"text": 1}, {"foo": 2})
    run(*case.train("--skip-bad-rows", 2))
    assert (case.out / "adapter_model.safetensors").exists()
