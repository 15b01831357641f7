"""What the machine is, what it reaches at best and who else uses it: facts beside every figure of bench/.

    machine.py MODEL_DIR    peaks as JSON, large products and those of the model's shapes

The caller sets the thread count in the environment, as torch and numpy read it there.
"""
import argparse
import json
import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
# The instruction sets that decide what a matrix product costs.
ISA = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile",
       "asimd", "asimddp", "bf16", "sve")
SQUARES = (1024, 2048, 4096)
TOKENS = (128, 512)  # rows of the products at a model's shapes
STREAM_BYTES = 2**29  # far above any cache


def busy_seconds():
    """CPU seconds that all processes of this machine have used, the hypervisor's steal included."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(value) for value in file.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / TICKS


class CpuWindow:
    """Share of the machine that others took between two moments.

    `own_seconds` counts the CPU time of whoever is measured; the default is this process.
    """

    def __init__(self, own_seconds=time.process_time):
        self.own_seconds = own_seconds
        self.busy, self.own, self.wall = busy_seconds(), own_seconds(), time.perf_counter()

    def others_share(self):
        wall = time.perf_counter() - self.wall
        others = (busy_seconds() - self.busy) - (self.own_seconds() - self.own)
        # /proc counts in ticks, so a short window may read a little below 0 or above 1.
        return round(min(1.0, max(0.0, others / (wall * os.cpu_count()))), 4)


def process_tree_seconds(pid):
    """CPU seconds of a process, its threads and the children that it has reaped."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / TICKS


def resident_gib(pid):
    """Resident memory of a process now."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30


def describe():
    """CPU model, instruction sets, cores and memory."""
    model, flags = "unknown", set()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model"):
                model = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = set(value.split())
    with open("/proc/meminfo", encoding="ascii") as file:
        memory_kib = int(file.readline().split()[1])
    return {
        "cpu": model,
        "isa": [name for name in ISA if name in flags],
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
    }


def best_seconds(call, seconds):
    """The least time of call() within `seconds`, of two calls at least: the first one warms up."""
    best, end, calls = float("inf"), time.perf_counter() + seconds, 0
    while calls < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best, calls = min(best, time.perf_counter() - start), calls + 1
    return best


def square_gflops(multiply, matrix, sizes, seconds):
    """Best rate of multiply(matrix, matrix) by size: {"1024": …}. matrix(n) makes an operand."""
    rates = {}
    for n in sizes:
        a = matrix(n)
        rates[str(n)] = round(2 * n**3 / best_seconds(lambda: multiply(a, a), seconds) / 1e9, 1)
    return rates


def shape_gflops(torch, config, dtype, seconds):
    """Best rate of torch's x[m,k] · w[n,k]ᵀ at the shapes of a model: {"128x576x1536": …}."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    rates = {}
    for m in TOKENS:
        for k, n in ((hidden, hidden), (hidden, inner), (inner, hidden),
                     (hidden, config["vocab_size"])):
            x, w = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
            took = best_seconds(lambda: torch.nn.functional.linear(x, w), seconds)
            rates[f"{m}x{k}x{n}"] = round(2 * m * k * n / took / 1e9, 1)
    return rates


def memory_gib_s(torch, seconds):
    """Best rate of reading memory (a sum), and of copying it (bytes read and written)."""
    source = torch.ones(STREAM_BYTES // 4)
    target = torch.empty_like(source)
    return {"read": round(STREAM_BYTES / best_seconds(source.sum, seconds) / 2**30, 1),
            "copy": round(2 * STREAM_BYTES / best_seconds(lambda: target.copy_(source), seconds)
                          / 2**30, 1)}


def peaks(model_dir, quick=False):
    """GFLOP/s of f32 and bf16 products, large ones and a model's, and GiB/s of memory."""
    import numpy as np
    import torch

    torch.set_grad_enabled(False)
    seconds, sizes = (0.01, SQUARES[:1]) if quick else (1.0, SQUARES)
    draw = np.random.default_rng(0)
    config = json.loads((Path(model_dir) / "config.json").read_text(encoding="utf-8"))
    return {
        "sgemm_gflops": {
            "torch": square_gflops(torch.matmul, lambda n: torch.randn(n, n), sizes, seconds),
            "numpy": square_gflops(np.matmul, lambda n: draw.random((n, n), np.float32), sizes,
                                   seconds),
        },
        "bf16_gflops": {"torch": square_gflops(
            torch.matmul, lambda n: torch.randn(n, n).to(torch.bfloat16), sizes, seconds)},
        "memory_gib_s": memory_gib_s(torch, seconds),
        "shapes_gflops": {"f32": shape_gflops(torch, config, torch.float32, seconds / 4),
                          "bf16": shape_gflops(torch, config, torch.bfloat16, seconds / 4)},
    }


def best_gflops(readings, kind):
    """The best square product in several results of peaks(): what shares of the peak are taken of."""
    return max(rate for reading in readings for by_size in reading[kind].values()
               for rate in by_size.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", help="Hugging Face directory")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    print(json.dumps(peaks(args.model, args.quick)))


if __name__ == "__main__":
    main()
