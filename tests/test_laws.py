"""The laws that every position scheme obeys, over every conf/position/*.yaml without listing them.

A scheme of your own goes through the same laws:  bash scripts/test.sh --scheme wave.Wave
Exceptions stand in one list with their reason, and each must break its law.
"""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from posenc_train.build import build_schemes, construct
from posenc_train.checks import choices, file_settings
from posenc_train.config import UserError
from posenc_train.model import attend as attention
from posenc_train.model import toeplitz
from posenc_train.model.attend import attend
from posenc_train.model.cache import Cache
from posenc_train.model.transformer import Transformer, generate
from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.cope import Cope
from posenc_train.positions.dape import Dape
from posenc_train.positions.fire import PAIRS, Fire
from posenc_train.positions.fox import Fox

# Settings that make another scheme of one: through all laws as well.
VARIANTS = {
    "sinusoidal": [
        {"fuse": "scaled_add"},
        {"fuse": "concat", "position_width": 20},
        {"fuse": "gated"},
        {"every_layer": True},
    ],
    "learned": [{"beyond": "clamp"}, {"beyond": "wrap", "every_layer": True}, {"fuse": "gated"}],
    "integer": [{"by_train_length": True}],
    "alibi": [{"learned": True}],
    "t5": [{"shared": False}, {"by_root_d": True}],
    "shaw": [{"sides": "key"}, {"sides": "value"}, {"tied": True}],
    "transformer_xl": [{"untied": True}, {"clamp": 9}],
    "fire": [{"shared": True}],
    "fox": [{"gate": "fixed"}, {"init": 5.0}],
    "cope": [{"positions": 8}, {"divide": True, "positions": 8}],
    "path": [{"rank": 4, "taps": 1}],
    "dape": [
        {"kernel": 3},
        {"parts.over._target_": "posenc_train.positions.alibi.Alibi"},
        {"parts.over._target_": "posenc_train.positions.t5.T5"},
        {"parts.over._target_": "posenc_train.positions.fire.Fire", "kernel": 3},
        {"parts.over._target_": "posenc_train.positions.fox.Fox", "kernel": 3},
    ],
    "rope": [{"pairing": "interleaved"}, {"fraction": 0.5}, {"single": 0.1}],
    "xpos": [{"pairing": "interleaved"}],
    "window": [{"window": 7}, {"window": 7, "sinks": 2}],
    "rope_window": [{"parts.window.window": 5, "parts.window.sinks": 3}],
}
ABSOLUTE = "position p has a vector of its own"
NOT_SHIFT = {
    "sinusoidal": ABSOLUTE,
    "learned": ABSOLUTE,
    "integer": ABSOLUTE,
    "learned_t5": ABSOLUTE,
    "fope": "a mixture of frequencies is not a function of the distance",
    "fire": "beyond its threshold distances are divided by the query's position",
    "dape(kernel=3, parts.over._target_=posenc_train.positions.fire.Fire)": "FIRE is not a function of the distance",
    "blockwise": "blocks begin at multiples of their size",
    **dict.fromkeys(
        ("xpos_blockwise", "sinusoidal_blockwise", "alibi_blockwise", "rope_blockwise"),
        "blocks begin at multiples of their size",
    ),
    "window(sinks=2, window=7)": "sinks are the first positions",
    "rope_window(parts.window.sinks=3, parts.window.window=5)": "sinks are the first positions",
}
NOT_BIDIRECTIONAL = dict.fromkeys(("xpos", "xpos_blockwise"), "its decay would be growth towards the future")
NOT_BIDIRECTIONAL |= {
    "cope": "keys are counted up to the query",
    "fox": "what comes after a query is not forgotten",
    "path": "the product ends at the query",
    "dape(kernel=3, parts.over._target_=posenc_train.positions.fox.Fox)": "FoX is not either",
}
REACHED_BY_CONTENT = {"cope": "how far the gates count is for the content to say"}
NOT_INDEPENDENT_OF_LENGTH = dict.fromkeys(("learned", "learned_t5"), "a row for every position is what it is")
TRAINED = 24  # tokens
DIMS = Dims(width=32, heads=4, head_width=8, layers=2, train_length=TRAINED)


def plain(name: str) -> str:
    """The scheme of a variant."""
    return name.partition("(")[0]


def exception(name: str, exceptions: dict[str, str]) -> str | None:
    """The reason why a scheme, or all variants of it, need not obey."""
    return exceptions.get(name, exceptions.get(plain(name)))


def every_scheme() -> dict[str, dict]:
    found = {}
    for name in choices("position"):
        settings = dict(file_settings("position", name))
        if settings["_target_"] != "???":
            found[name] = settings
            for changes in VARIANTS.get(name, []):
                told = ", ".join(f"{key}={changes[key]}" for key in sorted(changes))
                found[f"{name}({told})"] = changed(settings, changes)
    return found


def changed(settings: dict, changes: dict) -> dict:
    out = dict(settings)
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        assert first in out, f"{key} is no setting"
        out[first] = changed(out[first], {rest: value}) if rest else value
    return out


SCHEMES = every_scheme()


def pytest_generate_tests(metafunc):
    if "settings" in metafunc.fixturenames:
        own = metafunc.config.getoption("--scheme")
        every = {own: {"_target_": own}} if own else SCHEMES
        metafunc.parametrize("name, settings", every.items(), ids=list(every))
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "causal" in metafunc.fixturenames and not any("causal" in names for names in given):
        metafunc.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


def deep(settings: dict, dims: Dims) -> Dims:
    """As many layers as the pattern of a scheme is long, if it has one."""
    return replace(dims, layers=max(dims.layers, len(settings.get("pattern", ()))))


def make(name: str, settings: dict, dims: Dims = DIMS, trained: bool = True) -> list[PositionScheme]:
    """The scheme of every layer, with parameters as after some training: many begin at zero, which shows little.
    Skips what cannot be bidirectional, once it has been seen to refuse."""
    torch.manual_seed(0)
    dims = deep(settings, dims)
    if not dims.causal and exception(name, NOT_BIDIRECTIONAL):
        with pytest.raises(UserError, match="model.causal=false"):
            build_schemes(settings, dims)
        pytest.skip(exception(name, NOT_BIDIRECTIONAL))
    schemes = build_schemes(settings, dims)
    if trained:
        with torch.no_grad():
            for parameter in nn.ModuleList(schemes).parameters():
                noise = 0.1 * torch.randn_like(parameter)
                parameter.add_(torch.where(parameter == 0, noise, noise * parameter))
    return schemes


def each(name: str, settings: dict, dims: Dims = DIMS) -> list[PositionScheme]:
    """The different schemes among those of all layers."""
    return list(dict.fromkeys(make(name, settings, dims)))


def model_with(
    name: str, settings: dict, backend: str = "auto", dims: Dims = DIMS, trained: bool = True
) -> Transformer:
    schemes = make(name, settings, dims, trained)
    torch.manual_seed(1)
    return Transformer(deep(settings, dims), vocab=11, marks=2, schemes=schemes, attention=backend).eval()


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 13, (rows, length), generator=torch.Generator().manual_seed(seed))


def close(a: torch.Tensor, b: torch.Tensor, within: float = 1e-5) -> bool:
    return bool((a - b).abs().max() <= within * max(1.0, b.abs().max().item()))


def near(a: torch.Tensor, b: torch.Tensor, within: float = 1e-5) -> bool:
    return bool((a - b).norm() <= within * max(1.0, b.norm().item()))


def law(name: str):
    return pytest.mark.law(name)


def in_chunks(monkeypatch, queries: int) -> None:
    """Attention takes that many at once."""
    for module in (attention, toeplitz):
        monkeypatch.setattr(module, "CHUNK", queries)


# Every shape of call that attention knows. For positions that are not consecutive, gaps and a different row each.
def consecutive(queries: int, cached: int, causal: bool) -> Span:
    return Span.of(queries, cached, causal=causal)


def gaps(queries: int, cached: int, causal: bool) -> Span:
    pos = torch.randint(1, 3, (2, cached + queries), generator=torch.Generator().manual_seed(3)).cumsum(1) - 1
    return Span(pos[:, cached:], pos, start=cached, causal=causal)


def documents(queries: int, cached: int, causal: bool) -> Span:
    """Row 0 is left-padded by four, row 1 holds two documents whose positions each begin at 0."""
    n = cached + queries
    doc = torch.stack([torch.where(torch.arange(n) < 4, -1, 0), torch.where(torch.arange(n) < n // 2, 0, 1)])
    pos = torch.stack([(torch.arange(n) - 4).clamp(min=0), torch.arange(n) % (n // 2)])
    return Span(pos[:, cached:], pos, cached, doc[:, cached:], doc, causal=causal)


def sampled(name: str, rows: int, n: int) -> torch.Tensor | None:
    """The positions below 2n that a sampling of conf/sampling gives n tokens."""
    settings = dict(file_settings("sampling", name))
    sampling = construct("sampling", settings | ({"longest": 2 * n} if "longest" in settings else {}))
    return sampling(range(rows), n, 0, 0)


def spans_of(name: str):
    def span(queries: int, cached: int, causal: bool) -> Span:
        pos = sampled(name, 2, cached + queries)
        return Span(pos[..., cached:], pos, start=cached, causal=causal)

    span.__name__ = name
    return span


def at(pos: torch.Tensor | None, where: slice) -> torch.Tensor | None:
    """Some tokens' part of the positions of all."""
    return None if pos is None else pos[..., where]


SPANS = [consecutive, gaps, documents, *(spans_of(name) for name in choices("sampling") if name != "consecutive")]
WIDE = replace(DIMS, train_length=2 * TRAINED)  # where positions are drawn, a table must hold them
CALLS = [(20, 0), (9, 11), (1, 14)]  # queries, keys before them; in chunks of 8
LONG = {True: (260, 40), False: (260, 0)}  # causal or not; in chunks as they are


@law("Agreement")
@pytest.mark.parametrize("kind", SPANS)
def test_agreement(name, settings, kind, causal, monkeypatch):
    """All backends give the same output and gradients, for equal and unequal numbers of queries and keys."""
    dims = replace(DIMS, causal=causal)
    calls = CALLS if kind in SPANS[:3] else CALLS[1:2]  # of samplings, positions are others and shapes are not
    calls = calls if causal else CALLS[:1]  # nothing is cached where later tokens count
    if kind is consecutive:
        calls = [*calls, LONG[causal]]
    for scheme, (queries, cached) in product(each(name, settings, dims), calls):
        monkeypatch.undo()
        if queries < 256:
            in_chunks(monkeypatch, 8)
        draw = torch.Generator().manual_seed(4)
        x = torch.randn(2, cached + queries, 32, generator=draw)
        span = replace(kind(queries, cached, causal), x=x)
        q, w = (torch.randn(2, 4, queries, 8, generator=draw) for _ in range(2))
        k, v = (torch.randn(2, 4, cached + queries, 8, generator=draw) for _ in range(2))
        leaves = [x.requires_grad_() for x in (q, k, v)] + list(scheme.parameters())
        found = {}
        for backend in ("reference", "fused"):
            out = attend(q, k, v, scheme, span, backend)
            found[backend] = (out, *torch.autograd.grad((out * w).sum(), leaves, allow_unused=True))
        for i, (a, b) in enumerate(zip(found["fused"], found["reference"], strict=True)):
            assert (a is None) == (b is None)
            if a is not None:
                # A parameter's gradient is a sum over all pairs, and its rounding that of its terms: by the norm.
                assert torch.isfinite(a).all() and (close if i < 4 else near)(a, b)


@law("Agreement")
def test_agreement_of_whole_models(name, settings, causal):
    """Whole models agree, forward and backward, in float32 to 1e-5."""
    ids, found = tokens(3, TRAINED), []
    for backend in ("auto", "reference"):
        model = model_with(name, settings, backend, replace(DIMS, causal=causal))
        out = model(ids)
        leaves = list(model.parameters())
        found.append([out, *torch.autograd.grad(out.square().mean(), leaves, allow_unused=True)])
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None) and (a is None or close(a, b))


SMALL = [replace(DIMS, width=8, heads=1, head_width=8), replace(DIMS, width=16, heads=8, head_width=2)]


@law("Agreement")
def test_small_shapes(name, settings):
    """One head, a head width of 2, a single token, three at a time through a cache: backends agree."""
    for dims in SMALL:
        try:
            fast, exact = (model_with(name, settings, backend, dims) for backend in ("auto", "reference"))
        except UserError:
            continue  # half of one head, or of one pair of dimensions
        ids, cache = tokens(2, 7), Cache()
        with torch.no_grad():
            expected = exact(ids)
            assert close(fast(ids), expected) and close(fast(ids[:, :1]), expected[:, :1])
            assert close(torch.cat([fast(piece, cache=cache) for piece in ids.split(3, dim=1)], dim=1), expected)


@law("Causality")
@pytest.mark.parametrize("sampling", choices("sampling"))
def test_causality(name, settings, sampling):
    """Changing a later token changes no earlier output, and does change a later one."""
    model, ids, pos = model_with(name, settings, dims=WIDE), tokens(2, TRAINED), sampled(sampling, 2, TRAINED)
    other = ids.clone()
    other[:, 15] = (ids[:, 15] + 1) % 11
    with torch.no_grad():
        a, b = model(ids, pos=pos), model(other, pos=pos)
    assert close(a[:, :15], b[:, :15], 1e-6) and not close(a[:, 15:], b[:, 15:], 1e-3)


@law("Causality")
def test_a_bidirectional_model_sees_the_future(name, settings):
    """Without the causal mask a later token does change an earlier output."""
    model, ids = model_with(name, settings, dims=replace(DIMS, causal=False)), tokens(2, TRAINED)
    other = ids.clone()
    other[:, 15] = (ids[:, 15] + 1) % 11
    with torch.no_grad():
        assert not close(model(ids)[:, 14], model(other)[:, 14], 1e-3)


@law("Prefix")
@pytest.mark.parametrize("sampling", choices("sampling"))
def test_prefix(name, settings, sampling):
    """The first n outputs do not depend on what follows, nor on how much follows."""
    model, ids, pos = model_with(name, settings, dims=WIDE), tokens(2, TRAINED), sampled(sampling, 2, TRAINED)
    with torch.no_grad():
        whole = model(ids, pos=pos)
        for n in (1, 7, 23):
            assert close(model(ids[:, :n], pos=at(pos, slice(n))), whole[:, :n])


@law("Chunks")
@pytest.mark.parametrize("sampling", choices("sampling"))
def test_chunks(name, settings, sampling, monkeypatch):
    """Slicing the queries or the batch changes nothing."""
    slices_agree(model_with(name, settings, dims=WIDE), sampling, monkeypatch)


@law("Chunks")
def test_chunks_of_a_bidirectional_model(name, settings, monkeypatch):
    """Slicing the queries or the batch changes nothing where all tokens are seen."""
    model = model_with(name, settings, dims=replace(WIDE, causal=False))
    for sampling in ("consecutive", "pose"):
        slices_agree(model, sampling, monkeypatch)


def slices_agree(model: Transformer, sampling: str, monkeypatch) -> None:
    ids = tokens(4, TRAINED)
    doc, pos = torch.zeros_like(ids), sampled(sampling, 4, TRAINED)
    first, rest = (pos, pos) if pos is None or pos.ndim == 1 else (pos[:1], pos[1:])
    with torch.no_grad(), monkeypatch.context() as patch:
        whole, masked = model(ids, pos=pos), model(ids, pos=pos, doc=doc)
        assert close(torch.cat([model(ids[:1], pos=first), model(ids[1:], pos=rest)]), whole)
        in_chunks(patch, 5)
        assert close(model(ids, pos=pos), whole)
        assert close(model(ids, pos=pos, doc=doc), masked) and close(masked, whole)


@law("Agreement")
@pytest.mark.parametrize("sampling", choices("sampling"))
def test_cache(name, settings, sampling):
    """Through a key/value cache, in pieces of any size, comes what one call gives; generation is that, greedily."""
    model, ids, pos = model_with(name, settings, dims=WIDE), tokens(2, TRAINED), sampled(sampling, 2, TRAINED)
    pieces = [slice(0, 5), slice(5, 6), slice(6, 7), slice(7, 17), slice(17, 24)]
    with torch.no_grad():
        whole = model(ids, pos=pos)
        for given in [pos] if pos is not None else [None, torch.arange(TRAINED).expand(2, -1)]:
            cache = Cache()
            parts = [model(ids[:, piece], pos=at(given, piece), cache=cache) for piece in pieces]
            assert close(torch.cat(parts, dim=1), whole)
        if sampling in ("consecutive", "pose"):
            text = ids[:, :6]
            for n in range(6, 9):
                text = torch.cat([text, model(text, pos=at(pos, slice(n)))[:, -1:].argmax(-1)], dim=1)
            assert torch.equal(generate(model, ids[:, :6], 3, pos=at(pos, slice(9))), text[:, 6:])


@law("Shift")
def test_shift(name, settings, causal):
    """Moving all positions by a constant changes nothing, or the scheme says that it is not relative."""
    model, ids = model_with(name, settings, dims=replace(DIMS, causal=causal)), tokens(2, TRAINED)
    moves = [17, 100]
    if model.reach is not None:  # within a table that ends
        moves, model = [17], model_with(name, settings, dims=replace(DIMS, train_length=2 * TRAINED, causal=causal))
    pos = torch.arange(TRAINED).expand(2, -1)
    with torch.no_grad():
        same = all(close(model(ids, pos=pos + move), model(ids, pos=pos), 1e-4) for move in moves)
    assert same == all(scheme.relative for scheme in model.positions), "`relative` says otherwise"
    if name in SCHEMES:
        reason = exception(name, NOT_SHIFT)
        assert same == (reason is None), reason


@law("Shift")
def test_placeless(name, settings):
    """What says that it reads no positions gives the same at any."""
    for scheme in each(name, settings):
        if scheme.placeless:
            q, k, v, x = (torch.randn(2, 4, 20, 8), *torch.randn(2, 2, 4, 20, 8), torch.randn(2, 20, 32))
            span = replace(Span.of(20), x=x)
            assert scheme.embed is None and scheme.visible is None and scheme.by_distance is None
            assert close(attend(q, k, v, scheme, replace(gaps(20, 0, True), x=x)), attend(q, k, v, scheme, span))


@law("Padding and packing")
def test_left_padding(name, settings, causal):
    """Padding before a text, whatever stands in it, changes no output of the text, and gives no NaN anywhere."""
    model, ids = model_with(name, settings, dims=replace(DIMS, causal=causal)), tokens(2, 15)
    padded = torch.cat([tokens(2, 6, seed=9), ids], dim=1)
    pos = torch.cat([torch.zeros(6, dtype=torch.int64), torch.arange(15)]).expand(2, -1)
    doc = torch.cat([torch.full((6,), -1), torch.zeros(15, dtype=torch.int64)]).expand(2, -1)
    out = model(padded, pos=pos, doc=doc)
    assert close(out[:, 6:], model(ids))
    out.sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert torch.isfinite(out).all() and all(torch.isfinite(gradient).all() for gradient in gradients)


@law("Padding and packing")
def test_packing(name, settings, causal):
    """A neighbouring document in the same row changes no output."""
    model = model_with(name, settings, dims=replace(DIMS, causal=causal))
    first, second = tokens(2, 9), tokens(2, 13, seed=5)
    packed = torch.cat([first, second], dim=1)
    pos = torch.cat([torch.arange(9), torch.arange(13)]).expand(2, -1)
    doc = torch.cat([torch.zeros(9, dtype=torch.int64), torch.ones(13, dtype=torch.int64)]).expand(2, -1)
    with torch.no_grad():
        assert close(model(packed, pos=pos, doc=doc), torch.cat([model(first), model(second)], dim=1))


@law("Learning")
@pytest.mark.parametrize(
    "causal, length, frozen",  # short and long go through different ways of attention
    [(True, TRAINED, False), (True, TRAINED, True), (True, 260, True), (False, 260, False)],
    ids=["causal, short, all", "causal, short, positions only", "causal, long, positions only", "bidirectional"],
)
def test_learning(name, settings, causal, length, frozen):
    """Every parameter of the scheme gets a finite gradient, zero exactly where no pair reaches, also with the rest
    of the model frozen; a step changes it."""
    model = model_with(name, settings, dims=replace(DIMS, train_length=length, causal=causal), trained=False)
    if frozen:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in model.positions.parameters():
            parameter.requires_grad_(True)
    trained = list(model.positions.parameters())
    if not trained:
        return
    before = [p.detach().clone() for p in trained]
    model(tokens(2, length)).square().mean().backward()
    for scheme in model.positions:
        unreached, uniform = scheme.unreached(length), scheme.uniform(length)
        for key, parameter in scheme.named_parameters():
            assert parameter.grad is not None, f"{key} is used nowhere"
            assert torch.isfinite(parameter.grad).all(), key
            nothing = torch.zeros_like(parameter, dtype=torch.bool)
            expected = unreached.get(key, nothing) | uniform.get(key, nothing)
            untaught = parameter.grad == 0
            if name in REACHED_BY_CONTENT and length == TRAINED:
                assert (untaught >= expected).all() and not torch.equal(untaught, expected), REACHED_BY_CONTENT[name]
            else:
                assert torch.equal(untaught, expected), f"{key}: zero where it should not be, or the reverse"
    with torch.no_grad():
        for p in trained:
            p -= p.grad
    assert all(not torch.equal(old, new) for old, new in zip(before, trained, strict=True))


@law("Precision")
def test_precision_of_the_position_term(name, settings):
    """Cast to bfloat16, a scheme computes positions in float32: its term is that of a float32 scheme with the same,
    rounded, parameters, and 8,192 positions stay as many different ones."""
    dims = replace(DIMS, train_length=8192)
    for exact, cast in zip(each(name, settings, dims), each(name, settings, dims), strict=True):
        cast.to(torch.bfloat16)
        exact.to(torch.bfloat16).to(torch.float32)
        for term in (_embedding, _rotation, _by_distance, _bias, _visible, _refined, _mixed):
            a, b = term(exact), term(cast)
            if a is None:
                continue
            assert a.dtype in (torch.float32, torch.bool), f"the {term.__name__[1:]} is computed in {a.dtype}"
            assert torch.equal(a, b), f"the {term.__name__[1:]} of a bfloat16 scheme is another one"
            assert len(a.unique(dim=0)) == len(b.unique(dim=0)), "positions fall together"


EVERYWHERE = torch.arange(8192)


def _embedding(scheme):
    return None if scheme.embed is None else scheme.embed(torch.zeros(1, 8192, 32), EVERYWHERE)[0].detach()


def _rotation(scheme):
    if scheme.rotate is None:
        return None
    ones = torch.ones(1, 4, 8192, 8)
    return scheme.rotate(ones, ones, Span(EVERYWHERE, EVERYWHERE))[0][0, 0].detach()


def _by_distance(scheme):
    return None if scheme.by_distance is None else scheme.by_distance(EVERYWHERE).T.detach()


def _bias(scheme):
    """Of the last two queries: a row for each key."""
    return None if scheme.bias is None else scheme.bias(_last_two())[0].flatten(0, 1).T.detach()


def _visible(scheme):
    return None if scheme.visible is None else scheme.visible(_last_two())[0].flatten(0, 1).T


def _refined(scheme):
    if scheme.refine is None:
        return None
    q, k, scores = (_drawn(1, 4, n, width) for n, width in ((2, 8), (8192, 8), (2, 8192)))
    seen = torch.ones(1, 1, 2, 8192, dtype=torch.bool).tril(8190)
    return scheme.refine(scores, q, k, seen, _last_two())[0].flatten(0, 1).T.detach()


def _mixed(scheme):
    if scheme.mix is None:
        return None
    return scheme.mix(_drawn(1, 4, 2, 8192).softmax(-1), _drawn(1, 4, 8192, 8), _last_two())[0].flatten(0, 1).detach()


def _last_two() -> Span:
    return Span(EVERYWHERE[-2:], EVERYWHERE, start=8190, x=_drawn(1, 8192, 32))


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


@law("Precision")
def test_precision_of_attention(name, settings):
    """bfloat16 queries, keys and values at 8 times the length agree with float32 ones to 2e-2."""
    draw, n = torch.Generator().manual_seed(6), 8 * TRAINED
    q, k, v = (torch.randn(1, 4, n, 8, generator=draw).bfloat16() for _ in range(3))
    span = replace(Span.of(n), x=torch.randn(1, n, 32, generator=draw))
    for scheme in each(name, settings):
        with torch.no_grad():
            low = attend(q, k, v, scheme, span)
            high = attend(q.float(), k.float(), v.float(), scheme, span, "reference")
        assert low.dtype == torch.bfloat16 and close(low.float(), high, 2e-2)


@law("Reach")
def test_reach(name, settings):
    """At 8 times the trained length a scheme runs, or it states its reach and refuses more."""
    model = model_with(name, settings)
    if model.reach is None:
        with torch.no_grad():
            assert torch.isfinite(model(tokens(1, 8 * TRAINED))).all()
    else:
        model(tokens(1, model.reach))
        with pytest.raises(ValueError, match=f"{model.reach}.*{model.reach + 1}"):
            model(tokens(1, model.reach + 1))


class Storage(TorchDispatchMode):
    """Remembers the size in bytes of the largest storage that any operator returned. A view over one vector has the
    storage of that vector, however many elements it reports."""

    largest = 0

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        result = operator(*arguments, **(keywords or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes())
        return result


@law("Memory")
def test_memory(name, settings):
    """No (query, key) matrix where distance decides alone: every tensor grows with the length, not with its square.
    Anything else builds one for 256 queries at a time."""
    n = 768
    for scheme in each(name, settings, replace(DIMS, train_length=n)):
        pairs = scheme.bias or scheme.refine or scheme.mix
        relative = not pairs and (scheme.visible is None or scheme.relative)
        matrix = 4 * n * n  # bytes of one float32 (query, key) matrix, for one head
        chunk = 1.05 * 4 * matrix * 256 / n  # of all heads
        if isinstance(scheme, Fire):
            chunk = max(chunk, 4 * PAIRS * len(scheme.inner))  # bytes of its hidden units, whatever the length
        if isinstance(scheme, (Cope, Fox)):
            chunk *= 2  # int64 indices, float64 sums
        if isinstance(scheme, Dape):
            chunk *= scheme.hidden / 4  # hidden units in place of heads
        assert largest(scheme, n, "fused") <= (matrix / 8 if relative else chunk)


def test_a_matrix_would_be_found():
    assert largest(build_schemes(SCHEMES["alibi"], DIMS)[0], 768, "reference") >= 4 * 4 * 768 * 768


def largest(scheme: PositionScheme, n: int, backend: str) -> int:
    """The bytes of the largest tensor while it attends to n tokens."""
    q, k, v = torch.randn(3, 1, 4, n, 8)
    span = replace(Span.of(n), x=torch.randn(1, n, 32))
    with torch.no_grad(), Storage() as seen:
        attend(q, k, v, scheme, span, backend)
    return seen.largest


@law("Reload")
def test_reload(name, settings):
    """The state dict round trip is exact; nothing in it has the size of a length."""
    model, ids = model_with(name, settings), tokens(2, TRAINED)
    fresh = model_with(name, settings)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
        fresh.load_state_dict(model.state_dict())
        assert torch.equal(fresh(ids), model(ids))
    longer = model_with(name, settings, dims=replace(DIMS, train_length=2 * TRAINED))
    sizes = [{key: value.shape for key, value in m.state_dict().items()} for m in (model, longer)]
    grows = sizes[0] != sizes[1]
    assert grows == bool(exception(name, NOT_INDEPENDENT_OF_LENGTH)), "only a table of positions has that size"


@law("Reload")
def test_lengths_leave_no_trace(name, settings):
    """Long, short, under inference mode, then training: outputs are those of a fresh model, and nothing raises."""
    dims = replace(DIMS, train_length=64)
    model, ids = model_with(name, settings, dims=dims), tokens(2, 64)
    with torch.inference_mode():
        model(ids)
        first = model(ids[:, :16]).clone()
    model(ids[:, :20]).sum().backward()
    with torch.no_grad():
        assert torch.equal(model(ids[:, :16]), first)
        assert torch.equal(model_with(name, settings, dims=dims)(ids[:, :16]), first)


@law("Identity")
def test_identity(name, settings, causal):
    """Consecutive positions, given or understood, are one thing; so is one document, and a randomized sampling over
    exactly as many positions as there are tokens."""
    model, ids = model_with(name, settings, dims=replace(DIMS, causal=causal)), tokens(2, TRAINED)
    sampling = construct("sampling", dict(file_settings("sampling", "randomized")) | {"longest": TRAINED})
    with torch.no_grad():
        plain = model(ids)
        for pos in (torch.arange(TRAINED), sampling(range(2), TRAINED, 0, 0)):
            assert close(model(ids, pos=pos), plain)
            assert close(model(ids, pos=pos, doc=torch.zeros_like(ids)), plain)
