"""Extensions that give far pairs of tokens other positions: every pair by hand, what is published, and whole runs."""

import json
import math
from dataclasses import replace

import pytest
import torch
from running import NANO, run
from test_laws import Storage

from posenc_train.build import extend, rehearse
from posenc_train.checks import ANYTHING, TWO_SPAN, file_settings
from posenc_train.config import UserError, check, compose, extension_label, run_folder
from posenc_train.evaluation.run import evaluate_run
from posenc_train.model import attend as attention
from posenc_train.model.attend import attend, visible
from posenc_train.model.cache import Cache
from posenc_train.model.transformer import Transformer, generate
from posenc_train.positions.alibi import Alibi, slopes
from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.cope import Cope
from posenc_train.positions.dape import Dape
from posenc_train.positions.extensions.self_extend import least
from posenc_train.positions.fire import Fire
from posenc_train.positions.fox import Fox
from posenc_train.positions.heads import Heads
from posenc_train.positions.logn import Logn
from posenc_train.positions.nope import Nope
from posenc_train.positions.path import PaTH
from posenc_train.positions.pope import Pope
from posenc_train.positions.rope import Rope
from posenc_train.positions.shaw import Shaw
from posenc_train.positions.sinusoidal import Sinusoidal
from posenc_train.positions.ssmax import Ssmax
from posenc_train.positions.stack import Stack
from posenc_train.positions.t5 import T5, buckets_of
from posenc_train.positions.transformer_xl import TransformerXl
from posenc_train.positions.two_span import TwoSpan
from posenc_train.positions.window import Window
from posenc_train.positions.xpos import Xpos, decays

LENGTH, N = 8, 20  # trained, evaluated
DIMS = Dims(width=32, heads=4, head_width=8, layers=2, train_length=LENGTH)
HALF = replace(DIMS, heads=2)
SETTINGS = {"lm_infinite": {"first": 3}}  # the default, 10, is longer than these texts were in training


class Ruler(PositionScheme):
    """Its bias is the distance itself."""

    def by_distance(self, distance):
        return distance.float().expand(4, *distance.shape)


def negative(made: Pope) -> Pope:
    made.delta.data = -torch.rand_like(made.delta)
    return made


SIMPLE = {
    "rope": lambda: Rope(DIMS),
    "xpos": lambda: Xpos(DIMS, scale_base=16.0),
    "pope": lambda: negative(Pope(DIMS)),
    "alibi": lambda: Alibi(DIMS),
    "t5": lambda: T5(DIMS, buckets=6, max_distance=7),
}
COMPOSED = {
    "fire": lambda: Fire(DIMS),
    "shaw": lambda: Shaw(DIMS, clip=5),
    "rope + window": lambda: Stack({"rope": Rope(DIMS), "window": Window(DIMS, 15)}),
    "rope + alibi": lambda: Stack({"rope": Rope(DIMS), "alibi": Alibi(DIMS)}),
    "rope + ssmax": lambda: Stack({"rope": Rope(DIMS), "ssmax": Ssmax(DIMS)}),
    "rope | t5": lambda: Heads({"rope": Rope(HALF), "t5": T5(HALF, 6, 7)}, {"rope": 2, "t5": 2}),
    "pope | alibi": lambda: Heads({"pope": negative(Pope(HALF)), "alibi": Alibi(HALF)}, {"pope": 2, "alibi": 2}),
}
REFINING = {
    "transformer_xl": lambda: TransformerXl(DIMS),
    "dape": lambda: Dape(DIMS, {"over": Alibi(DIMS)}),
}
# (query, key) -> the positions at which they stand for each other, None where the key is hidden.
PLACES = {
    "rerope": lambda i, j: (i, j) if i - j < 4 else (4, 0),
    "self_extend": lambda i, j: (i, j) if i - j < 2 else (i // 4 + 2 - 2 // 4, j // 4),
    "lm_infinite": lambda i, j: (i, j) if i - j < 8 else (8, 0) if j < 3 else None,
    "sinks": lambda i, j: (i, j) if i - j < 4 else (min(i, 7), j) if j < 4 else None,
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=TWO_SPAN)
def name(request):
    return request.param


@pytest.fixture
def scheme(request):
    return (SIMPLE | COMPOSED)[request.param]()


# Every scheme under an extension that sees all keys and under one that hides some; every extension over six of them.
both = pytest.mark.parametrize(
    "name, scheme",
    [(pair[i // 2 % 2], kind) for i, kind in enumerate([*SIMPLE, *COMPOSED]) for pair in (TWO_SPAN[:2], TWO_SPAN[2:])],
    indirect=["scheme"],
)


def under(name: str, scheme: PositionScheme, scale: float = N / LENGTH, dims: Dims = DIMS, **given) -> PositionScheme:
    settings = file_settings("extension", name) | SETTINGS.get(name, {}) | given
    cfg = {"extension": {name: settings}, "names": {"position": "mine"}}
    return extend(cfg, name, [scheme], dims, scale)[0]


def drawn(queries: int, keys: int | None = None, dtype=torch.float32) -> list[torch.Tensor]:
    """q, k, v of two rows."""
    return [torch.randn(2, 4, n, 8).to(dtype) for n in (queries, keys or queries, keys or queries)]


def close(a: torch.Tensor, b: torch.Tensor, within: float = 1e-5) -> bool:
    return bool((a - b).abs().max() <= within)


def model_of(*schemes: PositionScheme) -> Transformer:
    torch.manual_seed(1)
    return Transformer(DIMS, vocab=11, marks=0, schemes=schemes).eval()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 11, (rows, length))


def distances(name: str, length: int, scale: float, dims: Dims = DIMS, **given) -> tuple[torch.Tensor, torch.Tensor]:
    """The distance that counts for every pair, and whether the key is seen."""
    scheme = under(name, Ruler(), scale, dims, **given)
    bias = scheme.added(Span.of(length))
    return bias[0, 0], visible(scheme, Span.of(length))[0, 0]


# ---- every pair, by hand


def by_formula(kind: str, scheme: PositionScheme, q, k, distance: torch.Tensor) -> torch.Tensor:
    """The scores of the paper's formula in float64, at the distance given for each pair."""
    theta = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    turned = distance[..., None] * theta
    if kind in ("rope", "xpos"):
        q, k = (torch.complex(*x.chunk(2, dim=-1)) for x in (q, k))
        pairs = (q[:, :, :, None] * k[:, :, None].conj() * torch.exp(1j * turned)).real
        if kind == "xpos":
            pairs = pairs * torch.tensor(decays(8), dtype=torch.float64) ** (distance[..., None] / 16)
        return pairs.sum(-1) / math.sqrt(8)
    if kind == "pope":
        theta = 10000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
        angle = -distance[..., None] * theta + scheme.delta.double()[:, None, None]
        q, k = torch.nn.functional.softplus(q), torch.nn.functional.softplus(k)
        return (q[:, :, :, None] * k[:, :, None] * angle.cos()).sum(-1) / math.sqrt(8)
    scores = q @ k.mT / math.sqrt(8)
    if kind == "alibi":
        return scores - torch.tensor(slopes(4), dtype=torch.float64)[:, None, None] * distance
    bucket = torch.tensor(buckets_of(30, 6, 7))[distance.long()]
    return scores + scheme.table.double()[bucket].permute(2, 0, 1)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("rerope", marks=pytest.mark.verifies("rerope", "formula in float64, github.com/bojone/rerope")),
        pytest.param("self_extend", marks=pytest.mark.verifies("self_extend", "formula in float64, arXiv 2401.01325")),
        pytest.param("lm_infinite", marks=pytest.mark.verifies("lm_infinite", "formula in float64, arXiv 2308.16137")),
        pytest.param("sinks", marks=pytest.mark.verifies("sinks", "formula in float64, arXiv 2309.17453")),
    ],
)
@pytest.mark.parametrize("kind", SIMPLE)
@torch.no_grad()
def test_attention_is_that_of_the_distance_of_every_pair(name, kind):
    scheme = SIMPLE[kind]()
    q, k, v = drawn(N, dtype=torch.float64)
    distance, seen = torch.zeros(N, N, dtype=torch.float64), torch.zeros(N, N, dtype=torch.bool)
    for i in range(N):
        for j in range(i + 1):
            if (places := PLACES[name](i, j)) is not None:
                distance[i, j], seen[i, j] = places[0] - places[1], True
    scores = by_formula(kind, scheme, q, k, distance)
    expected = scores.masked_fill(~seen, -math.inf).softmax(-1) @ v
    found = attend(q.float(), k.float(), v.float(), under(name, scheme), Span.of(N))
    assert close(found.double(), expected)
    assert not close(attend(q.float(), k.float(), v.float(), scheme, Span.of(N)).double(), expected, 1e-3)


@pytest.mark.parametrize("kind", [*COMPOSED, *REFINING])
@torch.no_grad()
def test_attention_is_that_of_every_pair_alone(name, kind):
    """The scheme itself, asked for one query and one key at the positions that they have for each other. A mask of its
    own sees true positions, and a scale of queries (ssmax) the number of keys."""
    scheme = (COMPOSED | REFINING)[kind]()
    q, k, v = drawn(N)
    scores, values = torch.full((2, 4, N, N), -math.inf), torch.zeros(2, 4, N, N, 8)
    for i in range(N):
        for j in range(i + 1):
            places = PLACES[name](i, j)
            true = Span(torch.tensor([i]), torch.tensor([j]), start=i)
            if places is None or (scheme.visible is not None and not scheme.visible(true).all()):
                continue
            pair = Span(torch.tensor([places[0]]), torch.tensor([places[1]]), start=i)
            one_q, one_k, one_v = q[:, :, i : i + 1], k[:, :, j : j + 1], v[:, :, j : j + 1]
            turned = (one_q, one_k) if scheme.rotate is None else scheme.rotate(one_q, one_k, pair)
            score = turned[0] @ turned[1].mT / math.sqrt(8)
            if scheme.refine is not None:
                score = scheme.refine(score, one_q, one_k, torch.ones(1, 1, 1, 1, dtype=torch.bool), pair)
            added = scheme.added(pair)
            scores[:, :, i, j] = (score if added is None else score + added)[..., 0, 0]
            weight = torch.ones(2, 4, 1, 1)
            values[:, :, i, j] = (one_v if scheme.mix is None else scheme.mix(weight, one_v, pair))[:, :, 0]
    expected = (scores.softmax(-1)[..., None] * values).sum(-2)
    for backend in ("reference", "fused"):
        assert close(attend(q, k, v, under(name, scheme), Span.of(N), backend), expected)


def test_self_extend_has_the_distances_of_its_paper():
    """Window 4, groups of 2, ten tokens: grouped from the distance 4 on (arXiv 2401.01325, figure 3)."""
    expected = """
        0
        1 0
        2 1 0
        3 2 1 0
        4 3 2 1 0
        4 4 3 2 1 0
        5 5 4 3 2 1 0
        5 5 4 4 3 2 1 0
        6 6 5 5 4 3 2 1 0
        6 6 5 5 4 4 3 2 1 0"""
    found, seen = distances("self_extend", 10, 2.0, window=4, group=2)
    assert seen.equal(torch.ones(10, 10, dtype=torch.bool).tril())
    for i, line in enumerate(expected.split("\n")[1:]):
        assert found[i, : i + 1].tolist() == list(map(int, line.split()))


def test_rerope_cuts_alibi_off():
    """-m min(d, window), which the plain scheme is up to the window."""
    alibi, distance = Alibi(DIMS), Span.of(N).distance()
    bias = under("rerope", alibi, window=5).added(Span.of(N))
    expected = -torch.tensor(slopes(4))[:, None, None] * distance.clamp(min=0, max=5)
    past = torch.ones(N, N, dtype=torch.bool).tril()
    assert torch.equal(bias[0][:, past], expected[:, past])


@pytest.mark.parametrize("first, local", [(3, 8), (0, 5), (10, 2)])
def test_lm_infinite_sees_a_lambda(first, local):
    distance, seen = distances("lm_infinite", 30, 4.0, first=first, local=local)
    for i in range(30):
        for j in range(30):
            assert seen[i, j] == (j <= i and (j < first or i - j < local))
            assert not seen[i, j] or distance[i, j] == min(i - j, local)


@torch.no_grad()
@pytest.mark.parametrize("kind", SIMPLE)
@pytest.mark.parametrize("sinks, window", [(4, None), (1, 3), (0, 5), (3, 1)])
def test_sinks_are_streaming_with_a_cache_that_evicts(kind, sinks, window):
    """Token by token with a list of keys from which the oldest behind the sinks is dropped; all that are left, and the
    query behind them, are placed 0, 1, 2, … anew."""
    scheme, q, k, v = SIMPLE[kind](), *drawn(N)
    window = window or LENGTH - sinks
    kept, out = [], []
    for i in range(N):
        kept.append((k[:, :, i], v[:, :, i]))
        if len(kept) > sinks + window:
            del kept[sinks]
        keys, values = (torch.stack(x, dim=2) for x in zip(*kept, strict=True))
        out.append(attend(q[:, :, i : i + 1], keys, values, scheme, Span.of(1, len(kept) - 1)))
    found = attend(q, k, v, under("sinks", scheme, sinks=sinks, window=window), Span.of(N))
    assert close(found, torch.cat(out, dim=2))


@pytest.mark.parametrize("trained", [2, 8, 16, 33])
@pytest.mark.parametrize("factor", [1.5, 2, 8])
def test_no_distance_goes_beyond_the_trained_ones(name, trained, factor):
    """At any length; LM-Infinite's cap is published as the trained length itself."""
    dims, length = replace(DIMS, train_length=trained), round(factor * trained)
    given = {"sinks": 1} if name == "sinks" else {}
    distance, seen = distances(name, length, length / trained, dims, **given)
    assert distance[seen].min() == 0
    assert distance[seen].max() <= (trained if name == "lm_infinite" else trained - 1)


@pytest.mark.parametrize("length, trained, window", [(32768, 4096, 1024), (20, 8, 2), (16, 8, 7), (9, 8, 1), (8, 8, 2)])
def test_the_default_group_is_the_smallest_that_keeps_distances_trained(length, trained, window):
    def longest(group: int) -> int:
        return (length - 1) // group + window - window // group  # of the last token to the first

    group = least(length, trained, window)
    assert longest(group) < trained and (group == 1 or longest(group - 1) >= trained)


# ---- what is nothing new


@both
@torch.no_grad()
def test_within_the_window_it_is_the_plain_scheme(name, scheme):
    """And a group of one token is no group, at any length."""
    given = {"rerope": {"window": 7}, "self_extend": {"window": 7}}.get(name, {})
    q, k, v = drawn(7)
    assert close(attend(q, k, v, under(name, scheme, **given), Span.of(7)), attend(q, k, v, scheme, Span.of(7)), 1e-6)
    q, k, v = drawn(N)
    plain = attend(q, k, v, scheme, Span.of(N))
    assert close(attend(q, k, v, under("self_extend", scheme, group=1), Span.of(N)), plain)
    assert not close(attend(q, k, v, under(name, scheme), Span.of(N)), plain, 1e-3)


@both
@torch.no_grad()
def test_scale_1_is_the_plain_scheme(name, scheme):
    """Bit by bit, but another object: the very same one would have nothing to extend."""
    q, k, v = drawn(N)
    same = under(name, scheme, 1.0)
    assert same is not scheme and torch.equal(attend(q, k, v, same, Span.of(N)), attend(q, k, v, scheme, Span.of(N)))


@both
def test_it_shares_parameters_and_changes_nothing_of_the_scheme(name, scheme):
    before, state = dict(scheme.__dict__), {key: value.clone() for key, value in scheme.state_dict().items()}
    other = under(name, scheme)
    q, k, v = drawn(N)
    attend(q.requires_grad_(), k, v, other, Span.of(N)).sum().backward()
    assert isinstance(other, TwoSpan) and other.scheme is scheme and scheme.__dict__ == before
    assert {id(p) for p in other.parameters()} == {id(p) for p in scheme.parameters()}
    assert all(torch.equal(state[key], value) for key, value in scheme.state_dict().items())


# ---- however it is called


@both
@torch.no_grad()
def test_through_the_cache_comes_what_one_call_gives(name, scheme):
    model = model_of(scheme)
    model = model.under([under(name, scheme, 4.0)])
    ids, cache = tokens(2, 30), Cache()
    whole = model(ids)
    pieces = [model(piece, cache=cache) for piece in ids.split([5, 1, 1, 13, 10], dim=1)]
    assert close(torch.cat(pieces, dim=1), whole)
    text = ids[:, :14]
    for _ in range(4):
        text = torch.cat([text, model(text)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generate(model, ids[:, :14], 4), text[:, 14:])


@both
@torch.no_grad()
def test_backends_and_chunks_agree(name, scheme, monkeypatch):
    extended = under(name, scheme, 8.0)
    for queries, cached in [(64, 0), (9, 50), (1, 40)]:
        q, k, v = drawn(queries, cached + queries)
        drawn_pos = torch.randint(1, 3, (2, cached + queries)).cumsum(1) - 1
        doc = (torch.arange(cached + queries) >= 30).long().expand(2, -1)
        own = torch.arange(cached + queries) % 30
        spans = [
            Span.of(queries, cached),
            Span(drawn_pos[:, cached:], drawn_pos, cached),
            Span(own[cached:], own, cached, doc[:, cached:], doc),
        ]
        for span in spans:
            expected = attend(q, k, v, extended, span, "reference")
            assert close(attend(q, k, v, extended, span), expected)
            monkeypatch.setattr(attention, "CHUNK", 7)
            assert close(attend(q, k, v, extended, span), expected)
            monkeypatch.undo()


@both
@torch.no_grad()
def test_rows_and_documents_are_by_themselves(name, scheme):
    """Positions of each row, documents that begin at 0 again, padding in front."""
    extended = under(name, scheme, 4.0)
    model = model_of(scheme).under([extended])
    first, second = tokens(2, 21), tokens(2, 26)
    pos = torch.cat([torch.zeros(3, dtype=torch.int64), torch.arange(21), torch.arange(26)])
    doc = torch.cat([torch.full((3,), -1), torch.zeros(21, dtype=torch.int64), torch.ones(26, dtype=torch.int64)])
    packed = torch.cat([tokens(2, 3), first, second], dim=1)
    found = model(packed, pos=pos.expand(2, -1), doc=doc.expand(2, -1))
    assert torch.isfinite(found).all() and close(found[:, 3:], torch.cat([model(first), model(second)], dim=1))
    rows = torch.stack([torch.arange(26), 2 * torch.arange(26)])
    alone = [model(second[i : i + 1], pos=rows[i : i + 1]) for i in range(2)]
    assert close(model(second, pos=rows), torch.cat(alone))


@both
def test_nothing_is_nan_in_the_backward_pass(name, scheme):
    """Rows that see nothing, under a scheme in training."""
    model = model_of(scheme)
    model = model.under([under(name, scheme, 4.0)])
    doc = torch.cat([torch.full((5,), -1), torch.zeros(35, dtype=torch.int64)]).expand(2, -1)
    model(tokens(2, 40), doc=doc).square().sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert all(p.grad is not None and (p.grad != 0).any() for p in scheme.parameters())


@both
@torch.no_grad()
def test_moving_positions_changes_groups_and_sinks_alone(name, scheme):
    model = model_of(scheme)
    model = model.under([under(name, scheme, 4.0)])
    ids, pos = tokens(2, 30), torch.arange(30)
    same = all(close(model(ids, pos=pos + move), model(ids, pos=pos), 1e-4) for move in (17, 103))
    assert same == model.positions[0].relative == (name == "rerope" and scheme.relative)


@both
@torch.no_grad()
def test_bfloat16_agrees_with_float32(name, scheme):
    q, k, v = drawn(8 * LENGTH, dtype=torch.bfloat16)
    extended, span = under(name, scheme, 8.0), Span.of(8 * LENGTH)
    low = attend(q, k, v, extended, span)
    high = attend(q.float(), k.float(), v.float(), extended, span, "reference")
    assert low.dtype == torch.bfloat16 and close(low.float(), high, 2e-2 * max(1, high.abs().max().item()))


@torch.no_grad()
def test_positions_stay_apart_in_a_bfloat16_model():
    """8,192 of them, under a module that was cast."""
    dims = replace(DIMS, train_length=4096)
    q, k, _ = drawn(1, 8192)
    seen = torch.ones(1, 1, 1, 8192, dtype=torch.bool)
    span = Span.of(1, 8191)
    for name in TWO_SPAN:
        plain, cast = (under(name, Rope(dims), 2.0, dims) for _ in range(2))
        assert torch.equal(
            plain.refine(torch.zeros(2, 4, 1, 8192), q, k, seen, span),
            cast.to(torch.bfloat16).refine(torch.zeros(2, 4, 1, 8192), q, k, seen, span),
        )


@pytest.mark.parametrize(
    "name, kind", [("rerope", "rope"), ("self_extend", "fire"), ("lm_infinite", "alibi"), ("sinks", "rope")]
)
@torch.no_grad()
def test_memory_is_that_of_a_chunk(name, kind):
    n = 1024
    extended = under(name, (SIMPLE | COMPOSED)[kind](), n / LENGTH)
    q, k, v = torch.randn(3, 1, 4, n, 8)
    with Storage() as seen:
        attend(q, k, v, extended, Span.of(n))
    hidden = 8 if kind == "fire" else 1  # numbers for every pair and head while a bias is computed
    assert seen.largest <= 4 * 4 * n * 256 * 1.05 * hidden


def test_what_is_counted_and_not_read_off_positions_stays(name):
    doc = (torch.arange(24) >= 9).long()[None]
    packed = Span(torch.arange(15)[None], torch.cat([torch.arange(9), torch.arange(15)])[None], 9, doc[:, 9:], doc)
    for span in (packed, Span.of(15, 9)):
        far = under(name, Rope(DIMS)).far(span)
        assert not far.consecutive and far.start == 9 and torch.equal(far.seen(), span.seen())
        assert torch.equal(far.allowed(), span.allowed()) and far.q_pos.shape == span.q_pos.shape


# ---- in compositions


@pytest.mark.parametrize("kind", [Logn, Ssmax])
@torch.no_grad()
def test_scales_of_queries_act_on_near_and_far_pairs(name, kind):
    """A stack with log-n is log-n on the extended scheme's queries."""
    scaling, rope, (q, k, v) = kind(DIMS), Rope(DIMS), drawn(N)
    whole = under(name, Stack({"rope": rope, "scaling": scaling}))
    scaled, _ = scaling.rotate(q, k, Span.of(N))
    expected = attend(scaled, k, v, under(name, rope), Span.of(N))
    assert close(attend(q, k, v, whole, Span.of(N)), expected)


@torch.no_grad()
def test_rerope_can_scale_as_its_author_does():
    rope, (q, k, v) = Rope(DIMS), drawn(N)
    scaled = q * (torch.arange(1, N + 1).log() / math.log(LENGTH)).clamp(min=1)[:, None]
    found = attend(q, k, v, under("rerope", rope, logn=True), Span.of(N))
    assert close(found, attend(scaled, k, v, under("rerope", rope), Span.of(N)))
    assert not close(found, attend(q, k, v, under("rerope", rope), Span.of(N)), 1e-3)
    same = under("rerope", rope, 1.0, logn=True)
    q, k, v = drawn(LENGTH)
    assert torch.equal(attend(q, k, v, same, Span.of(LENGTH)), attend(q, k, v, rope, Span.of(LENGTH)))
    with pytest.raises(UserError, match="log-n scaling already"):
        under("rerope", Stack({"rope": rope, "logn": Logn(DIMS)}), logn=True)


@torch.no_grad()
def test_layers_without_positions_are_masked_or_left_as_they_are(name):
    """StreamingLLM drops keys in every layer; where no key is hidden there is nothing to change."""
    rope, nope = Rope(DIMS), Nope(DIMS)
    cfg = {"extension": {name: file_settings("extension", name)}, "names": {"position": "rnope_swa"}}
    first, second, third = extend(cfg, name, [rope, nope, rope], DIMS, 4.0)
    assert first is third is not rope
    masks = name in ("lm_infinite", "sinks")
    assert (second is nope) == (not masks)
    q, k, v = drawn(40)
    if masks:
        seen = visible(first, Span.of(40))
        assert not seen[0, 0, 39, 20] and torch.equal(seen, visible(second, Span.of(40)))
        weights = (q @ k.mT / math.sqrt(8)).masked_fill(~seen, -math.inf).softmax(-1)
        assert close(attend(q, k, v, second, Span.of(40)), weights @ v)


def test_nothing_rotates_in_vain_beside_one():
    """The far scores are those of q and k as projected: a stack would lose what it did to them before."""
    with pytest.raises(ValueError, match="computes"):
        Stack({"logn": Logn(DIMS), "rerope": under("rerope", Rope(DIMS))})


# ---- refused


@pytest.mark.parametrize(
    "name, settings, complaint",
    [
        ("rerope", {"window": 8}, "extension.rerope.window=8: must be at least 1 and below train_length=8"),
        ("rerope", {"window": 0}, "extension.rerope.window=0: must be at least 1"),
        ("self_extend", {"window": 8}, "extension.self_extend.window=8: must be at least 1 and below train_length=8"),
        ("lm_infinite", {"local": 9}, "extension.lm_infinite.local=9: must be at least 1 and at most train_length=8"),
        ("sinks", {"sinks": 8}, "sinks=8, extension.sinks.window=0: must be a window of at least 1"),
        ("sinks", {"window": 5}, "extension.sinks.sinks=4, extension.sinks.window=5: .* at most train_length=8"),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_settings_that_make_no_sense_are_refused_when_built(name, settings, complaint, scale):
    with pytest.raises(UserError, match=complaint):
        under(name, Rope(DIMS), scale, **settings)


@pytest.mark.parametrize("made", [Cope, PaTH, Fox, lambda dims: Dape(dims, {"over": Fox(dims)}), Logn, Ssmax, Nope])
def test_what_reads_no_positions_has_none_to_change(made):
    """By itself and in compositions; beside positions it stays as it is."""
    for name, masks in (("rerope", False), ("self_extend", False), ("sinks", True), ("lm_infinite", True)):
        for plain in (
            made(DIMS),
            Stack({"only": made(DIMS)}),
            Heads({"a": made(HALF), "b": Nope(HALF)}, {"a": 2, "b": 2}),
        ):
            if masks:
                assert isinstance(under(name, plain), TwoSpan)
            else:
                with pytest.raises(UserError, match=f"extension={name}: position=mine has no distances to change"):
                    under(name, plain)
    assert isinstance(under("rerope", Stack({"content": Fox(DIMS), "alibi": Alibi(DIMS)})), TwoSpan)
    assert isinstance(under("rerope", Fox(DIMS, gate="fixed")), TwoSpan)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_schemes_that_cannot_be_extended_are_refused_when_built(name, scale):
    with pytest.raises(UserError, match=f"extension={name}: needs positions that enter attention"):
        under(name, Stack({"sinusoidal": Sinusoidal(DIMS), "rope": Rope(DIMS)}), scale)
    with pytest.raises(UserError, match=f"model.causal=false: must be true with extension={name}"):
        under(name, Rope(DIMS), scale, replace(DIMS, causal=False))
    with pytest.raises(ValueError, match="the same for all pairs"):
        TwoSpan(Sinusoidal(DIMS), 4, lambda q_pos, k_pos: (q_pos, k_pos))
    if name in ("rerope", "self_extend"):
        with pytest.raises(UserError, match=f"extension={name}: position=mine has no distances to change; choose one"):
            under(name, Stack({"nope": Nope(DIMS), "window": Window(DIMS)}), scale)


@pytest.mark.parametrize(
    "overrides, complaint",
    [
        ("position=nope extension=[rerope]", "extension=rerope: position=nope has no distances to change; choose "
         f"one of {', '.join(ANYTHING)}, lm_infinite, sinks, or a position such as rope or alibi"),
        ("position=nope_logn extension=[self_extend]", "extension=self_extend: position=nope_logn has no distances"),
        ("position=cope extension=[rerope]", "extension=rerope: position=cope has no distances"),
        ("position=window extension=[none,rerope]", "extension=rerope: position=window has no distances"),
        ("position=fox extension=[rerope]", "extension=rerope: position=fox has no distances"),
        ("position=sinusoidal extension=[sinks]", "extension=sinks: position=sinusoidal enters the embedding, .* "
         f"choose one of {', '.join(ANYTHING)}, or a position"),
        ("position=learned_t5 extension=[rerope]", "extension=rerope: position=learned_t5 enters the embedding"),
        ("position=learned extension=[lm_infinite]", "extension=lm_infinite: position=learned enters the embedding"),
        ("model.causal=false extension=[sinks]", "model.causal=false: must be true with extension=sinks"),
        ("extension=[rerope] extension.rerope.window=0", "extension.rerope.window=0: must be an integer of at least 1"),
        ("extension=[rerope] extension.rerope.logn=1", "extension.rerope.logn=1: must be true or false"),
        ("extension=[self_extend] extension.self_extend.group=0", "group=0: must be an integer of at least 1, or null"),
        ("extension=[lm_infinite] extension.lm_infinite.first=-1", "first=-1: must be an integer of at least 0"),
        ("extension=[sinks] extension.sinks.sinks=1.5", "extension.sinks.sinks=1.5: must be an integer of at least 0"),
        ("extension=[sinks] extension.sinks.scale=0.5", "scale=0.5: must be a number of at least 1, or auto"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused_before_anything_is_built(overrides, complaint):
    cfg = compose("train", overrides.split())
    with pytest.raises(UserError, match=complaint):
        check(cfg)
        rehearse(cfg)


@pytest.mark.parametrize("position", ["rope", "pope", "alibi", "fire", "alibi_rope", "rope_ssmax", "rnope_swa"])
def test_what_can_be_extended_passes(position):
    cfg = compose("train", [f"position={position}", f"extension=[none,{','.join(TWO_SPAN)}]", "model.layers=4"])
    check(cfg)
    rehearse(cfg)


def test_a_mask_needs_no_positions():
    cfg = compose("train", ["position=nope", "extension=[lm_infinite,sinks]"])
    check(cfg)
    rehearse(cfg)


def test_a_window_that_does_not_fit_is_refused_before_training():
    cfg = compose("train", ["train_length=16", "extension=[rerope]", "extension.rerope.window=16"])
    check(cfg)
    with pytest.raises(UserError, match="extension.rerope.window=16: must be at least 1 and below train_length=16"):
        rehearse(cfg)


@pytest.mark.parametrize(
    "overrides, label",
    [
        ("extension=[rerope]", "rerope"),
        ("extension=[rerope] extension.rerope.window=32 extension.rerope.logn=true", "rerope(logn=true, window=32)"),
        ("extension=[self_extend] extension.self_extend.group=8", "self_extend(group=8)"),
        ("extension=[lm_infinite] extension.lm_infinite.first=100", "lm_infinite(first=100)"),
        ("extension=[sinks] extension.sinks.scale=8", "sinks(scale=8)"),
    ],
)
def test_labels(overrides, label):
    ((name, settings),) = compose("train", overrides.split())["extension"].items()
    assert extension_label(name, settings) == label


# ---- the main job


def test_trained_runs_are_evaluated_under_all_of_them(tmp_path, monkeypatch, capsys):
    from posenc_train.build import build_model, build_task
    from posenc_train.training.checkpoint import load

    monkeypatch.chdir(tmp_path)
    cfg = run("train", *NANO, "factors=[1,4]", "logger=none")
    folder = run_folder(cfg)
    weights = (folder / "last.ckpt").read_bytes()
    capsys.readouterr()
    asked = f"extension=[none,{','.join(TWO_SPAN)}]"
    run("evaluate", f"run={folder}", asked, "logger=none")
    said = capsys.readouterr().out
    table = said[said.index("same_targets(k=8)") :].split("\n\n")[0].splitlines()
    lines = [line.split("  ")[0] for line in table if line.startswith("rope")]
    assert sorted(lines) == sorted(["rope", *(f"rope + {name}" for name in TWO_SPAN)])
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    found = {
        (row["extension"], row["length"]): row["total"]
        for row in rows
        if row["protocol"] == "nonoverlapping" and row["unit"] == "byte" and row["metric"] == "nll"
    }
    assert all(math.isfinite(total) for total in found.values()) and len(found) == 5 * 2
    assert all(found[name, 16] == found["none", 16] for name in TWO_SPAN)  # at scale 1, bit by bit
    assert len({total for (_, length), total in found.items() if length == 64}) == 5
    assert (folder / "last.ckpt").read_bytes() == weights
    run("evaluate", f"run={folder}", asked, "logger=none")
    assert "every row asked for is there already" in capsys.readouterr().out
    # In memory as well the model stays what it was.
    cfg |= {"extension": {name: file_settings("extension", name) for name in TWO_SPAN}, "lengths": [64]}
    task = build_task(cfg)
    model = build_model(cfg, task)
    load(model, folder / "last.ckpt")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert list(evaluate_run(cfg, task, model, 12, "last@12"))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
