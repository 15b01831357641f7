"""What the interop tests share. Something absent fails its tests; nothing here skips."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests/golden"))  # make_golden: what transformers + PEFT compute

os.environ["HF_HUB_OFFLINE"] = "1"


def existing(path, how_to_make):
    if not Path(path).exists():
        pytest.fail(f"{path} is missing: {how_to_make}")
    return str(path)


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory):
    """Compiled parts in a folder of this session, and the runtimes of this Python."""
    import onnxruntime
    import openvino

    os.environ["NPU_LORA_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ.setdefault("NPU_LORA_OPENVINO", str(Path(openvino.__file__).parent / "libs"))
    os.environ.setdefault("NPU_LORA_ONNXRUNTIME", str(Path(onnxruntime.__file__).parent / "capi"))


@pytest.fixture(scope="session")
def npu_lora():
    """Path of the program: $NPU_LORA, else the release build's."""
    return existing(os.environ.get("NPU_LORA", REPO / "build/release/bin/npu-lora"),
                    "cmake --preset release && cmake --build --preset release")


@pytest.fixture(scope="session")
def run(npu_lora):
    """run(*arguments) → CompletedProcess of a run that succeeded; expect=CODE for another exit."""
    def call(*arguments, expect=0, timeout=600):
        command = [npu_lora, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == expect, (
            f"exit {done.returncode}, expected {expect}: {' '.join(command)}\n{done.stderr[-4000:]}")
        return done

    return call


@pytest.fixture(scope="session")
def op_case_directory(tmp_path_factory):
    """Every op's samples as graphs, ONNX and OpenVINO IR, written by $NPU_OP_CASES or the build's program."""
    program = existing(os.environ.get("NPU_OP_CASES", REPO / "build/release/tests/op_cases"),
                       "cmake --build --preset release --target op_cases")
    path = tmp_path_factory.mktemp("op_cases")
    subprocess.run([program, str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def op_cases(op_case_directory):
    """What its manifest says of them."""
    cases = json.loads((op_case_directory / "manifest.json").read_text())
    assert len(cases) > 50
    return cases


@pytest.fixture(scope="session")
def io_probe():
    """Program that prints what src/io reads, as JSON: $NPU_IO_PROBE or the build's."""
    return existing(os.environ.get("NPU_IO_PROBE", REPO / "build/release/tests/io_probe"),
                    "cmake --build --preset release --target io_probe")


@pytest.fixture(scope="session")
def gguf_file():
    """SmolLM2-135M-Instruct, Q4_1."""
    default = REPO / ".cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    return existing(os.environ.get("NPU_SMOLLM2_GGUF", default), "scripts/fetch_model.sh")


@pytest.fixture(scope="session")
def smollm2(run, gguf_file, tmp_path_factory):
    """The same model as a Hugging Face directory in f32, made by `npu-lora convert`."""
    out = tmp_path_factory.mktemp("models") / "smollm2"
    run("convert", gguf_file, "--out", out, "--dtype", "f32")
    return out


@pytest.fixture(scope="session")
def examples_data():
    return REPO / "examples/data"


@pytest.fixture(scope="session", params=["llama_tiny", "llama_tiny_untied"])
def tiny(request):
    """A committed tiny model with its golden values; tests that use it run for each."""
    return REPO / "tests/golden" / request.param


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_jsonl(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def step_records(log_path):
    """The lines of a training log that stand for a step."""
    return [line for line in read_jsonl(log_path) if "event" not in line]
