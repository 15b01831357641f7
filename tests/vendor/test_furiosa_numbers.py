"""What is emitted as TCL, computed by the vendor's own CPU interpreter: no card is needed for that.

Every statement must equal the reference, RNGD's rounding included, within one bf16 rounding; a function
as a whole, in which such roundings add up, within one bf16 step of its norm."""
import json
import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("NPU_BUILD", REPO / "build/release"))
PYTHON = Path(os.environ.get("NPU_VENDOR_PYTHON", REPO / ".venv-vendor-torch/bin/python"))
BF16_STEP = 2.0 ** -7
# The heads of real models, everything else small.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 256,
          "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "rope_theta": 10000.0, "tie_word_embeddings": False}
SEQ_LEN = 48
# targets, batch, dtype, numerics, products of a part (0: whole graphs), and the statements of their texts
CASES = [("all", 1, "bf16", "hf", 0, 153), ("all", 2, "bf16", "hf", 0, 153), ("all", 1, "bf16", "hf", 2, 165),
         ("q,v", 1, "bf16", "vllm", 5, 106), ("q,v", 1, "f32", "hf", 1, 83), ("all", 1, "f32", "hf", 0, 123)]


def written(directory, targets, batch, dtype, numerics, products):
    config = directory / "config.json"
    config.write_text(json.dumps(CONFIG))
    done = subprocess.run([BUILD / "tests/tcl_texts", config, targets, str(batch), str(SEQ_LEN), dtype, numerics,
                           str(products), directory / "parts", "values"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "parts"


def interpreted(directory):
    done = subprocess.run([PYTHON, Path(__file__).with_name("interpret_tcl.py"), directory], text=True,
                          capture_output=True, env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("targets, batch, dtype, numerics, products, expected", CASES)
def test_every_statement_equals_the_reference(tmp_path, targets, batch, dtype, numerics, products,
                                              expected):
    reports = interpreted(written(tmp_path, targets, batch, dtype, numerics, products))
    for report in reports:
        assert report["worst"] <= 1, f"{report['name']}: {report['worst']} bounds\n{report['worst_at']}"
        assert report["whole"] <= BF16_STEP, report["name"]
    names = {report["name"].split("-")[0] for report in reports}
    # All that a step and an evaluation run: here layer_bwd serves the first layer too, layer_fwd evaluation.
    assert names == {"layer_fwd", "layer_bwd", "final_norm", "final_norm_bwd", "ce_grad", "ce_stats"}
    statements = sum(report["statements"] for report in reports)
    equal = sum(report["equal"] for report in reports) / sum(report["elements"] for report in reports)
    print(f"\n{targets} x{batch} {dtype} {numerics}, {products or 'all'} products: {len(reports)} texts, {statements} "
          f"statements, {equal:.2%} of values equal; worst {max(r['worst'] for r in reports):.2f} of the bound, "
          f"whole functions {max(r['whole'] for r in reports):.1e} of the norm")
    assert statements == expected


def test_a_wrong_text_is_noticed(tmp_path):
    parts = written(tmp_path, "q,v", 1, "bf16", "hf", 0)
    text = parts / "layer_fwd.tc"
    right = text.read_text()
    assert "f1e-05" in right and "%0 - %1" in right
    for wrong in (right.replace("f1e-05", "f1e-02"), right.replace("%0 - %1", "%1 - %0")):
        text.write_text(wrong)
        (report,) = [report for report in interpreted(parts) if report["name"] == "layer_fwd"]
        assert report["worst"] > 1
