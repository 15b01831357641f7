#!/usr/bin/env python3
"""npu-lora against transformers + PEFT on this machine: speed and memory of the same work.

    compare_peft.py --npu-lora PATH --model DIR [--json] [--works LIST] [--repeats N]

Both sides do the same work with the same threads, in processes of their own that take turns. README.md
beside this file says what each work is. Speed ratios above 1 and memory ratios below 1 are in our
favour. Exit 1 when a work fails, or its two sides do not compute the same loss: then its figures compare
nothing. The other works are printed all the same.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
SST2 = HERE.parent / "examples/data/sst2-train.jsonl"
RANK, ALPHA = 16, 32
IGNORED = -100
LOSS_TOLERANCE = 1e-3  # relative, of the first step

QV = {"ours": "q,v", "peft": ["q_proj", "v_proj"]}
ALL = {"ours": "all", "peft": "all-linear"}
EAGER = {"eager": {}}
EAGER_AND_COMPILED = {"eager": {}, "compile": {"compile": True}}
SMALLEST = {"checkpointing": {"checkpointing": True},
            "checkpointing-bf16": {"checkpointing": True, "weights": "bf16"}}


@dataclass
class Work:
    metric: str  # tok/s, rows/s: higher is better; GiB: peak resident memory, lower is better
    targets: dict
    seq_len: int
    warmup: int
    steps: int
    peft: dict  # variants: name → settings of peft_worker.py
    ours: list = field(default_factory=list)  # options of npu-lora train


WORKS = {
    "lora_qv_s128": Work("tok/s", QV, 128, 3, 30, EAGER_AND_COMPILED),
    "lora_qv_s512": Work("tok/s", QV, 512, 2, 12, EAGER_AND_COMPILED),
    "lora_all_s128": Work("tok/s", ALL, 128, 3, 30, EAGER_AND_COMPILED),
    "lora_all_s512": Work("tok/s", ALL, 512, 2, 12, EAGER_AND_COMPILED),
    "sst2": Work("rows/s", QV, 512, 0, 40, EAGER),
    "rss_qv_s128": Work("GiB", QV, 128, 1, 2, EAGER),
    "rss_qv_s512": Work("GiB", QV, 512, 1, 2, EAGER),
    "rss_low_s512": Work("GiB", QV, 512, 1, 2, SMALLEST,
                         ["--recompute", "layer", "--weight-dtype", "bf16"]),
}
DEFAULT_WORKS = "lora_qv_s128,lora_qv_s512,sst2,rss_qv_s128,rss_qv_s512,rss_low_s512"
ROWS_PER_STEP = 8  # PEFT's batch in sst2: what a Trainer user runs


class WorkFailed(Exception):
    """One work came to nothing; the others may still."""


def write_rows(model, work, path):
    """The work's rows as token ids: one full window of text, or film reviews with masked prompts."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    end = config["eos_token_id"]

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    reviews = [json.loads(line) for line in SST2.read_text(encoding="utf-8").splitlines()]
    rows = []
    if work.metric == "rows/s":
        for row in reviews[: ROWS_PER_STEP * work.steps]:
            prompt, response = encode(row["prompt"]), [*encode(row["response"]), end]
            rows.append({"input_ids": prompt + response,
                         "labels": [IGNORED] * len(prompt) + response})
    else:
        ids = []
        for row in reviews:
            ids += [*encode(row["prompt"] + row["response"]), end]
            if len(ids) >= work.seq_len:
                break
        rows.append({"input_ids": ids[: work.seq_len], "labels": ids[: work.seq_len]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return len(rows)


def wait_measured(process, started):
    """Waits; returns (peak resident GiB, others' CPU share since started() first said yes)."""
    window, share = None, None
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return round(usage.ru_maxrss / 2**20, 3), share
        if window is None and started():
            window = machine.CpuWindow(
                lambda: machine.process_tree_seconds(process.pid) + time.process_time())
        elif window is not None:
            share = window.others_share()
        time.sleep(0.1)


def run_peft(args, work, settings, rows, folder):
    spec = {
        "model": str(args.model), "rows": str(rows), "threads": args.threads, "rank": RANK,
        "alpha": ALPHA, "targets": work.targets["peft"], "weights": "f32", "autocast": False,
        "checkpointing": False, "compile": False, "warmup": work.warmup, "steps": work.steps,
        "rows_per_step": ROWS_PER_STEP if work.metric == "rows/s" else 1, **settings,
    }
    spec_file = folder / "spec.json"
    spec_file.write_text(json.dumps(spec), encoding="utf-8")
    out, errors = folder / "peft.out", folder / "peft.err"
    with open(out, "w", encoding="utf-8") as stdout, open(errors, "w", encoding="utf-8") as stderr:
        process = subprocess.Popen([sys.executable, HERE / "peft_worker.py", spec_file],
                                   stdout=stdout, stderr=stderr, env=environment(args))
        peak, _ = wait_measured(process, lambda: False)
    if process.returncode:
        raise WorkFailed(
            f"{errors.read_text()[-4000:]}\npeft_worker.py: exit {process.returncode}")
    result = json.loads(out.read_text(encoding="utf-8").splitlines()[-1])
    return {"step_seconds": result["step_seconds"], "first_loss": result["first_loss"],
            "others_cpu_share": result["others_cpu_share"], "peak_gib": peak,
            "warmup_seconds": sum(result["warmup_seconds"])}


def run_ours(args, work, rows, folder):
    out, log = folder / "ours", folder / "ours.jsonl"
    length = (["--epochs", "1"] if work.metric == "rows/s"
              else ["--steps", str(work.warmup + work.steps)])
    command = [args.npu_lora, "train", "--model", args.model, "--data", rows, "--out", out,
               "--overwrite", "--backend", args.backend, "--threads", str(args.threads),
               "--seq-len", str(work.seq_len), "--rank", str(RANK), "--alpha", str(ALPHA),
               "--targets", work.targets["ours"], "--lr", "2e-4", "--log-file", log, "--quiet",
               "--cache-dir", args.cache_dir, *length, *work.ours]
    log.unlink(missing_ok=True)

    def records():
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [record for record in map(json.loads, lines) if "loss" in record]

    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment(args))
    peak, share = wait_measured(process, lambda: len(records()) >= max(1, work.warmup))
    if process.returncode:
        raise WorkFailed(f"exit {process.returncode}: {' '.join(map(str, command))}")
    seconds = [record["step_seconds"] for record in records()]
    return {"step_seconds": seconds[work.warmup:], "first_loss": records()[0]["loss"],
            "others_cpu_share": share, "peak_gib": peak,
            "warmup_seconds": time.perf_counter() - began - sum(seconds[work.warmup:])}


def environment(args):
    """One thread count for both sides, however their libraries ask for it."""
    count = str(args.threads)
    return {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count,
            "OPENBLAS_NUM_THREADS": count, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def figures(work, row_count, runs):
    """What one side's repeats come to."""
    steps = [s for run in runs for s in run["step_seconds"]]
    if work.metric == "GiB":
        peaks = [run["peak_gib"] for run in runs]
        value, best = statistics.median(peaks), min(peaks)
    elif work.metric == "rows/s":  # every step of the epoch counts
        rates = [row_count / sum(run["step_seconds"]) for run in runs]
        value, best = statistics.median(rates), max(rates)
    else:
        value, best = work.seq_len / statistics.median(steps), work.seq_len / min(steps)
    return {
        "value": round(value, 4),
        "best": round(best, 4),
        "peak_gib": max(run["peak_gib"] for run in runs),
        "warmup_seconds": round(statistics.median(run["warmup_seconds"] for run in runs), 2),
        "others_cpu_share": [run["others_cpu_share"] for run in runs],
        "first_loss": runs[0]["first_loss"],
        "runs": [[round(s, 4) for s in run["step_seconds"]] for run in runs],
    }


def chosen_variants(work, names):
    return {v: s for v, s in work.peft.items() if not names or v in names}


def check_choice(parser, works, variants):
    """What was asked for exists, before minutes are spent on half of it."""
    for name in works:
        if name not in WORKS:
            parser.error(f"unknown work {name}; known: {', '.join(WORKS)}")
        if not chosen_variants(WORKS[name], variants):
            parser.error(f"{name} has none of --variants {','.join(variants)}; "
                         f"it has {', '.join(WORKS[name].peft)}")
    known = {v for name in works for v in WORKS[name].peft}
    for variant in variants or ():
        if variant not in known:
            parser.error(f"no chosen work has the variant {variant}; known: {', '.join(sorted(known))}")


def compare(args, name, folder):
    work = WORKS[name]
    rows = folder / f"{name}.jsonl"
    row_count = write_rows(args.model, work, rows)
    variants = chosen_variants(work, args.variants)
    runs = {"ours": [], **{v: [] for v in variants}}
    for repeat in range(args.repeats):
        for side, done in runs.items():
            print(f"{name}: {side}, {repeat + 1} of {args.repeats}", file=sys.stderr, flush=True)
            done.append(run_ours(args, work, rows, folder) if side == "ours"
                        else run_peft(args, work, variants[side], rows, folder))
    sides = {side: figures(work, row_count, done) for side, done in runs.items()}
    ours = sides.pop("ours")
    if work.metric != "rows/s":  # there the rows come in another order
        check_losses(name, ours, sides)
    better = min if work.metric == "GiB" else max
    best = better(sides, key=lambda side: sides[side]["value"])
    return {
        "metric": work.metric,
        "ours": ours,
        "peft": sides,
        "best_of_peft": best,
        "ratio": round(ours["value"] / sides[best]["value"], 3),
        "ratio_of_best": round(ours["best"] / better(s["best"] for s in sides.values()), 3),
        "ratio_by_variant": {v: round(ours["value"] / s["value"], 3) for v, s in sides.items()},
    }


def check_losses(name, ours, sides):
    """B starts at zero, so the first loss is the base model's on both sides."""
    for variant, side in sides.items():
        tolerance = 0.02 if "bf16" in variant else LOSS_TOLERANCE
        if abs(ours["first_loss"] - side["first_loss"]) > tolerance * side["first_loss"]:
            raise WorkFailed(f"first losses differ; ours {ours['first_loss']}, {variant} "
                             f"{side['first_loss']}: the two sides do not do the same work")


def sgemm(args):
    done = subprocess.run([sys.executable, HERE / "machine.py"], env=environment(args),
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def table(result):
    lines = [f"{'work':14} {'side':20} {'value':>9} {'best':>9} {'unit':6} {'peak GiB':>9} "
             f"{'others':>7} {'ours ÷':>7}"]
    for name, work in result["works"].items():
        for side, figure in (("npu-lora", work["ours"]), *work["peft"].items()):
            ratio = work["ratio_by_variant"].get(side, "")
            shares = [s for s in figure["others_cpu_share"] if s is not None]
            lines.append(f"{name:14} {side:20} {figure['value']:9.2f} {figure['best']:9.2f} "
                         f"{work['metric']:6} {figure['peak_gib']:9.2f} "
                         f"{max(shares, default=0):7.1%} {ratio:>7}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--npu-lora", required=True, type=Path, help="the program")
    parser.add_argument("--model", required=True, type=Path, help="Hugging Face directory")
    parser.add_argument("--works", default=DEFAULT_WORKS, help=f"of {', '.join(WORKS)}")
    parser.add_argument("--variants", type=lambda text: text.split(","),
                        help="PEFT variants to run [all of each work]")
    parser.add_argument("--backend", default="cpu", help="npu-lora's backend")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")
    args = parser.parse_args()
    works = args.works.split(",")
    check_choice(parser, works, args.variants)
    failures = {}
    with tempfile.TemporaryDirectory(prefix="compare_peft") as name:
        folder = Path(name)
        args.cache_dir = folder / "cache"
        result = {"machine": machine.describe(), "threads": args.threads,
                  "backend": args.backend, "sgemm_gflops_before": sgemm(args), "works": {}}
        for work in works:
            try:
                result["works"][work] = compare(args, work, folder)
            except (WorkFailed, OSError, ValueError, LookupError) as failure:
                failures[work] = str(failure)
                print(f"{work}: {failure}", file=sys.stderr, flush=True)
        result["sgemm_gflops_after"] = sgemm(args)
    result["ratios"] = {name: work["ratio"] for name, work in result["works"].items()}
    result["failed"] = failures
    print(json.dumps(result, indent=2) if args.json else table(result))
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
