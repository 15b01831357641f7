"""Keeps tests/vendor/estimates.json: the vendor's estimate of every part of the real models, by its text.

    estimates.py [--all] [TARGET...]    asks furiosa-tcc ($NPU_LORA_FURIOSA_TCC) for what is missing, or for all"""
import argparse
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("NPU_BUILD", REPO / "build/release"))
FILE = REPO / "tests/vendor/estimates.json"
TARGETS = ["renegade-8pe"]


def estimate(text, target):
    """Cycles of one call of the function in this file."""
    command = [os.environ["NPU_LORA_FURIOSA_TCC"], str(text), "--target-npu", target, "--evaluate-tcl"]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    try:
        cycles = int(done.stdout)
    except ValueError:
        raise RuntimeError(f"{text}: {done.stdout[-500:]}{done.stderr[-1500:]}") from None
    assert cycles > 0, f"{text}: 0 cycles"
    return cycles


def write_texts(directory):
    """The texts as this build writes them: {hash: file}, and what each is the first of."""
    done = subprocess.run([BUILD / "tests/tcl_estimates_test", directory], capture_output=True, text=True, check=True)
    uses = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return {h: Path(directory) / f"{h}.tc" for h in uses}, uses


def save(record):
    lines = [f'    "{h}": {json.dumps(record["cycles"][h], sort_keys=True)}' for h in sorted(record["cycles"])]
    FILE.write_text(
        "{\n"
        f'  "compiler": {json.dumps(record["compiler"])},\n  "targets": {json.dumps(record["targets"])},\n'
        '  "cycles": {\n' + ",\n".join(lines) + "\n  }\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("targets", nargs="*", default=TARGETS)
    options = parser.parse_args()
    record = json.loads(FILE.read_text()) if FILE.exists() else {"cycles": {}}
    version = subprocess.run([os.environ["NPU_LORA_FURIOSA_TCC"], "--version"], capture_output=True, text=True, check=True)
    record |= {"compiler": version.stdout.strip(), "targets": options.targets}
    with tempfile.TemporaryDirectory() as directory:
        texts, _ = write_texts(directory)
        old = {} if options.all else record["cycles"]
        record["cycles"] = {h: {t: c for t, c in old.get(h, {}).items() if t in options.targets} for h in texts}
        open_jobs = [(h, t) for h in texts for t in options.targets if t not in record["cycles"][h]]
        print(f"{len(texts)} texts, {len(open_jobs)} estimates to ask for", flush=True)
        with ThreadPoolExecutor(2) as pool:
            for (h, t), cycles in zip(open_jobs, pool.map(lambda job: estimate(texts[job[0]], job[1]), open_jobs)):
                record["cycles"][h][t] = cycles
                save(record)  # what was asked for is kept whatever happens


if __name__ == "__main__":
    main()
