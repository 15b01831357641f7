#!/usr/bin/env bash
# Installs what the build needs (Debian or Ubuntu packages) and makes .venv.
#   scripts/setup.sh            build tools, libraries, OpenVINO in .venv: enough for scripts/demo.sh
#   scripts/setup.sh --tests    also clang-format, clang-tidy and the Python packages of tests/interop
#   scripts/setup.sh --bench    the first, and the Python packages of bench/, its rivals among them
#   scripts/setup.sh --vendor   --tests, FuriosaAI's compiler in .venv-vendor with its cross compiler, and
#                               furiosa.torch in .venv-vendor-torch (a download of 1 GB)
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0"; }

tests=false vendor=false
requirements=(openvino==2026.4.1)
case "${1:-}" in
  "") ;;
  --tests) tests=true requirements=(-r tests/interop/requirements.txt) ;;
  --vendor) tests=true vendor=true requirements=(-r tests/interop/requirements.txt) ;;
  --bench) requirements=(-r bench/requirements.txt) ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

packages=(build-essential cmake ninja-build pkg-config ccache libgtest-dev libbenchmark-dev
  nlohmann-json3-dev libcli11-dev libspdlog-dev libyaml-cpp-dev libopenblas-pthread-dev libssl-dev
  libutf8proc-dev libcurl4-openssl-dev python3 python3-venv unzip)
if $tests; then packages+=(clang-format-15 clang-tidy-15 git); fi
if $vendor; then packages+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross); fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ $status == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  echo "installing: ${missing[*]}"
  as_root=()
  ((EUID == 0)) || as_root=(sudo)
  "${as_root[@]}" apt-get update -q
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -qy --no-install-recommends "${missing[@]}"
fi

[[ -x .venv/bin/python ]] || python3 -m venv .venv
# Torch for CPUs is all that is needed; where pip's index offers such a wheel, it takes it.
.venv/bin/python -m pip install -q "${requirements[@]}"
if $vendor; then  # apart: vendors' packages pin others and hook into what is installed beside them
  [[ -x .venv-vendor/bin/python ]] || python3 -m venv .venv-vendor
  .venv-vendor/bin/python -m pip install -q furiosa-tcc==2026.4.0
  # The torch that furiosa.torch pins may be a CUDA build: without NVIDIA's packages, then, and with a
  # library that stands in for what it links of them.
  [[ -x .venv-vendor-torch/bin/python ]] || python3 -m venv .venv-vendor-torch
  .venv-vendor-torch/bin/python -m pip install -q --no-deps -r tests/vendor/requirements.txt
  .venv-vendor-torch/bin/python tools/cuda_stand_ins.py
  TORCH_DEVICE_BACKEND_AUTOLOAD=0 .venv-vendor-torch/bin/python -c 'import torch, furiosa.torch'
fi
echo "ready: cmake $(cmake --version | sed -n '1s/.* //p'), $(c++ --version | head -1), .venv"
