"""The optimizer: which parameters decay, the schedule, clipping."""

import pytest
import torch
from running import NANO, run

from posenc_train.build import build_model
from posenc_train.config import compose, run_folder
from posenc_train.tasks.copy import Copy
from posenc_train.training.module import parameter_groups, rate


@pytest.mark.parametrize("position", ["t5", "learned"])
def test_positions_embeddings_and_norms_do_not_decay(position):
    model = build_model(compose("train", ["model=nano", "task=copy", f"position={position}"]), Copy())
    decayed, free = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    kept = {names[id(parameter)] for parameter in free["params"]}
    assert kept == {n for n in names.values() if "norm" in n or "embedding" in n or n.startswith("positions.")}
    assert {names[id(p)] for p in decayed["params"]} | kept == set(names.values())


def test_the_rate_rises_to_its_peak_and_falls_along_half_a_cosine():
    expected = {0: 0.1, 8: 0.9, 9: 1.0, 10: 1.0, 55: 0.55, 100: 0.1, 120: 0.1}
    assert {step: rate(step, 100, 0.1, 0.1) for step in expected} == pytest.approx(expected)
    assert rate(0, 100, 0.0, 0.1) == 1.0


def test_gradients_are_clipped(tmp_path, monkeypatch):
    """AdamW's step hardly depends on the gradient's size, except beside its epsilon: a tiny norm all but stops it."""
    monkeypatch.chdir(tmp_path)
    ends = {}
    for clip in ("1.0", "1e-12"):
        words = [*NANO, "logger=none", "optim.weight_decay=0", f"optim.clip={clip}"]
        config = compose("train", words)
        start = build_model(config, type("Bytes", (), {"vocab": 256, "marks": 0, "pooled": False})()).state_dict()
        run("train", *words)
        end = torch.load(run_folder(config) / "last.ckpt", weights_only=True)["state_dict"]
        ends[clip] = max((end[f"model.{key}"] - value).abs().max().item() for key, value in start.items())
    assert ends["1e-12"] < 0.01 * ends["1.0"]
