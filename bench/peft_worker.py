#!/usr/bin/env python3
"""One measured run of transformers + PEFT in a process of its own, for compare_peft.py.

    peft_worker.py SPEC.json

SPEC names the model, the rows (JSON lines of input_ids and labels) and the settings; the result is
one JSON object on the last line of stdout. A process per run keeps peak memory and thread state of
one run out of the next.
"""
import contextlib
import json
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from machine import CpuWindow

IGNORED = -100


def load_rows(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def padded_batch(rows, pad_id):
    """Right-padded tensors of some rows. Padding is masked by length, never by id."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.full((len(rows), longest), pad_id)
    labels = torch.full((len(rows), longest), IGNORED)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for i, row in enumerate(rows):
        n = len(row["input_ids"])
        ids[i, :n] = torch.tensor(row["input_ids"])
        labels[i, :n] = torch.tensor(row["labels"])
        mask[i, :n] = 1
    if bool((mask == 1).all()):
        return {"input_ids": ids, "labels": labels}
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def build(spec):
    """The model with its adapters, and what is called in a step (the compiled model if asked)."""
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[spec["weights"]]
    model = AutoModelForCausalLM.from_pretrained(
        spec["model"], dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    model = get_peft_model(model, LoraConfig(
        r=spec["rank"], lora_alpha=spec["alpha"], lora_dropout=0.0,
        target_modules=spec["targets"], task_type="CAUSAL_LM"))
    if spec["checkpointing"]:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    return model, torch.compile(model) if spec["compile"] else model


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    torch.manual_seed(0)
    torch.set_num_threads(spec["threads"])
    rows = load_rows(spec["rows"])
    model, forward = build(spec)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=2e-4, weight_decay=0.0, fused=True)
    per_step = spec["rows_per_step"]
    batches = [padded_batch(rows[i:i + per_step], pad_id=0)
               for i in range(0, len(rows), per_step)]

    losses, warmup_seconds, seconds = [], [], []
    window = None
    for step in range(spec["warmup"] + spec["steps"]):
        if step == spec["warmup"]:
            window = CpuWindow()
        start = time.perf_counter()
        autocast = (torch.autocast("cpu", torch.bfloat16) if spec["autocast"]
                    else contextlib.nullcontext())
        with autocast:
            loss = forward(**batches[step % len(batches)]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        (seconds if window else warmup_seconds).append(time.perf_counter() - start)
    result = {
        "step_seconds": seconds,
        "warmup_seconds": warmup_seconds,
        "others_cpu_share": window.others_share(),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
