"""Adapter files: peft loads ours without a word and we load peft's; what peft takes in silence, we refuse."""
import hashlib
import json
import shutil
import subprocess

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from test_adapter import Complaints
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def probe(io_probe):
    def call(*arguments):
        done = subprocess.run([io_probe, *map(str, arguments)], capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return call


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A random Llama saved by transformers, in shards."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=128, max_position_embeddings=64)
    path = tmp_path_factory.mktemp("base")
    LlamaForCausalLM(config).save_pretrained(path, max_shard_size="60KB")
    return path


def digest(tensor):
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def lora_weights(model):
    """Our name → tensor, for every LoRA matrix of a loaded PeftModel."""
    prefix, result = "base_model.model.", {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            result[name.removeprefix(prefix).replace(".default.weight", "")] = parameter
    return result


def test_our_reader_reads_transformers_shards(probe, base):
    assert (base / "model.safetensors.index.json").exists()
    model = AutoModelForCausalLM.from_pretrained(base)
    tensors = probe("model", base)["tensors"]
    state = {name: value for name, value in model.state_dict().items()}
    assert tensors.keys() == state.keys()
    for name, value in state.items():
        assert tensors[name]["sha256"] == digest(value), name


def peft_adapter(base, path, **options):
    """An adapter that peft saved, with B drawn too."""
    torch.manual_seed(1)
    config = LoraConfig(task_type="CAUSAL_LM", **{"r": 4, "lora_alpha": 8, "target_modules": SEVEN, **options})
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for value in lora_weights(model).values():
        torch.nn.init.normal_(value, std=0.1)
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("scaling", ["plain", "rslora"])
def test_peft_loads_ours_without_a_word(probe, base, tmp_path, scaling):
    answer = probe("write_adapter", tmp_path / "adapter", base, 4, scaling)
    # What peft says of an adapter that it wrote itself is not about ours.
    peft_adapter(base, tmp_path / "own")
    model = AutoModelForCausalLM.from_pretrained(base)
    with Complaints() as usual:
        PeftModel.from_pretrained(model, tmp_path / "own")
    model = AutoModelForCausalLM.from_pretrained(base)
    with Complaints() as ours:
        peft_model = PeftModel.from_pretrained(model, tmp_path / "adapter")
    assert ours.messages <= usual.messages
    weights = lora_weights(peft_model)
    assert weights.keys() == answer["tensors"].keys() and len(weights) == 2 * 7 * 2
    for name, value in weights.items():
        assert answer["tensors"][name]["sha256"] == digest(value), name
    layer = peft_model.base_model.model.model.layers[1].mlp.up_proj
    assert layer.scaling["default"] == answer["scale"] == (4.0 if scaling == "rslora" else 2.0)


@pytest.mark.parametrize("options", [
    {}, {"use_rslora": True}, {"target_modules": ["q_proj", "v_proj"]}, {"lora_dropout": 0.1},
    {"init_lora_weights": "gaussian"}, {"target_modules": "all-linear"}], ids=str)
def test_we_load_what_peft_saves(probe, base, tmp_path, options):
    model = peft_adapter(base, tmp_path / "adapter", **options)
    answer = probe("adapter", tmp_path / "adapter", base)
    assert "error" not in answer
    weights = lora_weights(model)
    assert answer["tensors"].keys() == weights.keys()
    for name, value in weights.items():
        assert answer["tensors"][name]["sha256"] == digest(value), name
    assert answer["rank"] == 4
    assert answer["scale"] == model.base_model.model.model.layers[0].self_attn.q_proj.scaling["default"]


@pytest.mark.parametrize("options, key", [
    ({"use_dora": True}, "use_dora"), ({"bias": "lora_only"}, "bias"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
    ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"), ({"layers_to_transform": [0]}, "layers_to_transform"),
    ({"target_modules": r".*\.q_proj"}, "target_modules"), ({"lora_bias": True}, "lora_bias"),
    ({"target_modules": ["q_proj", "lm_head"]}, "target_modules")], ids=str)
def test_other_features_are_refused_by_key(probe, base, tmp_path, options, key):
    peft_adapter(base, tmp_path / "adapter", **options)
    assert key in probe("adapter", tmp_path / "adapter", base)["error"]


def renamed(old, new):
    def change(config, tensors):
        return config, {name.replace(old, new): value for name, value in tensors.items()}
    return change


def without_key(key):
    def change(config, tensors):
        return {k: v for k, v in config.items() if k != key}, tensors
    return change


# Each of these loads without an error in peft or in vLLM, or in both, and serves something else.
FAULTS = {
    "wrong prefix": renamed("model.model.layers", "model.transformer.layers"),
    "no prefix": renamed("base_model.model.", ""),
    "no such layer": renamed("layers.1", "layers.7"),
    "no such module": renamed("up_proj", "upp_proj"),
    "adapter name in keys": renamed("lora_A.weight", "lora_A.default.weight"),
    "no r": without_key("r"),
    "no lora_alpha": without_key("lora_alpha"),
    "no peft_type": without_key("peft_type"),
    "one lora_B missing": lambda config, tensors: (
        config, {k: v for k, v in tensors.items() if "layers.1.mlp.down_proj.lora_B" not in k}),
    "half-width lora_A": lambda config, tensors: (
        config, {k: v[:, : v.shape[1] // 2].contiguous() if "layers.0.self_attn.q_proj.lora_A" in k else v
                 for k, v in tensors.items()}),
    "all transposed": lambda config, tensors: (config, {k: v.T.contiguous() for k, v in tensors.items()}),
    "NaN": lambda config, tensors: (config, {k: v * float("nan") for k, v in tensors.items()}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_silent_faults_are_refused(probe, base, tmp_path, fault):
    good, bad = tmp_path / "good", tmp_path / "bad"
    probe("write_adapter", good, base, 4, "plain")
    shutil.copytree(good, bad)
    config, tensors = FAULTS[fault](json.loads((good / "adapter_config.json").read_text()),
                                    load_file(good / "adapter_model.safetensors"))
    (bad / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, bad / "adapter_model.safetensors", {"format": "pt"})
    assert "error" not in probe("adapter", good, base)
    assert "error" in probe("adapter", bad, base)
