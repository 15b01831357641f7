"""`npu-lora convert`: the directory is the GGUF's model to transformers, to the last bit."""
import json

import gguf
import numpy as np
import torch
from safetensors import safe_open
from test_adapter import Complaints
from transformers import AutoModelForCausalLM, AutoTokenizer

NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
HEADS = {"attn_q": 9, "attn_k": 3}


def expected_tensors(gguf_file):
    """Hugging Face name → f32 array, by the gguf package and numpy alone."""
    for tensor in gguf.GGUFReader(gguf_file).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        parts = tensor.name.split(".")
        if parts[0] != "blk":
            yield {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]], values
            continue
        if parts[2] in HEADS:  # rows (head, pair, half) → (head, half, pair)
            heads = HEADS[parts[2]]
            values = values.reshape(heads, 32, 2, -1).transpose(0, 2, 1, 3).reshape(values.shape)
        yield f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight", values


def round_to_bf16(values):
    return torch.from_numpy(np.array(values)).to(torch.bfloat16)


def test_tensors_are_bit_identical(run, smollm2, gguf_file, tmp_path):
    run("convert", gguf_file, "--out", tmp_path / "bf16", "--dtype", "bf16")
    count = 0
    with safe_open(smollm2 / "model.safetensors", "pt") as f32, \
            safe_open(tmp_path / "bf16" / "model.safetensors", "pt") as bf16:
        for name, values in expected_tensors(gguf_file):
            assert np.array_equal(f32.get_tensor(name).numpy().view(np.uint32),
                                  np.ascontiguousarray(values).view(np.uint32)), name
            assert torch.equal(bf16.get_tensor(name).view(torch.int16), round_to_bf16(values).view(torch.int16)), name
            count += 1
        assert len(f32.keys()) == len(bf16.keys()) == count == 272
        assert f32.metadata() == bf16.metadata() == {"format": "pt"}


def test_files_of_the_directory(smollm2):
    assert sorted(path.name for path in smollm2.iterdir()) == [
        "config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json",
        "tokenizer.json", "tokenizer_config.json"]
    config = json.loads((smollm2 / "config.json").read_text())
    expected = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
                "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
                "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152, "rms_norm_eps": 1e-5,
                "rope_theta": 100000.0, "rope_scaling": None, "max_position_embeddings": 8192,
                "tie_word_embeddings": True, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
                "pad_token_id": 2, "torch_dtype": "float32"}
    assert {key: config.get(key) for key in expected} == expected


def test_transformers_loads_it_without_a_word(smollm2):
    with Complaints() as complaints:
        model, info = AutoModelForCausalLM.from_pretrained(smollm2, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert complaints.messages == set()
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.float32
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token) == (
        "<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>")
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt",
                                           return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1]:]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_tokenizer_holds_the_metadata(smollm2, gguf_file):
    fields = gguf.GGUFReader(gguf_file).fields
    tokens, merges, types = (fields[f"tokenizer.ggml.{key}"].contents()
                             for key in ("tokens", "merges", "token_type"))
    tokenizer = json.loads((smollm2 / "tokenizer.json").read_text(encoding="utf-8"))
    assert tokenizer["model"]["vocab"] == {token: i for i, token in enumerate(tokens)}
    assert tokenizer["model"]["merges"] == [merge.split(" ") for merge in merges]
    assert [token["id"] for token in tokenizer["added_tokens"]] == [i for i, t in enumerate(types) if t == 3]
    assert tokenizer["pre_tokenizer"]["pretokenizers"][0] == {"type": "Digits", "individual_digits": True}
    config = json.loads((smollm2 / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == fields["tokenizer.chat_template"].contents()
