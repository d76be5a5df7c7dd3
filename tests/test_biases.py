"""Biases by distance, from the papers' formulas and from float64 computed here, independently of the code."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from posenc_train.build import build_schemes
from posenc_train.checks import file_settings
from posenc_train.model.attend import attend
from posenc_train.positions.alibi import Alibi, slopes
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.clipped import Clipped
from posenc_train.positions.fire import Fire, progress
from posenc_train.positions.inverse import Inverse
from posenc_train.positions.kerple_log import KerpleLog, logarithmic
from posenc_train.positions.kerple_power import KerplePower, power
from posenc_train.positions.log2 import Log2
from posenc_train.positions.sandwich import Sandwich, kernel
from posenc_train.positions.t5 import T5

DIMS = Dims(width=16, heads=4, head_width=4, layers=1, train_length=32)
BOTH_SIDES = Dims(width=16, heads=4, head_width=4, layers=1, train_length=32, causal=False)
FAR = np.arange(4097)
SIDED = np.arange(-4096, 4097)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)


def of(scheme, distance):
    """The bias as numpy, [h, distance]."""
    return scheme.by_distance(torch.as_tensor(distance)).detach().numpy()


def set_to(parameter, *values):
    with torch.no_grad():
        parameter.copy_(torch.tensor(values))


def reached_by_gradient(scheme, length, causal):
    """Which entries of the table any pair of `length` tokens reads, from the gradient of the sum of all squares."""
    distance = torch.arange(0 if causal else 1 - length, length)
    with torch.no_grad():
        scheme.table.fill_(1.0)
    scheme.by_distance(distance).square().sum().backward()
    return scheme.table.grad != 0


@pytest.mark.parametrize("length", [1, 3, 9, 33, 200])
@pytest.mark.parametrize("dims", [DIMS, BOTH_SIDES], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("scheme_class", [T5, Clipped, Log2])
def test_unreached_entries_are_those_without_a_gradient(scheme_class, dims, length):
    scheme = scheme_class(dims)
    assert torch.equal(~scheme.unreached(length)["table"], reached_by_gradient(scheme, length, dims.causal))


@pytest.mark.parametrize("dims", [DIMS, BOTH_SIDES], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("scheme_class", [Alibi, T5, Clipped, Inverse, Log2, KerpleLog, KerplePower, Sandwich])
def test_any_shape_of_distances_and_finite_for_the_future(scheme_class, dims):
    scheme = scheme_class(dims)
    distance = torch.randint(-9000, 9000, (2, 3, 5))
    bias = scheme.by_distance(distance)
    assert bias.shape == (4, 2, 3, 5) and bias.dtype == torch.float32 and torch.isfinite(bias).all()
    assert torch.equal(bias.flatten(1), scheme.by_distance(distance.flatten()))


# ---- a clipped table (the index of Shaw et al. 2018)


@pytest.mark.verifies("clipped", "index matrix of the formula, arXiv 1803.02155, length 4, k = 2")
def test_clipped_index():
    distance = torch.arange(4)[:, None] - torch.arange(4)
    assert Clipped(BOTH_SIDES, clip=2).row(distance).tolist() == [
        [2, 3, 4, 4],
        [1, 2, 3, 4],
        [0, 1, 2, 3],
        [0, 0, 1, 2],
    ]
    assert Clipped(DIMS, clip=2).row(distance).tolist() == [[2, 2, 2, 2], [1, 2, 2, 2], [0, 1, 2, 2], [0, 0, 1, 2]]


@pytest.mark.verifies("clipped", "formula: table[clip(j - i, -k, k) + k], by brute force")
@pytest.mark.parametrize("dims, distances", [(DIMS, FAR), (BOTH_SIDES, SIDED)], ids=["causal", "bidirectional"])
def test_clipped_by_brute_force(dims, distances):
    scheme = Clipped(dims)
    assert scheme.table.shape == ((65, 4) if dims.causal else (129, 4)) and not scheme.table.any()
    torch.nn.init.normal_(scheme.table)
    table = scheme.table.detach().numpy()
    expected = np.stack([table[min(max(-int(d), -64), 64) + 64] for d in distances], axis=1)
    assert np.array_equal(of(scheme, distances), expected)


# ---- the inverse of the distance


@pytest.mark.verifies("inverse", "formula: 1 / (1 + |distance|)")
def test_inverse():
    expected = vector(0.2, 0.25, 1 / 3, 0.5, 1, 0.5, 1 / 3, 0.25, 0.2)
    assert torch.allclose(Inverse(BOTH_SIDES).by_distance(torch.arange(4, -5, -1)), expected.expand(4, -1))
    assert np.allclose(of(Inverse(DIMS), SIDED), 1 / (1 + np.abs(SIDED)), rtol=1e-6)
    assert not list(Inverse(DIMS).parameters())


# ---- doubling buckets


@pytest.mark.verifies("log2", "formula: d to 8, then 8 + floor(log2(d / 8)) + 1")
def test_log2_buckets():
    distance = torch.tensor([0, 8, 9, 15, 16, 31, 32, 64])
    assert Log2(DIMS).bucket(distance).tolist() == [0, 8, 9, 9, 10, 10, 11, 12]
    expected = [d if d <= 8 else 8 + math.floor(math.log2(d / 8)) + 1 for d in range(8192)]
    assert Log2(DIMS, buckets=60).bucket(torch.arange(8192)).tolist() == expected
    assert Log2(DIMS).bucket(torch.arange(8192)).tolist() == expected
    assert Log2(DIMS).bucket(torch.tensor([8191, 8192, 16384, 2**40])).tolist() == [18, 19, 19, 19]
    assert Log2(DIMS, buckets=5).bucket(torch.tensor([3, 4, 5, 100])).tolist() == [3, 4, 4, 4]


def test_log2_future():
    """Causal: bucket 0. Bidirectional: a second table behind the first."""
    distance = torch.tensor([-20, -9, -1, 0, 1, 9, 20])
    assert Log2(DIMS).bucket(distance).tolist() == [0, 0, 0, 0, 1, 9, 10]
    scheme = Log2(BOTH_SIDES)
    assert scheme.bucket(distance).tolist() == [30, 29, 21, 0, 1, 9, 10]
    assert scheme.table.shape == (40, 4) and not scheme.table.any()
    torch.nn.init.normal_(scheme.table)
    assert torch.equal(scheme.by_distance(distance), scheme.table[[30, 29, 21, 0, 1, 9, 10]].T)


# ---- ALiBi (Press et al. 2021, and the authors' rule for other numbers of heads)


@pytest.mark.verifies("alibi", "slopes of the formula and the authors' rule, arXiv 2108.12409")
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


def test_alibi_is_symmetric():
    scheme = Alibi(BOTH_SIDES)
    assert torch.equal(scheme.by_distance(torch.tensor([-3])), scheme.by_distance(torch.tensor([3])))


@pytest.mark.verifies("alibi", "formula in float64, arXiv 2108.12409")
@pytest.mark.parametrize("learned", [False, True])
def test_alibi_in_float64(learned):
    scheme = Alibi(BOTH_SIDES, learned=learned)
    expected = -np.outer([2**-2, 2**-4, 2**-6, 2**-8], np.abs(SIDED))
    assert np.array_equal(of(scheme, SIDED), expected)
    assert [p.shape for p in scheme.parameters()] == ([(4,)] if learned else [])


def test_alibi_learned_slopes_are_those_used():
    scheme = Alibi(DIMS, learned=True)
    set_to(scheme.slope, 1.0, 0.5, 0.25, -2.0)
    scheme.by_distance(torch.tensor([3])).sum().backward()
    assert of(scheme, [3])[:, 0].tolist() == [-3, -1.5, -0.75, 6] and scheme.slope.grad.tolist() == [-3] * 4


# ---- T5 (Raffel et al. 2020; integer borders, as the formula in exact arithmetic has them)

CAUSAL_BORDERS = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]  # first distance of buckets 16 … 31
SIDED_BORDERS = [8, 12, 16, 23, 32, 46, 64, 91]  # of buckets 8 … 15


def by_borders(distance: int, exact: int, borders: list[int]) -> int:
    return distance if distance < exact else exact - 1 + sum(distance >= border for border in borders)


@pytest.mark.verifies("t5", "integer borders of the formula, causal")
def test_t5_causal_buckets():
    distance = torch.arange(-50, 5000)
    found = T5(DIMS).bucket(distance).tolist()
    assert found == [by_borders(max(0, d), 16, CAUSAL_BORDERS) for d in distance.tolist()]
    far = torch.tensor([0, 1, 15, 16, 19, 24, 32, 64, 91, 113, 128, 1000, 8191, 100000])
    assert T5(DIMS).bucket(far).tolist() == [0, 1, 15, 16, 17, 19, 21, 26, 29, 31, 31, 31, 31, 31]


@pytest.mark.verifies("t5", "integer borders of the formula, bidirectional")
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


@pytest.mark.parametrize("dims, buckets", [(DIMS, 64), (BOTH_SIDES, 128)], ids=["causal", "bidirectional"])
def test_t5_with_enough_buckets_is_a_clipped_table(dims, buckets):
    """buckets/2 >= 32 tokens, bidirectional buckets/4; the clipped table counts from the other end."""
    t5, clipped = T5(dims, buckets=buckets, max_distance=100), Clipped(dims, clip=31)
    with torch.no_grad():
        clipped.table[:32] = t5.table[:32].flip(0)
        if not dims.causal:
            clipped.table[32:] = t5.table[64 + 1 : 64 + 32]
    distance = torch.arange(0 if dims.causal else -31, 32)
    assert torch.equal(t5.by_distance(distance), clipped.by_distance(distance))


@pytest.mark.parametrize("settings", [{"max_distance": 16}, {"buckets": 1}, {"buckets": 0}])
def test_t5_refuses_pairs_without_a_formula(settings):
    with pytest.raises(ValueError, match="position.buckets=.*must be at least 1 and less than max_distance"):
        T5(DIMS, **settings)


def test_t5_starts_as_t5_does():
    assert T5(Dims(256, 64, 4, 1, 32)).table.std().item() == pytest.approx(256**-0.5, rel=0.1)


def test_t5_unreached_buckets_of_both_sides():
    reached = ~T5(BOTH_SIDES).unreached(3)["table"][:, 0]
    assert reached.nonzero().flatten().tolist() == [0, 1, 2, 17, 18]


# ---- KERPLE (Chi et al. 2022)


@pytest.mark.verifies("kerple_log", "values of the formula, arXiv 2205.09921")
def test_kerple_log_values():
    found = logarithmic(torch.tensor([0, 1, 10, 512]), vector(1), vector(0.5))
    assert torch.allclose(found, vector(0, -0.405465, -1.791759, -5.549076), atol=1e-6)


@pytest.mark.verifies("kerple_power", "values of the formula, arXiv 2205.09921")
def test_kerple_power_values():
    found = power(torch.tensor([0, 1, 10, 512]), vector(0.1), vector(0.5))
    assert torch.allclose(found, vector(0, -0.1, -0.316228, -2.262742), atol=1e-6)


def kerple_log(r1, r2, distance):
    return -r1 * np.log(1 + r2 * distance)


def kerple_power(r1, r2, distance):
    return -r1 * distance**r2


@pytest.mark.verifies("kerple_log", "formula in float64, arXiv 2205.09921")
@pytest.mark.verifies("kerple_power", "formula in float64, arXiv 2205.09921")
@pytest.mark.parametrize("scheme_class, formula, most", [(KerpleLog, kerple_log, 1), (KerplePower, kerple_power, 2)])
def test_kerple_in_float64(scheme_class, formula, most):
    scheme = scheme_class(Dims(128, 64, 2, 1, 32, causal=False))
    r1, r2 = (np.maximum(p.detach().double().numpy()[:, None], 0.01) for p in (scheme.r1, scheme.r2))
    assert np.allclose(of(scheme, SIDED), formula(r1, r2, np.abs(SIDED)), rtol=1e-5)
    many = scheme_class(Dims(8000, 4000, 2, 1, 32))
    for parameter, top in (many.r1, 3 - most), (many.r2, most):  # U(0, top)
        assert 0 <= parameter.min() < 0.01 * top and 0.99 * top < parameter.max() <= top
        assert parameter.mean().item() == pytest.approx(top / 2, rel=0.05)


@pytest.mark.parametrize("scheme_class, formula", [(KerpleLog, kerple_log), (KerplePower, kerple_power)])
def test_kerple_stays_within_its_bounds_and_can_come_back(scheme_class, formula):
    scheme, distance = scheme_class(DIMS), np.arange(1, 100)
    set_to(scheme.r1, -1.0, 0.0, 0.5, 3.0)
    set_to(scheme.r2, 0.5, -2.0, 1.9, 5.0)
    top = 2 if scheme_class is KerplePower else 5
    expected = [formula(*r, distance) for r in ((0.01, 0.5), (0.01, 0.01), (0.5, 1.9), (3, top))]
    assert np.allclose(of(scheme, distance), expected, rtol=1e-5)
    scheme.by_distance(torch.arange(-50, 50)).sum().backward()
    for parameter in (scheme.r1, scheme.r2):
        assert torch.isfinite(parameter.grad).all() and (parameter.grad < 0).all()


@pytest.mark.parametrize("scheme_class", [KerpleLog, KerplePower])
def test_kerple_has_no_gradient_at_distance_zero(scheme_class):
    scheme = scheme_class(DIMS)
    scheme.by_distance(torch.tensor([0])).sum().backward()
    assert not scheme.r1.grad.any() and not scheme.r2.grad.any()


def test_kerple_power_of_exponent_one_is_alibi():
    dims = Dims(16, 6, 2, 1, 32)
    scheme = KerplePower(dims)
    set_to(scheme.r1, *slopes(6))
    set_to(scheme.r2, *[1.0] * 6)
    above = [head for head, slope in enumerate(slopes(6)) if slope > 0.01]  # the bound; 1/256 is below it
    assert len(above) == 5
    assert np.allclose(of(scheme, FAR)[above], of(Alibi(dims), FAR)[above], rtol=1e-6)


# ---- Sandwich (Chi et al. 2022)


@pytest.mark.verifies("sandwich", "values of the formula, arXiv 2212.10356, from c = 0 and from c = 1")
@pytest.mark.parametrize(
    "first, sums, heads",
    [
        (
            0,
            [64, 62.093684, 57.381861, 42.820023, 30.543455, 14.043160, -3.382614],
            [[-2.859474, -74.935260], [-0.238290, -6.244605]],
        ),
        (
            1,
            [64, 62.553381, 58.798007, 44.659094, 30.681086, 16.038683, -3.269324],
            [[-2.169928, -71.941976], [-0.180827, -5.995165]],
        ),
    ],
)
def test_sandwich_values(first, sums, heads):
    found = kernel(torch.tensor([0, 1, 2, 10, 100, 512, 4096]), 128, first)
    assert found[0] == 0 and torch.allclose(found + 64, vector(*sums), atol=1e-3)
    bias = Sandwich(Dims(48, 12, 4, 1, 32), first=first).by_distance(torch.tensor([1, 512]))
    assert torch.allclose(bias[[0, 11]], torch.tensor(heads), atol=3e-4)


@pytest.mark.verifies("sandwich", "formula in float64, arXiv 2212.10356")
@pytest.mark.parametrize("width, first", [(128, 0), (128, 1), (10, 0)])
def test_sandwich_in_float64(width, first):
    frequency = 10000.0 ** (-2 * np.arange(first, first + width // 2) / width)
    total = np.cos(np.outer(SIDED, frequency)).sum(1) - width / 2
    expected = total / (np.arange(1, 5)[:, None] * 8 / 4)
    assert np.abs(of(Sandwich(BOTH_SIDES, width, first), SIDED) - expected).max() < 2e-5 * width / 2


@pytest.mark.parametrize("settings", [{"width": 7}, {"width": 0}, {"first": 2}])
def test_sandwich_refuses(settings):
    with pytest.raises(ValueError, match="position.(width|first)=.*: must be"):
        Sandwich(DIMS, **settings)


# ---- FIRE (Li et al. 2023)


@pytest.mark.verifies("fire", "values of the formula, arXiv 2310.04418")
@pytest.mark.parametrize(
    "c, threshold, i, j, expected",
    [
        (0.1, 512, 10, 0, 0.175255),
        (0.1, 512, 511, 0, 0.999515),
        (0.1, 512, 511, 510, 0.024098),
        (0.1, 512, 1023, 0, 1.0),
        (0.1, 512, 4095, 0, 1.0),
        (0.1, 512, 4095, 4094, 0.015839),
        (1.0, 4, 7, 4, 0.666667),
        (1.0, 16, 7, 4, 0.489301),
        (0.1, 512, 0, 0, 0.0),
        (0.0, 512, 7, 4, 0.0),  # eps in the denominator: not 0 / 0
    ],
)
def test_fire_progress(c, threshold, i, j, expected):
    found = progress(torch.tensor([[i - j]]), torch.tensor([i]), torch.tensor(c), torch.tensor(float(threshold)))
    assert found.item() == pytest.approx(expected, abs=1e-6)


def fire(scheme, q_pos, k_pos):
    """The bias of one row in float64, pair by pair of positions: [h, q, k]."""
    p = {key: value.detach().double().numpy() for key, value in scheme.named_parameters()}
    threshold = abs(p["m"] * scheme.init_l)
    distance = q_pos[:, None] - k_pos
    x = np.log(np.abs(p["c"] * distance) + 1)
    x = x / (np.log(np.abs(p["c"] * np.maximum(q_pos, threshold)) + 1)[:, None] + 1e-6)
    hidden = np.maximum(p["inner"] * x[..., None] + p["inner_bias"], 0)
    return np.moveaxis(hidden @ p["outer"].T, -1, 0)


@pytest.mark.verifies("fire", "formula in float64, arXiv 2310.04418")
@pytest.mark.parametrize("dims", [DIMS, BOTH_SIDES], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("settings, m", [({}, 1.0), ({"init_l": 512, "init_c": 1.0, "hidden": 5}, -0.3)])
def test_fire_in_float64(dims, settings, m):
    scheme = Fire(dims, **settings)
    torch.nn.init.constant_(scheme.m, m)
    assert scheme.init_l == settings.get("init_l", 32)
    span = Span.of(70, cached=30, causal=dims.causal)
    found = scheme.bias(span).detach().numpy()
    expected = fire(scheme, span.q_pos.numpy(), span.k_pos.numpy())
    seen = span.allowed().numpy()
    assert found.shape == (1, 4, 70, 100) and np.isfinite(found).all()
    assert np.abs((found[0] - expected)[:, seen]).max() < 1e-5


def test_fire_of_rows_with_positions_of_their_own():
    scheme = Fire(DIMS)
    pos = torch.stack([torch.arange(0, 60, 2), torch.arange(30) + 100])
    found = scheme.bias(Span(pos[:, 10:], pos, start=10)).detach().numpy()
    assert found.shape == (2, 4, 20, 30)
    for row in range(2):
        expected = fire(scheme, pos[row, 10:].numpy(), pos[row].numpy())
        assert np.abs(found[row] - expected)[:, np.tri(20, 30, 10, dtype=bool)].max() < 1e-5


def test_fire_is_a_function_of_the_distance_up_to_its_threshold_only():
    """… and never of a length: the rows of a shorter text, and of a cache, are those of a longer."""
    scheme = Fire(DIMS)
    with torch.no_grad():
        bias = scheme.bias(Span.of(100))
        assert torch.allclose(bias[..., 5, 2], bias[..., 32, 29], atol=1e-6)
        assert not torch.allclose(bias[..., 5, 2], bias[..., 90, 87], atol=1e-3)
        assert torch.allclose(scheme.bias(Span.of(40)), bias[..., :40, :40], atol=1e-6)
        assert torch.allclose(scheme.bias(Span.of(1, cached=79)), bias[..., 79:80, :80], atol=1e-6)
        farthest = bias[..., 40:, 0]  # progress 1
        assert torch.allclose(farthest, farthest[..., :1].expand_as(farthest), atol=1e-5)


def test_fire_in_pieces_is_fire(monkeypatch):
    scheme, span = Fire(DIMS), Span.of(20)
    whole = scheme.bias(span)
    monkeypatch.setattr("posenc_train.positions.fire.PAIRS", 7)
    assert torch.allclose(scheme.bias(span), whole, atol=1e-6)


@pytest.mark.parametrize("dims", [DIMS, BOTH_SIDES], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("length", [24, 80])
def test_fire_unreached_numbers_are_those_without_a_gradient(dims, length):
    """Through softmax, in float64: below 1e-12 where `unreached` says nothing, above elsewhere. 300 units, so that all
    kinds are there: off, on for all, on at distance 0 alone, and bent between."""
    torch.manual_seed(0)
    scheme, span = Fire(dims, hidden=300), Span.of(length, causal=dims.causal)
    unreached, w = scheme.unreached(length), torch.randn(4, length, length)
    unreached["inner_bias"] = unreached["inner_bias"] | scheme.uniform(length)["inner_bias"]
    weights = scheme.bias(span)[0].masked_fill(~span.allowed(), -math.inf).softmax(-1)
    (weights * w).sum().backward()
    distance = span.distance().clamp(min=0) if dims.causal else span.distance()
    x = progress(distance, span.q_pos, scheme.c, scheme.m * 32)
    x = x.detach().double().flatten()
    exact = {key: p.detach().double().requires_grad_() for key, p in scheme.named_parameters()}
    hidden = (exact["inner"][:, None] * x + exact["inner_bias"][:, None]).relu()
    bias = (exact["outer"] @ hidden).unflatten(1, (length, length))
    weights = bias.masked_fill(~span.allowed(), -math.inf).softmax(-1)
    (weights * w.double()).sum().backward()
    for key, nothing in unreached.items():
        assert torch.equal(exact[key].grad.abs() < 1e-12, nothing)
        assert torch.equal(getattr(scheme, key).grad == 0, nothing)
        assert torch.allclose(getattr(scheme, key).grad.double(), exact[key].grad, atol=1e-4)
        assert 0 < nothing.sum() < nothing.numel()


def test_fire_starts_as_a_linear_layer_of_torch_does():
    scheme = Fire(DIMS, hidden=4000)
    for parameter, bound in (scheme.inner, 1.0), (scheme.inner_bias, 1.0), (scheme.outer, 4000**-0.5):
        assert 0.99 * bound < parameter.abs().max() <= bound
        assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    assert scheme.c.item() == pytest.approx(0.1) and scheme.m.item() == 1


# ---- all of them


@pytest.mark.parametrize("scheme_class", [Alibi, T5, Clipped, Inverse, Log2, KerpleLog, KerplePower, Sandwich, Fire])
@pytest.mark.parametrize("dims", [DIMS, BOTH_SIDES], ids=["causal", "bidirectional"])
def test_the_formula_of_the_number_of_parameters(scheme_class, dims):
    scheme = scheme_class(dims)
    formula = scheme.parameters_formula.replace("2 ", "2 * ").replace(" x ", " * ").replace("* * ", "* ")
    names = {"heads": 4, "hidden": 32, "clip": 64, "buckets": 20 if scheme_class is Log2 else 32}
    assert eval(formula, names) == sum(p.numel() for p in scheme.parameters())
    assert scheme.paper


@pytest.mark.parametrize("name", ["clipped", "t5", "fire"])
def test_one_table_for_all_layers_or_one_each(name):
    """As `shared` says."""
    dims = replace(DIMS, layers=3)
    for shared in (True, False):
        settings = dict(file_settings("position", name)) | {"shared": shared}
        assert len(set(build_schemes(settings, dims))) == (1 if shared else 3)
