"""Schemes under randomized positions, against x-transformers at the same drawn positions."""

import pytest
import torch
from x_transformers.x_transformers import AlibiPositionalBias, RotaryEmbedding, apply_rotary_pos_emb

from posenc_train.model.attend import attend
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.rope import Rope
from posenc_train.positions.sampling import Randomized

DIMS = Dims(width=128, heads=4, head_width=32, layers=1, train_length=40)


def drawn(seed):
    """q, k, v, and a span whose positions are one draw."""
    pos = Randomized(2048)(range(2), 40, seed, 0)
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 4, 40, 32, generator=generator) for _ in range(3))
    return q, k, v, Span(pos, pos), pos


def attention(scores, v):
    hidden = torch.ones(40, 40, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


@pytest.mark.verifies("randomized", "x-transformers 2.31.10: AlibiPositionalBias.forward_custom_pos")
@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_randomized_alibi(backend):
    q, k, v, span, pos = drawn(1)
    bias = AlibiPositionalBias(4).forward_custom_pos(pos.float())
    expected = attention(q @ k.mT / 32**0.5 + bias, v)
    assert torch.allclose(attend(q, k, v, Alibi(DIMS), span, backend), expected, atol=1e-5)


@pytest.mark.verifies("randomized", "x-transformers 2.31.10: RotaryEmbedding")
@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_randomized_rope(backend):
    q, k, v, span, pos = drawn(2)
    angles, scale = RotaryEmbedding(32)(pos)
    q_there, k_there = (apply_rotary_pos_emb(x, angles, scale) for x in (q, k))
    expected = attention(q_there @ k_there.mT / 32**0.5, v)
    scheme = Rope(DIMS, pairing="interleaved")
    assert torch.allclose(attend(q, k, v, scheme, span, backend), expected, atol=1e-5)
