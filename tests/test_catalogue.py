"""The catalogue says what is so: its numbers, its words, and what the tests verify."""

import re

import pytest
import torch
from running import run

from posenc_train import catalogue
from posenc_train.build import build_schemes
from posenc_train.checks import choices, file_settings
from posenc_train.config import UserError
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.fire import Fire
from posenc_train.positions.learned import Learned
from posenc_train.positions.logn import Logn
from posenc_train.positions.nope import Nope
from posenc_train.positions.pope import Pope
from posenc_train.positions.rope import Rope
from posenc_train.positions.t5 import T5
from posenc_train.positions.window import Window

DIMS = Dims(width=64, heads=4, head_width=16, layers=4, train_length=128)
NAMES = [name for name in choices("position") if name != "own"]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_the_formula_of_the_parameters_gives_their_number(name, causal):
    """Read as arithmetic over the model's sizes and the scheme's settings: "heads x buckets" at 4 and 32 is 128."""
    if name.startswith(("xpos", "fox", "cope", "path")) and not causal:
        return
    dims, settings = Dims(**vars(DIMS) | {"causal": causal}), file_settings("position", name)
    for scheme in set(build_schemes(settings, dims)):
        formula, _, where = scheme.parameters_formula.partition(", ")
        known = vars(dims)
        for part in (settings, *settings.get("parts", {}).values()):
            known = known | {key: value for key, value in part.items() if value is not None}
        for part in filter(lambda module: isinstance(module, PositionScheme), scheme.modules()):
            known |= {key: value for key, value in vars(part).items() if type(value) in (int, float)}
        python = re.sub(r"\bx\b", "*", formula).replace("^", "**")
        python = re.sub(r"(\d) (?=[a-z])", r"\1 * ", python)
        assert eval(python, {}, known) == sum(p.numel() for p in scheme.parameters()), (formula, where)


def test_every_scheme_is_verified_and_nothing_else():
    marked, there = catalogue.markers(), {*NAMES, *choices("sampling"), *choices("extension")}
    composed = {name for name in NAMES if "parts" in file_settings("position", name)}
    assert set(marked) <= there, "a test verifies what does not exist"
    assert set(NAMES) - composed <= set(marked), "nothing verifies these"


def test_what_has_no_independent_implementation_is_named_so():
    found = {entry.name: entry.verified for entry in catalogue.entries(DIMS)}
    assert "transformers" in found["rope"] and "no independent" not in found["rope"]
    for name in ("kerple_log", "fire", "hard_alibi", "logn", "ssmax"):
        assert "no independent implementation" in found[name]
    assert "no independent" not in found["nope"] + found["clipped"]


def test_what_is_unverified_is_named_so():
    """The first summand of Sandwich, the first scale of SSMax: the sources do not settle them."""
    found = {entry.name: entry.verified for entry in catalogue.entries(DIMS)}
    for name in ("sandwich", "ssmax", "fope"):
        assert found[name].endswith("in part unverified, see its docstring")
    assert not any("unverified" in found[name] for name in ("rope", "alibi", "t5", "kerple_log"))


@pytest.mark.parametrize(
    "scheme, enters, cost",
    [
        (Nope(DIMS), [], "none"),
        (Learned(DIMS, every_layer=True), ["embedding", "every layer"], "none"),
        (Rope(DIMS), ["q and k"], "none"),
        (Pope(DIMS), ["q and k"], "q, k and v 2 times as wide"),
        (Logn(Dims(64, 4, 16, 3, 2)), ["q"], "none"),
        (Alibi(DIMS), ["bias by distance"], "one vector a head"),
        (Window(DIMS), ["mask"], "one vector a head"),
        (Window(DIMS, sinks=1), ["mask"], "a mask for 256 queries at a time"),
        (Fire(DIMS), ["bias"], "a mask for 256 queries at a time"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_where_a_scheme_enters_and_what_it_costs(scheme, enters, cost):
    assert catalogue.enters(scheme, DIMS) == enters
    assert catalogue.cost(scheme, DIMS) == cost


def test_one_copy_or_one_a_layer_is_counted():
    found = {entry.name: entry for entry in catalogue.entries(DIMS)}
    assert found["t5"].learned == "128 = buckets x heads"  # one table for four layers
    assert found["ssmax"].learned == "16 = heads, a layer"
    assert sum(p.numel() for p in T5(DIMS).parameters()) == 128
    assert found["learned"].reach == "128 tokens" and found["rope"].reach == "any"


def test_it_is_printed_within_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run("schemes")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    heads = {line.strip() for line in lines}
    assert {f"position={name}" for name in NAMES if name != "logn"} <= heads
    assert {"extension=yarn", "sampling=pose", "position=logn, extension=logn"} <= heads


def test_one_scheme_can_be_asked_for(capsys):
    run("schemes", "only=[rope,yarn]", "model=base")
    said = capsys.readouterr().out
    assert said.startswith("width 1024, 16 heads") and "position=rope" in said and "extension=yarn" in said
    assert "position=alibi" not in said
    with pytest.raises(UserError, match="only=roep: no such scheme; did you mean rope?"):
        run("schemes", "only=[roep]")
