"""The biases that a run's folder keeps for its report, against formulas."""

import pytest
import torch

from posenc_train.build import build_model, build_task
from posenc_train.config import compose
from posenc_train.evaluation.biases import biases
from posenc_train.positions.base import Span


def built(name: str, *words: str):
    config = compose("train", ["task=copy", "model=nano", f"position={name}", *words])
    return build_model(config, build_task(config))


def test_biases_of_alibi_are_its_slopes():
    found = biases(built("alibi"), 512)
    assert found["distances"][:17] == [*range(17)] and found["distances"][-1] == 511 and found["length"] == 512
    (layers,) = found["layers"]
    assert layers["layers"] == [0, 1]
    for head, slope in zip(layers["heads"], (2**-4, 2**-8), strict=True):
        assert head == pytest.approx([-slope * distance for distance in found["distances"]], rel=1e-4)


def test_biases_of_fire_are_those_of_the_last_query():
    model = built("fire")
    found = biases(model, 100)
    assert [layers["layers"] for layers in found["layers"]] == [[0], [1]]
    for layer, told in enumerate(found["layers"]):
        with torch.no_grad():
            whole = model.scheme(layer).bias(Span.of(100))[0, :, -1]
        wanted = whole[:, [99 - distance for distance in found["distances"]]]
        torch.testing.assert_close(torch.tensor(told["heads"]), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["rope", "nope", "fox"])
def test_what_has_no_bias_by_place_alone_has_none(name):
    assert biases(built(name), 64) == {}
