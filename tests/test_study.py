"""A study: its plan, what it runs and what not, who runs it, what it chooses by, and death at any moment."""

import contextlib
import csv
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from running import ROOT, lines, run

from posenc_train import choice, estimate, fingerprint, launch, lock, runs, study
from posenc_train.build import build_model, build_task
from posenc_train.config import UserError, compose, run_folder
from posenc_train.report import figures, store
from posenc_train.tasks.asked import split_of
from posenc_train.training.checkpoint import Saved

NANO = [
    "model=nano", "train_length=16", "optim.steps=6", "optim.batch_size=4", "trainer.log_every=2", "logger=none",
    "factors=[1,2]", "protocol=[nonoverlapping,same_targets]", "task.windows=4", "task.longest=64",
]  # fmt: skip
GRID = ["experiment=quickstart", "study=s", "task=text", "position=nope,alibi", *NANO]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Studies in this process: Hydra's own launcher, one cell after another, and no pictures, of which others tell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "draw", lambda report: {})
    monkeypatch.setattr(figures, "for_paper", lambda report: {})
    monkeypatch.setattr("sys.argv", [str(ROOT / "scripts" / "reproduce.py")])
    monkeypatch.setattr(launch, "hydra_line", lambda: ["hydra/launcher=basic"])

    def reproduce(*words: str) -> None:
        said(monkeypatch, *words)
        run("reproduce", *[word for word in words if "," not in word.partition("=")[2] or "[" in word])

    reproduce.path = tmp_path
    return reproduce


def said(monkeypatch, *words: str) -> None:
    monkeypatch.setattr(study, "command_line", lambda: list(words))


def cells(monkeypatch, *words: str, **more) -> list[study.Cell]:
    said(monkeypatch, *words)
    single = [word for word in words if "," not in word.partition("=")[2] or "[" in word]
    return study.plan(compose("reproduce", single) | more)


def checkpoints() -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in Path("runs/s").glob("*/last.ckpt")}


# ---- fingerprints ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package that tests edit, and put right again."""
    copy = tmp_path_factory.mktemp("copy") / "posenc_train"
    shutil.copytree(ROOT / "posenc_train", copy, ignore=shutil.ignore_patterns("data", "__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "PACKAGE", copy)
        yield copy


LATER = itertools.count(1)


@contextlib.contextmanager
def edited(path: Path, old: str, new: str):
    text, time = path.read_text(), path.stat().st_mtime_ns
    assert old in text
    try:
        path.write_text(text.replace(old, new, 1))
        os.utime(path, ns=(0, time + next(LATER)))  # another time for every edit
        yield
    finally:
        path.write_text(text)
        os.utime(path, ns=(0, time))


def codes() -> dict[str, str]:
    """Of a training, and of its evaluation under two extensions."""
    alibi = compose("train", ["position=alibi", "extension=[none,logn]"])
    found = {"training": fingerprint.trained(alibi)}
    return found | {name: fingerprint.evaluated(alibi, name, found["training"]) for name in ("none", "logn")}


EDITS = {  # file, old, new -> which fingerprints change, and in which of their two parts
    "a comment": ("positions/alibi.py", "\nclass Alibi", "\n# note\nclass Alibi", {}),
    "a docstring": ("model/attend.py", '"""', '"""Anew. ', {}),
    "another scheme": ("positions/rope.py", "def ", "def other_", {}),
    "another task": ("tasks/copy.py", "def ", "def other_", {}),
    "the report": ("report/tables.py", "def ", "def other_", {}),
    "the configuration": ("checks.py", "def _divisors", "def _other_divisors", {}),
    "the used scheme": ("positions/alibi.py", "def ", "def other_", {"training": "01", "none": "01", "logn": "01"}),
    "the used task": ("tasks/text.py", "def batch", "def other", {"training": "01", "none": "01", "logn": "01"}),
    "an extension": ("positions/extensions/logn.py", "def ", "def other_", {"logn": "01"}),
    "the model": ("model/attend.py", "def attend", "def other", {"training": "11", "none": "11", "logn": "11"}),
    "the training": ("training/module.py", "def rate", "def other", {"training": "10", "none": "10", "logn": "10"}),
    "the evaluation": ("evaluation/evaluate.py", "def total", "def other", {"none": "10", "logn": "10"}),
}


@pytest.mark.parametrize("what", EDITS)
def test_code_is_that_of_the_modules_that_a_cell_uses(package, what):
    file, old, new, expected = EDITS[what]
    before = codes()
    with edited(package / file, old, new):
        after = codes()
    assert codes() == before
    parts = {
        name: "".join(str(int(a != b)) for a, b in zip(before[name].split("-"), after[name].split("-"), strict=True))
        for name in before
    }
    if what == "the model":  # whose file every scheme's own modules import or not: only the common part is certain
        assert {name: part[0] for name, part in parts.items()} == dict.fromkeys(parts, "1")
        return
    assert {name: part for name, part in parts.items() if part != "00"} == expected


def test_a_users_own_class_and_what_stands_beside_it_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "wavy.py").write_text("import json, torch\nfrom ripple import height\nclass Wave: pass\n")
    (tmp_path / "ripple.py").write_text("height = 1\n")
    (tmp_path / "alone.py").write_text("x = 1\n")
    cfg = compose("train", ["position=own", "position._target_=wavy.Wave"])
    before = fingerprint.trained(cfg)
    assert set(fingerprint.modules(["wavy"])) == {"wavy", "ripple"}
    with edited(tmp_path / "alone.py", "x", "y"):
        assert fingerprint.trained(cfg) == before
    with edited(tmp_path / "ripple.py", "1", "2"):
        assert fingerprint.trained(cfg).partition("-")[0] == before.partition("-")[0] != fingerprint.trained(cfg)


def test_what_a_training_started_from_is_in_its_code():
    cfg = compose("train", ["position=nope"])
    assert fingerprint.trained(cfg, "1-2") != fingerprint.trained(cfg) != fingerprint.trained(cfg, "1-3")
    one, other = (fingerprint.evaluated(cfg, "none", code) for code in ("a-b+a-c", "a-b"))
    assert one != other


# ---- locks -----------------------------------------------------------------------------------------------


def test_a_lock_names_host_process_and_time(tmp_path):
    with lock.locked(tmp_path):
        found = lock.owner(tmp_path)
        assert (found.host, found.process) == (socket.gethostname(), os.getpid()) and found.since
        told = f"another process is at work on this run .process {os.getpid()} on "
        with pytest.raises(lock.Busy, match=told), lock.locked(tmp_path):
            pass
    assert lock.owner(tmp_path) is None
    with lock.locked(tmp_path):
        pass


def theirs(folder: Path, **changed) -> None:
    mine = lock.Owner(socket.gethostname(), os.getpid(), lock._began(os.getpid()), "2026-01-01 00:00:00")
    (folder / lock.FILE).write_text(json.dumps(mine._asdict() | changed))


def test_a_dead_owners_lock_is_taken_over(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for changed in ({"process": ended.pid}, {"began": 1}):  # no such process; one that came after it
        theirs(tmp_path, **changed)
        assert lock.owner(tmp_path) is None
        with lock.locked(tmp_path):
            assert lock.owner(tmp_path).process == os.getpid()


def test_another_hosts_lock_holds_as_long_as_it_beats(tmp_path):
    theirs(tmp_path, host="elsewhere")
    with pytest.raises(lock.Busy, match="on elsewhere"), lock.locked(tmp_path):
        pass
    past = (tmp_path / lock.FILE).stat().st_mtime - lock.STALE - 1
    os.utime(tmp_path / lock.FILE, (past, past))
    with lock.locked(tmp_path):
        assert lock.owner(tmp_path).host == socket.gethostname()
    assert [path.name for path in tmp_path.iterdir()] == [lock.FILE]  # no trace of looking at the clock


def test_a_lock_ends_with_its_process_though_a_child_lives_on(tmp_path):
    """As loaders of data do, for some seconds."""
    code = f"""
import os, sys
from pathlib import Path
from posenc_train.lock import locked
with locked(Path({str(tmp_path)!r})):
    child = os.fork()
    if child == 0:
        os.write(1, b"here")
        sys.stdin.read()
        os._exit(0)
    os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.read(4) == b"here" and process.wait() == -9
        with lock.locked(tmp_path):
            pass
        process.stdin.close()


def test_a_lock_of_a_folder_that_was_set_aside_is_none(tmp_path, monkeypatch):
    """Between opening the file and locking it."""
    folder, real = tmp_path / "run", lock.fcntl.flock

    def late(*arguments):
        folder.rename(tmp_path / "aside")
        folder.mkdir()
        real(*arguments)

    folder.mkdir()
    monkeypatch.setattr(lock.fcntl, "flock", late)
    with pytest.raises(lock.Busy), lock.locked(folder):
        pass


# ---- the plan --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("seeds=2,3", "seeds=2,3: must be one value, as it is of the study and not of its cells"),
        ("tune.lr=1e-3,2e-3", "tune.lr=1e-3,2e-3: must be one value.*; write tune.lr=... for a list"),
        ("experiment=quickstart,drope", "experiment=quickstart,drope: must be one value"),
        ("experiment=[quickstart,drope]", "experiment=.quickstart,drope.: must be one experiment; run them one after"),
        ("scale=paper", "scale=paper: experiment=quickstart has no scales, and is of the size of laptop; leave it out"),
        ("study=a,b", "study=a,b: must be one study, with one table"),
    ],
)
def test_what_is_of_the_study_is_one_value(monkeypatch, word, told):
    said(monkeypatch, "position=nope", word)
    with pytest.raises(UserError, match=told):
        study.plan(compose("reproduce", ["scale=paper"] if word == "scale=paper" else []))


def test_a_folder_that_cannot_be_written_is_told_in_a_line(here, monkeypatch):
    monkeypatch.setattr(estimate, "_tried_apart", lambda config: estimate.Cost(1.0, 1.0, 1, ""))
    Path("runs").write_text("a file")
    with pytest.raises(UserError, match="runs/s: cannot be written .Not a directory.: choose another study="):
        here(*GRID)


def test_seeds_and_scales(monkeypatch):
    grid = {"smoke": ["study=a-smoke position=nope seed=7"], "laptop": ["study=a position=nope,alibi"]}
    named = {"experiment": {"grid": grid, "then": {"laptop": ["position=rope"]}}, "names": {"experiment": "a"}}
    assert [cell.config["seed"] for cell in cells(monkeypatch, scale="smoke", **named)] == [7]
    found = cells(monkeypatch, scale="laptop", seeds=3, **named)
    assert sorted((cell.config["names"]["position"], cell.config["seed"]) for cell in found) == [
        (name, seed) for name in ("alibi", "nope") for seed in range(3)
    ]
    with pytest.raises(UserError, match="scale=paper: experiment=a has no such scale; choose one of smoke, laptop"):
        cells(monkeypatch, scale="paper", **named)
    with pytest.raises(UserError, match="seeds=3: stands for seed=0 and so on; leave out seed=1"):
        cells(monkeypatch, "seed=1", seeds=3, **named)
    for scale, acts in (("smoke", 0), ("laptop", 2)):
        firsts = cells(monkeypatch, scale=scale, **named)
        cfg = compose("reproduce") | named | {"scale": scale}
        assert len(study.second_act(cfg, firsts, planned=True)) == acts


def test_a_sweep_of_the_command_line_is_of_the_first_act(monkeypatch):
    firsts = cells(monkeypatch, "experiment=drope", "seed=0,1", "optim.steps=3")
    acts = study.second_act(compose("reproduce", ["experiment=drope"]), firsts, planned=True)
    assert sorted(cell.config["seed"] for cell in acts) == [0, 1]
    assert {cell.config["optim"]["steps"] for cell in acts} == {3} and all(
        f"-s{cell.config['seed']}-" in cell.config["init"] for cell in acts
    )


def test_the_plan_says_what_is_there_and_what_it_will_take(here, monkeypatch, capsys):
    here(*GRID, "plan=true")
    told = capsys.readouterr().out
    assert told.startswith("2 cells of quickstart, into runs/s\n") and not Path("runs/s").exists()
    assert told.count(" new ") == 2 and told.count("3 steps tried") == 2 and "2 to run" in told
    here(*GRID)
    capsys.readouterr()
    here(*GRID, "seeds=2", "plan=true")
    told = capsys.readouterr().out
    assert told.count(" finished ") == 2 and told.count("  measured") == 2 and "2 to run" in told
    seconds = runs.record(cells(monkeypatch, *GRID)[0].folder)
    assert 0 < seconds["trained"] < 60 and 0 < seconds["evaluated"] < 60


def test_operations_are_those_that_torch_counts():
    """Of no positions: weights and attention, forward and backward."""
    cfg = compose("train", ["position=nope", *NANO])
    assert choice.counted(cfg) == estimate.operations(cfg, 256, 1)
    model = build_model(cfg, build_task(cfg))
    drawn = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    assert estimate.parameters(cfg, 256) == drawn


def test_a_model_too_large_to_try_is_tried_in_part(monkeypatch):
    cfg = compose("train", ["position=alibi", *NANO, "optim.batch_size=64", "model.layers=4", "train_length=256"])
    whole, rows = estimate.reduced(cfg, 256)
    assert whole is cfg and rows == 64
    monkeypatch.setattr(estimate, "LIMIT", estimate.operations(cfg, 256, 8))
    part, rows = estimate.reduced(cfg, 256)
    assert part is cfg and rows == 8
    monkeypatch.setattr(estimate, "LIMIT", 1.0)
    part, rows = estimate.reduced(cfg, 256)
    assert (part["model"]["layers"], part["train_length"], rows) == (1, 128, 1)
    cost = estimate.tried(cfg)
    assert cost.step > 0 and "tried with 1 layers and 128 tokens" in cost.how


# ---- only what is missing --------------------------------------------------------------------------------


def test_only_the_difference_is_run(here, monkeypatch):
    """Another seed, another scheme, another length; a longer one than the texts evaluates again."""
    from posenc_train.evaluation import run as evaluation

    asked, real = [], evaluation.evaluate
    monkeypatch.setattr(
        evaluation, "evaluate", lambda model, task, at, *a, **k: asked.extend(at) or real(model, task, at, *a, **k)
    )
    here(*GRID)
    first, count = checkpoints(), {path: lines(path) for path in Path("runs/s").glob("*/rows.jsonl")}
    assert len(first) == 2 and sorted(asked) == [16, 16, 32, 32]
    here(*GRID, "seeds=2")
    assert len(checkpoints()) == 4 and checkpoints().items() >= first.items() and len(asked) == 8
    asked.clear()
    here(*GRID[:3], "position=nope,alibi,t5", *NANO)
    assert len(checkpoints()) == 5 and asked == [16, 32]
    asked.clear()
    here(*[word for word in GRID if "factors" not in word], "factors=[1,2,4]")
    assert asked == [64, 64] and {name: checkpoints()[name] for name in first} == first
    assert all(lines(path) == count[path] + 2 + 1 for path in count)  # two protocols; words in one of them
    asked.clear()
    here(*[word for word in GRID if "factors" not in word and "longest" not in word], "factors=[1,16]")
    assert sorted(asked) == [16, 16, 256, 256] and {name: checkpoints()[name] for name in first} == first


def test_other_code_is_shown_and_trained_again_when_asked(here, monkeypatch, capsys):
    words = [*GRID[:3], "position=alibi", *NANO]
    here(*words)
    before, table = checkpoints(), Path("runs/s/table.csv").read_text()
    folder = next(Path("runs/s").glob("alibi*"))
    old = runs.record(folder)["code"]
    digest = fingerprint._digest
    monkeypatch.setattr(fingerprint, "_digest", lambda *parts: digest("changed", *parts))
    here(*words)
    assert checkpoints() == before and "rerun=changed trains them again" in capsys.readouterr().err
    here(*words[:-1], "task.longest=64", "seeds=2")
    assert "code" in Path("runs/s/table.md").read_text()  # a line each, not one mean
    from posenc_train.training import module

    step = module.Training.training_step
    with monkeypatch.context() as patch, pytest.raises(UserError, match="the power failed"):
        patch.setattr(
            module.Training, "training_step", lambda *a: (_ for _ in ()).throw(RuntimeError("the power failed"))
        )
        here(*words, "rerun=changed")
    aside = Path("runs/s/.before", folder.name)
    assert (
        runs.record(aside)["code"] == old and store.load(aside / "rows.jsonl") and step is module.Training.training_step
    )
    here(*words, "rerun=changed")
    assert not aside.exists() and runs.record(folder)["code"] != old
    assert checkpoints()[folder.name] != before[folder.name]
    again = checkpoints()
    here(*words, "rerun=changed")
    assert checkpoints() == again
    values = [line["value"] for line in csv.DictReader(table.splitlines())]
    here(*words)
    assert [row.total for row in store.load(folder / "rows.jsonl") if row.protocol != "training"] and values


def test_other_code_of_the_evaluation_evaluates_again(here, monkeypatch):
    words = [*GRID[:3], "position=alibi", *NANO]
    here(*words)
    before, folder = checkpoints(), next(Path("runs/s").glob("alibi*"))
    rows = store.load(folder / "rows.jsonl")
    monkeypatch.setattr(fingerprint, "EVALUATION", (*fingerprint.EVALUATION, "posenc_train.catalogue"))
    here(*words, "rerun=changed")
    after = store.load(folder / "rows.jsonl")
    assert checkpoints() == before and after[: len(rows)] == rows
    scored = [row for row in rows if row.protocol != "training"]
    assert [row.total for row in after[len(rows) :]] == [row.total for row in scored]
    assert {row.code for row in after[len(rows) :]}.isdisjoint(row.code for row in scored)


def test_other_data_is_trained_again_when_asked(here):
    for name in "abcdefghijkl":
        Path("texts").mkdir(exist_ok=True)
        Path("texts", name).write_text(f"{name} and so on " * 50)
    words = [*GRID[:3], "position=alibi", *NANO, "task.path=texts"]
    here(*words)
    data = runs.record(next(Path("runs/s").glob("alibi*")))["data"]
    Path("texts/a").write_text("something else " * 50)
    with pytest.raises(UserError, match="was trained on other data.*train again by rerun=changed"):
        here(*[word for word in words if "factors" not in word], "factors=[1,2,4]")
    here(*words, "rerun=changed")
    assert runs.record(next(Path("runs/s").glob("alibi*")))["data"] != data


def test_two_studies_at_once_share_the_cells(tmp_path):
    """Each cell is trained once, both wait for all of them, and both tell the same."""
    command = [sys.executable, ROOT / "scripts" / "reproduce.py", *GRID, "jobs=1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, cwd=tmp_path, **pipes) for _ in range(2)]
    told = [process.communicate(timeout=250) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert told[0][0] == told[1][0] and "2 of 2 done" in told[0][1] and "2 of 2 done" in told[1][1]
    for log in (tmp_path / "runs" / "s").glob("*/train.log"):
        assert log.read_text().count("trained in ") == 1


def test_what_another_process_works_on_is_waited_for(here, monkeypatch):
    """It is not tried meanwhile; when its owner has gone, it is taken over."""
    held = iter([True, True, False])
    monkeypatch.setattr(launch, "owner", lambda folder: True if "nope" in folder.name and next(held, False) else None)
    naps = []
    monkeypatch.setattr(launch.time, "sleep", naps.append)
    monkeypatch.setattr(launch.Progress, "tell", lambda self: None)
    monkeypatch.setattr(estimate, "owner", lambda folder: None)
    here(*GRID)
    assert len(checkpoints()) == 2 and len(naps) >= 1


def test_nothing_is_lost_when_training_again_is_interrupted(tmp_path):
    """The newest finished run is kept, until another one is finished."""
    cfg = compose("train", ["position=nope", *NANO])
    folder = tmp_path / "s" / "cell"

    def trained(step: int, code: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        runs.remember(cfg, folder, Saved({}, step, 1.0, f"last@{step}", "data", code, None), ["hash"], 1.0)

    aside = tmp_path / "s" / ".before" / "cell"
    trained(6, "first")
    runs._set_aside(folder)
    trained(3, "second")  # as by evaluate.py, half way
    assert not (folder / runs.RECORD).exists() and runs.record(aside)["code"] == "first"
    runs._set_aside(folder)
    assert not folder.exists() and runs.record(aside)["code"] == "first"
    trained(6, "third")
    assert not aside.exists()
    aside.mkdir(parents=True)  # as a process leaves it that died just then
    runs._set_aside(folder)
    assert runs.record(aside)["code"] == "third"


def test_ctrl_c_does_not_reach_what_cells_are_forked_from(monkeypatch):
    """Not even while it imports, when it would end by a traceback."""
    from multiprocessing import context, forkserver

    monkeypatch.setattr(context.ForkServerContext, "set_forkserver_preload", lambda self, names: None)
    forkserver._forkserver._stop()  # of an earlier test
    launch.server()
    status = Path("/proc", str(forkserver._forkserver._forkserver_pid), "status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    forkserver._forkserver._stop()
    assert blocked >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_cell_that_says_why_it_fails_is_heard(tmp_path):
    folder = tmp_path / "cell"
    script = tmp_path / "train.py"
    script.write_text("class main:\n    def __wrapped__(config):\n        raise ValueError('no such thing')\n")
    launch.said(folder).write_text("another study's line\n")
    assert launch.trained({}, folder, script) == 1
    assert launch.reason(folder, 1).startswith("ValueError: no such thing (exit code 1; all it said: ")
    assert launch.said(folder).read_text().startswith("another study's line\n")
    assert launch.reason(folder, -9).startswith("killed by SIGKILL, as when memory runs out (exit code -9; ")


# ---- choices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [[], ["task.packed=reset"], ["task.packed=joined", "task.bos=true"], ["task.bpe=300"]])
def test_text_to_choose_by_is_not_evaluated(more):
    task = build_task(compose("train", ["task.windows=8", "task.longest=256", *more]))
    batch = task.held_out(64, 256)
    assert batch.inputs.shape == (8 * 4, 64)
    if not task.packed:
        own, other = (set(zip(*map(np.ndarray.tolist, task.places(256, part)), strict=True)) for part in (0, 1))
        assert len(own) == len(other) == 8 and not own & other
    windows = {bytes(row.astype(np.uint16)) for row in task.windows(256)[:, -64:]}
    assert not windows & {bytes(row.numpy().astype(np.uint16)) for row in batch.targets}
    assert all(torch.equal(a, b) for a, b in zip(batch[:2], task.held_out(64, 256)[:2], strict=True))


def test_no_text_left_to_choose_by_is_said(tmp_path):
    for name in "abcdefghijkl":
        (tmp_path / name).write_text(f"{name} and so on " * 50)
    task = build_task(
        compose("train", [f"task.path={tmp_path}", "train_length=16", "lengths=[16]", "task.longest=500"])
    )
    with pytest.raises(UserError, match="task.windows=64: must leave windows of 500 bytes to choose by"):
        task.held_out(16, 500)


def test_questions_to_choose_by_are_of_their_own_split():
    task = build_task(compose("train", ["task=copy", "train_length=24", "task.alphabet=4"]))
    batch = task.held_out(24, 192)
    assert len(batch.inputs) == task.count
    for row in batch.inputs.numpy():
        end = int(np.flatnonzero(row == task.separator)[1])
        whole = row[None, : 2 * end + 1]
        assert split_of(whole.astype(np.int64)) == ["validation"]


def test_a_learning_rate_is_chosen_by_validation_loss_alone(here, monkeypatch):
    words = [*GRID, "seeds=2", "tune.lr=[1e-5,2e-2]"]
    here(*words)
    tried = [store.load(path) for path in Path("runs/s-tune").glob("*/rows.jsonl")]
    rows = [row for of_run in tried for row in of_run if row.protocol != "training"]
    assert len(tried) == 4 and {(row.protocol, row.length, row.seed) for row in rows} == {("validation", 16, 0)}
    assert all(row.count == 4 * 64 for row in rows)  # four windows, in pieces of 16
    scored = {row.eval_hash for path in Path("runs/s").glob("*/rows.jsonl") for row in store.load(path)}
    assert not scored & {row.eval_hash for row in rows}
    configs = [runs.load_config(path.parent) for path in Path("runs/s").glob("*/rows.jsonl")]
    assert len(configs) == 4 and {config["optim"]["lr"] for config in configs} == {2e-2}
    best = {row.scheme: min(r.total / r.count for r in rows if r.scheme == row.scheme) for row in rows}
    for text in (Path("runs/s/table.md").read_text(), Path("runs/s/notes.json").read_text()):
        assert "least validation loss at the trained length, seed 0" in text
        assert all(f"{loss:.4f} at 0.02" in text for loss in best.values())
    for name in ("nope", "alibi"):  # the winner was not trained a second time
        first = next(Path("runs/s").glob(f"{name}-*-s0-*"))
        assert (first / "last.ckpt").read_bytes() == Path("runs/s-tune", first.name, "last.ckpt").read_bytes()
    before = checkpoints()
    here(*words)
    assert checkpoints() == before


def test_a_scheme_without_a_learning_rate_stops_no_other(monkeypatch):
    found = cells(monkeypatch, *GRID[:3], "position=nope,alibi,t5", *NANO)
    groups = choice.grouped(found, [1e-3, 2e-3])
    name = {cell.folder: cell.config["names"]["position"] for group in groups for cell in group.trials.values()}
    losses = {(n, rate): 2.0 - rate for n in ("nope", "alibi") for rate in (1e-3, 2e-3)}
    by_folder = {c.folder: losses.get((name[c.folder], r), math.inf) for g in groups for r, c in g.trials.items()}
    monkeypatch.setattr(choice, "validation_loss", by_folder.get)
    broken = next(folder for folder in name if name[folder] == "nope")
    chosen, told, failed = choice.chosen(groups, {broken: "the power failed"})
    assert [(c.config["names"]["position"], c.config["optim"]["lr"]) for c in chosen] == [("alibi", 2e-3)]
    assert len(told) == 1 and "alibi on text of 16 0.002" in told[0]
    why = {cell.config["names"]["position"]: failed[cell.folder] for cell in found if cell.folder in failed}
    assert why["nope"] == f"no learning rate, since {broken}: the power failed"
    assert why["t5"] == "tune.lr=[0.001,0.002]: the loss is finite with none; try lower ones"


def test_a_plan_is_of_the_cells_that_will_be(here, monkeypatch, capsys):
    """Their steps by the budget, the trainings that choose learning rates, and then the rates that were chosen."""
    monkeypatch.setattr(choice, "counted", lambda config: {"nope": 1.0, "alibi": 2.0}[config["names"]["position"]])
    monkeypatch.setattr(estimate, "_tried_apart", lambda config: estimate.Cost(1.0, 1.0, 1, ""))
    words = [*GRID, "budget=flops", "tune.lr=[1e-3,2e-2]"]
    here(*words, "plan=true")
    told = capsys.readouterr().out
    assert told.startswith("6 cells of quickstart") and "4 of them choose among the learning rates" in told
    assert told.count(" 384 tokens") == told.count(" 192 tokens") == 3 and not Path("runs").exists()
    monkeypatch.setattr(launch, "finished", lambda cell: True)
    monkeypatch.setattr(choice, "validation_loss", lambda folder: 1.0)  # a tie, which the least rate wins
    here(*words, "plan=true")
    told = capsys.readouterr().out
    assert told.count("  finished ") == 6 and "nothing to do" in told
    for cell in cells(monkeypatch, *GRID):
        steps = {"nope": 6, "alibi": 3}[cell.config["names"]["position"]]
        assert f"\n{cell.having(f'optim.steps={steps}', 'optim.lr=1e-3').folder.name} " in told


def test_a_validation_loss_is_that_of_the_training():
    """By the formula, in float64."""
    from posenc_train.build import build_sampling
    from posenc_train.evaluation.validation import validated

    cfg = compose("train", ["position=alibi", *NANO])
    task = build_task(cfg)
    model = build_model(cfg, task).eval()
    found = validated(model, task, 16, 64, build_sampling(cfg), tokens=50)
    batch = task.held_out(16, 64)
    with torch.no_grad():
        logits = model(batch.inputs).double()
    expected = -logits.log_softmax(-1).gather(-1, batch.targets[..., None]).sum()
    assert found.total == pytest.approx(expected.item(), rel=1e-6) and found.count == batch.targets.numel()


def test_budgets_are_equal_costs(monkeypatch, tmp_path):
    """Steps times the cost of a step are those of no positions; what was measured once is kept."""
    monkeypatch.chdir(tmp_path)
    costs = {"nope": 2.0, "alibi": 3.0, "t5": 5.0}
    asked = []

    def cost(config):
        asked.append(config["names"]["position"])
        return costs[asked[-1]]

    monkeypatch.setattr(choice, "counted", cost)
    found = cells(monkeypatch, *GRID[:3], "position=nope,alibi,t5", *NANO, "optim.steps=30")
    for _ in range(2):
        changed, note = choice.budgeted(found, "flops")
        assert {cell.config["names"]["position"]: cell.config["optim"]["steps"] for cell in changed} == {
            "nope": 30, "alibi": 20, "t5": 12,
        }  # fmt: skip
        assert sorted(asked) == ["alibi", "nope", "t5"] and "alibi on text of 16 20" in note
    rotary = cells(monkeypatch, *GRID[:3], "position=rope", "extension=[none,pi]", *NANO)
    costs["rope"] = 2.0
    assert choice.budgeted(rotary, "flops")[0][0].config["optim"]["steps"] == 6  # no positions are not extended
    asked.clear()
    monkeypatch.setattr(estimate, "tried", lambda config: estimate.Cost(cost(config), 0.0, 0, ""))
    changed, _ = choice.budgeted(found, "time")
    assert sorted(cell.config["optim"]["steps"] for cell in changed) == [12, 20, 30] and len(asked) == 3


# ---- death at any moment ---------------------------------------------------------------------------------


def dies(point: str, words: list[str]) -> None:
    """The study, in this process, until it kills itself at a point."""
    from posenc_train import report
    from posenc_train.evaluation import evaluate
    from posenc_train.training import fit, module

    def at(thing, name: str, number: int, when=lambda *a, **k: True) -> None:
        calls, real = [], getattr(thing, name)

        def wrapped(*arguments, **settings):
            if when(*arguments, **settings):
                calls.append(name)
                if len(calls) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **settings)

        setattr(thing, name, wrapped)

    at_points = {
        "training": lambda: at(module.Training, "training_step", 4),
        "saving": lambda: at(fit.Checkpoints, "save", 2),
        "evaluation": lambda: at(evaluate, "token_losses", 2),
        "writing": lambda: at(os, "replace", 1, lambda old, new: Path(new).name == "rows.jsonl"),
        "remembering": lambda: at(runs, "remember", 1),
        "aggregation": lambda: at(report, "write", 2),
        "the last table": lambda: at(os, "replace", 1, lambda old, new: str(new) == "runs/s/table.md"),
    }
    at_points.get(point, lambda: None)()
    with open("out.txt", "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [str(ROOT / "scripts" / "reproduce.py")]
    launch.hydra_line = lambda: ["hydra/launcher=basic"]
    study.command_line = lambda: words
    run("reproduce", *[word for word in words if "," not in word.partition("=")[2] or "[" in word])


def in_another_process(point: str, words: list[str]) -> int:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["posenc_train.launch", "posenc_train.choice", "posenc_train.report.figures"])
    process = context.Process(target=dies, args=(point, words))
    process.start()
    process.join()
    return process.exitcode


def numbers(root: Path) -> list[tuple]:
    """All of the table but times and memory."""
    with open(root / "runs" / "s" / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    left_out = [key for key in rows[0] if "second" in key or key == "bytes" or "peak" in key]
    assert left_out
    return [tuple(value for key, value in row.items() if key not in left_out) for row in rows]


DEATHS = ["training", "saving", "evaluation", "writing", "remembering", "aggregation", "the last table"]


def test_killed_anywhere_the_study_ends_the_same(tmp_path, monkeypatch):
    """SIGKILL in training, in saving, in evaluation, in writing and in aggregation, the same command after each."""
    words = [*GRID, "model.dropout=0.1", "trainer.checkpoint_every=2"]
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    assert in_another_process("", words) == 0, Path("out.txt").read_text()
    monkeypatch.chdir(tmp_path / "broken")
    for point in DEATHS:
        assert in_another_process(point, words) == -9, f"{point}: {Path('out.txt').read_text()[-2000:]}"
    assert in_another_process("", words) == 0
    assert numbers(tmp_path / "broken") == numbers(tmp_path / "whole") and len(numbers(tmp_path / "whole")) >= 8


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_at_ten_random_moments(tmp_path):
    """All processes of the study at once, as in a power cut."""
    words = [*GRID, "model.dropout=0.1", "trainer.checkpoint_every=2", "optim.steps=200"]
    command = [sys.executable, ROOT / "scripts" / "reproduce.py", *words]
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    assert subprocess.run(command, cwd=tmp_path / "whole", capture_output=True).returncode == 0
    draw, mark, kills = random.Random(0), f"STUDY_OF={tmp_path}", 0
    environment = os.environ | dict([mark.split("=", 1)])
    while kills < 10:
        process = subprocess.Popen(
            command, cwd=tmp_path / "broken", env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(timeout=draw.uniform(5, 30))
        except subprocess.TimeoutExpired:
            kills += 1
        for number in [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]:
            try:
                if mark.encode() in Path("/proc", number, "environ").read_bytes().split(b"\0"):
                    os.kill(int(number), signal.SIGKILL)
            except (OSError, ProcessLookupError):
                continue
        if process.wait() == 0:
            shutil.rmtree(tmp_path / "broken" / "runs")  # finished before it could be killed often enough: once more
    assert subprocess.run(command, cwd=tmp_path / "broken", capture_output=True).returncode == 0
    assert numbers(tmp_path / "broken") == numbers(tmp_path / "whole")


# ---- launchers -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["joblib", "submitit_local"])
def test_a_launcher_runs_the_cells(tmp_path, name):
    pytest.importorskip(f"hydra_plugins.hydra_{name.partition('_')[0]}_launcher")
    command = [sys.executable, ROOT / "scripts" / "reproduce.py", *GRID, f"hydra/launcher={name}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and "2 of 2 done" in done.stderr, done.stderr
    assert len(list((tmp_path / "runs" / "s").glob("*/cell.json"))) == 2


def test_a_launcher_that_is_not_installed_is_named(monkeypatch):
    from posenc_train.config import _explain

    error = type("Missing", (Exception,), {"missing_cfg_file": "hydra/launcher/ray", "options": None})("x")
    assert _explain(error, "reproduce", ["hydra/launcher=ray"]) == (
        "hydra/launcher=ray: is not installed; pip install -e '.[launchers]'"
    )


def test_a_launched_cell_that_fails_tells_why(here):
    grid = ["study=s task=copy position=nope", "study=s task=copy position=own position._target_=nowhere.Wave"]
    small = [word for word in NANO if not word.startswith(("task.", "protocol"))]
    with pytest.raises(UserError, match=r"1 cell failed: runs/s/own-copy.*nowhere.Wave.*exit code 2; all it said: "):
        here(f"experiment.grid={grid}", *small)
    assert len(list(Path("runs/s").glob("*/cell.json"))) == 1


def test_the_folder_of_a_launched_cell_is_that_of_the_plan(monkeypatch):
    """A launcher composes again, from the overrides."""
    for cell in cells(monkeypatch, *GRID):
        assert run_folder(compose("train", cell.overrides)) == cell.folder
    assert math.isfinite(estimate.operations(cell.config, 256, 1))
