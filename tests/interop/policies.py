"""The rounding policies of `--numerics`, written a second time in torch: a Llama forward pass in
which every rounding stands as `.to(bf16)`. Independent of the program's graphs and of transformers'
modules; weights and adapters come from files."""
import json

import torch
from safetensors.torch import load_file

BF16, F32 = torch.bfloat16, torch.float32


def rope_tables(config, length):
    half = config["head_dim"] // 2
    frequency = 1.0 / config["rope_theta"] ** (torch.arange(half, dtype=F32) / half)
    angles = torch.arange(length, dtype=F32)[:, None] * frequency
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(BF16), angles.sin().to(BF16)


def matmul(x, weight):
    """bf16 operands, f32 sums, one rounding."""
    return (x.to(F32) @ weight.to(BF16).to(F32).T).to(BF16)


def linear(model, adapter, scale, name, x):
    y = matmul(x, model[name + ".weight"])
    if name + ".lora_A.weight" not in adapter:
        return y
    a, b = adapter[name + ".lora_A.weight"], adapter[name + ".lora_B.weight"]
    return (y.to(F32) + (x.to(F32) @ a.T * scale) @ b.T).to(BF16)


def hf_norm(x, weight, eps):
    wide = x.to(F32)
    normal = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return weight.to(BF16) * normal.to(BF16)


def vllm_norm(x_f32, weight, eps):
    normal = x_f32 * torch.rsqrt((x_f32 * x_f32).mean(-1, keepdim=True) + eps)
    return (normal * weight.to(BF16).to(F32)).to(BF16)


def hf_rope(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def vllm_rope(x, cos, sin):
    return hf_rope(x.to(F32), cos.to(F32), sin.to(F32)).to(BF16)


def hf_swiglu(gate, up):
    return torch.nn.functional.silu(gate) * up


def vllm_swiglu(gate, up):
    return (torch.nn.functional.silu(gate.to(F32)) * up.to(F32)).to(BF16)


def attention(q, k, v, cos, sin, config, rope):
    """[S, heads·D] each → [S, heads·D]; the same under every policy but for RoPE."""
    length, d = q.shape[0], config["head_dim"]
    q, k, v = (x.view(length, -1, d).transpose(0, 1) for x in (q, k, v))
    q, k = rope(q, cos, sin), rope(k, cos, sin)
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], dim=0) for x in (k, v))
    scores = (q.to(F32) @ k.to(F32).transpose(1, 2)).to(BF16) * d ** -0.5
    hidden = torch.full((length, length), float("-inf"), dtype=BF16).triu(1)
    probs = (scores + hidden).to(F32).softmax(-1).to(BF16)
    return (probs.to(F32) @ v.to(F32)).to(BF16).transpose(0, 1).reshape(length, -1)


def log_probs(directory, adapter_directory, policy, ids):
    """log p of ids[1:] given what precedes them."""
    config = json.loads((directory / "config.json").read_text())
    model = {name.removeprefix("model."): t for name, t in
             load_file(directory / "model.safetensors").items()}
    settings = json.loads((adapter_directory / "adapter_config.json").read_text())
    adapter = {name.removeprefix("base_model.model.model."): t for name, t in
               load_file(adapter_directory / "adapter_model.safetensors").items()}
    scale, eps = settings["lora_alpha"] / settings["r"], config["rms_norm_eps"]
    vllm = policy == "vllm"
    norm, rope, swiglu = ((vllm_norm, vllm_rope, vllm_swiglu) if vllm else
                          (hf_norm, hf_rope, hf_swiglu))

    def add(stream, branch):
        """vllm: f32 sum of the rounded residual and the branch; hf: rounded."""
        return stream.to(BF16).to(F32) + branch.to(F32) if vllm else stream + branch

    embedding = model["embed_tokens.weight"].to(BF16)
    x = embedding[ids].to(F32) if vllm else embedding[ids]
    cos, sin = rope_tables(config, len(ids))
    for layer in range(config["num_hidden_layers"]):
        p = f"layers.{layer}."

        def project(name, value):
            return linear(model, adapter, scale, p + name, value)

        n = norm(x, model[p + "input_layernorm.weight"], eps)
        q, k, v = (project(f"self_attn.{c}_proj", n) for c in "qkv")
        x = add(x, project("self_attn.o_proj", attention(q, k, v, cos, sin, config, rope)))
        n = norm(x, model[p + "post_attention_layernorm.weight"], eps)
        inner = swiglu(project("mlp.gate_proj", n), project("mlp.up_proj", n))
        x = add(x, project("mlp.down_proj", inner))
    logits = matmul(norm(x, model["norm.weight"], eps), embedding).to(F32)
    return logits[:-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
