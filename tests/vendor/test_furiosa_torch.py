"""furiosa.torch as the compiler, the real one, without a card: parts of SmolLM2-135M at S = 128 become what
its runtime loads, and each row of the op table passes its lowering with the kernel's numbers."""
import json
import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("NPU_BUILD", REPO / "build/release"))
PYTHON = Path(os.environ.get("NPU_VENDOR_PYTHON", REPO / ".venv-vendor-torch/bin/python"))
ENVIRONMENT = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
LONGEST = 600  # seconds; a part takes a few
COMPILER = REPO / "workers/furiosa_torch_compiler.py"
# What parts hold, in a graph cut to so many matmuls; each compiles in a minute on a quiet core.
PARTS = {"product": ("layer_bwd", 2, {"matmul"}, 1), "gate and up, forward": ("layer_fwd", 2, {"matmul", "sigmoid"}, 2),
         "softmax and its product, forward": ("layer_fwd", 1, {"matmul", "exp"}, 1),
         "gate and up, backward": ("layer_bwd", 2, {"matmul", "sigmoid"}, 2)}


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    """parts(products) → {name: text} of SmolLM2 with LoRA on q and v, and the file that keeps a search quick."""
    config = REPO / "tests/geometry/smollm2_135m/config.json"

    def cut(products):
        directory = tmp_path_factory.mktemp("parts")
        subprocess.run([BUILD / "tests/tcl_texts", config, "q,v", "1", "128", "bf16", "hf", str(products), directory],
                       check=True, capture_output=True)
        return {path.stem: path.read_text() for path in sorted(directory.glob("*.part"))}, directory / "hint.yaml"

    return cut


def compiled(source, out, *settings, **variables):
    """Seconds of CPU, and the blob's bytes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([PYTHON, COMPILER, "compile", source, out, *settings], capture_output=True, text=True,
                          env={**ENVIRONMENT, **variables, "XDG_CACHE_HOME": str(out.parent)}, timeout=LONGEST)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr[-2000:]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"\n{cpu:.1f} CPU s, {time.monotonic() - began:.1f} s, {out.stat().st_size} bytes", end="")
    return out.read_bytes()


LOAD = """import sys, torch, furiosa.torch as vendor
run = vendor.ir.Runnable.deserialize(open(sys.argv[1], "rb").read())
print(*(len(shapes) for shapes in (run.input_dram_shapes, run.output_dram_shapes)), run.expected_num_fusion)"""


@pytest.mark.parametrize("what", PARTS)
def test_a_part_of_smollm2_compiles(parts, tmp_path, what):
    graph, products, ops, matmuls = PARTS[what]
    texts, hint = parts(products)
    fitting = [text for name, text in texts.items()
               if name.split("-")[0] == graph and text.count(" = matmul(") == matmuls
               and all(f" = {op}(" in text for op in ops)]
    assert fitting, f"no part of {graph} holds {ops}"
    source, out = tmp_path / "part.ir", tmp_path / "part.out"
    source.write_text(min(fitting, key=len))
    compiled(source, out, "1", TACTIC_HINT_PATH=str(hint))
    loaded = subprocess.run([PYTHON, "-c", LOAD, out], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    text = source.read_text()
    assert loaded.stdout.split() == [str(text.count(" = input ")), str(text.count("\noutput ")), "1"]


def test_pes_are_those_of_the_target(tmp_path):
    source, out = tmp_path / "part.ir", tmp_path / "part.out"
    source.write_text('graph part\n%0 = input "x" : bf16[64,64]\n%1 = mul(%0, %0) : bf16[64,64]\noutput "y" = %1\n')
    compiled(source, out, "2")
    loaded = subprocess.run([PYTHON, "-c", LOAD, out], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert loaded.stdout.split() == ["1", "1", "2"]


def test_the_program_finds_it(tmp_path):
    model = REPO / "tests/golden/llama_tiny"
    done = subprocess.run([BUILD / "bin/npu-lora", "compile", "--model", model, "--backend", "furiosa", "--compiler",
                           "torch", "--target", "renegade", "--seq-len", "32", "--loss-rows", "16", "--vocab-chunk", "64",
                           "--host-parts", "fwd,bwd,rms,rms-bwd", "--json", "--jobs", "2"], capture_output=True, text=True,
                          env={**ENVIRONMENT, "NPU_LORA_FURIOSA_PYTHON": str(PYTHON),
                               "NPU_LORA_CACHE": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["built"] > 0 and report["failed"] == []
