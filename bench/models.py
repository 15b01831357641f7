"""Models for bench/: random weights in the sizes of published ones, and the work that a step must do."""
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

# `npu-lora train` opens a tokenizer even where every row is token ids.
TOKENIZER = Path(__file__).resolve().parent.parent / "tests/golden/llama_tiny/tokenizer.json"
LINEARS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Geometry:
    """A Llama of random weights."""
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    layers: int = 2

    def config(self):
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": self.hidden, "intermediate_size": self.inner,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "num_hidden_layers": self.layers, "vocab_size": self.vocab,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
            "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }


SMOLLM2_SIZES = {"hidden": 576, "inner": 1536, "heads": 9, "kv_heads": 3, "head_dim": 64}
GEOMETRIES = {
    "llama1b_2l": Geometry(2048, 8192, 32, 8, 64, 128256),
    "qwen600m_2l": Geometry(1024, 3072, 16, 8, 128, 151936),
}


def linear_shapes(config):
    """(in, out) of each linear of a layer."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q = config["num_attention_heads"] * head_dim
    kv = config.get("num_key_value_heads", config["num_attention_heads"]) * head_dim
    return {"q": (hidden, q), "k": (hidden, kv), "v": (hidden, kv), "o": (q, hidden),
            "gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}


def write_random_model(geometry, folder, seed=0):
    """A Hugging Face directory of bf16 weights, the same for the same seed. Written once."""
    import torch
    from safetensors.torch import save_file

    if folder.exists():
        return folder
    folder.mkdir()
    config = geometry.config()
    generator = torch.Generator().manual_seed(seed)

    def normal(rows, columns):
        return torch.empty(rows, columns, dtype=torch.bfloat16).normal_(
            std=config["initializer_range"], generator=generator)

    ones = torch.ones(geometry.hidden, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": normal(geometry.vocab, geometry.hidden),
               "model.norm.weight": ones}
    for layer in range(geometry.layers):
        prefix = f"model.layers.{layer}"
        for name, (inputs, outputs) in linear_shapes(config).items():
            block = "self_attn" if name in "qkvo" else "mlp"
            tensors[f"{prefix}.{block}.{name}_proj.weight"] = normal(outputs, inputs)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = ones.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    shutil.copy(TOKENIZER, folder)
    return folder


def useful_flops(config, targets, rank, rows):
    """Floating-point operations that LoRA training on `rows` cannot do without, forward and backward.

    Counted: products with frozen weights, forward and for the gradient of their input (not of the
    first layer's); A and B with their gradients; the causal half of attention, within one row; the
    head where a token carries loss. Not counted: padding, recomputing, elementwise work.
    """
    shapes = linear_shapes(config)
    layers = config["num_hidden_layers"]
    size = {name: inputs * outputs for name, (inputs, outputs) in shapes.items()}
    first = "qkv"  # of the first layer: nothing trained lies below their input
    frozen = 4 * layers * sum(size.values()) - 2 * sum(size[name] for name in first)
    lora = (6 * layers * rank * sum(sum(shapes[name]) for name in targets)
            - 2 * rank * sum(shapes[name][0] for name in targets if name in first))
    attention = 6 * layers * shapes["q"][1]  # times n(n + 1): two products forward, four backward
    head = 4 * config["hidden_size"] * config["vocab_size"]
    total = 0
    for row in rows:
        n = len(row["input_ids"])
        trained = sum(label != -100 for label in row["labels"][1:])
        total += n * (frozen + lora) + n * (n + 1) * attention + trained * head
    return total
