"""Rotary schemes and those that scale queries: numbers from the papers' formulas and from float64 computed here."""

import math

import numpy as np
import pytest
import torch

from posenc_train.model.attend import attend
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.fope import Fope
from posenc_train.positions.logn import Logn
from posenc_train.positions.nope import Nope
from posenc_train.positions.p_rope import PRope
from posenc_train.positions.pope import Pope
from posenc_train.positions.rope import Rope, frequencies, turn
from posenc_train.positions.ssmax import Ssmax
from posenc_train.positions.xpos import Xpos, decays

DIMS = Dims(width=32, heads=4, head_width=8, layers=1, train_length=512)
ROTARY = [Rope, PRope, Xpos, Fope, Pope]
THETA = 10000.0 ** (-np.arange(0, 8, 2) / 8)  # of width 8


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scores(scheme, q, k, span):
    """All products of rotated queries and keys, not yet divided by sqrt(d)."""
    a, b = scheme.rotate(q, k, span)
    return (a @ b.mT).detach()


def made(kind, dims=DIMS, **settings):
    torch.manual_seed(0)
    scheme = kind(dims, **settings)
    if isinstance(scheme, Pope):  # a delta of 0 would hide where it is added
        torch.nn.init.uniform_(scheme.delta, -2 * math.pi, 0)
    return scheme


# ---- none (Kazemnejad et al. 2023): order enters through the mask alone


@pytest.mark.verifies("nope", "a set of earlier tokens, arXiv 2203.16634")
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


def test_nope_is_a_bag_of_words_where_the_future_is_seen():
    q, k, v = draw(3, 1, 4, 10, 4)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    span = Span.of(10, causal=False)
    out = attend(q, k, v, Nope(DIMS), span)
    assert torch.allclose(attend(q, k[:, :, order], v[:, :, order], Nope(DIMS), span), out, atol=1e-6)


# ---- RoPE (Su et al. 2021)


@pytest.mark.verifies("rope", "formula, arXiv 2104.09864")
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


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_part_of_the_dimensions_turns_as_a_narrower_head_would(pairing):
    x = draw(1, 4, 9, 8)
    part, _ = Rope(DIMS, pairing=pairing, fraction=0.5).rotate(x, x, Span.of(9))
    narrow, _ = Rope(Dims(16, 4, 4, 1, 512), pairing=pairing).rotate(x[..., :4], x[..., :4], Span.of(9))
    assert torch.equal(part[..., 4:], x[..., 4:]) and torch.equal(part[..., :4], narrow)


def test_a_single_frequency_is_relative_and_periodic():
    scheme = Rope(DIMS, single=2 * math.pi / 50)
    q, k = draw(2, 1, 4, 60, 8)
    span = Span.of(60)
    found = scores(scheme, q, k, span)
    assert torch.allclose(scores(scheme, q, k, Span(span.q_pos + 17, span.k_pos + 17)), found, atol=1e-4)
    assert torch.allclose(scores(scheme, q, k, Span(span.q_pos + 50, span.k_pos)), found, atol=1e-4)
    assert not torch.allclose(scores(scheme, q, k, Span(span.q_pos + 25, span.k_pos)), found, atol=1e-1)
    angle = 0.1 * 3
    out, _ = Rope(DIMS, single=0.1).rotate(*torch.ones(2, 1, 4, 1, 8), Span(*torch.full((2, 1), 3)))
    assert torch.allclose(out[0, 0, 0, :4], torch.tensor(math.cos(angle) - math.sin(angle)), atol=1e-6)


@pytest.mark.parametrize(
    "width, settings, message",
    [
        (65, {}, "model.width / model.heads = 65: rotary positions turn pairs of dimensions, and 65 is not an even"),
        (8, {"fraction": 0.4}, "x position.fraction=0.4: .* and 3.2 is not an even number"),
        (8, {"fraction": 0.1}, "and 0.8 is not an even number"),
        (8, {"fraction": 1.5}, "and 12 is not an even number"),
        (8, {"pairing": "other"}, "position.pairing=other: must be half or interleaved"),
    ],
)
def test_rope_refuses(width, settings, message):
    with pytest.raises(ValueError, match=message):
        Rope(Dims(8 * width, 8, width, 1, 32), **settings)


# ---- what every rotary scheme keeps to


@pytest.mark.parametrize("kind", ROTARY)
def test_positions_of_each_row_are_those_of_a_call_of_its_own(kind):
    """Random positions with gaps, other ones in every row, more keys than queries."""
    scheme = made(kind)
    pos = torch.randint(1, 40, (3, 12), generator=torch.Generator().manual_seed(2)).cumsum(1)
    q, k = draw(3, 4, 5, 8), draw(3, 4, 12, 8, seed=1)
    together = scores(scheme, q, k, Span(pos[:, 7:], pos, start=7))
    for row in range(3):
        alone = scores(scheme, q[row : row + 1], k[row : row + 1], Span(pos[row, 7:], pos[row], start=7))
        assert torch.allclose(together[row], alone[0], atol=1e-5)


@pytest.mark.parametrize("kind", ROTARY)
def test_an_extension_changes_frequencies_and_temperature_only(kind):
    """Halved frequencies at even positions are the trained ones at half of these; the temperature multiplies queries
    and keys both."""
    scheme, plain = made(kind), made(kind)
    if kind is Xpos:
        plain.logs = [2 * log for log in plain.logs]  # its decay stays one of the true positions
    scheme.stretch = lambda trained, span: trained / 2
    q, k = draw(2, 1, 4, 9, 8)
    natural = torch.arange(9)
    stretched = scores(scheme, q, k, Span(2 * natural, 2 * natural))
    assert torch.allclose(stretched, scores(plain, q, k, Span(natural, natural)), atol=1e-4)
    rows = torch.tensor([1.0, 0.5])
    scheme.stretch = lambda trained, span: rows[:, None] * trained  # one for each row
    both = scores(scheme, q.expand(2, -1, -1, -1), k.expand(2, -1, -1, -1), Span(2 * natural, 2 * natural))
    assert torch.allclose(both[1], stretched[0], atol=1e-4) and not torch.allclose(both[0], both[1], atol=1e-2)
    before = scores(plain, q, k, Span.of(9))
    plain.temperature = 1.2
    assert torch.allclose(scores(plain, q, k, Span.of(9)), 1.44 * before, atol=1e-4)


@pytest.mark.parametrize("kind", [*ROTARY, Logn, Ssmax])
def test_results_have_the_type_of_what_they_are_made_of(kind):
    scheme = made(kind).to(torch.bfloat16)
    q, k = scheme.rotate(*draw(2, 1, 4, 6, 8).bfloat16(), Span.of(6))
    assert q.dtype == k.dtype == torch.bfloat16


# ---- p-RoPE (Barbero et al. 2024)


@pytest.mark.verifies("p_rope", "formula, arXiv 2410.06205")
@pytest.mark.parametrize(
    "fraction, expected", [(0.75, [1, 0.1, 0.01, 0]), (0.9, [1, 0.1, 0.01, 0]), (0.5, [1, 0.1, 0, 0])]
)
def test_p_rope_keeps_the_highest_frequencies(fraction, expected):
    assert PRope(DIMS, fraction=fraction).trained().tolist() == pytest.approx(expected, rel=1e-6)


def test_p_rope_is_between_nope_and_rope():
    q, k = draw(2, 1, 4, 9, 8)
    all_of_it, _ = PRope(DIMS, fraction=1.0).rotate(q, k, Span.of(9))
    none, _ = PRope(DIMS, fraction=0.0).rotate(q, k, Span.of(9))
    assert torch.equal(all_of_it, Rope(DIMS).rotate(q, k, Span.of(9))[0]) and torch.equal(none, q)
    with pytest.raises(ValueError, match="position.fraction=1.5: must be a number from 0 to 1"):
        PRope(DIMS, fraction=1.5)


# ---- xPos (Sun et al. 2022)


@pytest.mark.verifies("xpos", "formula, arXiv 2212.10554")
def test_xpos_decays():
    zeta = [0.285714, 0.464286, 0.642857, 0.821429]
    assert decays(8) == pytest.approx(zeta, abs=1e-6)
    factor = Xpos(DIMS).factor(torch.tensor([64, 512, 4096]))[0, :, :4]
    expected = [[0.855050, 0.908549, 0.946268, 0.975711], zeta, [4.4e-5, 0.002159, 0.029169, 0.207280]]
    assert np.allclose(factor.numpy(), expected, atol=1e-6)


@pytest.mark.verifies("xpos", "formula in float64, arXiv 2212.10554")
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_xpos_against_float64(pairing):
    q, k = draw(2, 1, 4, 301, 8)
    first, second = (slice(0, 4), slice(4, 8)) if pairing == "half" else (slice(0, 8, 2), slice(1, 8, 2))
    a, b = (x[..., first].double().numpy() + 1j * x[..., second].double().numpy() for x in (q, k))
    distance = np.arange(301)[:, None, None] - np.arange(301)[:, None]
    zeta = (np.arange(4) / 4 + 0.4) / 1.4
    each = zeta ** (distance / 512) * np.exp(1j * distance * THETA)
    exact = np.einsum("hqc,hkc,qkc->hqk", a[0], b[0].conj(), each).real
    found = scores(Xpos(DIMS, pairing=pairing), q, k, Span.of(301))[0].numpy()
    assert np.abs(np.tril(found - exact)).max() < 1e-4  # angles of float32 up to 300


@pytest.mark.parametrize("first", [0, 1000, 60000])
def test_xpos_factor_is_one_of_the_distance(first):
    """Wherever the middle of the keys is: beside one far key, after one, and moved."""
    ones = torch.ones(1, 4, 2, 8)
    pos = torch.tensor([first + 200, first + 300])
    far = torch.tensor([first, first + 200, first + 300])
    pair = scores(Xpos(DIMS), ones, ones, Span(pos, pos))[0, 0, 1, 0]
    wide = scores(Xpos(DIMS), ones, torch.ones(1, 4, 3, 8), Span(pos, far, start=1))[0, 0, 1, 1]
    expected = 2 * ([0.782955, 0.860833, 0.917323, 0.962309] * np.cos(100 * THETA)).sum()
    assert pair.item() == pytest.approx(expected, abs=3e-2 if first else 1e-4)  # angles of 60,000 in float32
    assert wide.item() == pytest.approx(pair.item(), abs=1e-4)


def test_xpos_without_decay_is_rope():
    q, k = draw(2, 1, 4, 50, 8)
    a, b = Xpos(DIMS, gamma=1e12).rotate(q, k, Span.of(50))
    c, d = Rope(DIMS).rotate(q, k, Span.of(50))
    assert torch.allclose(a, c, atol=1e-6) and torch.allclose(b, d, atol=1e-6)


def test_xpos_is_finite_up_to_70_000_tokens():
    """Its largest factor, of the fastest pair: (1.4 / 0.4)^(n / 2 / 512)."""
    scheme, ones = Xpos(DIMS), torch.ones(1, 4, 2, 8)  # ten times as large where it must hold
    for tokens, finite in (65536, True), (70000, True), (80000, False):
        ends = torch.tensor([0, tokens - 1])
        q, k = scheme.rotate(*[10 * ones.bfloat16() if finite else ones] * 2, Span(ends, ends))
        assert bool(torch.isfinite(q).all() and torch.isfinite(k).all()) is finite
    q, k = scheme.rotate(ones, ones, Span(*torch.tensor([[0, 65535]] * 2)))
    assert k.abs().max().item() < 3.5 ** (65536 / 1024) * 1.5 < 1e35


def test_xpos_attention_at_64k_tokens_is_finite():
    """The last queries, whose factors are the smallest, against all keys, whose factors are the largest."""
    q, k, v = draw(1, 4, 3, 8), draw(1, 4, 65536, 8, seed=1), draw(1, 4, 65536, 8, seed=2)
    assert torch.isfinite(attend(q, k, v, Xpos(DIMS), Span.of(3, 65533))).all()


def test_xpos_refuses_a_model_that_sees_the_future():
    with pytest.raises(ValueError, match="model.causal=false"):
        Xpos(Dims(32, 4, 8, 1, 512, causal=False))


# ---- FoPE (Hua et al. 2024)


@pytest.mark.verifies("fope", "frequencies kept: configurations of TsinghuaC3I/Fourier-Position-Embedding")
@pytest.mark.parametrize("length, kept", [(512, 16), (1024, 18)])
def test_fope_floor(length, kept):
    scheme = Fope(Dims(512, 8, 64, 1, length))
    assert scheme.kept == kept and scheme.cosines.shape == scheme.sines.shape == (8, kept, kept)
    assert int((scheme.trained() > 0).sum()) == kept
    assert Fope(Dims(512, 8, 64, 1, length), floor=False).kept == 32


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_fope_with_the_identity_and_no_floor_is_rope(pairing):
    q, k = draw(2, 1, 4, 50, 8)
    scheme = Fope(DIMS, noise=0.0, floor=False, pairing=pairing)
    a, b = scheme.rotate(q, k, Span.of(50))
    c, d = Rope(DIMS, pairing=pairing).rotate(q, k, Span.of(50))
    assert torch.allclose(a, c, atol=1e-6) and torch.allclose(b, d, atol=1e-6)
    assert Fope(DIMS, noise=0.0, learned=False).relative and not scheme.relative


@pytest.mark.verifies("fope", "formula in float64, arXiv 2412.17739")
def test_fope_against_float64():
    scheme = made(Fope)
    x, pos = draw(1, 4, 9, 8), np.arange(9) * 50
    kept = int((2 * np.pi / 512 <= THETA).sum())
    assert kept == 2
    cos, sin = np.ones((4, 9, 4)), np.zeros((4, 9, 4))
    for head in range(4):
        for c in range(kept):
            cos[head, :, c] = sum(scheme.cosines[head, w, c].item() * np.cos(pos * THETA[w]) for w in range(kept))
            sin[head, :, c] = sum(scheme.sines[head, w, c].item() * np.sin(pos * THETA[w]) for w in range(kept))
    first, second = x[0, ..., :4].double().numpy(), x[0, ..., 4:].double().numpy()
    exact = np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
    found, _ = scheme.rotate(x, x, Span(*torch.from_numpy(np.stack([pos, pos]))))
    assert np.abs(found[0].detach().numpy() - exact).max() < 1e-4


def test_fope_dropped_pairs_are_unrotated_and_not_doubled():
    """The authors' code gives them cos = sin = 1, (x + Jx) . (y + Jy) = 2 x . y."""
    x = draw(1, 4, 9, 8)
    found, _ = made(Fope).rotate(x, x, Span.of(9))
    assert torch.equal(found[..., [2, 3, 6, 7]], x[..., [2, 3, 6, 7]])


def test_fope_begins_at_the_identity_plus_noise():
    """xavier_normal_ reads fans of 18 x 18 and 8 x 18 off a shape of [8, 18, 18]."""
    torch.manual_seed(0)
    scheme = Fope(Dims(512, 8, 64, 1, 1024))
    for mix in scheme.parameters():
        assert (mix - torch.eye(18)).std().item() == pytest.approx(0.3 * (2 / (18 * (18 + 8))) ** 0.5, rel=0.1)
    assert not torch.equal(scheme.cosines, scheme.sines)
    fixed = Fope(Dims(512, 8, 64, 1, 1024), learned=False)
    assert not list(fixed.parameters()) and sorted(fixed.state_dict()) == ["cosines", "sines"]


def test_fope_refuses_a_floor_above_every_frequency():
    with pytest.raises(ValueError, match="position.floor=true: .*train_length=6; must be false"):
        Fope(Dims(32, 4, 8, 1, 6))
    assert Fope(Dims(32, 4, 8, 1, 7)).kept == 1 and Fope(Dims(32, 4, 8, 1, 6), floor=False).kept == 4


# ---- PoPE (Gopalakrishnan et al. 2025)


@pytest.mark.verifies("pope", "formula, arXiv 2509.10534")
@pytest.mark.parametrize("first", [2, 402])
def test_pope_value(first):
    q, k = vector(0.5, -1).view(1, 1, 1, 2), vector(1, 2).view(1, 1, 1, 2)
    found = scores(Pope(Dims(2, 1, 2, 1, 32)), q, k, Span(torch.tensor([first + 3]), torch.tensor([first])))
    assert found.item() == pytest.approx(-0.600431, abs=1e-5 if first == 2 else 1e-4)


@pytest.mark.verifies("pope", "formula in float64, arXiv 2509.10534")
def test_pope_attention_against_float64():
    """Through attention: the scale is that of the width before it doubles."""
    scheme, n = made(Pope), 20
    q, k, v = draw(3, 1, 4, n, 8)
    theta, distance = 10000.0 ** (-np.arange(8) / 8), np.arange(n)[:, None] - np.arange(n)
    length = [np.log1p(np.exp(x[0].double().numpy())) for x in (q, k)]
    angle = -distance[None, :, :, None] * theta + scheme.delta.detach().double().numpy()[:, None, None]
    z = np.einsum("hqc,hkc,hqkc->hqk", *length, np.cos(angle)) / math.sqrt(8)
    weights = np.tril(np.exp(z))
    exact = weights / weights.sum(-1, keepdims=True) @ v[0].double().numpy()
    for backend in ("reference", "fused"):
        found = attend(q, k, v, scheme, Span.of(n), backend)[0].detach().numpy()
        assert np.abs(found - exact).max() < 1e-5


def test_pope_delta_begins_at_0_and_stays_within_a_turn():
    q, k = draw(2, 1, 4, 9, 8)
    scheme = Pope(DIMS)
    assert scheme.delta.shape == (4, 8) and not scheme.delta.any()
    for value, bound in (0.5, 0.0), (-7.0, -2 * math.pi):
        outside, at = Pope(DIMS), Pope(DIMS)
        torch.nn.init.constant_(outside.delta, value)
        torch.nn.init.constant_(at.delta, bound)
        assert torch.allclose(scores(outside, q, k, Span.of(9)), scores(at, q, k, Span.of(9)), atol=1e-6)


# ---- log-n and scalable softmax


@pytest.mark.verifies("logn", "formula, github.com/bojone/rerope")
def test_logn_factors():
    ones = torch.ones(1, 4, 4096, 8)
    q, k = Logn(DIMS).rotate(ones, ones, Span.of(4096))
    assert torch.equal(k, ones)
    expected = [1, 1, 1, 10 / 9, 12 / 9]  # ln 2^n / ln 2^9
    assert q[0, 0, [0, 100, 511, 1023, 4095], 0].tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.verifies("ssmax", "weights n^(s z) in float64, arXiv 2501.19399")
@pytest.mark.parametrize("causal", [True, False])
def test_ssmax_weights(causal):
    scheme, n = Ssmax(Dims(32, 4, 8, 1, 512, causal)), 20
    scheme.s.data = torch.tensor([0.43, 0.1, 1.0, -0.2])
    q, k, v = draw(3, 1, 4, n, 8)
    z = (q[0].double() @ k[0].double().mT).numpy() / math.sqrt(8)
    for i in range(n):
        seen = i + 1 if causal else n
        weights = seen ** (scheme.s.detach().double().numpy()[:, None] * z[:, i, :seen])
        exact = np.einsum("hk,hkd->hd", weights / weights.sum(-1, keepdims=True), v[0, :, :seen].double().numpy())
        found = attend(q, k, v, scheme, Span.of(n, causal=causal))[0, :, i].detach().numpy()
        assert np.abs(found - exact).max() < 1e-5


def test_ssmax_begins_neutral_at_the_training_length():
    assert Ssmax(DIMS).s.tolist() == pytest.approx([0.160299] * 4, abs=1e-6)
    assert Ssmax(DIMS, init=0.43).s.tolist() == pytest.approx([0.43] * 4)
    ones = torch.ones(1, 4, 512, 8)
    assert torch.allclose(Ssmax(DIMS).rotate(ones, ones, Span.of(512))[0][:, :, -1], torch.tensor(1.0), atol=1e-6)


@pytest.mark.parametrize("kind", [Logn, Ssmax])
def test_keys_are_counted_and_positions_are_not_read(kind):
    """Four tokens of padding, then a document of two and one of eight, at positions that mean nothing."""
    scheme = kind(Dims(32, 4, 8, 1, 2))
    q = draw(1, 4, 14, 8)
    doc = torch.tensor([[-1] * 4 + [0] * 2 + [1] * 8])
    pos = torch.randint(0, 999, (1, 14), generator=torch.Generator().manual_seed(0))
    found, _ = scheme.rotate(q, q, Span(pos, pos, 0, doc, doc))
    alone, _ = scheme.rotate(q[:, :, 6:], q[:, :, 6:], Span.of(8))
    assert torch.allclose(found[:, :, 6:], alone) and torch.isfinite(found).all()
    assert not torch.allclose(found[:, :, 8:], q[:, :, 8:], atol=1e-2)
    last, _ = scheme.rotate(q[:, :, -3:], q, Span.of(3, 11))  # with a cache
    assert torch.allclose(last, scheme.rotate(q, q, Span.of(14))[0][:, :, -3:])


@pytest.mark.parametrize("kind, message", [(Logn, "train_length=1: must be"), (Ssmax, "position.init=null: must be")])
def test_a_training_length_without_a_logarithm_is_refused(kind, message):
    with pytest.raises(ValueError, match=message):
        kind(Dims(32, 4, 8, 1, 1))


def test_ssmax_with_a_given_start_needs_no_training_length():
    assert Ssmax(Dims(32, 4, 8, 1, 1), init=0.5).s.shape == (4,)


# ---- precision


@pytest.mark.parametrize("kind", ROTARY)
def test_8192_positions_stay_distinct_in_a_module_of_bfloat16(kind):
    scheme = made(kind).to(torch.bfloat16)
    pos, ones = torch.arange(8192), torch.ones(1, 4, 8192, 8)
    out, _ = scheme.rotate(ones, ones, Span(pos, pos))
    assert out.dtype == torch.float32 and len(out[0, 0].unique(dim=0)) == 8192
