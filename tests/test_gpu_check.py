"""scripts/gpu_check.sh where there is no GPU: it says so in one line; the script itself runs on the CPU, small."""

import json
import os
import subprocess
import sys

import pytest
import torch
from running import ROOT

# A GPU machine has torch, numpy and jaxtyping, and none of these.
ABSENT = [
    "lightning",
    "datasets",
    "hydra",
    "omegaconf",
    "wandb",
    "pandas",
    "pyarrow",
    "yaml",
    "tokenizers",
    "matplotlib",
    "rich",
]


def test_every_check_runs_with_torch_numpy_and_jaxtyping_only(tmp_path):
    out = tmp_path / "result.json"
    program = (
        f"import sys, runpy; sys.modules.update(dict.fromkeys({ABSENT}))\n"
        f"sys.argv = ['gpu_check.py', '--device', 'cpu', '--small', '--out', {str(out)!r}]\n"
        f"runpy.run_path({str(ROOT / 'scripts' / 'gpu_check.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text())
    assert len(result) == 1 + 4 * 15 and all(value.get("ok", True) for value in result.values())
    assert result["long_evaluation: embed, learned"]["lengths"]["512"]["status"] == "beyond reach"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    words = ["bash", ROOT / "scripts" / "gpu_check.sh", str(tmp_path / "out.json")]
    done = subprocess.run(
        words, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode != 0 and done.stderr.strip().startswith("error: no CUDA device is visible")
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "out.json").exists()
