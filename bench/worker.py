"""What the processes of all rivals share: their orders, the clocks around their steps, their result.

A worker is called as `worker.py SPEC.json` and prints one JSON object as the last line of stdout. A
process per run keeps peak memory and thread state of one run out of the next.
"""
import json
import sys
import time
from types import SimpleNamespace

from machine import CpuWindow


def read_spec():
    """The settings that sides.run_rival wrote."""
    with open(sys.argv[1], encoding="utf-8") as file:
        return SimpleNamespace(**json.load(file))


def load_rows(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Recorder:
    """Wall and CPU seconds of steps. Those of the warm-up are kept apart."""

    def __init__(self, warmup):
        self.warmup, self.window = warmup, None
        self.seconds, self.cpu_seconds, self.losses = [], [], []

    def begin(self):
        if self.window is None and len(self.seconds) == self.warmup:
            self.window = CpuWindow()
        self.started = time.perf_counter(), time.process_time()

    def end(self):
        self.seconds.append(time.perf_counter() - self.started[0])
        self.cpu_seconds.append(time.process_time() - self.started[1])

    def measured(self):
        return self.seconds[self.warmup:]

    def print_result(self):
        print(json.dumps({
            "step_seconds": self.measured(),
            "step_cpu_seconds": self.cpu_seconds[self.warmup:],
            "warmup_seconds": sum(self.seconds[:self.warmup]),
            "others_cpu_share": self.window.others_share(),
            "first_loss": self.losses[0],
            "last_loss": self.losses[-1],
        }))


def run_steps(spec, batches, step):
    """Calls step(batch) → loss: one pass over the batches, or spec.steps of them after the warm-up.

    A rival that needs longer than spec.max_seconds is measured by the steps that it has done by then.
    """
    recorder = Recorder(spec.warmup)
    count = len(batches) if spec.one_pass else spec.warmup + spec.steps
    for i in range(count):
        if not spec.one_pass and recorder.measured() and sum(recorder.seconds) > spec.max_seconds:
            break
        recorder.begin()
        recorder.losses.append(step(batches[i % len(batches)]))
        recorder.end()
    return recorder
