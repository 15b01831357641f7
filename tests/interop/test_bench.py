"""The tools of bench/ run, compare the same work, and print what other programs read. No time is judged."""
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import REPO
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(REPO / "bench"))
import models
import peft_worker
import works

TINY = REPO / "tests/golden/llama_tiny"
ORDER = SimpleNamespace(model=str(TINY), weights="f32", rank=16, alpha=32, targets=works.QV,
                        checkpointing=False, packed_tokens=0, rows_per_step=1)


def bench(script, *arguments):
    done = subprocess.run([sys.executable, REPO / "bench" / script, *map(str, arguments)],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def quick(npu_lora):
    """One thread: spinning ones would wait for whoever else uses the machine."""
    return ("--npu-lora", npu_lora, "--model", TINY, "--quick", "--threads", 1)


@pytest.fixture(scope="module")
def comparison(npu_lora):
    return json.loads(bench(
        "compare_peft.py", *quick(npu_lora), "--json", "--works",
        "lora_qv_4x128,sst2_packed,rss_low_s128", "--variants", "eager,packed,checkpointing"))


def test_ratios_are_ours_to_the_best_rival(comparison):
    assert set(comparison["ratios"]) == {"lora_qv_4x128", "sst2_packed", "rss_low_s128"}
    assert comparison["failed"] == {}
    for name, ratio in comparison["ratios"].items():
        work = comparison["works"][name]
        best = work["peft"][work["best_of_peft"]]["value"]
        assert ratio == pytest.approx(work["ours"]["value"] / best, rel=0.01)
        assert work["ratio_by_variant"][work["best_of_peft"]] == ratio


def test_every_side_has_its_facts(comparison):
    assert comparison["machine"]["isa"] and comparison["sgemm_peak_gflops"] > 0
    for work in comparison["works"].values():
        for side in (work["ours"], *work["peft"].values()):
            for key in ("value", "best", "step_seconds", "step_cpu_seconds", "peak_gib",
                        "first_loss"):
                assert side[key] > 0, key
            assert (work["metric"] == "GiB") == ("share_of_peak" not in side)


def test_phases_add_up_to_a_step(comparison):
    for work in comparison["works"].values():
        steps = [s for run in work["ours"]["runs"] for s in run]
        phases = work["ours"]["phases"]
        assert all(seconds >= 0 for seconds in phases.values()), phases
        assert sum(phases.values()) == pytest.approx(sum(steps) / len(steps), abs=1e-4)


def test_report_fills_the_page(comparison, npu_lora, tmp_path):
    results = tmp_path / "compare.json", tmp_path / "figures.json"
    results[0].write_text(json.dumps(comparison), encoding="utf-8")
    results[1].write_text(bench("figures.py", *quick(npu_lora), "--figures",
                                "parting,startup,flat"), encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench: begin -->\nstale words\n<!-- bench: end -->\nafter\n")
    bench("report.py", "--into", page, *results)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "stale words" not in text
    for words in (comparison["machine"]["cpu"], "lora_qv_4x128", "max-mm 2", "warm seconds"):
        assert words in text, words


def test_packed_documents_lose_what_lone_ones_lose():
    rows = works.review_rows(TINY, 6)
    model = peft_worker.build(ORDER).eval()
    packed = peft_worker.LabelRowLoss(model)(**peft_worker.packed_batch(rows))
    nats = tokens = 0
    for row in rows:
        trained = sum(label != works.IGNORED for label in row["labels"])
        nats += peft_worker.ModelLoss(model)(**peft_worker.padded_batch([row])).item() * trained
        tokens += trained
    assert packed.item() == pytest.approx(nats / tokens, rel=1e-5)


def test_packs_hold_every_row_once_and_no_more_than_fits():
    rows = works.review_rows(TINY, 60)
    packs = peft_worker.best_fit(rows, 512)
    assert sorted(str(row) for pack in packs for row in pack) == sorted(map(str, rows))
    assert max(sum(len(row["input_ids"]) for row in pack) for pack in packs) <= 512


@pytest.mark.parametrize("targets", [works.QV, models.LINEARS])
def test_useful_work_is_what_torch_counts_less_half_of_attention(targets):
    """Torch's products, where every row passes the head and attention is not halved."""
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    n = 64
    rows = works.random_windows(config["vocab_size"], n, 1)
    model = peft_worker.build(SimpleNamespace(**{**vars(ORDER), "targets": targets}))
    with FlopCounterMode(display=False) as counter:
        peft_worker.ModelLoss(model)(**peft_worker.padded_batch(rows)).backward()
    products = sum(flops for op, flops in counter.get_flop_counts()["Global"].items()
                   if "attention" not in str(op))
    width = config["num_attention_heads"] * config["head_dim"]
    attention = 6 * config["num_hidden_layers"] * width * n * (n + 1)
    last_row = 4 * config["hidden_size"] * config["vocab_size"]  # predicts nothing
    counted = models.useful_flops(config, targets, works.RANK, rows) - attention + last_row
    assert counted == pytest.approx(products, rel=1e-6)
