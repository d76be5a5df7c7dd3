"""Absolute positions and their fusion with embeddings, from the formulas and from float64 computed here."""

import copy
import math

import numpy as np
import pytest
import torch

from posenc_train.positions.absolute import FUSIONS
from posenc_train.positions.base import Dims
from posenc_train.positions.integer import Integer
from posenc_train.positions.learned import Learned
from posenc_train.positions.sinusoidal import Sinusoidal, sinusoids

DIMS = Dims(width=16, heads=4, head_width=4, layers=1, train_length=32)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)


def random_weights(scheme):
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return scheme


# ---- sinusoidal (Vaswani et al. 2017, section 3.5)


@pytest.mark.verifies("sinusoidal", "values of the formula, arXiv 1706.03762, section 3.5")
def test_sinusoidal_values():
    assert torch.allclose(sinusoids(torch.tensor(1), 4), vector(0.841471, 0.540302, 0.00999983, 0.99995), atol=1e-6)
    assert torch.allclose(sinusoids(torch.tensor(1000), 4), vector(0.826880, 0.562379, -0.544021, -0.839072), atol=1e-4)


@pytest.mark.verifies("sinusoidal", "formula in float64, arXiv 1706.03762, section 3.5")
def test_sinusoidal_against_float64():
    table = sinusoids(torch.arange(4096), 64).numpy()
    angle = np.arange(4096)[:, None] / 10000.0 ** (np.arange(0, 64, 2) / 64)
    assert np.abs(table[:, 0::2] - np.sin(angle)).max() < 5e-4  # float32 angles up to 4096
    assert np.abs(table[:, 1::2] - np.cos(angle)).max() < 5e-4


def test_sinusoidal_geometry():
    table = sinusoids(torch.arange(600), 64)
    assert torch.allclose(table.square().sum(-1), torch.full((600,), 32.0), atol=1e-3)
    products = (table[:-7] * table[7:]).sum(-1)  # PE(p) . PE(p + 7) is one number
    assert torch.allclose(products, products[0].expand_as(products), atol=2e-3)


def test_sinusoidal_of_an_odd_width_ends_on_a_sine():
    assert torch.allclose(sinusoids(torch.tensor(3), 5)[-1], torch.tensor(3 / 10000 ** (4 / 5)).sin())
    assert sinusoids(torch.arange(3), 5).shape == (3, 5)


def test_sinusoidal_adds_its_scaled_table_once():
    x = torch.randn(2, 6, 16)
    out = Sinusoidal(DIMS, scale=0.5).embed(x, torch.arange(6))
    assert torch.allclose(out - x, 0.5 * sinusoids(torch.arange(6), 16).expand(2, -1, -1), atol=1e-6)


def test_sinusoidal_base():
    added = Sinusoidal(DIMS, base=100.0).embed(torch.zeros(1, 1, 16), torch.tensor([3]))[0, 0]
    assert added[2].item() == pytest.approx(math.sin(3 * 100 ** (-2 / 16)), abs=1e-6)


# ---- learned


@pytest.mark.verifies("learned", "formula: x + E[p]")
def test_learned_adds_its_rows():
    scheme = Learned(DIMS)
    pos = torch.tensor([[0, 31, 5]])
    assert torch.equal(scheme.embed(torch.zeros(1, 3, 16), pos)[0], scheme.table[[0, 31, 5]])
    assert scheme.table.shape == (32, 16) and scheme.reach == 32
    assert 0.015 < scheme.table.std() < 0.025


def test_learned_refuses_what_it_cannot_represent():
    with pytest.raises(ValueError, match="reach 32 tokens, not 33"):
        Learned(DIMS).embed(torch.zeros(1, 1, 16), torch.tensor([32]))


@pytest.mark.parametrize("beyond, row", [("clamp", 19), ("wrap", 5)])
def test_learned_beyond_its_table(beyond, row):
    """E(L + 5) is E(L - 1), or E(5)."""
    scheme = Learned(DIMS, reach=20, beyond=beyond)
    out = scheme.embed(torch.zeros(1, 3, 16), torch.tensor([19, 25, 3]))[0]
    assert torch.equal(out, scheme.table[[19, row, 3]]) and scheme.reach is None


def test_learned_refuses_another_way_beyond():
    with pytest.raises(ValueError, match="position.beyond=guess: must be refuse, clamp or wrap"):
        Learned(DIMS, beyond="guess")


def test_learned_rows_between_two_rows():
    scheme = Learned(DIMS, reach=4)
    out, table = scheme.rows_at(vector(0, 0.25, 2.5, 3, 3.5, 9)), scheme.table.detach().double().numpy()
    expected = [
        table[0],
        0.75 * table[0] + 0.25 * table[1],
        0.5 * table[2] + 0.5 * table[3],
        table[3],
        table[3],
        table[3],
    ]
    assert np.allclose(out.detach().numpy(), expected, atol=1e-7)
    assert torch.equal(scheme.rows_at(torch.tensor([[2, 7]])), scheme.table[None, [2, 3]])


@pytest.mark.parametrize("beyond", ["refuse", "clamp", "wrap"])
def test_learned_stretched_by_two(beyond):
    """E'(2p) = E(p), and halfway between two rows is their mean. The scheme that was copied stays as it was."""
    scheme = Learned(DIMS, beyond=beyond)
    stretched = copy.copy(scheme)
    stretched.stretch = 2.0
    out = stretched.vectors(torch.arange(64))
    assert torch.equal(out[0::2], scheme.table)
    assert torch.allclose(out[1:-1:2], (scheme.table[1:] + scheme.table[:-1]) / 2, atol=1e-7)
    assert torch.equal(out[63], scheme.table[31])  # the last row is held
    assert (scheme.reach, stretched.reach) == ((32, 64) if beyond == "refuse" else (None, None))
    if beyond == "refuse":
        with pytest.raises(ValueError, match="reach 64 tokens, not 65"):
            stretched.vectors(torch.tensor([64]))
        with pytest.raises(ValueError, match="reach 32 tokens, not 33"):
            scheme.vectors(torch.tensor([32]))
    if beyond == "wrap":
        assert torch.equal(stretched.vectors(torch.tensor([64 + 6])), scheme.table[[3]])


def test_learned_reach_does_not_lose_a_position_to_rounding():
    scheme = Learned(DIMS)
    for length in range(33, 3000, 7):
        scheme.stretch = length / 32 if length % 2 else 1 / (32 / length)
        assert scheme.reach == length


@pytest.mark.parametrize("stretch, first, last", [(1.0, 5, 5), (2.0, 3, 3), (4.0, 2, 2)])
def test_learned_unreached_rows_are_those_without_a_gradient(stretch, first, last):
    """Of 5 tokens: positions 0 … 4, of which halves and quarters need the next row too."""
    scheme = Learned(DIMS)
    scheme.stretch = stretch
    scheme.vectors(torch.arange(5)).sum().backward()
    unreached = scheme.unreached(5)["table"]
    assert torch.equal(unreached, scheme.table.grad == 0)
    assert unreached[:, 0].tolist() == [False] * first + [True] * (32 - last)


def test_learned_unreached_rows_behind_the_end():
    assert not Learned(DIMS, reach=20, beyond="clamp").unreached(40)["table"].any()
    assert not Learned(DIMS, reach=20, beyond="wrap").unreached(40)["table"].any()


# ---- the bare number


@pytest.mark.verifies("integer", "formula: x + p u")
@pytest.mark.parametrize("settings, unit", [({}, 1), ({"by_train_length": True}, 32)])
def test_integer(settings, unit):
    scheme = Integer(DIMS, **settings)
    pos = np.array([0, 1, 5, 4000])
    out = scheme.embed(torch.zeros(2, 4, 16), torch.from_numpy(pos))
    expected = (pos / unit)[:, None] * scheme.direction.detach().double().numpy()
    assert np.allclose(out[1].detach().numpy(), expected, rtol=1e-6)
    assert Integer(Dims(4096, 4, 4, 1, 32)).direction.std().item() == pytest.approx(4096**-0.5, rel=0.1)


# ---- fusion


def in_float64(scheme, x, p):
    """The four rules, in numpy."""
    weights = {key: value.detach().double().numpy() for key, value in scheme.named_parameters()}
    x, p = x.double().numpy(), scheme.scale * np.broadcast_to(p.detach().double().numpy(), (*x.shape[:-1], p.shape[-1]))
    both = np.concatenate([x, p], axis=-1)
    if scheme.fuse == "add":
        return x + p
    if scheme.fuse == "scaled_add":
        return x + weights["alpha"] * p
    if scheme.fuse == "concat":
        return both @ weights["mixing"].T
    g = 1 / (1 + np.exp(-(both @ weights["gate"].T + weights["gate_bias"])))
    return g * x + (1 - g) * p


@pytest.mark.parametrize("fuse, width", [("add", None), ("scaled_add", None), ("concat", 6), ("gated", None)])
@pytest.mark.parametrize("scheme_class", [Sinusoidal, Learned, Integer])
def test_fusion_against_float64(scheme_class, fuse, width):
    scheme = random_weights(scheme_class(DIMS, scale=0.5, fuse=fuse, position_width=width))
    x = torch.randn(2, 7, 16)
    for pos in (torch.arange(7), torch.randint(0, 32, (2, 7))):
        out = scheme.embed(x, pos)
        assert np.allclose(out.detach().numpy(), in_float64(scheme, x, scheme.vectors(pos)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fuse, parameter, value", [("scaled_add", "alpha", 0.0), ("gated", "gate_bias", 1e4)])
def test_fusion_that_lets_nothing_through_is_no_positions(fuse, parameter, value):
    scheme, x = Sinusoidal(DIMS, fuse=fuse), torch.randn(2, 7, 16)
    assert not torch.allclose(scheme.embed(x, torch.arange(7)), x, atol=1e-2)
    torch.nn.init.constant_(getattr(scheme, parameter), value)
    assert torch.equal(scheme.embed(x, torch.arange(7)), x)


def test_concat_with_two_identities_is_add():
    concat, add, x = Sinusoidal(DIMS, fuse="concat"), Sinusoidal(DIMS), torch.randn(2, 7, 16)
    with torch.no_grad():
        concat.mixing.copy_(torch.cat([torch.eye(16), torch.eye(16)], dim=1))
    assert torch.allclose(concat.embed(x, torch.arange(7)), add.embed(x, torch.arange(7)), atol=1e-6)


def test_fusions_start_weak():
    assert Sinusoidal(DIMS, fuse="scaled_add").alpha.item() == 0.25
    mixing = Sinusoidal(Dims(64, 4, 16, 1, 32), fuse="concat", position_width=40).mixing
    assert torch.equal(mixing[:, :64], torch.eye(64))
    assert mixing[:, 64:].shape == (64, 40) and mixing[:, 64:].std().item() == pytest.approx(0.02, rel=0.1)
    gated = Sinusoidal(DIMS, fuse="gated")
    x = torch.randn(1, 3, 16)
    g = 1 / (1 + math.exp(-2))
    assert torch.allclose(gated.embed(x, torch.arange(3)), g * x + (1 - g) * sinusoids(torch.arange(3), 16), atol=1e-6)


@pytest.mark.parametrize("fuse", list(FUSIONS))
@pytest.mark.parametrize("scheme_class", [Sinusoidal, Learned, Integer])
def test_every_number_of_a_fusion_learns_from_the_first_step_on(scheme_class, fuse):
    scheme = scheme_class(DIMS, fuse=fuse)
    x = torch.randn(3, 32, 16, requires_grad=True)
    (scheme.embed(x, torch.arange(32)) * torch.randn(3, 32, 16)).sum().backward()
    assert all((p.grad != 0).all() for p in (x, *scheme.parameters()))


@pytest.mark.parametrize("fuse", list(FUSIONS))
def test_fusion_is_float32_whatever_the_model_is(fuse):
    """Also under autocast, which would round the products of concat and gated to bfloat16."""
    scheme, x, pos = random_weights(Sinusoidal(DIMS, fuse=fuse)), torch.randn(2, 7, 16), torch.arange(7)
    exact = scheme.embed(x, pos)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(scheme.embed(x, pos), exact)
    assert torch.equal(scheme.embed(x.bfloat16(), pos), scheme.embed(x.bfloat16().float(), pos).bfloat16())


@pytest.mark.parametrize("fuse", ["add", "scaled_add", "gated"])
def test_another_width_needs_concat(fuse):
    line = f"position.position_width=6: must be null or model.width=16 with position.fuse={fuse}; .*concat takes any"
    with pytest.raises(ValueError, match=line):
        Learned(DIMS, fuse=fuse, position_width=6)
    assert Learned(DIMS, fuse=fuse, position_width=16).table.shape == (32, 16)
    assert Learned(DIMS, fuse="concat", position_width=6).table.shape == (32, 6)


def test_an_unknown_fusion_is_refused():
    with pytest.raises(ValueError, match="position.fuse=multiply: must be one of add, scaled_add, concat, gated"):
        Sinusoidal(DIMS, fuse="multiply")


@pytest.mark.parametrize("fuse, width", [("add", None), ("scaled_add", None), ("concat", 6), ("gated", None)])
def test_the_formula_of_the_number_of_parameters(fuse, width):
    scheme = Learned(DIMS, fuse=fuse, position_width=width)
    formula = scheme.parameters_formula.replace("2 width", "2 * width").replace(" x ", " * ")
    names = {"width": 16, "position_width": width or 16, "train_length": 32}
    assert eval(formula, names) == sum(p.numel() for p in scheme.parameters())
