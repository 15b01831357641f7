#!/usr/bin/env python3
"""What npu-lora's own settings cost on this machine, and one job with its accuracy. JSON on stdout.

    figures.py --npu-lora PATH --model DIR [--figures LIST] [--repeats N]

README.md beside this file says what each figure is. Exit 1 when one comes to nothing; the others are
printed all the same.
"""
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import machine
import works
from models import SMOLLM2_SIZES, Geometry, write_random_model
from sides import (RivalOrder, RunFailed, all_steps, bench_from, bench_parser, run_ours,
                   run_rival, summary, take_turns, train_command)

DEV = works.SST2.with_name("sst2-dev.jsonl")
CHOICES = (" negative", " positive")
DTYPES = {"f32": ("--weight-dtype", "f32"),
          "bf16 weights": ("--weight-dtype", "bf16"),
          "bf16 weights and activations": ("--weight-dtype", "bf16", "--dtype", "bf16")}


def steps_of(bench, warmup, steps):
    return {"warmup": 1, "steps": 2} if bench.quick else {"warmup": warmup, "steps": steps}


def text_rows(bench, seq_len, batch=1):
    return works.write_rows(works.text_windows(bench.model, seq_len, batch),
                            bench.folder / f"text{seq_len}x{batch}.jsonl")


def compared(bench, label, runs):
    """Summaries of sides that take turns; each one's time as a ratio to the first one's."""
    done, failed = take_turns(label, runs, bench.repeats)
    for failure in failed.values():
        raise failure
    sides = {side: summary(one) for side, one in done.items()}
    first = next(iter(sides.values()))
    for side in sides.values():
        side["time_ratio"] = round(side["step_seconds"] / first["step_seconds"], 4)
        side["time_ratio_of_best"] = round(
            side["step_seconds_min"] / first["step_seconds_min"], 4)
        side["cpu_time_ratio"] = round(side["step_cpu_seconds"] / first["step_cpu_seconds"], 4)
    return sides


def by_options(bench, label, options):
    """Steps of S=128 and 512 under each of {name: options of train}."""
    result = {}
    for seq_len, steps in ((128, 30), (512, 12)):
        rows = text_rows(bench, seq_len)
        result[f"s{seq_len}"] = compared(bench, f"{label} s{seq_len}", {
            name: lambda more=more: run_ours(bench, rows, seq_len, options=more,
                                             **steps_of(bench, 3, steps))
            for name, more in options.items()})
    return result


def parting(bench):
    """Parts of two matmuls against whole layers."""
    return by_options(bench, "parting", {"whole": ("--max-mm", "0"), "max-mm 2": ("--max-mm", "2")})


def bf16(bench):
    """Weights and activations in bf16 against f32; losses beside the times."""
    return by_options(bench, "bf16", DTYPES)


def first_step(bench):
    """Seconds from the start of the demo job until its first step is reported, and what that cost."""
    command = [*train_command(bench, works.SST2, bench.folder / "start", 256),
               "--log-file", bench.folder / "start.jsonl", "--steps", "1"]
    began = time.perf_counter()
    process = subprocess.Popen(command, env=bench.environment(), stderr=subprocess.PIPE, text=True)
    seconds = None
    for line in process.stderr:
        if seconds is None and '"loss":' in line:
            seconds = time.perf_counter() - began
    if process.wait() or seconds is None:
        raise RunFailed(f"exit {process.returncode}: {' '.join(map(str, command))}")
    return seconds


def startup(bench):
    """Start to first step of the demo job, with nothing compiled and with everything in the cache."""
    cold = first_step(bench)
    warm = [first_step(bench) for _ in range(max(3, bench.repeats))]
    return {"cold_seconds": round(cold, 3), "warm_seconds": round(statistics.median(warm), 3),
            "warm_seconds_min": round(min(warm), 3)}


def off_the_line(points):
    """How far inner points lie off the line through the outer ones, relative: 0 is linear growth."""
    (x0, y0), *inner, (x1, y1) = points
    return round(max(abs(y - (line := y0 + (y1 - y0) * (x - x0) / (x1 - x0))) / line
                     for x, y in inner), 4)


def growing(bench, label, runs):
    """Step times by size: {size: function}. The least step says what growth costs; load only adds."""
    done, failed = take_turns(f"growth in {label}", runs, bench.repeats)
    for failure in failed.values():
        raise failure
    return {"step_seconds_min": {size: round(min(all_steps(one)), 5) for size, one in done.items()},
            "off_the_line": off_the_line([(size, min(all_steps(one)))
                                          for size, one in done.items()])}


def growth(bench):
    """Step time by tokens (one document a window, and short packed ones), layers and vocabulary."""
    vocab = bench.config()["vocab_size"]

    def tokens(seq_len, document):
        rows = works.write_rows(works.random_windows(vocab, document, seq_len // document),
                                bench.folder / f"grow{seq_len}of{document}.jsonl")
        return lambda: run_ours(bench, rows, seq_len, **steps_of(bench, 2, 12))

    def sizes(layers, vocab):
        folder = bench.folder / f"grow{layers}l{vocab}"
        rows = works.write_rows(works.random_windows(vocab, 128, 1), folder.with_suffix(".jsonl"))
        model = write_random_model(Geometry(**SMOLLM2_SIZES, layers=layers, vocab=vocab), folder)
        return lambda: run_ours(bench, rows, 128, model=model, **steps_of(bench, 3, 30))

    lengths = (128, 256, 512)
    return {
        "tokens": growing(bench, "tokens", {n: tokens(n, n) for n in lengths}),
        "tokens, packed": growing(bench, "packed tokens", {n: tokens(n, 32) for n in lengths}),
        "layers": growing(bench, "layers", {n: sizes(n, 16384) for n in (2, 4, 8)}),
        "vocabulary": growing(bench, "vocabulary", {n: sizes(2, n)
                                                    for n in (16384, 32768, 65536)}),
    }


def flat(bench):
    """Step time and resident memory of 2,000 steps of a small model, early and late."""
    steps = 40 if bench.quick else 2000
    geometry = Geometry(**SMOLLM2_SIZES, vocab=16384)
    model = write_random_model(geometry, bench.folder / "flat")
    rows = works.write_rows(works.random_windows(geometry.vocab, 32, 64), bench.folder / "flat.jsonl")
    run = run_ours(bench, rows, 32, warmup=0, steps=steps, model=model)
    tenth = steps // 10
    early, late = (statistics.median(part) for part in
                   (run.step_seconds[tenth:3 * tenth], run.step_seconds[-2 * tenth:]))
    resident = run.resident_gib
    return {"steps": steps, "step_seconds_early": round(early, 6),
            "step_seconds_late": round(late, 6), "time_ratio": round(late / early, 4),
            "resident_gib_early": resident[len(resident) // 5], "resident_gib_late": resident[-1],
            "others_cpu_share": run.others_cpu_share}


def product_share(bench, seq_len):
    """Share of matrix products in the CPU time of a step's graphs, by bench/cpu_bench."""
    program = bench.npu_lora.parent.parent / "bench/cpu_bench"
    done = subprocess.run(
        [program, "--benchmark_format=json", "--benchmark_min_time=0.05",
         f"--benchmark_filter=^(forward|backward|loss)/.*/{seq_len}/"],
        env=bench.environment(), capture_output=True, text=True, check=True)
    # Each part on AMX comes before the same on BLAS, and reports an error where the CPU has none.
    parts = {}
    for entry in json.loads(done.stdout)["benchmarks"]:
        if not entry.get("error_occurred"):
            parts.setdefault(entry["name"].split("/")[0], entry)
    layers = bench.config()["num_hidden_layers"]
    calls = {"forward": layers, "backward": layers, "loss": bench.config()["vocab_size"] / 8192}
    products, loops = (sum(count * parts[part][f"{kind}_cpu_ms"] for part, count in calls.items())
                       for kind in ("products", "loops"))
    return products / (products + loops)


def phases(bench):
    """Where a step's time goes. Device time is split by cpu_bench's CPU time of SmolLM2's graphs."""
    result = {}
    for seq_len, steps in ((128, 30), (512, 12)):
        rows = text_rows(bench, seq_len)
        run = run_ours(bench, rows, seq_len, **steps_of(bench, 3, steps))
        split = dict(run.phases)
        device = split.pop("device")
        share = product_share(bench, seq_len)
        result[f"s{seq_len}"] = {"matmul": round(device * share, 6),
                                 "device_other": round(device * (1 - share), 6), **split,
                                 "step": round(statistics.fmean(run.step_seconds), 6),
                                 "others_cpu_share": run.others_cpu_share}
    return result


def accuracy_of(bench, adapter):
    """Of an adapter on the development split, by npu-lora eval."""
    limit = "24" if bench.quick else "0"
    choices = [word for choice in CHOICES for word in ("--choice", choice)]
    done = subprocess.run(
        [bench.npu_lora, "eval", "--model", bench.model, "--adapter", adapter, "--data", DEV,
         *choices, "--backend", bench.backends[0], "--seq-len", "256", "--limit", limit,
         "--threads", str(bench.threads), "--cache-dir", bench.folder / "cache", "--json",
         "--quiet"], env=bench.environment(), capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    return {"accuracy": round(report["accuracy"], 4), "nll": round(report["nll"], 4)}


def job(bench):
    """One pass over film reviews, and the accuracy it buys: ours, and PEFT as users run it."""
    count = 32 if bench.quick else 1600
    rows = works.write_rows(works.review_rows(bench.model, count), bench.folder / "job.jsonl")
    order = RivalOrder(str(bench.model), str(rows), bench.threads, ("q", "v"), warmup=0, steps=0,
                       one_pass=True, rows_per_step=works.PADDED_ROWS, grad_clip=1.0,
                       linear_decay=True)
    packed = {**works.RIVALS["packed"].settings, "packed_tokens": 256}
    result = {}
    for side in ("npu-lora", "eager", "packed"):
        print(f"job: {side}", file=sys.stderr, flush=True)
        if side == "npu-lora":
            adapter = bench.folder / "ours"
            run = run_ours(bench, rows, 256, warmup=0, options=("--schedule", "linear"))
        else:
            adapter = bench.folder / side
            run = run_rival(bench, works.PEFT, replace(
                order, save=str(adapter), **(packed if side == "packed" else {})))
        result[side] = {"rows_per_s": round(count / sum(run.step_seconds), 3),
                        "steps": len(run.step_seconds),
                        "others_cpu_share": run.others_cpu_share, **accuracy_of(bench, adapter)}
    ours = result["npu-lora"]["rows_per_s"]
    for side in result.values():
        side["ours_ratio"] = round(ours / side["rows_per_s"], 3)
    return result


FIGURES = {"phases": phases, "parting": parting, "startup": startup, "growth": growth,
           "flat": flat, "bf16": bf16, "job": job}


def main():
    parser = bench_parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--figures", type=lambda text: text.split(","), default=list(FIGURES),
                        help=f"of {', '.join(FIGURES)} [all]")
    args = parser.parse_args()
    if unknown := [name for name in args.figures if name not in FIGURES]:
        parser.error(f"unknown figure {unknown[0]}; known: {', '.join(FIGURES)}")
    failures = {}
    with tempfile.TemporaryDirectory(prefix="figures") as folder:
        bench = bench_from(args, folder)
        result = {"machine": machine.describe(), "threads": bench.threads,
                  "backend": bench.backends[0], "quick": bench.quick, "figures": {}}
        for name in args.figures:
            print(f"figure {name}", file=sys.stderr, flush=True)
            try:
                result["figures"][name] = FIGURES[name](bench)
            except (RunFailed, OSError, ValueError, LookupError,
                    subprocess.CalledProcessError) as failure:
                failures[name] = f"{failure}\n{getattr(failure, 'stderr', '') or ''}".strip()
    result["failed"] = failures
    for where, why in failures.items():
        print(f"{where}: {why}", file=sys.stderr)
    print(json.dumps(result, indent=2))
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
