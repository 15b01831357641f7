#!/usr/bin/env python3
"""Writes what transformers + PEFT compute, for the tests of this project to agree with.

    make_golden.py                     rewrites the committed folders beside this file
    make_golden.py --model DIR --out DIR [--seq-len N --batch N --rank R --targets LIST]
                                       the same files (without the model) for a real model

A folder holds
    config.json, model.safetensors, tokenizer.json   a tiny random model (committed folders only)
    adapter/, final_adapter/     PEFT adapters: the start (B is not zero) and after ten steps
    batch.safetensors            input_ids, labels: int64 [B,S], labels partly -100
    golden.safetensors           f32: logits [B,S,V], loss, each LoRA gradient under its PEFT name
    golden_bf16.safetensors      the first sequence's logits and loss, model in bf16, adapters in f32
    golden.json                  ten AdamW steps on that batch: losses, gradient norms, rates, settings
All f32 results use eager attention on one thread.
"""
import argparse
import contextlib
import json
import shutil
from pathlib import Path

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

HERE = Path(__file__).resolve().parent
LINEARS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj",
           "gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
IGNORED = -100

# Ten steps with every part of the update in use: warm-up, decay, clipping, weight decay.
TRAINING = {"steps": 10, "lr": 1e-3, "weight_decay": 0.01, "betas": [0.9, 0.999], "eps": 1e-8,
            "grad_clip": 1.0, "schedule": "linear", "warmup": 2}

# The two geometries differ in all that the family allows: tied or not, kv heads, explicit head_dim,
# biases, RoPE scaling, and the spelling of RoPE in config.json (transformers 4 and 5).
TINY = {
    "llama_tiny": {
        "config": dict(vocab_size=512, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
                       num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                       max_position_embeddings=256, tie_word_embeddings=True,
                       rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        "old_rope_spelling": True, "bf16": True,
    },
    "llama_tiny_untied": {
        "config": dict(vocab_size=320, hidden_size=64, intermediate_size=80, num_hidden_layers=2,
                       num_attention_heads=4, num_key_value_heads=1, head_dim=32,
                       max_position_embeddings=256, tie_word_embeddings=False,
                       attention_bias=True, mlp_bias=True,
                       rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0,
                                        "factor": 4.0, "low_freq_factor": 1.0,
                                        "high_freq_factor": 4.0,
                                        "original_max_position_embeddings": 64}),
        "old_rope_spelling": False, "bf16": False,
    },
}


def parse_targets(text):
    """"q,v" or "all" → module names, in the order in which a layer runs them."""
    letters = list(LINEARS) if text == "all" else text.split(",")
    return [LINEARS[letter] for letter in LINEARS if letter in letters]


def load(model_dir, adapter_dir=None, dtype=torch.float32, trainable=False):
    """The model in eval mode (no dropout), with its adapter where one is given."""
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=dtype, attn_implementation="eager")
    model.config.use_cache = False
    if adapter_dir is not None:
        model = PeftModel.from_pretrained(model, adapter_dir, is_trainable=trainable)
    return model.eval()


def lora_parameters(model):
    """{name as in adapter_model.safetensors: parameter} of the trained tensors."""
    return {name.replace(".default.", "."): parameter
            for name, parameter in model.named_parameters() if parameter.requires_grad}


def loss_and_gradients(model_dir, adapter_dir, batch):
    """Loss, logits and every LoRA gradient of one batch, in f32."""
    model = load(model_dir, adapter_dir, trainable=True)
    out = model(**batch)
    out.loss.backward()
    result = {"loss": out.loss.detach(), "logits": out.logits.detach()}
    result.update({name: p.grad.clone() for name, p in lora_parameters(model).items()})
    return result


@contextlib.contextmanager
def nothing_rounds_to_f32():
    """transformers computes norms and softmax in f32 whatever the model's dtype; here they keep it."""
    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def attention(module, query, key, value, mask, scaling, **_):
        key = modeling_llama.repeat_kv(key, module.num_key_value_groups)
        value = modeling_llama.repeat_kv(value, module.num_key_value_groups)
        scores = query @ key.transpose(2, 3) * scaling
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    kept = modeling_llama.LlamaRMSNorm.forward, modeling_llama.eager_attention_forward
    modeling_llama.LlamaRMSNorm.forward, modeling_llama.eager_attention_forward = norm, attention
    try:
        yield
    finally:
        modeling_llama.LlamaRMSNorm.forward, modeling_llama.eager_attention_forward = kept


def loss_and_gradients_f64(model_dir, adapter_dir, batch):
    """The same in f64 (no logits). On a deep model torch's own f32 gradients are 3e-4 off this."""
    with nothing_rounds_to_f32():
        model = load(model_dir, adapter_dir, trainable=True).double()
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()
    result = {"loss": loss.detach()}
    result.update({name: p.grad.clone() for name, p in lora_parameters(model).items()})
    return result


def train(model_dir, adapter_dir, batch, settings, out_dir=None):
    """AdamW steps on one batch; saves the adapter it ends with to `out_dir`."""
    model = load(model_dir, adapter_dir, trainable=True)
    parameters = list(lora_parameters(model).values())
    optimizer = torch.optim.AdamW(parameters, lr=settings["lr"], betas=tuple(settings["betas"]),
                                  eps=settings["eps"], weight_decay=settings["weight_decay"])
    scheduler = transformers.get_scheduler(
        settings["schedule"], optimizer, num_warmup_steps=settings["warmup"],
        num_training_steps=settings["steps"])
    log = {"losses": [], "grad_norms": [], "lrs": []}
    for _ in range(settings["steps"]):
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, settings["grad_clip"])
        log["losses"].append(loss.item())
        log["grad_norms"].append(norm.item())
        log["lrs"].append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    if out_dir is not None:
        model.save_pretrained(out_dir)
    return log


def random_batch(vocab_size, batch, seq_len, seed):
    """Random tokens; the first quarter of each row and some single tokens carry no loss."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab_size, (batch, seq_len), generator=generator)
    labels = ids.clone()
    labels[:, : seq_len // 4] = IGNORED
    labels[torch.rand((batch, seq_len), generator=generator) < 0.1] = IGNORED
    return {"input_ids": ids, "labels": labels}


def make_adapter(model_dir, adapter_dir, rank, targets, seed, b_std=0.05):
    """A fresh adapter with B drawn at random: B = 0 would hide every gradient of A."""
    torch.manual_seed(seed)
    model = get_peft_model(load(model_dir), LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=targets,
        task_type="CAUSAL_LM"))
    for name, parameter in lora_parameters(model).items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=b_std)
    model.save_pretrained(adapter_dir)
    # PEFT writes the folder that it was loaded from; a committed file must not know it.
    path = Path(adapter_dir) / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = Path(model_dir).name
    config["target_modules"] = sorted(config["target_modules"])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (Path(adapter_dir) / "README.md").unlink(missing_ok=True)


def make_tiny_model(folder, spec, seed):
    """Random weights of unit gain, norms and biases drawn too, so that no term is negligible."""
    torch.manual_seed(seed)
    config = LlamaConfig(bos_token_id=0, eos_token_id=1, pad_token_id=None, **spec["config"])
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
        else:
            torch.nn.init.normal_(parameter, std=0.05 if name.endswith("bias") else 0.125)
    model.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if spec["old_rope_spelling"]:
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = None
        config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "generation_config.json").unlink(missing_ok=True)


def make_tokenizer(folder):
    """A byte-level BPE of 300 tokens, so that commands which want a tokenizer find one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = (HERE.parents[1] / "examples/data/text.jsonl").read_text(encoding="utf-8")
    tokenizer.train_from_iterator(
        [json.loads(line)["text"] for line in text.splitlines()],
        trainers.BpeTrainer(vocab_size=300, special_tokens=["<|begin|>", "<|end|>"],
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                            show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"add_bos_token": False, "bos_token": "<|begin|>", "eos_token": "<|end|>",
         "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2) + "\n", encoding="utf-8")


def write_golden(model_dir, out, batch, with_bf16, seed, rank, targets):
    make_adapter(model_dir, out / "adapter", rank, targets, seed)
    save_file(batch, out / "batch.safetensors")
    result = loss_and_gradients(model_dir, out / "adapter", batch)
    save_file({name: t.contiguous() for name, t in result.items()}, out / "golden.safetensors")
    if with_bf16:
        with torch.no_grad():
            first = {name: tensor[:1] for name, tensor in batch.items()}
            half = load(model_dir, out / "adapter", dtype=torch.bfloat16)(**first)
        save_file({"logits": half.logits.contiguous(), "loss": half.loss},
                  out / "golden_bf16.safetensors")
    log = train(model_dir, out / "adapter", batch, TRAINING, out / "final_adapter")
    (out / "final_adapter/README.md").unlink(missing_ok=True)
    shutil.copy(out / "adapter/adapter_config.json", out / "final_adapter/adapter_config.json")
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                "peft": peft.__version__}
    golden = {"settings": TRAINING, **log, "versions": versions}
    for path in out.rglob("*.safetensors"):
        path.chmod(0o644)
    (out / "golden.json").write_text(json.dumps(golden, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, help="model directory [the committed tiny models]")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write")
    parser.add_argument("--seq-len", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--targets", default="all", help="of q,k,v,o,gate,up,down, or all")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)  # one order of summation on every machine
    targets = parse_targets(args.targets)
    if args.model is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        vocab_size = json.loads((args.model / "config.json").read_text())["vocab_size"]
        batch = random_batch(vocab_size, args.batch, args.seq_len, args.seed)
        write_golden(args.model, args.out, batch, True, args.seed, args.rank, targets)
        return
    for name, spec in TINY.items():
        folder = args.out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make_tiny_model(folder, spec, args.seed)
        make_tokenizer(folder)
        batch = random_batch(spec["config"]["vocab_size"], args.batch, args.seq_len, args.seed)
        write_golden(folder, folder, batch, spec["bf16"], args.seed, args.rank, targets)


if __name__ == "__main__":
    main()
