"""Kill the training at any moment and run the same command again: weights and rows are those of an undisturbed run."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from running import ROOT, lines, run, start, until

from posenc_train.config import UserError, compose, run_folder

# Dropout, so that the state of the random numbers matters; a learned bias, so that it is part of what is restored.
RUN = [
    "position=t5", "model=nano", "model.dropout=0.1", "train_length=16", "optim.steps=40", "optim.batch_size=4",
    "task.windows=4", "trainer.log_every=1", "trainer.checkpoint_every=6", "logger=none", "factors=[1,4]",
]  # fmt: skip
FOLDER = run_folder(compose("train", RUN))


def result(root: Path) -> tuple[dict, list, list]:
    """Weights and optimizer state, rows, training losses: everything but times, memory and code."""
    checkpoint = torch.load(root / FOLDER / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 40
    tensors = dict(checkpoint["state_dict"])
    for index, state in checkpoint["optimizer_states"][0]["state"].items():
        tensors |= {f"{index}.{key}": value for key, value in state.items()}
    rows = [json.loads(line) for line in (root / FOLDER / "rows.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["metric"] not in ("seconds", "bytes")]
    metrics = [json.loads(line) for line in (root / FOLDER / "metrics.jsonl").read_text().splitlines()]
    return tensors, rows, [(line["step"], line["loss"], line["lr"]) for line in metrics]


def assert_equal(root: Path, other: Path) -> None:
    (a, rows_a, losses_a), (b, rows_b, losses_b) = result(root), result(other)
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert rows_a == rows_b and losses_a == losses_b
    assert [step for step, _, _ in losses_a] == list(range(1, 41))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        run("train", *RUN)
    return root


def continued(log: str) -> list[int]:
    return [int(line.rsplit(" ", 1)[1]) for line in log.splitlines() if "continuing from step" in line]


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in range(1, 5))])
def test_torture(undisturbed, tmp_path, monkeypatch, seed):
    """SIGKILL at five random moments, of training, of saving, of evaluation; after each the run goes on from a
    checkpoint at most `checkpoint_every` steps old."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(seed)
    metrics, log = FOLDER / "metrics.jsonl", FOLDER / "train.log"
    kills = 0
    for target in sorted(draw.sample(range(1, 41), 5)):
        process = start("train", *RUN)
        until(process, lambda target=target: lines(metrics) >= target)
        process.join(timeout=draw.random() * 0.05)  # somewhere in the steps, the saving or the evaluation after it
        kills += process.exitcode is None
        done = lines(metrics)
        process.kill()
        process.join()
        started = continued(log.read_text())
        process = start("train", *RUN)
        until(process, lambda done=done, started=started: len(continued(log.read_text())) > len(started) or done < 7)
        process.kill()
        process.join()
        if done >= 7:  # the first checkpoint was being written during step 6
            assert continued(log.read_text())[-1] >= done - 7
    process = start("train", *RUN)
    process.join()
    assert process.exitcode == 0 and kills >= 3, (tmp_path / "out.txt").read_text()
    assert_equal(tmp_path, undisturbed)


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_leave_a_checkpoint(undisturbed, tmp_path, monkeypatch, number, code):
    monkeypatch.chdir(tmp_path)
    process = start("train", *RUN)
    assert until(process, lambda: lines(FOLDER / "metrics.jsonl") >= 9)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == code
    step = torch.load(FOLDER / "last.ckpt", weights_only=True)["global_step"]
    assert step >= 9 and step == lines(FOLDER / "metrics.jsonl")
    assert f"stopped by {number.name} after step {step}" in (FOLDER / "train.log").read_text()
    run("train", *RUN)
    assert f"continuing from step {step}" in (FOLDER / "train.log").read_text()
    assert_equal(tmp_path, undisturbed)


def test_sigterm_to_the_command(tmp_path):
    """The same seen from a shell: the exit code, and one line instead of a traceback."""
    arguments = [*RUN[:4], "optim.steps=100000", "trainer.log_every=1", "logger=none"]
    with subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "train.py", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        metrics = tmp_path / run_folder(compose("train", arguments)) / "metrics.jsonl"
        while lines(metrics) < 2 and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.05)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in said


def cut(content: bytes) -> bytes:
    return content[:-1000]


def one_byte(content: bytes) -> bytes:
    """Somewhere in the weights: such a file loads without a word unless its checksums are compared."""
    return content[:30000] + bytes([content[30000] ^ 1]) + content[30001:]


@pytest.mark.parametrize("damage", [cut, one_byte])
def test_a_damaged_newest_checkpoint(undisturbed, tmp_path, monkeypatch, damage):
    """The one before is taken, and it is said; the damaged one is kept aside."""
    monkeypatch.chdir(tmp_path)
    process = start("train", *RUN)
    assert until(process, lambda: lines(FOLDER / "metrics.jsonl") >= 20)
    process.kill()
    process.join()
    last = FOLDER / "last.ckpt"
    last.write_bytes(damage(last.read_bytes()))
    run("train", *RUN)
    log = (FOLDER / "train.log").read_text()
    assert "last.ckpt: is no readable checkpoint" in log and continued(log)[0] in (6, 12)
    assert (FOLDER / "last.damaged").exists()
    assert_equal(tmp_path, undisturbed)


def test_no_readable_checkpoint_is_an_error_that_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FOLDER.mkdir(parents=True)
    (FOLDER / "last.ckpt").write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match="no checkpoint in it can be read: remove the folder"):
        run("train", *RUN)
    assert (FOLDER / "last.ckpt").read_bytes() == b"not a checkpoint" and not (FOLDER / "rows.jsonl").exists()


@pytest.mark.parametrize("text", ["a: 1", "position: {", "- 1", "\x00"])
def test_a_damaged_configuration_is_one_line(undisturbed, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    FOLDER.mkdir(parents=True)
    (FOLDER / "config.yaml").write_text(text)
    (FOLDER / "last.ckpt").write_bytes((undisturbed / FOLDER / "last.ckpt").read_bytes())
    for script, overrides in (("train", RUN), ("evaluate", [f"run={FOLDER}"])):
        with pytest.raises(UserError):
            run(script, *overrides)
    assert (FOLDER / "config.yaml").read_text() == text and not (FOLDER / "rows.jsonl").exists()


def test_damaged_metrics_do_not_keep_a_run_from_going_on(undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process = start("train", *RUN)
    assert until(process, lambda: lines(FOLDER / "metrics.jsonl") >= 20)
    process.kill()
    process.join()
    metrics = FOLDER / "metrics.jsonl"
    metrics.write_bytes(b"{{{\n\xff\xfe\n[1]\n" + metrics.read_bytes() + b'{"step": 2')
    run("train", *RUN)
    assert_equal(tmp_path, undisturbed)


def test_training_does_not_go_on_with_other_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "abcdefghijkl":
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / name).write_text(f"{name} and so on " * 50)
    words = [*RUN, "task.path=texts"]
    process = start("train", *words)
    folder = run_folder(compose("train", words))
    assert until(process, lambda: lines(folder / "metrics.jsonl") >= 20)
    process.kill()
    process.join()
    (tmp_path / "texts" / "a").write_text("something else " * 50)
    before = (folder / "last.ckpt").read_bytes()
    with pytest.raises(UserError, match="was trained on other data, up to step"):
        run("train", *words)
    assert (folder / "last.ckpt").read_bytes() == before


def test_a_signal_in_the_last_step_counts(tmp_path, monkeypatch):
    from posenc_train.training import module

    monkeypatch.chdir(tmp_path)
    step = module.Training.training_step

    def last(self, batch, index):
        if self.trainer.global_step == 39:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, index)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(module.Training, "training_step", last)
        run("train", *RUN)
    assert ended.value.code == 143 and not (FOLDER / "rows.jsonl").exists()
    assert torch.load(FOLDER / "last.ckpt", weights_only=True)["global_step"] == 40
    run("train", *RUN)
    assert (FOLDER / "rows.jsonl").exists()


def test_a_folder_of_another_configuration_is_refused(undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FOLDER.mkdir(parents=True)
    text = (undisturbed / FOLDER / "config.yaml").read_text()
    (FOLDER / "config.yaml").write_text(text.replace("lr: 0.002", "lr: 0.5"))
    before = (FOLDER / "config.yaml").read_bytes()
    with pytest.raises(UserError, match="holds a run of another configuration"):
        run("train", *RUN)
    assert (FOLDER / "config.yaml").read_bytes() == before and not (FOLDER / "last.ckpt").exists()


def test_damaged_rows_are_an_error_that_loses_nothing(undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FOLDER.mkdir(parents=True)
    for file in ("config.yaml", "last.ckpt", "rows.jsonl"):
        (FOLDER / file).write_bytes((undisturbed / FOLDER / file).read_bytes())
    with open(FOLDER / "rows.jsonl", "a") as file:
        file.write('{"study": "s", "ce')
    before = (FOLDER / "rows.jsonl").read_bytes()
    for script, overrides in (("train", RUN), ("evaluate", [f"run={FOLDER}"]), ("compare", ["study=default"])):
        with pytest.raises(UserError, match=r"rows.jsonl line \d+: not a row"):
            run(script, *overrides)
    assert (FOLDER / "rows.jsonl").read_bytes() == before


def test_data_do_not_depend_on_loading_processes(undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("train", *RUN, "trainer.workers=2")
    assert_equal(tmp_path, undisturbed)
