"""--recompute auto and what plan says of memory, on simulated chips with memory of their own."""
import json

import pytest
from conftest import REPO

TINY = REPO / "tests/golden/llama_tiny"


@pytest.fixture
def plan(run, tmp_path):
    """plan(memory_bytes, *options) → (JSON, stderr) on a chip with that much memory."""
    def call(memory_bytes, *more):
        profile = tmp_path / "chip.yaml"
        profile.write_text(f"name: chip\nmemory: device\nmemory_bytes: {memory_bytes}\n")
        done = run("plan", "--model", TINY, "--backend", f"sim:{profile}", "--seq-len", 128,
                   "--loss-rows", 16, "--json", *more)
        return json.loads(done.stdout), done.stderr
    return call


def test_auto_keeps_activations_where_they_fit(plan):
    keep = plan(1 << 30, "--recompute", "none")[0]["device_bytes"]
    recompute = plan(1 << 30, "--recompute", "layer")[0]["device_bytes"]
    assert recompute < 0.7 * keep
    roomy, tight = keep * 5 // 4 + 64, keep * 5 // 4 - 64  # a fifth of the memory is left free
    json_, log = plan(roomy)
    assert json_["recompute"] == "none" and json_["memory_room"] == roomy and json_["memory_fits"]
    assert "recompute none: keeping activations needs" in log and "warn" not in log
    json_, log = plan(tight)
    assert json_["recompute"] == "layer" and json_["device_bytes"] == recompute
    assert "recompute layer: keeping activations needs" in log and " of sim:" in log


def test_plan_warns_when_memory_does_not_suffice(plan):
    needed = plan(1 << 30, "--recompute", "layer")[0]["device_bytes"]
    assert "warn" not in plan(needed, "--recompute", "layer")[1]
    json_, log = plan(needed - 1, "--recompute", "layer")
    assert not json_["memory_fits"]
    assert "warning memory: the run needs about" in log


def test_optimizer_state_is_the_hosts(plan):
    json_ = plan(1 << 30)[0]
    memory = json_["memory"]
    assert json_["host_bytes"] == memory["optimizer"]
    assert json_["device_bytes"] == sum(memory.values()) - memory["optimizer"]
