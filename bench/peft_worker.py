#!/usr/bin/env python3
"""One measured run of transformers + PEFT in a process of its own (see worker.py)."""
import contextlib

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from worker import load_rows, read_spec, run_steps

IGNORED = -100
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def padded_batch(rows, pad_id=0):
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


def best_fit(rows, capacity):
    """Packs of rows, each of at most `capacity` tokens: the longest first, where least room is left."""
    packs = []  # [room left, rows]
    for row in sorted(rows, key=lambda row: -len(row["input_ids"])):
        n = len(row["input_ids"])
        fitting = [pack for pack in packs if pack[0] >= n]
        if fitting:
            pack = min(fitting, key=lambda pack: pack[0])
        else:
            packs.append(pack := [capacity, []])
        pack[0] -= n
        pack[1].append(row)
    return [pack for _, pack in packs]


def packed_batch(rows):
    """Rows in one sequence. Without a mask, transformers keeps documents apart where positions restart."""
    ids, labels, positions = [], [], []
    for row in rows:
        ids += row["input_ids"]
        labels += [IGNORED, *row["labels"][1:]]  # the row before must not predict this one's start
        positions += range(len(row["input_ids"]))
    return {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels]),
            "position_ids": torch.tensor([positions])}


def make_batches(spec, rows):
    if spec.packed_tokens:
        return [packed_batch(pack) for pack in best_fit(rows, spec.packed_tokens)]
    return [padded_batch(rows[i:i + spec.rows_per_step])
            for i in range(0, len(rows), spec.rows_per_step)]


def build(spec):
    """The model with its adapters."""
    model = AutoModelForCausalLM.from_pretrained(
        spec.model, dtype=DTYPES[spec.weights], attn_implementation="sdpa")
    model.config.use_cache = False
    model = get_peft_model(model, LoraConfig(
        r=spec.rank, lora_alpha=spec.alpha, lora_dropout=0.0,
        target_modules=[f"{name}_proj" for name in spec.targets], task_type="CAUSAL_LM"))
    if spec.checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


class LabelRowLoss(torch.nn.Module):
    """The loss by a head that sees only the rows that predict a label: the best simple loop."""

    def __init__(self, model):
        super().__init__()
        self.base = model.get_base_model()

    def forward(self, labels, **inputs):
        hidden = self.base.model(**inputs).last_hidden_state[:, :-1]
        targets = labels[:, 1:]
        trained = targets != IGNORED
        return torch.nn.functional.cross_entropy(
            self.base.lm_head(hidden[trained]).float(), targets[trained])


class ModelLoss(torch.nn.Module):
    """The loss as the model itself computes it, from logits of every row."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **batch):
        return self.model(**batch).loss


def main():
    spec = read_spec()
    torch.manual_seed(0)
    torch.set_num_threads(spec.threads)
    batches = make_batches(spec, load_rows(spec.rows))
    model = build(spec)
    loss_of = (LabelRowLoss if spec.label_rows else ModelLoss)(model)
    if spec.compile:
        loss_of = torch.compile(loss_of)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=spec.lr, weight_decay=0.0, fused=True)
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 - step / len(batches) if spec.linear_decay else 1.0)

    def step(batch):
        with (torch.autocast("cpu", torch.bfloat16) if spec.autocast
              else contextlib.nullcontext()):
            loss = loss_of(**batch)
        loss.backward()
        if spec.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.grad_clip)
        optimizer.step()
        decay.step()
        optimizer.zero_grad()
        return loss.item()

    run_steps(spec, batches, step).print_result()
    if spec.save:
        model.save_pretrained(spec.save)


if __name__ == "__main__":
    main()
