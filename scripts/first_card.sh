#!/usr/bin/env bash
# For the first person who has an RNGD card: everything that has to be known about it, in order, each
# step whatever became of the one before, and what they print in one file to send back.
#   scripts/first_card.sh MODEL [PARTS.bundle]
# docs/furiosa.md, "The first card", says what each step should print. Variables: NPU_LORA (the
# program), DATA (JSON lines), SEQ_LEN, TARGET, OUT (a folder).
set -uo pipefail

if (($# < 1 || $# > 2)); then
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
repository=$(cd "$(dirname "$0")/.." && pwd)
npu_lora=${NPU_LORA:-$repository/build/release/bin/npu-lora}
data=${DATA:-$repository/examples/data/sst2-train.jsonl}
out=${OUT:-first-card}
sizes=(--model "$1" --seq-len "${SEQ_LEN:-128}" --loss-rows "${SEQ_LEN:-128}" --target "${TARGET:-renegade-8pe}")
on_card=("${sizes[@]}" --backend furiosa:auto)
bundle=${2:-}

mkdir -p "$out"
printf '' >"$out/steps"

# step NAME COMMAND…: its output as NAME.out and NAME.err, its exit code and seconds as a line of steps.
step() {
  local name=$1 began=$SECONDS code=0
  shift
  timeout --kill-after=30 7200 "$@" >"$out/$name.out" 2>"$out/$name.err" || code=$?
  echo "$name: exit $code, $((SECONDS - began)) s: $*" | tee -a "$out/steps"
}

machine() {
  "$npu_lora" --version
  uname -a
  ls -l "${NPU_LORA_RNGD_NODES:-/dev/rngd}"
  env | grep -E '^(NPU_|FURIOSA|RAYON)' | sort
  furiosa-smi info
  python3 -m pip list 2>/dev/null | grep -i -E 'furiosa|torch'
  ls -l /usr/lib/libdevice_runtime* /opt/furiosa* /usr/lib/librenegade*
  true
}

# What is asked of a card through one of the workers.
ask() {
  local worker=$1
  export NPU_LORA_FURIOSA_WORKER=$worker
  step "doctor-$worker" "$npu_lora" doctor --json
  step "check-$worker" "$npu_lora" check "${on_card[@]}" --layers 2 --parts never --blame never --json --log runtime
  step "parts-$worker" "$npu_lora" diagnose compare-parts "${on_card[@]}" --layers 2 --json
  step "train-$worker" "$npu_lora" train "${on_card[@]}" --data "$data" --out "$out/run-$worker" --steps 20 \
    --drift-every 5 --drift-action warn --overwrite --log runtime
}

machine >"$out/machine.out" 2>&1
if [[ -n $bundle ]]; then
  step compile "$npu_lora" compile "${sizes[@]}" --backend furiosa --import "$bundle" --expect-cached --json
else
  step compile "$npu_lora" compile "${sizes[@]}" --backend furiosa --export "$out.bundle" --json --log compile
fi
ask native
ask python

# Logs and figures; no weights, no rows.
tar -czf "$out.tar.gz" --exclude='*.safetensors' --exclude=checkpoints -C "$(dirname "$out")" "$(basename "$out")"
echo "send back $out.tar.gz"
