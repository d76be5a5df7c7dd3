#!/usr/bin/env bash
# Sets up .venv if need be and runs the tests; arguments go to pytest:  bash scripts/test.sh tests/test_config.py --long
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/python -m pytest "$@"
