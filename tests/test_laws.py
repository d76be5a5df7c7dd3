"""The laws that every position scheme obeys, over every conf/position/*.yaml without listing them.

A scheme of your own goes through the same laws:  bash scripts/test.sh tests/test_laws.py --own wave.Wave
Exceptions stand in one list with their reason, and each must break its law.
"""

from pathlib import Path

import pytest
import torch
import yaml

from posenc_train.build import construct
from posenc_train.config import CONF
from posenc_train.model import attend as attention
from posenc_train.model import toeplitz
from posenc_train.model.attend import attend
from posenc_train.model.cache import Cache
from posenc_train.model.transformer import Transformer, generate
from posenc_train.positions.base import Dims, PositionScheme, Span

SETTINGS = {
    path.stem: settings
    for path in sorted(Path(CONF, "position").glob("*.yaml"))
    if (settings := yaml.safe_load(path.read_text()))["_target_"] != "???"
}
NOT_SHIFT = {
    "sinusoidal": "an absolute scheme: position p has its own vector",
    "learned": "an absolute scheme: position p has its own row",
}
NOT_INDEPENDENT_OF_LENGTH = {"learned": "a row for every position is what it is"}
TRAINED = 24  # tokens
DIMS = Dims(width=32, heads=4, head_width=8, layers=2, train_length=TRAINED)


def pytest_generate_tests(metafunc):
    if "settings" in metafunc.fixturenames:
        own = metafunc.config.getoption("--own")
        every = {own: {"_target_": own}} if own else SETTINGS
        metafunc.parametrize("name, settings", every.items(), ids=list(every))


def make(settings: dict, dims: Dims = DIMS) -> PositionScheme:
    torch.manual_seed(0)
    return construct("position", settings, dims)


def model_with(settings: dict, backend: str = "auto", dims: Dims = DIMS) -> Transformer:
    first = make(settings, dims)
    schemes = (
        [first] if first.shared else [first] + [construct("position", settings, dims) for _ in range(dims.layers - 1)]
    )
    torch.manual_seed(1)
    return Transformer(dims, vocab=11, marks=2, schemes=schemes, attention=backend).eval()


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 13, (rows, length), generator=torch.Generator().manual_seed(seed))


def close(a: torch.Tensor, b: torch.Tensor, within: float = 1e-5) -> bool:
    return bool((a - b).abs().max() <= within * max(1.0, b.abs().max().item()))


# Every shape of call that attention knows. For positions that are not consecutive, gaps and a different row each.
def consecutive(queries: int, cached: int) -> Span:
    return Span.of(queries, cached)


def gaps(queries: int, cached: int) -> Span:
    pos = torch.randint(1, 3, (2, cached + queries), generator=torch.Generator().manual_seed(3)).cumsum(1) - 1
    return Span(pos[:, cached:], pos, start=cached)


def documents(queries: int, cached: int) -> Span:
    """Row 0 is left-padded by four, row 1 holds two documents whose positions each begin at 0."""
    n = cached + queries
    doc = torch.stack([torch.where(torch.arange(n) < 4, -1, 0), torch.where(torch.arange(n) < n // 2, 0, 1)])
    pos = torch.stack([(torch.arange(n) - 4).clamp(min=0), torch.arange(n) % (n // 2)])
    return Span(pos[:, cached:], pos, cached, doc[:, cached:], doc)


@pytest.mark.parametrize("queries, cached", [(20, 0), (9, 11), (1, 14), (600, 40)])
@pytest.mark.parametrize("kind", [consecutive, gaps, documents])
def test_agreement(name, settings, kind, queries, cached):
    """All backends give the same output and gradients, for equal and unequal numbers of queries and keys."""
    scheme, span = make(settings), kind(queries, cached)
    draw = torch.Generator().manual_seed(4)
    q, w = (torch.randn(2, 4, queries, 8, generator=draw) for _ in range(2))
    k, v = (torch.randn(2, 4, cached + queries, 8, generator=draw) for _ in range(2))
    leaves = [x.requires_grad_() for x in (q, k, v)] + list(scheme.parameters())
    found = {}
    for backend in ("reference", "fused"):
        out = attend(q, k, v, scheme, span, backend)
        found[backend] = (out, *torch.autograd.grad((out * w).sum(), leaves, allow_unused=True))
    for a, b in zip(found["fused"], found["reference"], strict=True):
        assert (a is None) == (b is None)
        assert a is None or (torch.isfinite(a).all() and close(a, b))


def test_agreement_of_whole_models(name, settings):
    """… and so do whole models, forward and backward, in float32 to 1e-5."""
    ids = tokens(3, TRAINED)
    found = []
    for backend in ("auto", "reference"):
        model = model_with(settings, backend)
        out = model(ids)
        found.append([out, *torch.autograd.grad(out.square().mean(), list(model.parameters()))])
    assert all(close(a, b) for a, b in zip(*found, strict=True))


def test_causality(name, settings):
    """Changing a later token changes no earlier output, and does change a later one."""
    model, ids = model_with(settings), tokens(2, TRAINED)
    other = ids.clone()
    other[:, 15] = (ids[:, 15] + 1) % 11
    with torch.no_grad():
        a, b = model(ids), model(other)
    assert close(a[:, :15], b[:, :15], 1e-6) and not close(a[:, 15:], b[:, 15:], 1e-3)


def test_prefix(name, settings):
    """The first n outputs do not depend on what follows, nor on how much follows."""
    model, ids = model_with(settings), tokens(2, TRAINED)
    with torch.no_grad():
        whole = model(ids)
        for n in (1, 7, 23):
            assert close(model(ids[:, :n]), whole[:, :n])


def test_chunks(name, settings, monkeypatch):
    """Slicing the queries or the batch changes nothing."""
    model, ids = model_with(settings), tokens(4, TRAINED)
    doc = torch.zeros_like(ids)
    with torch.no_grad():
        whole, masked = model(ids), model(ids, doc=doc)
        assert close(torch.cat([model(ids[:1]), model(ids[1:])]), whole)
        monkeypatch.setattr(toeplitz, "CHUNK", 5)
        monkeypatch.setattr(attention, "CHUNK", 5)
        assert close(model(ids), whole)
        assert close(model(ids, doc=doc), masked) and close(masked, whole)


def test_cache(name, settings):
    """Through a key/value cache, in pieces of any size, comes what one call gives; generation is that, greedily."""
    model, ids = model_with(settings), tokens(2, TRAINED)
    pos = torch.arange(TRAINED).expand(2, -1)
    with torch.no_grad():
        whole, cache, named = model(ids), Cache(), Cache()
        pieces = ids.split([5, 1, 1, 10, 7], dim=1)
        assert close(torch.cat([model(piece, cache=cache) for piece in pieces], dim=1), whole)
        places = pos.split([5, 1, 1, 10, 7], dim=1)
        assert close(
            torch.cat([model(i, pos=p, cache=named) for i, p in zip(pieces, places, strict=True)], dim=1), whole
        )
        text = ids[:, :6]
        for _ in range(5):
            text = torch.cat([text, model(text)[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(generate(model, ids[:, :6], 5), text[:, 6:])


def test_shift(name, settings):
    """Moving all positions by a constant changes nothing."""
    dims = Dims(32, 4, 8, 2, train_length=2 * TRAINED)
    model, ids = model_with(settings, dims=dims), tokens(2, TRAINED)
    pos = torch.arange(TRAINED).expand(2, -1)
    with torch.no_grad():
        same = close(model(ids, pos=pos), model(ids, pos=pos + 17), 1e-4)
    assert same != (name in NOT_SHIFT), NOT_SHIFT.get(name, "a relative scheme")


def test_left_padding(name, settings):
    """Padding before a text, whatever stands in it, changes no output of the text, and gives no NaN anywhere."""
    model, ids = model_with(settings), tokens(2, 15)
    padded = torch.cat([tokens(2, 6, seed=9), ids], dim=1)
    pos = torch.cat([torch.zeros(6, dtype=torch.int64), torch.arange(15)]).expand(2, -1)
    doc = torch.cat([torch.full((6,), -1), torch.zeros(15, dtype=torch.int64)]).expand(2, -1)
    out = model(padded, pos=pos, doc=doc)
    assert close(out[:, 6:], model(ids))
    out.sum().backward()
    assert torch.isfinite(out).all() and all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_packing(name, settings):
    """A neighbouring document in the same row changes no output."""
    model, first, second = model_with(settings), tokens(2, 9), tokens(2, 13, seed=5)
    packed = torch.cat([first, second], dim=1)
    pos = torch.cat([torch.arange(9), torch.arange(13)]).expand(2, -1)
    doc = torch.cat([torch.zeros(9, dtype=torch.int64), torch.ones(13, dtype=torch.int64)]).expand(2, -1)
    with torch.no_grad():
        assert close(model(packed, pos=pos, doc=doc), torch.cat([model(first), model(second)], dim=1))


@pytest.mark.parametrize("length", [TRAINED, 300], ids=["short", "long"])
@pytest.mark.parametrize("frozen", [False, True], ids=["all", "positions only"])
def test_learning(name, settings, frozen, length):
    """Every parameter of the scheme gets a finite gradient, zero exactly where no pair reaches, also with the rest
    of the model frozen; a step changes it. Short and long go through different ways of attention."""
    model = model_with(settings, dims=Dims(32, 4, 8, 2, train_length=length))
    if frozen:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in model.positions.parameters():
            parameter.requires_grad_(True)
    trained = list(model.positions.parameters())
    if not trained:
        return
    before = [p.detach().clone() for p in trained]
    model(tokens(8, length)).square().mean().backward()
    torch.optim.SGD(trained, lr=1.0).step()
    assert all(not torch.equal(old, new) for old, new in zip(before, trained, strict=True))
    for scheme in model.positions:
        unreached = scheme.unreached(length)
        for key, parameter in scheme.named_parameters():
            assert torch.isfinite(parameter.grad).all()
            assert torch.equal(parameter.grad == 0, unreached.get(key, torch.zeros_like(parameter, dtype=torch.bool)))


def test_precision_of_the_position_term(name, settings):
    """A scheme cast to bfloat16 computes positions in float32: alone, its term is exact up to the rounding of its
    parameters (2^-8), and 8,192 positions stay as many different ones as in float32."""
    dims = Dims(32, 4, 8, 2, train_length=8192)
    exact, cast = make(settings, dims), make(settings, dims).to(torch.bfloat16)
    pos = torch.arange(8192)
    for term in (_embedding, _rotation, _bias):
        a, b = term(exact, pos), term(cast, pos)
        if a is None:
            continue
        if not list(exact.parameters()):
            assert torch.equal(a, b)
        assert close(a, b, 4e-3)
        assert len(a.unique(dim=0)) == len(b.unique(dim=0))


def _embedding(scheme, pos):
    return None if scheme.embed is None else scheme.embed(torch.zeros(1, len(pos), 32), pos)[0].detach()


def _rotation(scheme, pos):
    if scheme.rotate is None:
        return None
    ones = torch.ones(1, 4, len(pos), 8)
    return scheme.rotate(ones, ones, Span(pos, pos))[0][0, 0].detach()


def _bias(scheme, pos):
    return None if scheme.by_distance is None else scheme.by_distance(pos).T.detach()


def test_precision_of_attention(name, settings):
    """bfloat16 queries, keys and values at 8 times the length agree with float32 ones to 2e-2."""
    scheme, n = make(settings), 8 * TRAINED
    draw = torch.Generator().manual_seed(6)
    q, k, v = (torch.randn(1, 4, n, 8, generator=draw).bfloat16() for _ in range(3))
    with torch.no_grad():
        low = attend(q, k, v, scheme, Span.of(n))
        high = attend(q.float(), k.float(), v.float(), scheme, Span.of(n), "reference")
    assert low.dtype == torch.bfloat16 and close(low.float(), high, 2e-2)


def test_reach(name, settings):
    """At 8 times the trained length a scheme runs, or it states its reach and refuses more."""
    model = model_with(settings)
    if model.reach is None:
        with torch.no_grad():
            assert torch.isfinite(model(tokens(1, 8 * TRAINED))).all()
    else:
        model(tokens(1, model.reach))
        with pytest.raises(ValueError, match=f"{model.reach}.*{model.reach + 1}"):
            model(tokens(1, model.reach + 1))


def test_reload(name, settings):
    """The state dict round trip is exact; nothing in it has the size of a length."""
    model, ids = model_with(settings), tokens(2, TRAINED)
    fresh = model_with(settings)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
        fresh.load_state_dict(model.state_dict())
        assert torch.equal(fresh(ids), model(ids))
    longer = model_with(settings, dims=Dims(32, 4, 8, 2, train_length=2 * TRAINED))
    sizes = [{key: value.shape for key, value in m.state_dict().items()} for m in (model, longer)]
    assert (sizes[0] != sizes[1]) == (name in NOT_INDEPENDENT_OF_LENGTH)


def test_lengths_leave_no_trace(name, settings):
    """Long, short, under inference mode, then training: outputs are those of a fresh model, and nothing raises."""
    dims = Dims(32, 4, 8, 2, train_length=64)
    model, ids = model_with(settings, dims=dims), tokens(2, 64)
    with torch.inference_mode():
        model(ids)
        first = model(ids[:, :16]).clone()
    model(ids[:, :20]).sum().backward()
    with torch.no_grad():
        assert torch.equal(model(ids[:, :16]), first)
        assert torch.equal(model_with(settings, dims=dims)(ids[:, :16]), first)
