#!/usr/bin/env bash
# What a GPU shows, in at most five minutes: laws, agreement in fp32 and bf16, a training step at 125M, evaluation at 64k tokens.
# Needs torch (2.11 to 2.13), numpy and jaxtyping only. The result is written after each step, so a cut run still counts:
#   bash scripts/gpu_check.sh [result.json]
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
PYTHONPATH=. exec "${PYTHON:-python3}" scripts/gpu_check.py --out "${1:-gpu_check.json}"
