"""Schemes that read content against independent implementations, on random weights."""

from dataclasses import replace

import by_path
import pytest
import torch
from x_transformers import x_transformers as lucid

from posenc_train.positions.base import Dims, Span
from posenc_train.positions.cope import Cope
from posenc_train.positions.fox import Fox, forgotten
from posenc_train.positions.path import transported

DIMS = Dims(width=32, heads=4, head_width=8, layers=1, train_length=32)


@pytest.mark.verifies("cope", "x-transformers: CoPE")
@pytest.mark.parametrize("positions", [6, 64])
def test_cope_of_x_transformers(positions):
    peer, scheme = lucid.CoPE(8, 4, positions), Cope(DIMS, positions)
    torch.nn.init.normal_(peer.pos_emb)
    scheme.load_state_dict({"table": peer.pos_emb.detach()})
    q, k = torch.randn(2, 2, 4, 50, 8)
    scores, seen = q @ k.mT / 8**0.5, torch.ones(50, 50, dtype=torch.bool).tril()
    expected = peer(q, scores.masked_fill(~seen, -torch.finfo(torch.float32).max))
    found = scheme.refine(scores, q, k, seen[None, None], Span.of(50)) - scores
    assert torch.allclose(found.masked_fill(~seen, 0), expected.masked_fill(~seen, 0), atol=1e-5)


@pytest.mark.verifies("fox", "x-transformers: DataDependentAlibi")
def test_fox_of_x_transformers():
    peer, scheme = lucid.DataDependentAlibi(32, 4), Fox(DIMS, init=5.0)
    linear = peer.to_forget_gates[0]
    assert torch.equal(linear.bias, scheme.b)
    scheme.load_state_dict({"w": linear.weight.detach(), "b": linear.bias.detach()})
    x = torch.randn(2, 100, 32)
    found = scheme.bias(replace(Span.of(100), x=x))
    assert torch.allclose(found.tril(), peer(x).tril(), atol=1e-5)


def attended(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def drawn(n: int) -> tuple[torch.Tensor, ...]:
    """q, k, v, w of length 1, beta, ln f."""
    q, k, v, w = torch.randn(4, 2, 4, n, 8, generator=torch.Generator().manual_seed(0))
    beta, gate = torch.randn(2, 2, 4, n, generator=torch.Generator().manual_seed(1))
    return q, k, v, w / w.norm(dim=-1, keepdim=True), 2 * beta.sigmoid(), torch.nn.functional.logsigmoid(gate)


def of_fla(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """[b, h, n, …] as fla has them, [b, n, h, …]."""
    return [x.transpose(1, 2) for x in tensors]


@pytest.mark.verifies("fox", "fla-core 0.6.0: naive_forgetting_attn")
def test_fox_of_fla():
    q, k, v, _, _, gate = drawn(50)
    theirs = by_path.load("fla/ops/forgetting_attn/naive.py").naive_forgetting_attn(*of_fla(q, k, v, gate))
    ours = attended(q @ k.mT / 8**0.5 + forgotten(gate, 0, 50), v)
    assert torch.allclose(ours, theirs.transpose(1, 2), atol=1e-5)


@pytest.mark.verifies("path", "fla-core 0.6.0: naive_path_attn")
@pytest.mark.parametrize("n, chunk", [(50, 8), (50, 64), (130, 64)])
def test_path_of_fla(n, chunk):
    q, k, v, w, beta, gate = drawn(n)
    naive = by_path.load("fla/ops/path_attn/naive.py").naive_path_attn
    theirs = naive(*of_fla(q, k, v, w, beta, torch.zeros_like(gate)), 8**-0.5, chunk)
    scores = transported(q, k, w, beta, 0) / 8**0.5
    assert torch.allclose(attended(scores, v), theirs.transpose(1, 2), atol=1e-5)


def test_fla_multiplies_the_gates_of_path_fox_by_the_scale():
    """We do not, as FoX does not: its gates divided by the scale give ours, its gates as they are do not."""
    q, k, v, w, beta, gate = drawn(50)
    naive = by_path.load("fla/ops/path_attn/naive.py").naive_path_attn
    ours = attended(transported(q, k, w, beta, 0) / 8**0.5 + forgotten(gate, 0, 50), v)
    divided, as_they_are = (naive(*of_fla(q, k, v, w, beta, g), 8**-0.5, 8) for g in (gate * 8**0.5, gate))
    assert torch.allclose(ours, divided.transpose(1, 2), atol=2e-5)
    assert not torch.allclose(ours, as_they_are.transpose(1, 2), atol=0.1)
