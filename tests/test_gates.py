"""posenc_train/data/gates.csv, which says that the default sizes of a task can be learned: what it names and claims."""

import csv
import importlib

from running import ROOT

from posenc_train import checks
from posenc_train.tasks.asked import Asked

SCHEMES = {"nope", "rope", "alibi", "t5", "kerple_log"}
SECONDS = 90 + 8  # of training and evaluation, and of the imports


def rows() -> list[dict[str, str]]:
    lines = (ROOT / "posenc_train/data/gates.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def asked() -> set[str]:
    names = set()
    for name in checks.choices("task"):
        module, _, cls = checks.file_settings("task", name)["_target_"].rpartition(".")
        if issubclass(getattr(importlib.import_module(module), cls), Asked):
            names.add(name)
    return names


def test_two_schemes_pass_in_every_task_that_asks():
    passed = {name: set() for name in asked()}
    for row in rows():
        assert row["scheme"] in SCHEMES
        if float(row["token_accuracy"]) >= 0.95 and float(row["cpu_seconds"]) <= SECONDS:
            passed[row["task"]].add(row["scheme"])  # KeyError: no such task
    assert not {name for name, schemes in passed.items() if len(schemes) < 2}


def test_its_lengths_are_those_that_the_default_sizes_fit():
    for row in rows():
        cls = checks.file_settings("task", row["task"])["_target_"].rpartition(".")[2]
        assert checks.SHORTEST[cls] <= int(row["train_length"]) <= 64, row
