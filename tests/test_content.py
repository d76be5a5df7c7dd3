"""Schemes that read content, from the papers' formulas and from float64 loops written here."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from posenc_train.build import build_schemes
from posenc_train.checks import file_settings
from posenc_train.config import UserError, check, compose
from posenc_train.model.attend import attend
from posenc_train.positions import path as path_module
from posenc_train.positions.alibi import Alibi, slopes
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.cope import Cope, counted, interpolated
from posenc_train.positions.dape import Dape, along_keys
from posenc_train.positions.fire import Fire
from posenc_train.positions.fox import Fox, forgotten
from posenc_train.positions.heads import Heads
from posenc_train.positions.kerple_log import KerpleLog
from posenc_train.positions.nope import Nope
from posenc_train.positions.path import PaTH, transported
from posenc_train.positions.rope import Rope
from posenc_train.positions.stack import Stack
from posenc_train.positions.window import Window

DIMS = Dims(width=32, heads=4, head_width=8, layers=2, train_length=24)
BOTH_SIDES = replace(DIMS, causal=False)


def inputs(n=20, rows=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(rows, 4, n, 8, generator=draw) for _ in range(3))
    return q, k, v, torch.randn(rows, n, 32, generator=draw)


def span_of(x):
    return replace(Span.of(x.shape[1]), x=x)


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def refined(scheme, q, k, x):
    """The scores that a scheme makes of those of q and k."""
    n = q.shape[2]
    return scheme.refine(q @ k.mT / 8**0.5, q, k, causal(n)[None, None], span_of(x))


def drawn(scheme, seed=1):
    """With parameters that are nowhere 0."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in scheme.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) / p.shape[-1] ** 0.5)
    return scheme


@pytest.mark.parametrize("scheme_class", [Fox, Cope, PaTH])
def test_a_bidirectional_model_is_refused(scheme_class):
    with pytest.raises(ValueError, match=r"model\.causal=false: must be true"):
        scheme_class(BOTH_SIDES)


@pytest.mark.parametrize("length", [1, 2, 3, 5])
@pytest.mark.parametrize("scheme_class", [Fox, PaTH])
def test_unreached_entries_are_those_without_a_gradient(scheme_class, length):
    scheme = drawn(scheme_class(DIMS))
    q, k, v, x = inputs(length)
    attend(q, k, v, scheme, span_of(x)).square().sum().backward()
    for name, p in scheme.named_parameters():
        assert torch.equal(p.grad == 0, scheme.unreached(length).get(name, torch.zeros_like(p, dtype=torch.bool))), name


# ---- FoX


@pytest.mark.verifies("fox", "values of the formula, arXiv 2503.02130")
def test_fox_values():
    log_gate = torch.tensor([0.9, 0.5, 0.8, 0.99]).log()[None, None]
    expected = torch.tensor([[1, 0, 0, 0], [0.5, 1, 0, 0], [0.4, 0.8, 1, 0], [0.396, 0.792, 0.99, 1]])
    assert torch.allclose(forgotten(log_gate, 0, 4)[0, 0].exp().tril(), expected, atol=1e-6)
    assert torch.allclose(forgotten(log_gate, 2, 1)[0, 0].exp()[:, :3], expected[2:3, :3], atol=1e-6)


@pytest.mark.verifies("fox", "formula in float64, arXiv 2503.02130, by loops")
def test_fox_by_loops():
    n, scheme = 14, drawn(Fox(DIMS))
    q, k, v, x = inputs(n)
    gate = torch.einsum("bnw,hw->bhn", x.double(), scheme.w.double()) + scheme.b.double()[:, None]
    scores = q.double() @ k.double().mT / 8**0.5
    for i in range(n):
        for j in range(n):
            past = sum((gate[:, :, t].sigmoid().log() for t in range(j + 1, i + 1)), torch.zeros(2, 4).double())
            scores[:, :, i, j] = scores[:, :, i, j] + past if j <= i else -torch.inf
    assert torch.allclose(attend(q, k, v, scheme, span_of(x)).double(), scores.softmax(-1) @ v.double(), atol=2e-6)


def test_fox_sums_of_16384_tokens_keep_neighbours_apart():
    """Where a key still matters; a float32 sum is off by 0.0009 here."""
    log_gate = F.logsigmoid(torch.randn(1, 1, 16384, generator=torch.Generator().manual_seed(0)))
    exact = log_gate.double().cumsum(-1)
    exact = exact[..., -64:, None] - exact[..., None, :]
    error = (forgotten(log_gate, 16384 - 64, 64) - exact).abs()[(exact <= 0) & (exact > -20)]
    assert len(error) > 1000 and error.max() < 2e-6


def test_fox_with_constant_gates_is_alibi():
    q, k, v, x = inputs()
    data, fixed, alibi = Fox(DIMS), Fox(DIMS, gate="fixed"), Alibi(DIMS)
    with torch.no_grad():
        gate = torch.tensor([-math.log(math.expm1(m)) for m in slopes(4)])  # sigmoid of it is e^-m
        data.w.zero_(), data.b.copy_(gate), fixed.b.copy_(gate)
        expected = attend(q, k, v, alibi, Span.of(20))
        assert torch.allclose(attend(q, k, v, data, span_of(x)), expected, atol=1e-5)
        assert torch.allclose(attend(q, k, v, fixed, Span.of(20)), expected, atol=1e-5)


def test_fox_is_cable():
    """Whose gate is written -softplus(-z)."""
    q, k, v, x = inputs()
    scheme = drawn(Fox(DIMS))
    total = -F.softplus(-(x @ scheme.w.T + scheme.b)).mT.cumsum(-1)
    assert torch.allclose(scheme.bias(span_of(x)), total[..., :, None] - total[..., None, :], atol=1e-5)


@pytest.mark.verifies("fox", "values of the formula, arXiv 2503.02130")
def test_fox_first_biases():
    dims = replace(DIMS, heads=3)
    b = Fox(dims, gate="fixed", t_min=2.0, t_max=16384.0).b
    assert torch.allclose(b[[0, 2]], torch.tensor([0.432752, 9.704030]), atol=1e-5)
    assert Fox(dims, gate="fixed").b[2].item() == pytest.approx(4.848121, abs=1e-5)
    times = -1 / F.logsigmoid(b.double())
    assert times[1].item() == pytest.approx(math.sqrt(2 * 16384), rel=1e-4)
    assert not Fox(DIMS).b.any() and (Fox(DIMS, init=5.0).b == 5).all()
    assert math.log(0.5) / F.logsigmoid(torch.tensor(5.0)).item() == pytest.approx(103, abs=0.5)


# ---- CoPE


@pytest.mark.verifies("cope", "values of the formula, arXiv 2405.18719")
def test_cope_values():
    content, seen = torch.tensor([0.0, 2, -2, 0]).view(1, 1, 1, 4), torch.ones(1, 1, 1, 4, dtype=torch.bool)
    expected = torch.tensor([2.0, 1.5, 0.619203, 0.5])
    assert torch.allclose(counted(content, seen, 5).flatten(), expected, atol=1e-6)
    assert torch.allclose(
        interpolated(torch.arange(5.0).view(1, 1, 1, 5), expected.view(1, 1, 1, 4)).flatten(), expected
    )


def test_cope_counts_halves_and_no_future():
    p = counted(torch.zeros(1, 1, 200, 200), causal(200)[None, None], 64)[0, 0]
    assert p[5, 2] == 2 and (p.diagonal() == 0.5).all() and not p.triu(1).any() and p[199, 0] == 63


@pytest.mark.verifies("cope", "formula in float64, arXiv 2405.18719, by loops")
@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("positions", [1, 4, 64])
def test_cope_by_loops(positions, divide):
    n, scheme = 12, drawn(Cope(DIMS, positions, divide))
    q, k, _, x = inputs(n)
    scores = q.double() @ k.double().mT / 8**0.5
    expected, e = scores.clone(), scheme.table.detach().double()
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(n)).tolist():
        p = 0.0
        for j in range(i, -1, -1):
            p = p + scores[b, h, i, j].sigmoid().item()
            at = min(p, positions - 1)
            low, high = math.floor(at), math.ceil(at)
            z = (1 - (at - low)) * e[low] + (at - low) * e[high]
            expected[b, h, i, j] += (q[b, h, i].double() @ z) / (8**0.5 if divide else 1)
    error = (refined(scheme, q, k, x).double() - expected).masked_fill(~causal(n), 0)
    assert error.abs().max() < 5e-6


def test_cope_with_open_gates_is_a_learned_relative_embedding():
    """Every key counts 1, so that the key at a distance has the vector of that distance plus 1."""
    q, k, _, x = inputs()
    scheme, seen = drawn(Cope(DIMS)), causal(20)[None, None]
    q, k = q.abs() + 1, 100 * (k.abs() + 1)
    found = scheme.refine(torch.zeros(2, 4, 20, 20), q, k, seen, span_of(x))
    distance = torch.arange(20)[:, None] - torch.arange(20)
    expected = torch.einsum("bhqd,qkd->bhqk", q, scheme.table[(distance + 1).clamp(min=0)])
    assert torch.allclose(found.masked_fill(~seen, 0), expected.masked_fill(~seen, 0), atol=1e-5)


def test_cope_counts_what_it_was_projected_to_and_not_what_a_stack_rotated_or_hid():
    q, k, v, x = inputs()
    scheme = drawn(Cope(DIMS))
    pos = torch.arange(20) ** 2
    moved = replace(span_of(x), q_pos=pos, k_pos=pos, consecutive=False)
    for far in (span_of(x), moved):
        rotated = Rope(DIMS).rotate(q, k, far)
        bias = scheme.refine(torch.zeros(2, 4, 20, 20), q, k, causal(20)[None, None], far)
        expected = (rotated[0] @ rotated[1].mT / 8**0.5 + bias).masked_fill(~causal(20), -torch.inf).softmax(-1) @ v
        found = attend(q, k, v, Stack({"rope": Rope(DIMS), "cope": scheme}), far)
        assert torch.allclose(found, expected, atol=1e-5)
    near = causal(20) & ~causal(20).tril(-5)
    inside = scheme.refine(q @ k.mT / 8**0.5, q, k, near[None, None], span_of(x))
    found = attend(q, k, v, Stack({"window": Window(DIMS, 5), "cope": scheme}), span_of(x))
    assert torch.allclose(found, inside.masked_fill(~near, -torch.inf).softmax(-1) @ v, atol=1e-5)


def test_cope_gates_learn_from_the_second_step_on():
    q, k, v, x = inputs()
    leaf = k.clone().requires_grad_()
    for scheme, moved in (Cope(DIMS), False), (drawn(Cope(DIMS)), True):
        bias = scheme.refine(torch.zeros(2, 4, 20, 20), q, leaf, causal(20)[None, None], span_of(x))
        assert bool(torch.autograd.grad(bias.square().sum(), leaf)[0].any()) == moved


# ---- PaTH


def by_loops(q, k, w, beta, start=0):
    """k_j H_(j+1) … H_i q_i, one reflection at a time."""
    out = q.new_zeros(*q.shape[:3], k.shape[2])
    for i in range(q.shape[2]):
        z = q[:, :, i]
        for j in range(start + i, -1, -1):
            out[:, :, i, j] = (k[:, :, j] * z).sum(-1)
            z = z - beta[:, :, j, None] * w[:, :, j] * (w[:, :, j] * z).sum(-1, keepdim=True)
    return out


@pytest.mark.verifies("path", "values of the formula, arXiv 2505.16381")
def test_path_value_and_order():
    """The last token's transformation meets q first; the other way round it is -3."""
    q, k = torch.tensor([1.0, 2.0]).expand(1, 1, 1, 2), torch.zeros(1, 1, 3, 2)
    k[0, 0, 0] = torch.tensor([3.0, 1.0])
    w = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5**0.5, 0.5**0.5]])
    beta = torch.tensor([1.0, 2.0, 1.0])
    score = transported(q, k, w[None, None], beta[None, None], start=2)[0, 0, 0, 0]
    assert score.item() == pytest.approx(2.0, abs=1e-6)
    other = transported(q, k, w[[0, 2, 1]][None, None], beta[[0, 2, 1]][None, None], start=2)[0, 0, 0, 0]
    assert other.item() == pytest.approx(-3.0, abs=1e-6)


@pytest.mark.verifies("path", "formula in float64, arXiv 2505.16381, by loops, with gradients")
@pytest.mark.parametrize("block", [1, 3, 8, 64])
def test_path_by_loops_whatever_the_block(block, monkeypatch):
    monkeypatch.setattr(path_module, "BLOCK", block)
    q, k, _, x = inputs(19)
    scheme = drawn(PaTH(DIMS))
    w, beta = (t.detach() for t in scheme.directions(x, None))
    assert torch.allclose(w.norm(dim=-1), torch.ones(2, 4, 19), atol=1e-3) and beta.min() > 0 and beta.max() < 2
    weight = torch.randn(2, 4, 19, 19, generator=torch.Generator().manual_seed(5)).tril()
    for start in (0, 7):
        found, expected = [], []
        for kind, out in ((torch.float32, found), (torch.float64, expected)):
            leaves = [t.to(kind).requires_grad_() for t in (q[:, :, start:], k, w, beta)]
            function = transported if kind == torch.float32 else by_loops
            scores = function(*leaves, start=start).tril(start)
            loss = (scores * weight[:, :, start:]).sum()
            out += [scores, *torch.autograd.grad(loss, leaves)]
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a.double(), b, atol=2e-5)


@pytest.mark.verifies("path", "formula in float64, arXiv 2505.16381, by loops, with gradients")
def test_path_directions_by_loops():
    """silu of a causal convolution of W x within the document, then length 1; beta = 2 sigmoid(u x + b)."""
    scheme, (_, _, _, x) = drawn(PaTH(DIMS)), inputs(9)
    doc = torch.tensor([[-1, -1, 0, 0, 0, 1, 1, 1, 1], [0] * 9])
    w, beta = scheme.directions(x, doc)
    flat = x.double() @ scheme.down.double().T @ scheme.up.double().T
    for b in range(2):
        for t in range(9):
            lags = [lag for lag in range(3) if t >= lag and doc[b, t - lag] == doc[b, t]]
            mixed = sum(scheme.convolution[lag].double() * flat[b, t - lag] for lag in lags)
            expected = F.silu(mixed).view(4, 8)
            expected = expected / (expected.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            gate = 2 * (scheme.u.double() @ x[b, t].double() + scheme.b.double()).sigmoid()
            assert torch.allclose(w[b, :, t].double(), expected, atol=1e-5)
            assert torch.allclose(beta[b, :, t].double(), gate * (doc[b, t] >= 0), atol=1e-5)


def test_path_without_turns_is_nope():
    q, k, v, x = inputs(100)
    scheme = PaTH(DIMS)
    with torch.no_grad():
        scheme.u.zero_(), scheme.b.fill_(-200.0)  # beta 0
        expected = attend(q, k, v, Nope(DIMS), Span.of(100))
        assert torch.allclose(attend(q, k, v, scheme, span_of(x)), expected, atol=1e-5)
        assert not torch.allclose(attend(q, k, v, PaTH(DIMS), span_of(x)), expected, atol=1e-2)


@pytest.mark.verifies("path", "formula in float64, arXiv 2505.16381: PaTH-FoX, the bias added after the scale")
def test_path_fox_is_a_stack_of_both():
    q, k, v, x = inputs(30)
    path, fox = drawn(PaTH(DIMS)), drawn(Fox(DIMS))
    w, beta = path.directions(x, None)
    scores = by_loops(*(t.double() for t in (q, k, w, beta))) / 8**0.5
    gates = F.logsigmoid(F.linear(x.double(), fox.w.double(), fox.b.double())).mT.cumsum(-1)
    scores = scores + gates[..., :, None] - gates[..., None, :]
    expected = scores.masked_fill(~causal(30), -torch.inf).softmax(-1) @ v.double()
    for parts in ({"path": path, "fox": fox}, {"fox": fox, "path": path}):
        assert torch.allclose(attend(q, k, v, Stack(parts), span_of(x)).double(), expected, atol=1e-5)


def test_a_stack_loses_nothing_on_path():
    path, cope = PaTH(DIMS), Cope(DIMS)
    for parts in ({"rope": Rope(DIMS), "path": path}, {"path": path, "rope": Rope(DIMS)}):
        with pytest.raises(ValueError, match=r"position\.parts\.rope: is lost on path.*leave it out"):
            Stack(parts)
    with pytest.raises(ValueError, match=r"position\.parts\.cope: is lost on path.*put it behind path"):
        Stack({"cope": cope, "path": path})
    assert Stack({"path": path, "cope": cope}).replaces_scores
    with pytest.raises(ValueError, match=r"position\.parts\.rope: is lost on stack"):
        Stack({"stack": Stack({"path": path}), "rope": Rope(DIMS)})
    Heads({"path": path, "rope": Rope(DIMS)}, {"path": 2, "rope": 2})  # each its own heads


# ---- DAPE


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("base", [Alibi, KerpleLog, Fire, Fox])
def test_dape_without_its_network_is_its_base(base, kernel):
    q, k, v, x = inputs()
    over = base(DIMS)
    scheme = Dape(DIMS, {"over": over}, kernel=kernel)
    with torch.no_grad():
        expected = attend(q, k, v, over, span_of(x))
        assert not torch.allclose(attend(q, k, v, scheme, span_of(x)), expected, atol=1e-3)
        scheme.outer.zero_()
        assert torch.allclose(attend(q, k, v, scheme, span_of(x)), expected, atol=1e-5)


@pytest.mark.verifies("dape", "formula in float64, arXiv 2405.14722 and 2410.04798, by loops")
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_dape_by_loops(kernel):
    """A row at a time, of the keys that its query sees: what is outside is 0, whatever stands there."""
    n, over = 9, KerpleLog(DIMS)
    scheme = drawn(Dape(DIMS, {"over": over}, hidden=6, kernel=kernel))
    q, k, _, x = inputs(n)
    found = refined(scheme, q, k, x)
    inner, bias, outer = (t.detach().double() for t in (scheme.inner, scheme.inner_bias, scheme.outer))
    r1, r2 = over.r1.detach().double().clamp(min=0.01), over.r2.detach().double().clamp(min=0.01)

    def convolved(rows, weight):
        out = []
        for j in range(len(rows)):
            taps = [(t, j + t - kernel // 2) for t in range(kernel)]
            out.append(sum(weight[..., t] @ rows[at] for t, at in taps if 0 <= at < len(rows)))
        return out

    for b in range(2):
        for i in range(n):
            keys = range(i + 1)
            scores = [k[b, :, j].double().mul(q[b, :, i].double()).sum(-1) / 8**0.5 for j in keys]
            bases = [-r1 * (1 + r2 * (i - j)).log() for j in keys]
            units = convolved([torch.cat(pair) for pair in zip(scores, bases, strict=True)], inner)
            units = [torch.where(u + bias > 0, u + bias, 0.01 * (u + bias)) for u in units]
            expected = torch.stack(scores) + torch.stack(bases) + torch.stack(convolved(units, outer))
            assert torch.allclose(found[b, :, i, : i + 1].double(), expected.T, atol=1e-5)


@pytest.mark.verifies("dape", "formula in float64, arXiv 2405.14722, with gradients through its base")
@pytest.mark.parametrize("base", ["fire", "fox"])
def test_gradients_of_dape_through_its_base(base):
    """What is the same for all keys of a query, nothing to a softmax, is something to f: FIRE's units that are always
    on, FoX's gate of the query itself."""
    n, seen = 24, causal(24)
    over = drawn(Fox(DIMS)) if base == "fox" else Fire(DIMS, hidden=100)
    scheme = drawn(Dape(DIMS, {"over": KerpleLog(DIMS)}, hidden=6))
    scheme.parts["over"] = over
    q, k, v, x = inputs(n)
    weight = torch.randn(v.shape, generator=torch.Generator().manual_seed(7))
    (attend(q, k, v, scheme, span_of(x)) * weight).sum().backward()
    exact = {key: p.detach().double().requires_grad_() for key, p in scheme.named_parameters()}
    own = {key.rpartition(".")[2]: p for key, p in exact.items() if key.startswith("parts.")}
    if base == "fox":
        total = F.logsigmoid(F.linear(x.double(), own["w"], own["b"])).mT.cumsum(-1)
        bias = total[..., :, None] - total[..., None, :]
    else:
        i = torch.arange(n)
        top = torch.log1p((own["c"] * torch.maximum(i, own["m"] * 24)).abs()) + 1e-6
        progress = torch.log1p((own["c"] * (i[:, None] - i).clamp(min=0)).abs()) / top[:, None]
        hidden = (own["inner"][:, None, None] * progress + own["inner_bias"][:, None, None]).relu()
        bias = torch.einsum("hu,uqk->hqk", own["outer"], hidden).expand(2, -1, -1, -1)
    scores = q.double() @ k.double().mT / 8**0.5
    pairs = torch.cat([scores, bias], dim=1).masked_fill(~seen, 0)
    units = torch.einsum("oc,bcqk->boqk", exact["inner"][..., 0], pairs) + exact["inner_bias"][:, None, None]
    scores = scores + bias + torch.einsum("oc,bcqk->boqk", exact["outer"][..., 0], F.leaky_relu(units))
    (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v.double() * weight).sum().backward()
    for key, p in scheme.named_parameters():
        assert torch.allclose(p.grad.double(), exact[key].grad, rtol=1e-4, atol=1e-4), key
    if base == "fire":
        always = over.uniform(n)["inner_bias"]
        assert always.sum() > 10 and (over.inner_bias.grad[always].abs() > 1e-3).any()


@pytest.mark.parametrize("scheme", [lambda: Fox(DIMS), lambda: Dape(DIMS, {"over": Alibi(DIMS)})], ids=["fox", "dape"])
def test_gradients_that_cancel_are_not_rounding(scheme):
    """Sums over 300 queries and all keys, most of which is nothing to a softmax, beside a float64 one: in float32 they
    are off by 1e-5 by the norm."""
    made = {}
    for kind in (torch.float32, torch.float64):
        torch.manual_seed(0)
        q, k, v, x = (t.to(kind) for t in inputs(300))
        leaf = scheme().to(kind)
        with pytest.MonkeyPatch.context() as patch:
            if kind == torch.float64:
                patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            (attend(q, k, v, leaf, span_of(x), "reference") * v.sin()).sum().backward()
        made[kind] = {key: p.grad.double() for key, p in leaf.named_parameters()}
    for key, expected in made[torch.float64].items():
        assert (made[torch.float32][key] - expected).norm() < 3e-6 * max(1, expected.norm()), key


def test_dape_convolution_is_torchs():
    x, weight = torch.randn(2, 5, 6, 7), torch.randn(3, 5, 3)
    assert torch.allclose(along_keys(x, weight), F.conv2d(x, weight[:, :, None], padding=(0, 1)), atol=1e-5)


@pytest.mark.parametrize("kernel", [1, 3])
def test_dape_does_not_see_the_future(kernel):
    """With the scores and the bias of later keys as they may be, a row is the same."""
    q, k, _, x = inputs()
    scheme = drawn(Dape(DIMS, {"over": Alibi(DIMS)}, kernel=kernel))
    later = k.clone()
    later[:, :, 12:] = 1e3
    a, b = refined(scheme, q, k, x), refined(scheme, q, later, x)
    assert torch.equal(a[:, :, :12, :12], b[:, :, :12, :12]) and not torch.equal(a[:, :, 12:], b[:, :, 12:])


def test_dape_takes_one_bias():
    for parts in ({"over": Rope(DIMS)}, {"over": Window(DIMS)}, {"over": Nope(DIMS)}, {"over": Cope(DIMS)}):
        with pytest.raises(ValueError, match=r"position\.parts\.over: must be a bias"):
            Dape(DIMS, parts)
    with pytest.raises(ValueError, match=r"position\.parts: must be one scheme named over, not alibi"):
        Dape(DIMS, {"alibi": Alibi(DIMS)})
    with pytest.raises(ValueError, match=r"position\.kernel=2: must be an odd"):
        Dape(DIMS, {"over": Alibi(DIMS)}, kernel=2)


def test_dape_has_a_network_a_layer_over_one_base():

    first, second = build_schemes(file_settings("position", "dape"), DIMS)
    assert first is not second and first.parts["over"] is second.parts["over"] and not first.shared
    assert first.by_distance is None and first.bias is None and first.refine is not None


# ---- what the command line refuses


@pytest.mark.parametrize(
    "words, message",
    [
        ("position=fox model.causal=false task=text", r"model\.causal=false: position is FoX"),
        ("position=fox position.gate=no", r"position\.gate=no: must be one of data, fixed"),
        ("position=fox position.gate=fixed position.init=5", r"position\.init=5.*must be left out"),
        ("position=fox position.t_max=64", r"position\.t_max=64.*must be left out"),
        ("position=fox position.gate=fixed position.t_max=1", r"position\.t_max=1.*at least position\.t_min=2"),
        ("position=cope position.positions=0", r"position\.positions=0: must be an integer of at least 1"),
        ("position=path position.taps=0", r"position\.taps=0: must be an integer of at least 1"),
        ("position=dape position.kernel=2", r"position\.kernel=2: must be an odd integer"),
    ],
)
def test_refused_by_name(words, message):
    with pytest.raises(UserError, match=message):
        check(compose("train", words.split()))
