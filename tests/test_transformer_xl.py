"""The relative positions of Transformer-XL, from the paper's formula in float64, independently of the code."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from posenc_train.build import build_schemes
from posenc_train.model.attend import attend
from posenc_train.model.cache import Cache
from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.transformer_xl import TransformerXl, distinct, vectors

DIMS = Dims(width=16, heads=4, head_width=4, layers=3, train_length=32)
BOTH_SIDES = replace(DIMS, causal=False)
SETTINGS = {"_target_": "posenc_train.positions.transformer_xl.TransformerXl"}


def built(dims, **settings):
    """With u and v of unit size, which show in the output."""
    torch.manual_seed(0)
    scheme = TransformerXl(dims, **settings)
    with torch.no_grad():
        for parameter in (scheme.u, scheme.v):
            parameter.normal_()
    return scheme


def drawn(queries, keys):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(2, 4, n, 4, generator=draw).requires_grad_() for n in (queries, keys, keys)]


def consecutive(causal):
    return Span.of(7, 5 if causal else 0, causal=causal)


def gaps(causal):
    """Rows at positions of their own, one of which leaps."""
    pos = torch.randint(1, 4, (2, 12), generator=torch.Generator().manual_seed(2)).cumsum(1)
    pos[1, 6:] += 3000
    start = 5 if causal else 0
    return Span(pos[:, start:], pos, start, causal=causal)


def documents(causal):
    """Row 0 begins with padding, row 1 holds two documents."""
    doc = torch.tensor([[-1] * 3 + [0] * 9, [0] * 6 + [1] * 6])
    pos = torch.tensor([[0] * 3 + [*range(9)], [*range(6)] * 2])
    start = 5 if causal else 0
    return Span(pos[:, start:], pos, start, doc[:, start:], doc, causal=causal)


def r(distance, width):
    angle = distance / 10000 ** (np.arange(0, width, 2) / width)
    return torch.from_numpy(np.concatenate([np.sin(angle), np.cos(angle)]))


def by_formula(q, k, values, u, v, w, span, clamp):
    """One query and one key after the other."""
    q_pos, k_pos = (p.expand(2, -1) for p in (span.q_pos, span.k_pos))
    out = []
    for b in range(2):
        for h in range(4):
            for i in range(span.queries):
                scores, seen = [], []
                for j in range(span.keys):
                    if span.causal and j > span.start + i:
                        continue
                    if span.q_doc is not None and not span.q_doc[b, i] == span.k_doc[b, j] >= 0:
                        continue
                    distance = min(max(int(q_pos[b, i] - k_pos[b, j]), -clamp), clamp)
                    relative = w[h] @ r(distance, 16)
                    scores.append(((q[b, h, i] + u[h]) @ k[b, h, j] + (q[b, h, i] + v[h]) @ relative) / 4**0.5)
                    seen.append(values[b, h, j])
                blind = q[b, h, i] * 0
                out.append(torch.stack(scores).softmax(0) @ torch.stack(seen) if scores else blind)
    return torch.stack(out).view(2, 4, span.queries, 4)


@pytest.mark.verifies("transformer_xl", "values of R in the formula, arXiv 1901.02860, width 4")
def test_vectors_of_distances():
    expected = [
        [0, 0, 1, 1],
        [0.841471, 0.01, 0.540302, 0.99995],
        [0.909297, 0.019999, -0.416147, 0.9998],
        [-0.909297, -0.019999, -0.416147, 0.9998],
    ]
    assert torch.allclose(vectors(torch.tensor([0, 1, 2, -2]), 4), torch.tensor(expected), atol=1e-6)
    far = torch.arange(-9000, 9000, 37)
    exact = torch.stack([r(int(distance), 64) for distance in far])
    assert torch.allclose(vectors(far, 64).double(), exact, atol=1e-3)  # the angles are float32


def lower(rows, cached):
    return [row[: cached + i + 1] for i, row in enumerate(rows.tolist())]


@pytest.mark.verifies("transformer_xl", "distances that the authors' shift reads, with and without memory")
def test_which_distances_are_read():
    for span, expected in (
        (Span.of(4), [[0], [1, 0], [2, 1, 0], [3, 2, 1, 0]]),
        (Span.of(2, cached=3), [[3, 2, 1, 0], [4, 3, 2, 1, 0]]),
    ):
        for told in (span, replace(span, consecutive=False)):
            distance, row = TransformerXl(DIMS)._distances(told)
            assert lower(distance[row], span.start) == expected
            assert len(distance) == span.keys == len(distance.unique())
    distance, row = TransformerXl(BOTH_SIDES)._distances(Span.of(3, causal=False))
    assert distance.tolist() == [-2, -1, 0, 1, 2] and distance[row].tolist() == [[0, -1, -2], [1, 0, -1], [2, 1, 0]]
    distance, row = TransformerXl(BOTH_SIDES, clamp=1)._distances(Span.of(3, causal=False))
    assert distance.tolist() == [-1, 0, 1] and distance[row].tolist() == [[0, -1, -1], [1, 0, -1], [1, 1, 0]]


def test_distinct_distances():
    distance, row = distinct(torch.tensor([[5, 2], [9, 5]]))
    assert distance.tolist() == [2, 5, 9] and row.tolist() == [[1, 0], [2, 1]]
    many = torch.randint(-50, 100_000, (2, 30, 40), generator=torch.Generator().manual_seed(0))
    distance, row = distinct(many)
    assert torch.equal(distance[row], many) and torch.equal(distance, many.unique())


@pytest.mark.verifies("transformer_xl", "formula in float64, arXiv 1901.02860, output and gradients")
@pytest.mark.parametrize("kind", [consecutive, gaps, documents])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("clamp", [None, 4])
def test_output_and_gradients_by_brute_force(clamp, causal, kind):
    span, scheme = kind(causal), built(replace(DIMS, causal=causal), clamp=clamp)
    leaves = [*drawn(span.queries, span.keys), scheme.u, scheme.v, scheme.w]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    expected = by_formula(*exact, span, clamp=10**9 if clamp is None else clamp)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    expected_gradients = torch.autograd.grad((expected * weight).sum(), exact)
    far = 20 if kind is gaps and clamp is None else 1  # float32 angles of distances above 3,000
    for backend in ("reference", "fused"):
        out = attend(*leaves[:3], scheme, span, backend)
        assert torch.allclose(out.double(), expected, atol=1e-5 * far)
        gradients = torch.autograd.grad((out * weight).sum(), leaves)
        for found, exactly in zip(gradients, expected_gradients, strict=True):
            assert torch.allclose(found.double(), exactly, rtol=1e-4 * far, atol=1e-5 * far)


def refined(scheme, q, k, span):
    scores = torch.zeros(2, 4, span.queries, span.keys)
    return scheme.refine(scores, q, k, torch.ones(1, 1, *scores.shape[2:], dtype=torch.bool), span).detach()


def test_the_masked_future_is_finite_and_reads_distance_0():
    """The authors' shift leaves other rows' numbers there."""
    q, k, _ = drawn(5, 9)
    scheme = built(DIMS)
    found = refined(scheme, q, k, Span.of(5, 4))
    here = refined(scheme, q, k, Span(torch.zeros(5, dtype=torch.int64), torch.zeros(9, dtype=torch.int64), 4))
    future = ~Span.of(5, 4).allowed()
    assert torch.allclose(found[..., future], here[..., future], atol=1e-6)
    assert not torch.allclose(found[..., ~future], here[..., ~future], atol=1e-2)


def test_past_and_future_differ():
    scheme = built(BOTH_SIDES)
    q, k = (x[:, :, :1].expand(-1, -1, 3, -1) for x in drawn(1, 1)[:2])
    found = refined(scheme, q, k, Span.of(3, causal=False))
    assert torch.allclose(found[..., 0, 1], found[..., 1, 2], atol=1e-6)  # both at distance -1
    assert not torch.allclose(found[..., 0, 1], found[..., 1, 0], atol=1e-2)


def test_beyond_clamp_distances_are_alike():
    q, k, v = drawn(1, 60)
    order = torch.arange(60)
    order[[59 - 20, 59 - 40]] = order[[59 - 40, 59 - 20]]
    for clamp, same in ((16, True), (20, True), (21, False), (None, False)):
        scheme, span = built(DIMS, clamp=clamp), Span.of(1, 59)
        whole, swapped = (attend(q, k[:, :, o], v[:, :, o], scheme, span) for o in (torch.arange(60), order))
        assert torch.allclose(whole, swapped, atol=1e-6 if same else 1e-3) == same


def test_u_and_v_are_one_for_all_layers_or_untied():
    for untied in (False, True):
        layers = build_schemes(SETTINGS | {"untied": untied, "clamp": 7}, DIMS)
        assert len({id(layer) for layer in layers}) == len({id(layer.w) for layer in layers}) == 3
        for name in ("u", "v"):
            assert len({id(getattr(layer, name)) for layer in layers}) == (3 if untied else 1)
        assert [layer.clamp for layer in layers] == [7] * 3
    assert len(build_schemes(SETTINGS, DIMS)) == 3, "every setting has a default"


def test_shared_u_and_v_stay_so_through_training_copying_and_reloading():
    model = Transformer(DIMS, 11, 2, build_schemes(SETTINGS, DIMS))
    ids = torch.randint(0, 11, (2, 20))
    other = copy.deepcopy(model)
    model(ids).square().mean().backward()
    u = model.positions[0].u
    assert sum(p is u for p in model.parameters()) == 1
    each = torch.autograd.grad(model(ids).square().mean(), u)[0]
    assert torch.allclose(each, u.grad, rtol=1e-5)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    other.load_state_dict(model.state_dict())
    for layer in (*model.positions, *other.positions):
        assert torch.equal(layer.u, u)
    assert len({id(layer.u) for layer in other.positions}) == 1


def test_the_gradient_of_u_is_the_sum_over_the_layers():
    torch.manual_seed(0)
    tied = Transformer(DIMS, 11, 0, build_schemes(SETTINGS, DIMS))
    apart = Transformer(DIMS, 11, 0, build_schemes(SETTINGS | {"untied": True}, DIMS))
    apart.load_state_dict(tied.state_dict())
    ids = torch.randint(0, 11, (2, 20))
    for model in (tied, apart):
        model(ids).square().mean().backward()
    for name in ("u", "v"):
        total = sum(getattr(layer, name).grad for layer in apart.positions)
        assert torch.allclose(getattr(tied.positions[0], name).grad, total, rtol=1e-4, atol=1e-8)


def test_a_whole_model_on_segments_is_the_model_on_all_at_once():
    """At any depth, when the memory holds all of the past."""
    model = Transformer(DIMS, 11, 2, build_schemes(SETTINGS, DIMS)).eval()
    for layer in model.positions:
        torch.nn.init.normal_(layer.u)
        torch.nn.init.normal_(layer.v)
    ids, cache = torch.randint(0, 13, (2, 48)), Cache()
    with torch.no_grad():
        segments = [model(segment, cache=cache) for segment in ids.split(16, dim=1)]
        assert torch.allclose(torch.cat(segments, dim=1), model(ids), atol=1e-5)
        assert not torch.allclose(segments[-1], model(ids[:, 32:]), atol=1e-2)  # the memory is read


def test_it_starts_as_it_says():
    scheme = TransformerXl(replace(DIMS, width=410, heads=10, head_width=41))
    assert scheme.u.shape == scheme.v.shape == (10, 41) and scheme.w.shape == (10, 41, 410)
    for parameter, std in ((scheme.u, 0.02), (scheme.v, 0.02), (scheme.w, 410**-0.5)):
        assert parameter.std().item() == pytest.approx(std, rel=0.1)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="model.width=15: must be even"):
        TransformerXl(Dims(width=15, heads=3, head_width=5, layers=1, train_length=32))
