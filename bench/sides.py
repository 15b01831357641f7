"""Runs npu-lora or a rival in a process of its own and measures it."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import machine
from works import ALPHA, LEARNING_RATE, RANK

HERE = Path(__file__).resolve().parent
POLL_SECONDS = 0.1
RIVAL_SECONDS = 120  # of steps, after which a rival that is slow beyond measure is stopped


class RunFailed(Exception):
    """One run came to nothing; others may still."""


@dataclass
class Bench:
    """What all runs of one call share."""
    npu_lora: Path
    model: Path
    threads: int
    backends: list
    repeats: int
    quick: bool
    folder: Path  # for everything that is written

    def environment(self):
        """One thread count for all sides, however their libraries ask for it."""
        count = str(self.threads)
        return {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count,
                "OPENBLAS_NUM_THREADS": count, "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu",
                "TOKENIZERS_PARALLELISM": "false"}

    def config(self, model=None):
        return json.loads(((model or self.model) / "config.json").read_text(encoding="utf-8"))

    def peaks(self):
        """What the machine reaches now: machine.peaks in a process of its own."""
        quick = ["--quick"] if self.quick else []
        done = subprocess.run([sys.executable, HERE / "machine.py", self.model, *quick],
                              env=self.environment(), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)


def bench_parser(description):
    """The options that every measuring script of bench/ takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--npu-lora", required=True, type=Path, help="the program")
    parser.add_argument("--model", required=True, type=Path, help="Hugging Face directory")
    parser.add_argument("--backend", default="cpu",
                        help="npu-lora's backend; those after a comma are shown beside it")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true",
                        help="one turn of very few steps: shows that all runs, not how fast")
    return parser


def bench_from(args, folder):
    return Bench(args.npu_lora.resolve(), args.model.resolve(), args.threads,
                 args.backend.split(","), 1 if args.quick else args.repeats, args.quick,
                 Path(folder))


@dataclass
class Run:
    """One run of one side. Steps are those after the warm-up."""
    step_seconds: list
    step_cpu_seconds: list  # of all threads
    first_loss: float
    last_loss: float
    peak_gib: float
    warmup_seconds: float  # everything before the first measured step that took time
    others_cpu_share: float | None  # nothing where the steps were over too soon to tell
    resident_gib: list = field(default_factory=list)  # while it ran, from start to end
    phases: dict = field(default_factory=dict)  # mean seconds of a step; they add up to it


@dataclass
class Watched:
    """What was seen of a process from outside."""
    peak_gib: float
    others_cpu_share: float | None = None
    resident_gib: list = field(default_factory=list)


def watch(process, warmed_up=lambda: True):
    """Waits for a process. Others' CPU share counts from the moment that warmed_up() says yes."""
    window, share, resident = None, None, []
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return Watched(round(usage.ru_maxrss / 2**20, 3), share, resident)
        resident.append(round(machine.resident_gib(process.pid), 4))
        if window is not None:
            share = window.others_share()
        elif warmed_up():
            window = machine.CpuWindow(
                lambda: machine.process_tree_seconds(process.pid) + time.process_time())
        time.sleep(POLL_SECONDS)


@dataclass(frozen=True)
class RivalOrder:
    """What a worker is told; worker.py's spec."""
    model: str
    rows: str
    threads: int
    targets: tuple
    warmup: int
    steps: int
    one_pass: bool  # over the rows, instead of `steps`
    rows_per_step: int
    rank: int = RANK
    alpha: int = ALPHA
    lr: float = LEARNING_RATE
    max_seconds: float = RIVAL_SECONDS
    weights: str = "f32"
    autocast: bool = False
    compile: bool = False
    checkpointing: bool = False
    packed_tokens: int = 0  # rows in sequences of that many tokens, instead of padded ones
    label_rows: bool = False  # logits only where a label is predicted
    grad_clip: float = 0
    linear_decay: bool = False
    save: str = ""  # directory for the adapter


def run_rival(bench, worker, order):
    spec, out, errors = (bench.folder / f"rival.{end}" for end in ("spec", "out", "err"))
    spec.write_text(json.dumps(asdict(order)), encoding="utf-8")
    with open(out, "w", encoding="utf-8") as stdout, open(errors, "w", encoding="utf-8") as stderr:
        process = subprocess.Popen([sys.executable, HERE / worker, spec], stdout=stdout,
                                   stderr=stderr, env=bench.environment())
        watched = watch(process, lambda: False)
    if process.returncode:
        raise RunFailed(f"{errors.read_text()[-4000:]}\n{worker}: exit {process.returncode}")
    result = json.loads(out.read_text(encoding="utf-8").splitlines()[-1])
    return Run(peak_gib=watched.peak_gib, resident_gib=watched.resident_gib, **result)


def train_command(bench, rows, out, seq_len, model=None, backend=None, targets=("q", "v")):
    """npu-lora train as all of bench/ calls it, less how long and what is shown."""
    return [bench.npu_lora, "train", "--model", model or bench.model, "--data", rows, "--out", out,
            "--overwrite", "--backend", backend or bench.backends[0],
            "--threads", str(bench.threads), "--seq-len", str(seq_len), "--rank", str(RANK),
            "--alpha", str(ALPHA), "--targets", ",".join(targets), "--lr", str(LEARNING_RATE),
            "--cache-dir", bench.folder / "cache"]


def run_ours(bench, rows, seq_len, warmup, steps=None, options=(), **which):
    """A run of npu-lora train: `steps` after the warm-up, or one pass over the rows.

    `which` is train_command's: model, backend, targets.
    """
    out, log = bench.folder / "ours", bench.folder / "ours.jsonl"
    log.unlink(missing_ok=True)
    length = ["--epochs", "1"] if steps is None else ["--steps", str(warmup + steps)]
    command = [*train_command(bench, rows, out, seq_len, **which), "--log-file", log, "--quiet",
               *length, *options]

    def records():
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [record for record in map(json.loads, lines) if "loss" in record]

    began = time.perf_counter()
    process = subprocess.Popen(command, env=bench.environment())
    watched = watch(process, lambda: len(records()) >= max(1, warmup))
    took = time.perf_counter() - began
    if process.returncode:
        raise RunFailed(f"exit {process.returncode}: {' '.join(map(str, command))}")
    done = records()
    measured = done[warmup:]
    seconds = [record["step_seconds"] for record in measured]
    return Run(step_seconds=seconds, step_cpu_seconds=[record["cpu_s"] for record in measured],
               first_loss=done[0]["loss"], last_loss=done[-1]["loss"], peak_gib=watched.peak_gib,
               warmup_seconds=took - sum(seconds), others_cpu_share=watched.others_cpu_share,
               resident_gib=watched.resident_gib, phases=phases(measured))


# Phases of a step as the program logs them.
LOGGED = {"device": "parts_device_s", "host_parts": "parts_host_s", "transfer": "transfer_s",
          "optimizer": "optimizer_s", "data": "data_s"}


def phases(records):
    """Mean seconds of a step by phase. `host_other` is what no clock of the program covers."""
    mean = {name: statistics.fmean(record[key] for record in records)
            for name, key in LOGGED.items()}
    mean["host_other"] = (statistics.fmean(record["step_seconds"] for record in records)
                          - sum(mean.values()))
    return {name: round(seconds, 6) for name, seconds in mean.items()}


def take_turns(label, runs, repeats):
    """{side: [Run]} of {side: function}, the sides one after the other in each repeat.

    A side that fails is left out from then on; its RunFailed stands in the second result.
    """
    done, failed = {side: [] for side in runs}, {}
    for repeat in range(repeats):
        for side, run in runs.items():
            if side in failed:
                continue
            print(f"{label}: {side}, {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
            try:
                done[side].append(run())
            except RunFailed as failure:
                failed[side] = failure
                del done[side]
    return done, failed


def all_steps(runs):
    return [seconds for run in runs for seconds in run.step_seconds]


def summary(runs):
    """What is shown of all runs of one side, whatever is compared."""
    return {
        "step_seconds": round(statistics.median(all_steps(runs)), 5),
        "step_seconds_min": round(min(all_steps(runs)), 5),
        "step_cpu_seconds": round(
            statistics.median(s for run in runs for s in run.step_cpu_seconds), 5),
        "peak_gib": max(run.peak_gib for run in runs),
        "warmup_seconds": round(statistics.median(run.warmup_seconds for run in runs), 2),
        "others_cpu_share": [run.others_cpu_share for run in runs],
        "first_loss": runs[0].first_loss,
        "last_loss": runs[0].last_loss,
        "runs": [[round(s, 5) for s in run.step_seconds] for run in runs],
    }
