#!/usr/bin/env bash
# From a clone to a trained adapter: builds, fetches SmolLM2-135M, trains 200 steps on film reviews
# (SST-2), and compares the accuracy before and after. Writes ./demo; may be run again.
# NPU_LORA_BACKEND chooses the backend (default: openvino:CPU).
set -euo pipefail
cd "$(dirname "$0")/.."

backend=${NPU_LORA_BACKEND:-openvino:CPU}
npu_lora=build/release/bin/npu-lora
model=demo/smollm2
adapter=demo/adapter
dev=examples/data/sst2-dev.jsonl
began=$SECONDS

step() { printf '\n\033[1m[%d:%02d] %s\033[0m\n' $(((SECONDS - began) / 60)) $(((SECONDS - began) % 60)) "$1"; }

evaluate() {  # OUT.json [--adapter DIR]
  local out=$1
  shift
  "$npu_lora" eval --model "$model" --data "$dev" --choice " negative" --choice " positive" \
    --backend "$backend" --seq-len 256 --json "$@" >"$out"
}

mkdir -p demo
step "install what is missing (apt, pip)"
scripts/setup.sh
step "build"
cmake --preset release >demo/build.log
cmake --build --preset release --target npu-lora | tee -a demo/build.log | tail -1

step "fetch SmolLM2-135M-Instruct and turn the GGUF into a Hugging Face directory"
gguf=$(scripts/fetch_model.sh)
"$npu_lora" convert "$gguf" --out "$model" --overwrite

step "accuracy of the model as it is, on the 872 reviews of the development split"
evaluate demo/before.json
cat demo/before.json

step "train a LoRA adapter: rank 16 on q and v, 200 steps"
"$npu_lora" train --model "$model" --data examples/data/sst2-train.jsonl --out "$adapter" \
  --backend "$backend" --rank 16 --alpha 32 --targets q,v --seq-len 256 --steps 200 --lr 2e-4 \
  --schedule linear --overwrite

step "accuracy with the adapter"
evaluate demo/after.json --adapter "$adapter"
cat demo/after.json

step "result"
python3 - "$adapter" $((SECONDS - began)) <<'PYTHON'
import json
import statistics
import sys

adapter, seconds = sys.argv[1], int(sys.argv[2])
before, after = (json.load(open(f"demo/{name}.json")) for name in ("before", "after"))
steps, end = [], {}
for line in open(f"{adapter}/train_log.jsonl"):
    record = json.loads(line)
    if "loss" in record:
        steps.append(record)
    if record.get("event") == "end":
        end = record
rate = statistics.median(s["tokens_per_s"] for s in steps)
print(f"{'':14}{'accuracy':>10}{'label nll':>11}")
print(f"{'before':14}{before['accuracy']:>10.4f}{before['nll']:>11.3f}")
print(f"{'after':14}{after['accuracy']:>10.4f}{after['nll']:>11.3f}")
print(f"\n{len(steps)} steps, {rate:.0f} tok/s (median), peak memory "
      f"{end['peak_resident_bytes'] / 2**30:.2f} GiB, {seconds // 60}:{seconds % 60:02} in all")
print(f"The adapter in {adapter} loads in PEFT, transformers and vLLM as it is.")
PYTHON
