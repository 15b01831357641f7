"""Training on FuriosaAI RNGD as users do, over stand-ins for the vendor's compiler and both of its
runtimes (tests/tools/fake_rngd.h): what it learns, what becomes of each fault of a card or runtime,
and parts that were compiled on another machine."""
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import REPO, existing, read_jsonl, step_records, write_jsonl

MODEL = REPO / "tests/golden/llama_tiny"
CHECK_FAILED, NOT_RETRIABLE, RETRIABLE = 1, 42, 75
STEPS = 6
WORKERS = ["native", "python"]
MESSAGE = re.compile(r"^\S.*: .+; got .+; hint: .+$")  # where: what; got; hint
PACKAGES = REPO / "tests/tools/fake_furiosa"


def built(name):
    return existing(REPO / "build/release/tests" / name, f"cmake --build --preset release --target {name}")


class Machine:
    """Cards 0 and 1, one of the two runtimes, the compiler and a cache. Whatever a run leaves behind
    shows by a mark in its environment."""

    def __init__(self, npu_lora, folder, worker):
        folder.mkdir(exist_ok=True)
        self.npu_lora, self.folder, self.worker, self.mark = npu_lora, folder, worker, uuid.uuid4().hex
        self.out = folder / "out"
        self.nodes = folder / "rngd"
        self.nodes.mkdir()
        for card in (0, 1):
            (self.nodes / f"npu{card}mgmt").write_text("")
        tools = folder / "bin"
        tools.mkdir()
        (tools / "aarch64-linux-gnu-gcc").write_text("#!/bin/sh\n")
        (tools / "aarch64-linux-gnu-gcc").chmod(0o755)
        foreign = ("NPU_LORA_", "FAKE_", "VIRTUAL_ENV", "NPU_COMPILER_")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {
            "PATH": f"{tools}:/usr/bin:/bin", "NPU_LORA_CACHE": str(folder / "cache"),
            "NPU_LORA_RNGD_NODES": str(self.nodes), "NPU_LORA_FURIOSA_WORKER": worker,
            "NPU_LORA_FURIOSA_TCC": built("fake_furiosa_tcc"),
            "NPU_LORA_FURIOSA_RUNTIME": built("libfake_device_runtime.so"),
            "NPU_LORA_FURIOSA_PYTHON": sys.executable, "PYTHONPATH": f"{PACKAGES}:{PACKAGES}/shim",
            "FAKE_RNGD_COMPUTE": built("fake_rngd_compute"), "NPU_TEST_MARK": self.mark}

    def without(self, *names):
        for name in names:
            del self.environment[name]

    def call(self, *arguments, expect=0, **environment):
        done = subprocess.run([self.npu_lora, *map(str, arguments)], capture_output=True, text=True,
                              timeout=300, env=self.environment | environment)
        assert done.returncode == expect, f"exit {done.returncode}, not {expect}\n{done.stderr[-4000:]}"
        assert self.left_behind() == []
        return done

    def left_behind(self):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes())
            except OSError:
                pass  # another's, or gone
        return found

    def train(self, *more, backend="furiosa:auto", out=None, **named):
        data = write_jsonl(self.folder / "rows.jsonl", [
            {"input_ids": [2 + (7 * i + j) % 500 for j in range(24)],
             "labels": [2 + (7 * i + j) % 500 for j in range(24)]} for i in range(8)])
        return self.call("train", "--model", MODEL, "--backend", backend, "--seq-len", 32, "--data", data,
                         "--out", out or self.out, "--steps", STEPS, "--lr", 1e-2, "--threads", 1, *more, **named)

    def result(self, out=None):
        out = out or self.out
        losses = [record["loss"] for record in step_records(out / "train_log.jsonl")]
        return losses, (out / "adapter_model.safetensors").read_bytes()

    def events(self, name):
        return [line for line in read_jsonl(self.out / "train_log.jsonl") if line.get("event") == name]

    def hold(self, card):
        """Somebody else has the card while this is open."""
        node = open(self.nodes / f"npu{card}mgmt")
        fcntl.flock(node, fcntl.LOCK_EX)
        return node


@pytest.fixture(scope="session")
def undisturbed(npu_lora, tmp_path_factory):
    """Losses and adapter of a run without faults, and the parts that it compiled."""
    made = {}

    def of(worker):
        if worker not in made:
            machine = Machine(npu_lora, tmp_path_factory.mktemp("cards") / worker, worker)
            machine.train()
            made[worker] = *machine.result(), machine.folder / "cache"
        return made[worker]

    return of


@pytest.fixture(params=WORKERS)
def machine(request, npu_lora, tmp_path, undisturbed):
    here = Machine(npu_lora, tmp_path / "here", request.param)
    shutil.copytree(undisturbed(request.param)[2], here.folder / "cache")
    return here


# ---- what it learns -----------------------------------------------------------------------------
def test_both_runtimes_train_as_the_simulated_chip(machine, undisturbed):
    losses, adapter, _ = undisturbed(machine.worker)
    assert len(losses) == STEPS and losses[-1] < 0.98 * losses[0]
    other = undisturbed("python" if machine.worker == "native" else "native")
    assert (losses, adapter) == other[:2]
    machine.train("--dtype", "bf16", "--host-parts", "none", backend="sim:furiosa")
    # Values between blocks are rounded elsewhere: as SimTraining has it.
    assert machine.result()[0] == pytest.approx(losses, rel=0.01)


def test_a_run_goes_on_on_another_card(machine, undisturbed):
    machine.train(expect=RETRIABLE, FAKE_RNGD_MODE="kill_run", FAKE_RNGD_CALL="9")
    done = len(step_records(machine.out / "train_log.jsonl"))
    assert 0 < done < STEPS
    with machine.hold(0):
        machine.train("--resume", "auto", "--log", "runtime")
    assert machine.result() == undisturbed(machine.worker)[:2]
    assert [event["step"] for event in machine.events("checkpoint")][0] == done


def test_parts_of_another_machine_need_no_compiler(machine, npu_lora, tmp_path, undisturbed):
    sizes = ["--model", MODEL, "--backend", "furiosa", "--seq-len", 32, "--data", machine.folder / "rows.jsonl",
             "--threads", 1]
    machine.train()  # writes the rows
    bundle = tmp_path / "parts.bundle"
    report = machine.call("compile", *sizes, "--export", bundle, "--json")
    assert json.loads(report.stdout)["built"] == 0
    there = Machine(npu_lora, tmp_path / "there", machine.worker)
    there.without("NPU_LORA_FURIOSA_TCC")
    (there.folder / "bin/aarch64-linux-gnu-gcc").unlink()
    # With nothing from elsewhere it says what it lacks, before anything is loaded or trained.
    done = there.train(expect=NOT_RETRIABLE)
    assert "furiosa-tcc: was not found" in done.stderr and "pip install furiosa-tcc" in done.stderr
    done = there.call("compile", *sizes, "--import", bundle, "--expect-cached")
    assert "parts that furiosa-tcc 2026.4.0 (fake)" in done.stderr
    done = there.train()
    assert there.result() == undisturbed(machine.worker)[:2]
    assert "TCL form" in json.loads((there.out / "run.json").read_text())["compiler"]
    # What the bundle lacks would have to be compiled.
    done = there.train("--rank", 8, "--overwrite", expect=NOT_RETRIABLE)
    assert "furiosa-tcc: was not found" in done.stderr
    # A compiler of another release that is there counts, not what the cache was made with.
    there.environment["NPU_LORA_FURIOSA_TCC"] = built("fake_furiosa_tcc")
    done = there.call("compile", *sizes, "--expect-cached", expect=CHECK_FAILED, FAKE_TCC_MODE="other-release")
    assert "compiler changed: furiosa-tcc 2026.5.0" in done.stderr and "(was furiosa-tcc 2026.4.0" in done.stderr


def test_the_script_for_the_first_card(machine, npu_lora, tmp_path):
    """As docs/furiosa.md says: compiled on one machine, everything asked of the card on another."""
    machine.without("NPU_LORA_FURIOSA_WORKER")  # it asks both
    machine.train()  # writes the rows
    sizes = ["--model", MODEL, "--backend", "furiosa", "--seq-len", 32, "--loss-rows", 32]
    bundle = tmp_path / "parts.bundle"
    machine.call("compile", *sizes, "--export", bundle)
    machine.without("NPU_LORA_FURIOSA_TCC")
    machine.environment |= {"NPU_LORA": npu_lora, "DATA": str(machine.folder / "rows.jsonl"), "SEQ_LEN": "32",
                            "OUT": str(tmp_path / "found"), "NPU_LORA_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([REPO / "scripts/first_card.sh", MODEL, bundle], env=machine.environment, timeout=300,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps = (tmp_path / "found/steps").read_text().splitlines()
    names = [f"{what}-{worker}" for worker in WORKERS for what in ("doctor", "check", "parts", "train")]
    assert [line.split(":")[0] for line in steps] == ["compile", *names]
    assert all(": exit 0," in line for line in steps), steps
    assert json.loads((tmp_path / "found/check-native.out").read_text())["pass"]
    packed = subprocess.run(["tar", "-tzf", tmp_path / "found.tar.gz"], capture_output=True, text=True).stdout
    assert "found/run-python/train_log.jsonl" in packed and "safetensors" not in packed


# ---- faults -------------------------------------------------------------------------------------
@dataclass
class Fault:
    code: int
    words: list  # of what it says
    mode: str = ""
    environment: dict = field(default_factory=dict)
    options: list = field(default_factory=list)
    only: str = ""  # the runtime that can have it
    exact: bool = False  # the run is as if nothing had been; also once it was resumed


ONE_PART = {"FAKE_RNGD_ONLY": "sigmoid"}
LATER = {"FAKE_RNGD_CALL": "7"}  # of each part
FAULTS = {
    # Survived.
    "refuses a part": Fault(0, ["goes to the host", "the runtime refuses the compiled part"], "refuse_load", ONE_PART),
    "aborts in load": Fault(0, ["the runtime dies of the compiled part", "killed by SIGABRT"], "abort_load", ONE_PART),
    "hangs in load": Fault(0, ["loading a part took over 6 s", "goes to the host"], "hang_load",
                           ONE_PART | {"NPU_LORA_FURIOSA_LOAD_SECONDS": "6"}),
    "other ports": Fault(0, ["the part does not fit its graph", "goes to the host"], "wrong_shape", only="python"),
    "a call fails, moved": Fault(0, ["the call failed", "moves to the host"], "fail_run", LATER,
                                 ["--on-device-error", "host"]),
    "prints much": Fault(0, [], "noisy_run", LATER, exact=True),
    "slow but alive": Fault(0, [], "slow_run", {"FAKE_RNGD_CALL": "2", "FAKE_RNGD_ONLY": "sigmoid"}, exact=True),
    "no views": Fault(0, [], "no_views", only="python", exact=True),
    # Ended: start again.
    "a call fails": Fault(RETRIABLE, ["furiosa:0: the call failed", "-5", "--on-device-error host"], "fail_run", LATER,
                          exact=True),
    "time-out poisons": Fault(RETRIABLE, ["the device is lost", "-110", "last checkpoint"], "poison", LATER, exact=True),
    "hangs in a call": Fault(RETRIABLE, ["the device is lost", "a call took over 5 s"], "hang_run",
                             LATER | {"NPU_LORA_FURIOSA_SECONDS": "5"}, exact=True),
    "silent worker": Fault(RETRIABLE, ["the device is lost", "5 s"], "freeze_run",
                           LATER | {"NPU_LORA_FURIOSA_SECONDS": "5"}, exact=True),
    "killed worker": Fault(RETRIABLE, ["the device is lost", "killed by SIGKILL in a call"], "kill_run", LATER,
                           exact=True),
    "aborts in a call": Fault(RETRIABLE, ["killed by SIGABRT", "cannot unwind"], "abort_run", LATER, exact=True),
    "nonsense": Fault(RETRIABLE, ["the device is lost", "its answer is no answer"], "garbage_run", LATER, exact=True),
    "card full": Fault(RETRIABLE, ["device memory is exhausted", "--batch"], environment={"FAKE_RNGD_MEMORY": "300000"},
                       exact=True),
    "never opens": Fault(RETRIABLE, ["no card can be opened", "opening the card took over 4 s"], "hang_open",
                         {"NPU_LORA_FURIOSA_LOAD_SECONDS": "4"}, exact=True),
    # Ended: something has to change.
    "fewer outputs": Fault(NOT_RETRIABLE, ["gave other outputs than it has", "compare-parts"], "few_outputs", LATER,
                           only="python", exact=True),
    "shorter outputs": Fault(NOT_RETRIABLE, ["gave other outputs than it has"], "wrong_result", LATER, only="python",
                             exact=True),
    "wrong values": Fault(CHECK_FAILED, ["drifts from the reference", "npu-lora check"], "wrong_values"),
    "no library": Fault(NOT_RETRIABLE, ["/nonexistent", "NPU_LORA_FURIOSA_RUNTIME"],
                        environment={"NPU_LORA_FURIOSA_RUNTIME": "/nonexistent/libdevice_runtime.so"}, only="native",
                        exact=True),
    "no package": Fault(NOT_RETRIABLE, ["No module named", "npu-lora doctor"],
                        environment={"PYTHONPATH": f"{PACKAGES}/shim"}, only="python", exact=True),
    "no interpreter": Fault(NOT_RETRIABLE, ["/nonexistent/python", "can't be started"],
                            environment={"NPU_LORA_FURIOSA_PYTHON": "/nonexistent/python"}, only="python", exact=True),
    "no node": Fault(NOT_RETRIABLE, ["has no device node", "install the driver"],
                     environment={"NPU_LORA_RNGD_NODES": "/nonexistent"}, exact=True),
}


CASES = [(worker, what) for worker in WORKERS for what, fault in FAULTS.items() if fault.only in ("", worker)]


@pytest.mark.parametrize("machine, what", CASES, indirect=["machine"])
def test_fault(machine, undisturbed, what):
    fault = FAULTS[what]
    losses, adapter, _ = undisturbed(machine.worker)
    done = machine.train("--save-every", 2, *fault.options, expect=fault.code,
                         **({"FAKE_RNGD_MODE": fault.mode} if fault.mode else {}), **fault.environment)
    for words in fault.words:
        assert words in done.stderr, done.stderr[-3000:]
    if fault.code == 0:
        ours = machine.result()
        assert len(ours[0]) == STEPS
        if fault.exact:
            assert ours == (losses, adapter)
        assert ours[0] == pytest.approx(losses, rel=0.02)  # parts on the host round elsewhere
        return
    assert MESSAGE.match(done.stderr.strip().splitlines()[-1]), done.stderr[-1000:]
    assert not (machine.out / "adapter_config.json").exists()
    if (machine.out / "train_log.jsonl").exists():
        assert list((machine.out / "checkpoints").iterdir())
    machine.train("--resume", "auto")  # with what was wrong mended
    if fault.exact:
        assert machine.result() == (losses, adapter)


def test_a_busy_card_is_passed_over(machine, undisturbed):
    with machine.hold(0):
        done = machine.train("--log", "runtime")
        assert "furiosa:1 with 8 PEs" in done.stderr
        with machine.hold(1):
            done = machine.train("--overwrite", expect=RETRIABLE)
    assert "no card can be opened; got furiosa:0: is busy" in done.stderr
    assert MESSAGE.match(done.stderr.strip().splitlines()[-1])
