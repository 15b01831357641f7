#!/usr/bin/env python3
"""One measured run of a jitted JAX step in a process of its own (see worker.py).

The strongest form we found by hand: one jit over forward, backward and AdamW with its state donated,
layers unrolled, weights [in,out], attention head by head, the target's logit gathered instead of a
one-hot sum. It trains whole windows of tokens of a Llama without biases or scaled RoPE, in f32.
"""
import json
import os
from pathlib import Path

from worker import load_rows, read_spec, run_steps

SPEC = read_spec()
# XLA takes a thread per core that this process may use, and asks when it is loaded.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:SPEC.threads])

import jax
import jax.numpy as jnp
from safetensors import safe_open

BLOCKS = {"q": "self_attn", "k": "self_attn", "v": "self_attn", "o": "self_attn",
          "gate": "mlp", "up": "mlp", "down": "mlp"}
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def load_config(model):
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    for key in ("rope_scaling", "attention_bias", "mlp_bias"):
        if config.get(key):
            raise SystemExit(f"jax_worker.py: {model}/config.json: {key} is not implemented")
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config


def load_weights(model, config):
    """f32 arrays: the layers' linears as [in,out], norms, the embedding and the head [vocab,hidden]."""
    tensors = {}
    for path in model.glob("*.safetensors"):
        with safe_open(path, framework="flax") as file:
            for name in file.keys():
                tensors[name] = file.get_tensor(name).astype(jnp.float32)
    layers = []
    for i in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{i}"
        layer = {name: tensors.pop(f"{prefix}.{block}.{name}_proj.weight").T
                 for name, block in BLOCKS.items()}
        layer["norm1"] = tensors.pop(f"{prefix}.input_layernorm.weight")
        layer["norm2"] = tensors.pop(f"{prefix}.post_attention_layernorm.weight")
        layers.append(layer)
    embedding = tensors["model.embed_tokens.weight"]
    return {"layers": layers, "embedding": embedding, "norm": tensors["model.norm.weight"],
            "head": tensors.get("lm_head.weight", embedding)}


def init_adapters(weights, targets, rank):
    """A as PEFT draws it, B zero."""
    adapters, key = [], jax.random.key(0)
    for layer in weights["layers"]:
        adapter = {}
        for name in targets:
            key, draw = jax.random.split(key)
            inputs, outputs = layer[name].shape
            bound = inputs**-0.5
            adapter[name] = {"A": jax.random.uniform(draw, (inputs, rank), minval=-bound,
                                                     maxval=bound),
                             "B": jnp.zeros((rank, outputs))}
        adapters.append(adapter)
    return adapters


def rms_norm(x, weight, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * weight


def rotate(x, cos, sin):
    """RoPE of x[B,S,D] by tables[S,D]."""
    half = x.shape[-1] // 2
    return x * cos + jnp.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def rope_tables(config, length):
    head_dim = config["head_dim"]
    theta = config.get("rope_theta", 10000.0)
    angles = jnp.outer(jnp.arange(length), theta ** (-jnp.arange(0, head_dim, 2) / head_dim))
    angles = jnp.concatenate([angles, angles], -1)
    return jnp.cos(angles), jnp.sin(angles)


def attention(q, k, v, config):
    """Causal attention of q[B,S,heads·D], one head at a time, so that no [heads,S,S] lies in memory."""
    head_dim, length = config["head_dim"], q.shape[1]
    cos, sin = rope_tables(config, length)
    hidden = jnp.triu(jnp.full((length, length), -jnp.inf), 1)
    group = config["num_attention_heads"] // config["num_key_value_heads"]

    def head(x, i):
        return x[..., i * head_dim:(i + 1) * head_dim]

    keys = [rotate(head(k, i), cos, sin) for i in range(config["num_key_value_heads"])]
    outputs = []
    for i in range(config["num_attention_heads"]):
        scores = rotate(head(q, i), cos, sin) @ keys[i // group].swapaxes(1, 2) * head_dim**-0.5
        outputs.append(jax.nn.softmax(scores + hidden) @ head(v, i // group))
    return jnp.concatenate(outputs, -1)


def make_loss(config, scale):
    eps = config["rms_norm_eps"]

    def linear(x, layer, adapter, name):
        y = x @ layer[name]
        if name in adapter:
            y += x @ adapter[name]["A"] @ adapter[name]["B"] * scale
        return y

    def loss(adapters, weights, ids):
        x = weights["embedding"][ids]
        for layer, adapter in zip(weights["layers"], adapters):
            h = rms_norm(x, layer["norm1"], eps)
            mixed = attention(*(linear(h, layer, adapter, name) for name in "qkv"), config)
            x += linear(mixed, layer, adapter, "o")
            h = rms_norm(x, layer["norm2"], eps)
            gated = jax.nn.silu(linear(h, layer, adapter, "gate")) * linear(h, layer, adapter, "up")
            x += linear(gated, layer, adapter, "down")
        x = rms_norm(x, weights["norm"], eps)[:, :-1].reshape(-1, config["hidden_size"])
        target = jnp.sum(x * weights["head"][ids[:, 1:].reshape(-1)], -1)
        return jnp.mean(jax.nn.logsumexp(x @ weights["head"].T, -1) - target)

    return loss


def adamw(state, gradients, lr):
    """One update without decay; state is (step, adapters, first moments, second moments)."""
    step, values, first, second = state
    step += 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, gradients)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, second, gradients)
    values = jax.tree.map(
        lambda x, m, v: x - lr * (m / (1 - BETA1**step)) / (jnp.sqrt(v / (1 - BETA2**step)) + EPS),
        values, first, second)
    return step, values, first, second


def main():
    model = Path(SPEC.model)
    config = load_config(model)
    weights = load_weights(model, config)
    adapters = init_adapters(weights, SPEC.targets, SPEC.rank)
    value_and_grad = jax.value_and_grad(make_loss(config, SPEC.alpha / SPEC.rank))

    def train_step(state, weights, ids):
        loss, gradients = value_and_grad(state[1], weights, ids)
        return adamw(state, gradients, SPEC.lr), loss

    jitted = jax.jit(train_step, donate_argnums=0)
    zeros = [jax.tree.map(jnp.zeros_like, adapters) for _ in range(2)]
    state = (jnp.zeros(()), adapters, *zeros)

    def step(ids):
        nonlocal state
        state, loss = jitted(state, weights, ids)
        return loss.item()

    ids = [row["input_ids"] for row in load_rows(SPEC.rows)]
    batches = [jnp.array(ids[i:i + SPEC.rows_per_step])
               for i in range(0, len(ids), SPEC.rows_per_step)]
    run_steps(SPEC, batches, step).print_result()


if __name__ == "__main__":
    main()
