"""Deliberately broken schemes fail by the name of their law, and a good one passes."""

import os
import subprocess
import sys

import pytest
from running import ROOT

SCHEMES = """
import torch
from torch import nn

from posenc_train.positions.base import PositionScheme


class Peeks(PositionScheme):
    '''Adds to every token the mean of those after it.'''

    def __init__(self, dims):
        super().__init__()

    def embed(self, x, pos):
        return x + 0.1 * x.flip(-2).cumsum(-2).flip(-2)


class Total(PositionScheme):
    '''A bias whose strength is the number of tokens in all.'''

    def __init__(self, dims, slope=0.01):
        super().__init__()
        self.slope, self.heads = slope, dims.heads

    def rotate(self, q, k, span):
        return q * (1 + self.slope * k.shape[-2]), k


class Dead(PositionScheme):
    '''Has a parameter that changes nothing.'''

    def __init__(self, dims):
        super().__init__()
        self.slope, self.forgotten = nn.Parameter(torch.ones(dims.heads)), nn.Parameter(torch.ones(3))

    def by_distance(self, distance):
        return -self.slope.float().view(-1, *[1] * distance.ndim) * distance.abs().float().sqrt()


class Good(Dead):
    def __init__(self, dims):
        super().__init__(dims)
        del self.forgotten


class Rounds(PositionScheme):  # needs no constructor
    '''Computes its bias in bfloat16.'''

    def by_distance(self, distance):
        return -distance.abs().bfloat16().expand(4, *distance.shape) / 8
"""


@pytest.mark.parametrize(
    "scheme, words, laws",
    [
        ("Peeks", "breaks Causality: Changing a later token changes no earlier output", {"Causality", "Prefix"}),
        (
            "Total",
            "breaks Prefix: The first n outputs do not depend on what follows, nor on how much follows.",
            {"Prefix"},
        ),
        ("Dead", "breaks Learning: Every parameter of the scheme gets a finite gradient", {"Learning"}),
        ("Rounds", "breaks Precision: Cast to bfloat16, a scheme computes positions in float32", {"Precision"}),
        ("Good", "obeys every law", set()),
    ],
)
def test_the_laws_bite(tmp_path, scheme, words, laws):
    (tmp_path / "broken.py").write_text(SCHEMES)
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "--scheme", f"broken.{scheme}"]
    if scheme not in ("Dead", "Good"):  # of which all laws are asked
        command += ["-k", "causality or prefix or precision"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    said = [line for line in done.stdout.splitlines() if line.startswith(f"broken.{scheme} ")]
    assert any(line.startswith(f"broken.{scheme} {words}") for line in said), done.stdout[-3000:]
    assert done.stdout.rstrip().splitlines()[-2] in said  # the verdict is the last word, but for pytest's count
    named = {line.split(" breaks ")[1].partition(":")[0] for line in said if " breaks " in line}
    assert laws <= named and (done.returncode == 0) == (not laws)
    if scheme == "Dead":  # breaks that law and no other
        assert named == laws


def test_a_scheme_that_does_not_exist_is_said_so(tmp_path):
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "--scheme", "broken.Nothing"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 4 and "--scheme broken.Nothing: cannot be built" in done.stderr + done.stdout
    assert "Traceback" not in done.stdout + done.stderr
