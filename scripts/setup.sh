#!/usr/bin/env bash
# Sets up .venv beside pyproject.toml, once, with the versions of constraints.txt: with uv where it is present, else pip.
# pip's settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf, …) hold under uv too.
#   another Python (3.11 to 3.14):  PYTHON=/path/to/python bash scripts/setup.sh
#   start afresh:                   rm -r .venv
set -euo pipefail
CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
here=$(pwd -P)
stamp=.venv/.setup # what .venv was made from; written when all is in place, so an interrupted set-up is repeated

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have_uv() { uv --version >/dev/null 2>&1; }

version() { "$1" -I -S -c 'import sys; print("python %d.%d" % sys.version_info[:2])' 2>/dev/null; }

# First line: what is to be installed. The others: where, and on which Python (none when .venv's Python has gone).
wanted() { cat pyproject.toml constraints.txt | cksum; printf '%s\n' "$here"; version .venv/bin/python || true; }

right_python() { [ -z "${PYTHON:-}" ] || [ "$(version "$PYTHON")" = "$(version .venv/bin/python)" ]; }

ready() { [ "$(cat "$stamp" 2>/dev/null)" = "$(wanted)" ] && right_python; }

# A whole .venv of this place, short only of what changed in the two files: pip or uv can add that.
can_be_updated() {
  [ "$(sed 1d "$stamp" 2>/dev/null)" = "$(wanted | sed 1d)" ] && right_python &&
    { have_uv || .venv/bin/python -I -m pip --version >/dev/null 2>&1; }
}

# Prints the Python to build on: never the one inside .venv, which may be about to go.
find_python() {
  local need='venv' candidate found
  have_uv || need='venv, ensurepip'
  if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3.11 python3.12 python3.13 python3.14 python3; fi
  for candidate in "$@"; do # run, not only looked up: a version manager's stand-in exists without its Python
    found=$("$candidate" -I -c "import sys, $need
if (3, 11) <= sys.version_info < (3, 15): print(sys._base_executable)" 2>/dev/null) || continue
    if [ -n "$found" ]; then printf '%s\n' "$found" && return; fi
  done
  die "needs Python 3.11 to 3.14 with its venv module (Debian: apt install python3-venv), but did not find it as: $*." \
    "Name one: PYTHON=/path/to/python bash scripts/setup.sh"
}

# uv reads none of pip's settings. It gets them here in its own words, unless its own are set; and, like pip, it looks
# for the pinned version in every index (the first index with the package is uv's rule: it misses pins, and CPU torch).
uv_install() {
  "$python" -I - "$@" <<'PY'
import ast, os, subprocess, sys
listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
config = {key: ast.literal_eval(value) for key, value in (line.split("=", 1) for line in listing.splitlines())}

def pip(name):
    value = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    return (value or config.get("install." + name) or config.get("global." + name) or "").split()

def tell(values, *names, join=" "):
    if values and not any(os.environ.get(name) for name in names):
        os.environ[names[0]] = join.join(values)

tell(pip("index-url"), "UV_DEFAULT_INDEX", "UV_INDEX_URL")
tell(pip("extra-index-url"), "UV_INDEX", "UV_EXTRA_INDEX_URL")
tell([os.path.expanduser(link) for link in pip("find-links")], "UV_FIND_LINKS", join=",")
tell(pip("trusted-host"), "UV_INSECURE_HOST")
tell(pip("cert"), "SSL_CERT_FILE")
tell(["unsafe-best-match"], "UV_INDEX_STRATEGY")
offline = ["--no-index"] if pip("no-index") and pip("no-index")[0].lower() in ("1", "true", "yes", "on") else []
os.execvp("uv", ["uv", "pip", "install", "--python", ".venv/bin/python", *offline, *sys.argv[1:]])
PY
}

install() {
  if have_uv; then uv_install "$@"; else .venv/bin/python -I -m pip install --no-input --no-compile "$@"; fi
}

remedy() {
  case $(cat "$log") in
    *'No space left'* | *'quota exceeded'*) echo "The disk is full: .venv takes 1.5 GB, several more with a GPU build of torch." ;;
    *) echo "Without network, point PIP_INDEX_URL or PIP_FIND_LINKS at a mirror." ;;
  esac
}

if ready; then exit 0; fi
if command -v flock >/dev/null 2>&1; then # two at a time would break each other's .venv
  exec 9>.venv.lock
  flock -n 9 || { say "another set-up is running in $here: waiting for it"; flock 9; }
  if ready; then exit 0; fi
fi

if [ -e .venv ] && [ ! -f "$stamp" ]; then
  die "$here/.venv was not made by this script. Move it away or remove it (rm -r .venv), then run this again."
fi
if can_be_updated; then
  python=$(.venv/bin/python -I -c 'import sys; print(sys._base_executable)')
else
  python=$(find_python)
  say "making .venv with $python"
  rm -rf .venv && mkdir .venv && : >"$stamp"
  without_pip=''
  if have_uv; then without_pip=--without-pip; fi
  "$python" -I -m venv $without_pip .venv || die "could not make $here/.venv (see above). Is the disk full?"
fi

say "installing the versions of constraints.txt with $(if have_uv; then echo uv; else echo pip; fi):" \
  "123 packages, 1.7 GB on disk (several more with a GPU build of torch), a minute or two and the downloads"
goal=$(wanted)
: >"$stamp"
log=.venv/setup.log # downloads of 100 MB and more are shown as they start
# The tests compare with files of torchscale and fla-core, which come without what they ask for (torchvision, triton).
if ! { install -c constraints.txt -e '.[dev]' && install -c constraints.txt --no-deps torchscale fla-core; } 2>&1 | tee "$log" |
  sed -nE 's/^ *(Downloading .*[( ]([0-9]{3,}(\.[0-9]+)? ?Mi?B|[0-9.]+ ?Gi?B)\)).*/setup:   \1/p' >&2; then
  { grep -E '(ERROR|[Ee]rror|cause):' "$log" || tail -n 6 "$log"; } | tail -n 6 | cut -c 1-400 >&2
  die "the installation failed (all of it: $here/$log). $(remedy) Then run this again."
fi

# Shows that it works, and compiles what is used: in a third of the time that all 13,000 files take, and once, not in
# each of the first processes (with PYTHONDONTWRITEBYTECODE, which -I ignores, every process would lose 12 s for ever).
say "importing them for the first time"
.venv/bin/python -I -c 'import datasets, hydra, lightning, matplotlib.pyplot, pandas, pytest, torch, wandb' >&2 ||
  die "the installed packages cannot be imported (see above). Make it afresh: rm -r .venv, and run this again."
printf '%s\n' "$goal" >"$stamp.new" && mv "$stamp.new" "$stamp"
say "done"
