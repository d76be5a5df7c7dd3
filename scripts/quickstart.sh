#!/usr/bin/env bash
# Sets up .venv if need be and runs the quickstart; overrides are handed on:  bash scripts/quickstart.sh model=nano
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/python scripts/reproduce.py experiment=quickstart "$@"
