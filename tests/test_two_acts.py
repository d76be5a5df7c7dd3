"""Training in two acts: the weights of one run, under another scheme, extension, sampling or length."""

import math

import pytest
import torch
import yaml
from running import ROOT, run

from posenc_train import study
from posenc_train.build import build_model, extend
from posenc_train.checks import choices, file_settings
from posenc_train.config import UserError, cell_name, check, compose, label
from posenc_train.model.attend import attend
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.extensions.drope import drope
from posenc_train.positions.nope import Nope
from posenc_train.report import store
from posenc_train.training.checkpoint import read

BYTES = type("Bytes", (), {"vocab": 256, "marks": 0, "pooled": False})()
SHRUNK = ["model=nano", "optim.steps=4", "optim.batch_size=4", "task.windows=2", "logger=none", "jobs=1"]
ACTS = [name for name in choices("experiment") if isinstance(file_settings("experiment", name)["then"], list)]


def test_a_model_under_an_extension_is_that_of_an_evaluation_under_it():
    """The very numbers; L of YaRN's ramp is the length that was trained before, not that of the fine-tuning."""
    words = ["position=rope", "model=nano", "train_length=64"]
    plain = build_model(compose("train", [*words, "train_length=16"]), BYTES).eval()
    for name in ("pi", "yarn", "ntk"):
        cfg = compose("train", [*words, f"under={{{name}:{{scale:4,trained:16}}}}"])
        check(cfg)
        trained = build_model(cfg, BYTES).eval()
        trained.load_state_dict(plain.state_dict())
        other = compose("train", [*words, "train_length=16", f"extension=[{name}]"])
        extended = plain.under(extend(other, name, plain.positions, plain.dims, 4.0))
        ids = torch.randint(0, 256, (2, 64))
        with torch.no_grad():
            assert torch.equal(trained(ids), extended(ids)) and not torch.equal(trained(ids), plain(ids))


def test_what_a_model_is_trained_under_is_in_its_names():
    words = ["position=rope", "train_length=512"]
    plain = compose("train", words)
    one = compose("train", [*words, "under={pi:{scale:4,trained:128}}"])
    other = compose("train", [*words, "under={pi:{scale:8,trained:64}}"])
    assert len({cell_name(cfg) for cfg in (plain, one, other)}) == 3
    assert label(one, "position") == "rope under pi(scale=4, trained=128)"
    spelt = compose("train", [*words, "under={pi:{scale:4.0,trained:128}}"])
    assert cell_name(spelt) == cell_name(one)
    assert label(compose("train", ["under={pi:{scale:4}}"]), "position") == "rope under pi(scale=4)"


@pytest.mark.parametrize(
    "words, message",
    [
        ("under={pi:{}}", "under.pi.scale=auto: must be a number of at least 1"),
        ("under={pi:{scale:true}}", "under.pi.scale=true: must be a number of at least 1"),
        ("under={pi:{scal:4}}", "under.pi.scal=4: no such key; did you mean under.pi.scale?"),
        ("under={yran:{scale:4}}", "under.yran: no such extension; did you mean yarn?"),
        ("under={none:{}}", "under.none: no such extension"),
        ("under=pi", "under=pi: must be one extension with a number as its scale"),
        ("under={yarn:{scale:4,trained:0}}", "under.yarn.trained=0: must be an integer of at least 1"),
    ],
)
def test_wrong_acts_are_refused_by_name(words, message):
    with pytest.raises(UserError, match=message):
        check(compose("train", [words]))


def test_an_extension_without_anything_to_extend_is_refused():
    with pytest.raises(UserError, match="has no rotary positions to extend"):
        build_model(compose("train", ["position=alibi", "under={pi:{scale:4}}"]), BYTES)


@pytest.mark.verifies("drope", "scores times 1 + 0.412 ln s in float64, arXiv 2512.12167")
def test_drope_scales_scores():
    dims = Dims(32, 4, 8, 1, 16)
    q, k, v = torch.randn(3, 1, 4, 20, 8)
    scores = (1 + 0.412 * math.log(4)) * (q.double() @ k.double().mT) / math.sqrt(8)
    hidden = torch.ones(20, 20, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v.double()
    assert torch.allclose(attend(q, k, v, drope(Nope(dims), dims, 4.0), Span.of(20)).double(), expected, atol=1e-5)


@pytest.mark.parametrize("experiment", ACTS)
def test_an_experiment_of_two_acts(experiment, tmp_path, monkeypatch, capsys):
    """At the least size: the second act starts from the first, and the table shows both."""
    monkeypatch.chdir(tmp_path)
    written = SHRUNK if experiment == "finetune" else [*SHRUNK, "train_length=16"]  # which has lengths of its own
    monkeypatch.setattr(study, "command_line", lambda: [f"experiment={experiment}", *written])
    monkeypatch.setattr("sys.argv", [str(ROOT / "scripts" / "reproduce.py")])
    run("reproduce", f"experiment={experiment}", *written)
    folders = [path.parent for path in (tmp_path / "runs").glob("*/*/config.yaml")]
    configs = {folder: yaml.safe_load((folder / "config.yaml").read_text()) for folder in folders}
    first = [folder for folder, cfg in configs.items() if cfg["init"] is None]
    second = [folder for folder, cfg in configs.items() if cfg["init"] is not None]
    assert len(first) == 1 and second
    for folder in second:
        assert (tmp_path / configs[folder]["init"]).resolve() == first[0].resolve()
        assert f"weights of {configs[folder]['init']} at step 4" in (folder / "train.log").read_text()
        assert read(folder / "last.ckpt").step == 4 and store.load(folder / "rows.jsonl")
    run("reproduce", f"experiment={experiment}", *written)  # costs nothing
    assert len(list((tmp_path / "runs").glob("*/*/config.yaml"))) == len(folders)
