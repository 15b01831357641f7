"""What the machine is and who else uses it: facts that stand beside every figure of bench/."""
import json
import os
import time

TICKS = os.sysconf("SC_CLK_TCK")
# The instruction sets that decide what a matrix product costs.
ISA = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_tile",
       "asimd", "asimddp", "bf16", "sve")


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


def sgemm_gflops(multiply, a, b, seconds=1.0):
    """Best rate of multiply(a, b), both [n,n], within `seconds`."""
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        multiply(a, b)
        best = min(best, time.perf_counter() - start)
    return round(2 * len(a) ** 3 / best / 1e9, 1)


def main():
    """Prints the f32 matrix-product peaks of torch and numpy (1024 cubed) as JSON.

    The caller sets the thread count in the environment, as both libraries read it there.
    """
    import numpy as np
    import torch

    a = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
    tensor = torch.from_numpy(a)
    print(json.dumps({"torch": sgemm_gflops(torch.matmul, tensor, tensor),
                      "numpy": sgemm_gflops(np.matmul, a, a)}))


if __name__ == "__main__":
    main()
