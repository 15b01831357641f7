"""FuriosaAI's real compiler, without a card: what is emitted passes its planner, a part compiles.

Run by `scripts/test.sh vendor`; scripts/setup.sh --vendor installs it. Nothing here skips."""
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import estimates
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
               "--seq-len", "128", "--loss-rows", "128", "--targets", targets, "--max-mm", "5", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    (price,) = json.loads(done.stdout)["estimates"]
    assert [line for graph in price["graphs"] for line in graph["unpriced"]] == []
    assert len(price["graphs"]) == 5 and price["complete"]
    assert all(graph["host_parts"] == 0 for graph in price["graphs"])
    assert price["tok_s"] > 0 and 0 < price["peak_share"] < 1


def test_every_text_has_the_estimate_that_is_on_record(tmp_path):
    """tests/vendor/estimates.json; an ordinary test holds that it has all texts."""
    record = json.loads(estimates.FILE.read_text())
    texts, uses = estimates.write_texts(tmp_path)
    assert texts.keys() == record["cycles"].keys()
    for h, text in texts.items():
        for target in record["targets"]:
            assert estimates.estimate(text, target) == record["cycles"][h][target], (uses[h], target)


def test_the_cut_by_estimates_is_within_what_is_asked_of_it():
    """Llama-3.1-8B, LoRA on q and v, a whole card: few parts, few launches, and the speed that they were chosen for."""
    command = [BUILD / "bin/npu-lora", "plan", "--model", REPO / "tests/geometry/llama_8b", "--backend", "furiosa",
               "--seq-len", "128", "--jobs", "2", "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    plan = json.loads(done.stdout)
    (price,) = plan["estimates"]
    assert price["complete"] and plan["distinct_parts"] <= 12 and plan["launches_per_layer"] <= 8
    assert price["tok_s"] >= 3000


def test_a_whole_model_compiles_and_goes_on_after_a_kill(tmp_path):
    """SmolLM2-135M for a whole card, all of its step, by the quick search."""
    sizes = ["--model", REPO / "tests/geometry/smollm2_135m", "--backend", "furiosa", "--seq-len", "128",
             "--loss-rows", "128", "--max-mm", "5", "--jobs", "2", "--cache-dir", tmp_path]
    compile_it = list(map(str, [BUILD / "bin/npu-lora", "compile", *sizes, "--json"]))

    def stored():
        return sum('"outcome": "built"' in path.read_text() and path.with_suffix(".blob").stat().st_size > 10_000
                   for path in (tmp_path / "parts").glob("*.json"))

    first = subprocess.Popen(compile_it, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while stored() < 2 and first.poll() is None:
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    kept = stored()
    second = json.loads(subprocess.run(compile_it, capture_output=True, text=True, check=True).stdout)
    assert second["failed"] == second["cut"] == [] and second["built"] > 0
    assert second["cached"] >= kept >= 2
    subprocess.run([*compile_it, "--expect-cached"], capture_output=True, check=True)
    plan = [BUILD / "bin/npu-lora", "plan", *sizes, "--json"]
    (price,) = json.loads(subprocess.run(list(map(str, plan)), capture_output=True, check=True).stdout)["estimates"]
    # The search's model of the card knows costs that the estimate leaves out.
    assert 1 < price["compiled_cycles_per_step"] / price["cycles_per_step"] < 20
    assert price["compiled_tok_s"] > 0
