"""`npu-lora convert`: the directory is the GGUF's model to transformers, to the last bit."""
import json

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from test_adapter import Complaints
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

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


LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
BYTE_LETTERS = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
BYTE_LETTERS += [chr(256 + i) for i in range(256 - len(BYTE_LETTERS))]  # GPT-2's letters for other bytes


def interleaved(values, heads):
    """Rows of each head from halves to pairs, as llama.cpp wants them."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def write_gguf(path, model):
    """A GGUF of `model` as llama.cpp's converter lays one out, with a byte-level tokenizer of Llama 3's kind."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (("context_length", 131072), ("embedding_length", 256), ("feed_forward_length", 96),
                       ("block_count", 2), ("attention.head_count", 4), ("attention.head_count_kv", 2),
                       ("rope.dimension_count", 64)):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.rope.freq_base", 500000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    tokens = [*BYTE_LETTERS, "ab", "<|begin_of_text|>", "<|end_of_text|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 500000.0 ** (torch.arange(0, 64, 2) / 64)
    writer.add_tensor("rope_freqs.weight", (plain / scaled).float().numpy())
    short = {value: key for key, value in NAMES.items()}
    for name, values in model.state_dict().items():
        values = values.numpy()
        parts = name.split(".")
        if parts[0] == "lm_head":
            writer.add_tensor("output.weight", values)
        elif parts[1] == "layers":
            key = short[".".join(parts[3:-1])]
            heads = {"attn_q": 4, "attn_k": 2}.get(key)
            values = interleaved(values, heads) if heads else values
            writer.add_tensor(f"blk.{parts[2]}.{key}.{parts[-1]}", np.ascontiguousarray(values))
        else:
            writer.add_tensor({"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[parts[1]], values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("biases", [False, True], ids=["plain", "biases"])
def test_llama3_scaling_and_biases_come_back(run, tmp_path, biases):
    """transformers model → GGUF → our convert → transformers: the same logits to the last bit."""
    torch.manual_seed(2)
    config = LlamaConfig(hidden_size=256, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=259, max_position_embeddings=131072, rms_norm_eps=1e-5,
                         rope_parameters=LLAMA3, attention_bias=biases, mlp_bias=biases, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    write_gguf(tmp_path / "m.gguf", model)
    run("convert", tmp_path / "m.gguf", "--out", tmp_path / "hf", "--dtype", "f32")

    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert written["rope_theta"] == 500000.0
    assert written["rope_scaling"] == {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    assert (written["attention_bias"], written["mlp_bias"], written["tie_word_embeddings"]) == (biases, biases, False)
    with Complaints() as complaints:
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert complaints.messages == set()
    ids = torch.arange(48).reshape(1, 48) * 5 % 259
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert tokenizer("abé").input_ids == [257, 256, *(BYTE_LETTERS.index(c) for c in "Ã©")]
    assert tokenizer("ab", add_special_tokens=False).input_ids == [256]
