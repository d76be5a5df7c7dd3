"""A run folder or checkpoint may come from anybody, and may go to anybody."""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from running import NANO, ROOT, run

from posenc_train.build import build_model
from posenc_train.config import UserError, compose, run_folder
from posenc_train.report import store
from posenc_train.tasks.copy import Copy
from posenc_train.training.checkpoint import initialise, load

SMALL = [word for word in NANO if not word.startswith("task.")] + ["task=copy", "task.examples=4", "logger=none"]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    root = tmp_path_factory.mktemp("honest")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return root / run_folder(run("train", *SMALL, "position=t5"))


@pytest.fixture
def folder(honest, tmp_path, monkeypatch):
    """A copy that a test may tamper with."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(honest, tmp_path / "runs" / "default" / honest.name))


def rewrite(folder: Path, change) -> None:
    config = yaml.safe_load((folder / "config.yaml").read_text())
    change(config)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


class Executes:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_checkpoint_executes_nothing(folder, tmp_path):
    state = torch.load(folder / "last.ckpt", weights_only=True)
    torch.save(state | {"config": Executes(tmp_path / "executed")}, folder / "last.ckpt")
    with pytest.raises(UserError, match="last.ckpt: is no readable checkpoint"):
        run("evaluate", f"run={folder}", "lengths=[31]")
    (folder / "before.ckpt").unlink(missing_ok=True)
    (folder / "rows.jsonl").unlink()
    with pytest.raises(UserError, match="no checkpoint in it can be read"):
        run("train", *SMALL, "position=t5")
    assert not (tmp_path / "executed").exists()


def test_a_configuration_executes_nothing(folder, tmp_path):
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text + f"extra: !!python/object/apply:os.mkdir ['{tmp_path}/executed']\n")
    with pytest.raises(UserError, match=r"no readable config.yaml"):
        run("evaluate", f"run={folder}", "lengths=[31]")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("group", ["position", "task", "sampling"])
@pytest.mark.parametrize("target", ["stranger.Scheme", "posenc_train.study.Path", "posenc_train.study.plan"])
def test_only_classes_of_this_package_without_trust(folder, tmp_path, monkeypatch, group, target):
    (tmp_path / "stranger.py").write_text(f"import os; os.mkdir('{tmp_path}/executed')")
    monkeypatch.syspath_prepend(tmp_path)
    rewrite(folder, lambda config: config.update({group: {"_target_": target}}))
    with pytest.raises(UserError, match=f"{target}.*trust=true"):
        run("evaluate", f"run={folder}", "lengths=[31]")
    assert not (tmp_path / "executed").exists() and "stranger" not in sys.modules


def test_trust_is_for_those_who_know_the_author(folder, tmp_path, monkeypatch):
    (tmp_path / "friend.py").write_text("from posenc_train.positions.t5 import T5\nclass Friend(T5):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    rewrite(folder, lambda config: config["position"].update({"_target_": "friend.Friend"}))
    run("evaluate", f"run={folder}", "lengths=[31]", "trust=true")
    assert 31 in {row.length for row in store.load(folder / "rows.jsonl")}


@pytest.mark.parametrize("file", ["last.ckpt", "config.yaml", "rows.jsonl"])
def test_a_run_stays_inside_its_folder(folder, tmp_path, file):
    outside = tmp_path / "outside"
    (folder / file).rename(outside)
    (folder / file).symlink_to(outside)
    before = outside.read_bytes()
    with pytest.raises(UserError, match=f"{file} is a link that leads out of the folder"):
        run("evaluate", f"run={folder}", "lengths=[31]")
    assert outside.read_bytes() == before


def test_a_study_name_in_a_configuration_cannot_lead_elsewhere(folder, tmp_path):
    rewrite(folder, lambda config: config.update(study="../../elsewhere"))
    with pytest.raises(UserError, match=r"study=../../elsewhere"):
        run("evaluate", f"run={folder}", "lengths=[31]")
    assert not (tmp_path.parent / "elsewhere").exists()


def test_nothing_written_tells_who_or_where(tmp_path):
    """No host, user, home folder or key in any file of a run, whatever the command line and environment hold."""
    home = tmp_path / "home" / "miriam"
    (home / "texts").mkdir(parents=True)
    (home / "texts" / "a.txt").write_text("the quick brown fox " * 400)
    (home / "texts" / "b.txt").write_text("jumps over the lazy dog " * 400)
    words = [sys.executable, ROOT / "scripts" / "train.py", *NANO, f"task.path={home}/texts", "factors=[1]"]
    secret = "0123456789abcdef0123456789abcdef01234567"
    env = os.environ | {"HOME": str(home), "WANDB_API_KEY": secret, "USER": "miriam"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "runs").rglob("*"):
        if path.is_file() and "logs" not in path.parts:
            content = path.read_bytes()
            for word in (secret, str(home), "miriam"):
                assert word.encode() not in content, f"{word} in {path}"
            if path.suffix in (".yaml", ".jsonl", ".csv", ".md", ".log"):  # a host's name may be two letters
                assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", content.decode()), path
    assert "path: ~/texts" in next((tmp_path / "runs").glob("default/*/config.yaml")).read_text()


def test_weights_of_another_model_are_refused_and_nothing_is_changed(honest):
    model = build_model(compose("train", ["model=tiny", "task=copy"]), Copy())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(UserError, match="holds the weights of another model"):
        load(model, honest / "last.ckpt")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_refused_start_leaves_nothing_behind(honest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="holds the weights of another model"):
        run("train", *SMALL, "position=nope", "model.width=64", f"init={honest}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "position, same",
    [
        ("position=t5", True),
        ("position=nope", True),
        ("position=learned", False),
        ("position=clipped position.clip=31", False),  # a table of the same name and size, of other meaning
    ],
)
def test_a_run_can_start_from_another_runs_weights(honest, tmp_path, monkeypatch, position, same):
    """init=: weights only, under the same or another scheme."""
    monkeypatch.chdir(tmp_path)
    cfg = compose("train", ["model=nano", "task=copy", *position.split(), "train_length=32", "seed=5"])
    model = build_model(cfg, Copy())
    fresh = {key: value.clone() for key, value in model.state_dict().items()}
    said = initialise(model, cfg["position"], honest)
    theirs = torch.load(honest / "last.ckpt", weights_only=True)["state_dict"]
    for key, value in model.state_dict().items():
        expected = fresh[key] if not same and key.startswith("positions.") else theirs[f"model.{key}"]
        assert torch.equal(value, expected)
    assert ("start afresh" in said) != same
    folder = run_folder(run("train", *SMALL, "position=nope", "train_length=32", f"init={honest}"))
    assert f"from weights of {honest} at step 12" in (folder / "train.log").read_text()
