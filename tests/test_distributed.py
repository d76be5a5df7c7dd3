"""Two processes on one machine (gloo) train as one does, and evaluate once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

from posenc_train.config import compose, run_folder

RUN = [
    "position=alibi", "model=nano", "train_length=15", "optim.steps=200", "optim.batch_size=8", "trainer.log_every=1",
    "trainer.accelerator=cpu", "trainer.threads=1", "factors=[1,2]",
]  # fmt: skip


COPY = ["task=copy", "task.examples=16", "sampling=pose", "sampling.longest=64"]
TEXT = ["task=text", "task.windows=5", "optim.steps=30"]


@pytest.mark.parametrize("task", [COPY, pytest.param(TEXT, marks=pytest.mark.long)])
def test_two_processes_are_one(tmp_path, task):
    """The copy task's rows hold different numbers of targets, so a mean of means would be another loss; and every row
    is given positions of its own."""
    found = {}
    for devices in (1, 2):
        cwd = tmp_path / str(devices)
        cwd.mkdir()
        words = [sys.executable, ROOT / "scripts" / "train.py", *RUN, *task, f"trainer.devices={devices}"]
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        found[devices] = outcome(cwd, run_folder(compose("train", [*RUN, *task])))
    (loss, rows), (loss_of_two, rows_of_two) = found[1], found[2]
    assert len(loss) == len(loss_of_two) and len(loss) in (30, 200)
    assert max(abs(a - b) for a, b in zip(loss, loss_of_two, strict=True)) < 1e-5
    assert rows.keys() == rows_of_two.keys()
    for key, (total, count) in rows.items():
        assert rows_of_two[key] == (pytest.approx(total, rel=1e-4), count)


def outcome(cwd: Path, folder: Path) -> tuple[list, dict]:
    """Losses, and sums and counts of every measurement; there is one run folder and one W&B run."""
    assert [path.name for path in (cwd / "runs" / "default").iterdir()] == [folder.name]
    assert len(list((cwd / "runs" / "wandb").glob("offline-run-*"))) == 1
    assert sorted(path.name for path in cwd.iterdir()) == ["runs"]
    losses = [json.loads(line)["loss"] for line in (cwd / folder / "metrics.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (cwd / folder / "rows.jsonl").read_text().splitlines()]
    keys = ("length", "protocol", "metric", "unit")
    scored = [row for row in rows if row["metric"] not in ("seconds", "bytes")]
    return losses, {(*(row[k] for k in keys), str(row["slice"])): (row["total"], row["count"]) for row in scored}
