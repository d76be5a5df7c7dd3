"""Shaw's vectors by distance, from the paper's formula in float64, independently of the code."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from posenc_train.build import build_schemes
from posenc_train.model.attend import attend
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.shaw import Shaw

DIMS = Dims(width=16, heads=4, head_width=4, layers=3, train_length=32)
BOTH_SIDES = replace(DIMS, causal=False)
SETTINGS = [{}, {"tied": True}, {"sides": "key"}, {"sides": "value"}]


def built(dims, **settings):
    """With vectors of unit size, which show in the output."""
    torch.manual_seed(0)
    scheme = Shaw(dims, **settings)
    with torch.no_grad():
        for table in scheme.parameters():
            table.normal_()
    return scheme


def drawn(queries, keys, heads=4):
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(2, heads, n, 4, generator=draw).requires_grad_() for n in (queries, keys, keys)]


def consecutive(causal):
    return Span.of(7, 5 if causal else 0, causal=causal)


def gaps(causal):
    """Rows at positions of their own."""
    pos = torch.randint(1, 4, (2, 12), generator=torch.Generator().manual_seed(2)).cumsum(1)
    start = 5 if causal else 0
    return Span(pos[:, start:], pos, start, causal=causal)


def documents(causal):
    """Row 0 begins with padding, row 1 holds two documents."""
    doc = torch.tensor([[-1] * 3 + [0] * 9, [0] * 6 + [1] * 6])
    pos = torch.tensor([[0] * 3 + [*range(9)], [*range(6)] * 2])
    start = 5 if causal else 0
    return Span(pos[:, start:], pos, start, doc[:, start:], doc, causal=causal)


def by_formula(scheme, q, k, v, span, clip):
    """One query and one key after the other. Also the tables, in float64, that gradients reach."""
    tables = [getattr(scheme, key, None) for key in ("key_table", "value_table")]
    seen = {id(table): table.detach().double().requires_grad_() for table in tables if table is not None}
    keys, values = (seen.get(id(table)) for table in tables)
    q_pos, k_pos = (p.expand(2, -1) for p in (span.q_pos, span.k_pos))
    out = []
    for b in range(2):
        for h in range(4):
            for i in range(span.queries):
                scores, vectors = [], []
                for j in range(span.keys):
                    if span.causal and j > span.start + i:
                        continue
                    if span.q_doc is not None and not span.q_doc[b, i] == span.k_doc[b, j] >= 0:
                        continue
                    r = min(max(int(k_pos[b, j] - q_pos[b, i]), -clip), clip) + clip
                    key = k[b, h, j] + (0 if keys is None else keys[r])
                    scores.append((q[b, h, i] * key).sum() / 4**0.5)
                    vectors.append(v[b, h, j] + (0 if values is None else values[r]))
                blind = q[b, h, i] * 0
                out.append(torch.stack(scores).softmax(0) @ torch.stack(vectors) if scores else blind)
    return torch.stack(out).view(2, 4, span.queries, 4), list(seen.values())


@pytest.mark.verifies("shaw", "index matrix of the formula, arXiv 1803.02155, length 4, k = 2")
def test_index_matrix():
    distance = torch.arange(4)[:, None] - torch.arange(4)
    expected = [[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]]
    assert Shaw(BOTH_SIDES, clip=2).row(distance).tolist() == expected
    assert Shaw(DIMS, clip=2).row(distance).tolist() == [[min(r, 2) for r in row] for row in expected]


@pytest.mark.verifies("shaw", "formula in float64, arXiv 1803.02155, output and gradients")
@pytest.mark.parametrize("kind", [consecutive, gaps, documents])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_output_and_gradients_by_brute_force(settings, causal, kind):
    span, scheme = kind(causal), built(replace(DIMS, causal=causal), clip=3, **settings)
    inputs = drawn(span.queries, span.keys)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected, tables = by_formula(scheme, *exact, span, clip=3)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    expected_gradients = torch.autograd.grad((expected * weight).sum(), exact + tables)
    for backend in ("reference", "fused"):
        out = attend(*inputs, scheme, span, backend)
        assert torch.allclose(out.double(), expected, atol=1e-5)
        gradients = torch.autograd.grad((out * weight).sum(), inputs + list(scheme.parameters()))
        for found, exactly in zip(gradients, expected_gradients, strict=True):
            assert torch.allclose(found.double(), exactly, rtol=1e-4, atol=1e-5)


def test_the_key_side_is_divided_by_root_d():
    scheme = built(DIMS, clip=2, sides="key")
    q, k, _ = drawn(4, 4)
    found = scheme.refine(torch.zeros(2, 4, 4, 4), q, k, torch.ones(1, 1, 4, 4, dtype=torch.bool), Span.of(4))
    assert torch.allclose(found[:, :, 3, 0], q[:, :, 3] @ scheme.key_table[0] / 2, atol=1e-6)


def test_without_content_in_the_values_their_vectors_remain():
    """That is the term which is forgotten most often; with the key side alone nothing remains."""
    q, k, v = drawn(9, 9)
    nothing = torch.zeros_like(v)
    for scheme in (built(DIMS, clip=2), built(DIMS, clip=2, sides="value")):
        out = attend(q, k, nothing, scheme, Span.of(9))
        assert torch.allclose(out[:, :, 0], scheme.value_table[2].expand(2, 4, 4), atol=1e-6)
        assert (out.abs().sum(-1) > 1e-2).all()
    assert not attend(q, k, nothing, built(DIMS, clip=2, sides="key"), Span.of(9)).any()


def test_beyond_clip_distances_are_alike():
    """Tokens that change places at distances 20 and 40 of the last query, at clip 16, change nothing for it; tokens at
    distances 10 and 12 do."""
    q, k, v = drawn(1, 60)
    scheme, span = built(DIMS), Span.of(1, 59)
    whole = attend(q, k, v, scheme, span)

    def swapped(a, b):
        order = torch.arange(60)
        order[[59 - a, 59 - b]] = order[[59 - b, 59 - a]]
        return attend(q, k[:, :, order], v[:, :, order], scheme, span)

    assert torch.allclose(swapped(20, 40), whole, atol=1e-6)
    assert torch.allclose(swapped(16, 59), whole, atol=1e-6)
    assert not torch.allclose(swapped(15, 16), whole, atol=1e-3)
    assert not torch.allclose(swapped(10, 12), whole, atol=1e-3)


def test_both_sides_are_the_skew_of_one_product():
    """Pad, reshape, slice (the trick of Huang et al. 2018, arXiv 1809.04281), and its transpose for the values."""
    n, scheme = 9, built(DIMS, clip=8)

    def skewed(x):
        return F.pad(x, (1, 0)).view(*x.shape[:-2], n + 1, n)[..., 1:, :].tril()

    q, k, _ = drawn(n, n)
    seen = torch.ones(1, 1, n, n, dtype=torch.bool)
    found = scheme.refine(torch.zeros(2, 4, n, n), q, k, seen, Span.of(n)).tril()
    assert torch.allclose(found, skewed(q @ scheme.key_table.T / 2), atol=1e-6)
    weights = torch.rand(2, 4, n, n).tril()
    _, by_row = torch.autograd.functional.vjp(skewed, torch.zeros(2, 4, n, n), weights)
    nothing = torch.zeros(2, 4, n, 4)
    assert torch.allclose(scheme.mix(weights, nothing, Span.of(n)), by_row @ scheme.value_table, atol=1e-5)


@pytest.mark.parametrize("dims, rows", [(DIMS, 17), (BOTH_SIDES, 33)], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("settings, tables", zip(SETTINGS, [2, 1, 1, 1], strict=True), ids=str)
def test_tables_are_one_for_all_heads_and_each_layers_own(dims, rows, settings, tables):
    settings = {"_target_": "posenc_train.positions.shaw.Shaw", **settings}
    layers = build_schemes(settings, dims)
    for layer in layers:
        assert [p.shape for p in layer.parameters()] == [(rows, 4)] * tables
    assert len({id(p) for layer in layers for p in layer.parameters()}) == 3 * tables


def test_tied_is_two_equal_tables():
    inputs, two, one = drawn(9, 9), built(DIMS, clip=4), built(DIMS, clip=4, tied=True)
    apart = attend(*inputs, two, Span.of(9))
    two.load_state_dict({"key_table": one.key_table, "value_table": one.key_table})
    assert torch.equal(attend(*inputs, one, Span.of(9)), attend(*inputs, two, Span.of(9)))
    assert not torch.allclose(attend(*inputs, two, Span.of(9)), apart, atol=1e-2)


def test_it_starts_small():
    scheme = Shaw(replace(BOTH_SIDES, head_width=256))
    for table in scheme.parameters():
        assert table.std().item() == pytest.approx(0.02, rel=0.05) and abs(table.mean().item()) < 1e-3


@pytest.mark.parametrize("length", [2, 3, 4, 5, 9])
@pytest.mark.parametrize("dims", [DIMS, BOTH_SIDES], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_unreached_rows_are_those_without_a_gradient(settings, dims, length):
    scheme = built(dims, clip=3, **settings)
    out = attend(*drawn(length, length), scheme, Span.of(length, causal=dims.causal))
    out.square().sum().backward()
    unreached = scheme.unreached(length)
    for key, table in scheme.named_parameters():
        assert torch.equal(table.grad == 0, unreached[key])


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"sides": "query"}, "position.sides=query: must be one of both, key, value"),
        ({"sides": "key", "tied": True}, "position.tied=true: must be false with position.sides=key"),
    ],
)
def test_what_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Shaw(DIMS, **settings)
