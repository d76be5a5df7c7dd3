"""Numbers of the six schemes, from the papers' formulas and from float64 computed here, independently of the code."""

import math

import numpy as np
import pytest
import torch

from posenc_train.model.attend import attend
from posenc_train.positions.alibi import Alibi, slopes
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.learned import Learned
from posenc_train.positions.nope import Nope
from posenc_train.positions.rope import Rope, frequencies, turn
from posenc_train.positions.sinusoidal import Sinusoidal, sinusoids
from posenc_train.positions.t5 import T5

DIMS = Dims(width=16, heads=4, head_width=4, layers=1, train_length=32)
BOTH_SIDES = Dims(width=16, heads=4, head_width=4, layers=1, train_length=32, causal=False)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)


# ---- none (Kazemnejad et al. 2023): order enters through the mask alone


def test_nope_sees_a_set_of_earlier_tokens():
    q, k, v = torch.randn(3, 1, 4, 10, 4)
    order = [8, 3, 5, 1, 7, 0, 2, 6, 4, 9]
    span = Span.of(10)
    out = attend(q, k, v, Nope(DIMS), span)
    shuffled = attend(q, k[:, :, order], v[:, :, order], Nope(DIMS), span)
    assert torch.allclose(out[:, :, 9], shuffled[:, :, 9], atol=1e-6)
    assert not torch.allclose(out[:, :, 4], shuffled[:, :, 4], atol=1e-3)


def test_nope_averages_equal_keys():
    v = torch.randn(1, 4, 10, 4)
    out = attend(torch.randn(1, 4, 10, 4), torch.ones(1, 4, 10, 4), v, Nope(DIMS), Span.of(10))
    assert torch.allclose(out, v.cumsum(2) / torch.arange(1, 11)[:, None], atol=1e-6)


# ---- sinusoidal (Vaswani et al. 2017, section 3.5)


def test_sinusoidal_values():
    assert torch.allclose(sinusoids(torch.tensor(1), 4), vector(0.841471, 0.540302, 0.00999983, 0.99995), atol=1e-6)
    assert torch.allclose(sinusoids(torch.tensor(1000), 4), vector(0.826880, 0.562379, -0.544021, -0.839072), atol=1e-4)


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


# ---- learned


def test_learned_adds_its_rows():
    scheme = Learned(DIMS)
    pos = torch.tensor([[0, 31, 5]])
    assert torch.equal(scheme.embed(torch.zeros(1, 3, 16), pos)[0], scheme.table[[0, 31, 5]])
    assert scheme.table.shape == (32, 16) and scheme.reach == 32
    assert 0.015 < scheme.table.std() < 0.025


def test_learned_refuses_what_it_cannot_represent():
    with pytest.raises(ValueError, match="reach 32 tokens, not 33"):
        Learned(DIMS).embed(torch.zeros(1, 1, 16), torch.tensor([32]))


def test_learned_clamp():
    scheme = Learned(DIMS, reach=20, beyond="clamp")
    out = scheme.embed(torch.zeros(1, 2, 16), torch.tensor([19, 25]))[0]
    assert torch.equal(out[0], out[1]) and scheme.reach is None


# ---- RoPE (Su et al. 2021)


@pytest.mark.parametrize(
    "pairing, position, expected",
    [
        ("interleaved", 3, (-1.272233, -1.838865, 2.878668, 4.088187)),
        ("half", 3, (-1.413353, 1.879118, -2.828857, 4.058191)),
        ("interleaved", 1, (-1.1426, 1.9221, 2.9599, 4.0298)),
        ("half", 1, (-1.9841, 1.9599, 2.4624, 4.0198)),
        ("half", 0, (1, 2, 3, 4)),
        ("interleaved", 0, (1, 2, 3, 4)),
    ],
)
def test_rope_values(pairing, position, expected):
    x = vector(1, 2, 3, 4).view(1, 1, 1, 4)
    out = turn(x, torch.tensor([position]), frequencies(4), pairing).flatten()
    assert torch.allclose(out, vector(*expected), atol=6e-5)
    assert out.norm().item() == pytest.approx(30**0.5, rel=1e-6)


def test_rope_pairings_are_one_scheme_up_to_a_permutation():
    x = torch.randn(1, 2, 5, 4)
    order = [0, 2, 1, 3]
    half = turn(x[..., order], torch.arange(5), frequencies(4), "half")
    assert torch.allclose(half, turn(x, torch.arange(5), frequencies(4), "interleaved")[..., order])


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("first", [2, 102])
def test_rope_score_depends_on_the_distance(pairing, first):
    q, k = (vector(*x).view(1, 1, 1, 4) for x in ((1, 0, 0, 1), (0, 1, 1, 0)))
    scheme = Rope(Dims(4, 1, 4, 1, 32), pairing=pairing)
    a, b = scheme.rotate(q, k, Span(torch.tensor([first + 3]), torch.tensor([first])))
    assert (a * b).sum().item() == pytest.approx(0.111124508, abs=2e-6)
    ones = torch.ones(1, 1, 1, 4)
    a, b = scheme.rotate(ones, ones, Span(torch.tensor([first + 3]), torch.tensor([first])))
    assert (a * b).sum().item() == pytest.approx(2 * math.cos(3) + 2 * math.cos(0.03), abs=2e-6)


def test_rope_angles_at_far_positions():
    """bfloat16 positions would be wrong by up to 2.0 in the cosine below 4,096."""
    pos = torch.arange(0, 65536, 97)
    ones = torch.ones(1, 1, len(pos), 64)
    cosines = (turn(ones, pos, frequencies(64), "half") + turn(ones, -pos, frequencies(64), "half"))[0, 0, :, :32] / 2
    exact = np.cos(pos.numpy()[:, None] * 10000.0 ** (-np.arange(0, 64, 2) / 64))
    assert np.abs(cosines.numpy() - exact).max() < 5e-3


def test_rope_refuses_an_odd_head():
    with pytest.raises(ValueError, match="65: rotary positions need an even head width"):
        Rope(Dims(520, 8, 65, 1, 32))


# ---- ALiBi (Press et al. 2021, and the authors' rule for other numbers of heads)


@pytest.mark.parametrize(
    "heads, expected",
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (3, [0.0625, 0.00390625, 0.25]),
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [2**-n for n in range(1, 9)]),
        (12, [2**-n for n in range(1, 9)] + [0.70710678, 0.35355339, 0.1767767, 0.08838835]),
        (16, [2 ** (-n / 2) for n in range(1, 17)]),
    ],
)
def test_alibi_slopes(heads, expected):
    assert slopes(heads) == pytest.approx(expected, rel=1e-7)


def test_alibi_bias_is_minus_slope_times_distance():
    bias = Alibi(Dims(16, 8, 2, 1, 32)).by_distance(torch.tensor([0, 1, 8191]))
    assert torch.equal(bias[:, 0], torch.zeros(8))
    assert torch.equal(bias[:, 1], -torch.tensor(slopes(8))) and torch.equal(bias[:, 2], 8191 * bias[:, 1])


def test_alibi_is_added_after_scaling_and_not_scaled():
    """With q = 0 the weights are softmax(-m distance) alone."""
    zero, v = torch.zeros(1, 4, 6, 4), torch.eye(6)[:, :4].expand(1, 4, 6, 4).contiguous()
    out = attend(zero, zero, v, Alibi(DIMS), Span.of(6))
    for head, slope in enumerate((2**-2, 2**-4, 2**-6, 2**-8)):
        weights = np.exp(-slope * (5 - np.arange(6)))
        assert np.allclose(out[0, head, 5].numpy(), (weights / weights.sum())[:4], atol=1e-6)


# ---- T5 (Raffel et al. 2020; integer borders, as the formula in exact arithmetic has them)

CAUSAL_BORDERS = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]  # first distance of buckets 16 … 31
SIDED_BORDERS = [8, 12, 16, 23, 32, 46, 64, 91]  # of buckets 8 … 15


def by_borders(distance: int, exact: int, borders: list[int]) -> int:
    return distance if distance < exact else exact - 1 + sum(distance >= border for border in borders)


def test_t5_causal_buckets():
    distance = torch.arange(-50, 5000)
    found = T5(DIMS).bucket(distance).tolist()
    assert found == [by_borders(max(0, d), 16, CAUSAL_BORDERS) for d in distance.tolist()]
    far = torch.tensor([0, 1, 15, 16, 19, 24, 32, 64, 91, 113, 128, 1000, 8191, 100000])
    assert T5(DIMS).bucket(far).tolist() == [0, 1, 15, 16, 17, 19, 21, 26, 29, 31, 31, 31, 31, 31]


def test_t5_bidirectional_buckets():
    """Distance is positive towards the past, as T5's key - query is negative; the future adds 16."""
    distance = torch.arange(-5000, 5000)
    found = T5(BOTH_SIDES).bucket(distance).tolist()
    assert found == [by_borders(abs(d), 8, SIDED_BORDERS) + 16 * (d < 0) for d in distance.tolist()]
    past = torch.tensor([0, 1, 15, 16, 19, 24, 32, 64, 91, 113])
    assert T5(BOTH_SIDES).bucket(past).tolist() == [0, 1, 9, 10, 10, 11, 12, 14, 15, 15]


def test_t5_buckets_follow_max_distance_and_no_length():
    assert T5(DIMS, max_distance=1024).bucket(torch.tensor([64])).item() == 21
    long = Dims(16, 4, 4, 1, train_length=4096)
    assert torch.equal(T5(long).bucket(torch.arange(5000)), T5(DIMS).bucket(torch.arange(5000)))


def test_t5_with_enough_buckets_is_a_table_by_distance():
    scheme = T5(DIMS, buckets=64, max_distance=65)
    assert torch.equal(scheme.by_distance(torch.arange(32)), scheme.table[:32].T)


@pytest.mark.parametrize("settings", [{"max_distance": 16}, {"buckets": 1}, {"buckets": 0}])
def test_t5_refuses_pairs_without_a_formula(settings):
    with pytest.raises(ValueError, match="position.buckets=.*must be at least 1 and less than max_distance"):
        T5(DIMS, **settings)


def test_t5_starts_as_t5_does():
    assert T5(Dims(256, 64, 4, 1, 32)).table.std().item() == pytest.approx(256**-0.5, rel=0.1)


# ---- settings and contracts that one value would not show


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope_positions_are_float32_beside_bfloat16_vectors(pairing):
    """Positions rounded to bfloat16 would be off by up to 16 at 4,000."""
    pos, x = torch.arange(4000, 4300), torch.randn(1, 4, 300, 8).bfloat16()
    low = turn(x, pos, frequencies(8), pairing).float()
    assert torch.allclose(low, turn(x.float(), pos, frequencies(8), pairing), atol=3e-2)


def test_the_base_is_used():
    dims, ones = Dims(8, 1, 8, 1, 32), torch.ones(1, 1, 1, 8)
    out, _ = Rope(dims, base=100.0).rotate(ones, ones, Span(torch.tensor([3]), torch.tensor([3])))
    theta = 100.0 ** (-np.arange(0, 8, 2) / 8)
    expected = np.concatenate([np.cos(3 * theta) - np.sin(3 * theta), np.cos(3 * theta) + np.sin(3 * theta)])
    assert np.allclose(out.flatten().numpy(), expected, atol=1e-6)
    added = Sinusoidal(DIMS, base=100.0).embed(torch.zeros(1, 1, 16), torch.tensor([3]))[0, 0]
    assert added[2].item() == pytest.approx(math.sin(3 * 100 ** (-2 / 16)), abs=1e-6)


def test_learned_clamp_is_the_last_row_and_unreached_rows_are_those_behind_the_length():
    scheme = Learned(DIMS, reach=20, beyond="clamp")
    assert torch.equal(scheme.embed(torch.zeros(1, 1, 16), torch.tensor([25]))[0, 0], scheme.table[19])
    assert Learned(DIMS).unreached(5)["table"][:, 0].tolist() == [False] * 5 + [True] * 27


def test_t5_unreached_buckets_of_both_sides():
    reached = ~T5(BOTH_SIDES).unreached(3)["table"][:, 0]
    assert reached.nonzero().flatten().tolist() == [0, 1, 2, 17, 18]


def test_alibi_is_symmetric():
    scheme = Alibi(BOTH_SIDES)
    assert torch.equal(scheme.by_distance(torch.tensor([-3])), scheme.by_distance(torch.tensor([3])))
