#!/usr/bin/env python3
"""One measured run of TRL's SFTTrainer, with its own packing, in a process of its own (see worker.py)."""
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from worker import Recorder, load_rows, read_spec


class Clock(TrainerCallback):
    """Times each step from the end of the one before: what the trainer does between is its own cost."""

    def __init__(self, recorder):
        self.recorder = recorder

    def on_train_begin(self, *_args, **_more):
        self.recorder.begin()

    def on_step_end(self, *_args, **_more):
        self.recorder.end()
        self.recorder.begin()

    def on_log(self, _args, _state, _control, logs=None, **_more):
        if "loss" in logs:
            self.recorder.losses.append(logs["loss"])


def main():
    spec = read_spec()
    torch.manual_seed(0)
    torch.set_num_threads(spec.threads)
    recorder = Recorder(spec.warmup)
    tokenizer = AutoTokenizer.from_pretrained(spec.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with tempfile.TemporaryDirectory() as out:
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(
                spec.model, dtype=torch.float32, attn_implementation="sdpa"),
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(load_rows(spec.rows)),
            peft_config=LoraConfig(
                r=spec.rank, lora_alpha=spec.alpha, lora_dropout=0.0,
                target_modules=[f"{name}_proj" for name in spec.targets], task_type="CAUSAL_LM"),
            args=SFTConfig(
                output_dir=out, packing=True, max_length=spec.packed_tokens,
                per_device_train_batch_size=1, num_train_epochs=1, learning_rate=spec.lr,
                lr_scheduler_type="constant", optim="adamw_torch_fused", weight_decay=0.0,
                use_cpu=True, bf16=False, gradient_checkpointing=False, logging_steps=1,
                save_strategy="no", report_to=[], disable_tqdm=True),
            callbacks=[Clock(recorder)])
        trainer.train()
    recorder.print_result()


if __name__ == "__main__":
    main()
