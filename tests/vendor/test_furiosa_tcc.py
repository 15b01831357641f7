"""FuriosaAI's real compiler, without a card: what is emitted passes its planner, a part compiles.

Run by `scripts/test.sh vendor`; scripts/setup.sh --vendor installs it. Nothing here skips."""
import json
import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("NPU_BUILD", REPO / "build/release"))


@pytest.fixture(scope="session", autouse=True)
def compiler(tmp_path_factory):
    """furiosa-tcc of .venv-vendor unless another is named, and a cache of this session."""
    os.environ.setdefault("NPU_LORA_FURIOSA_TCC", str(REPO / ".venv-vendor/bin/furiosa-tcc"))
    os.environ["NPU_LORA_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def test_the_compiler_is_as_this_program_takes_it():
    done = subprocess.run([BUILD / "tests/furiosa_vendor_test"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("model", ["smollm2_135m", "llama_1b", "llama_8b"])
@pytest.mark.parametrize("targets", ["q,v", "all"])
def test_every_part_of_a_step_has_an_estimate(model, targets):
    command = [BUILD / "bin/npu-lora", "plan", "--model", REPO / "tests/geometry" / model, "--backend", "furiosa",
               "--seq-len", "128", "--loss-rows", "128", "--targets", targets, "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    (price,) = json.loads(done.stdout)["estimates"]
    assert [line for graph in price["graphs"] for line in graph["unpriced"]] == []
    layers = [graph for graph in price["graphs"] if graph["graph"].startswith("layer_")]
    assert len(layers) == 3 and all(graph["host_parts"] == 0 for graph in layers)
    assert price["tok_s"] > 0 and 0 < price["peak_share"] < 1
