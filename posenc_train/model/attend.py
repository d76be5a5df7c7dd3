"""The only place where attention is computed: one definition, and faster ways that must agree with it.

    reference   the definition: float32 scores, every (query, key) pair at once
    fused       torch's fused kernel, fed in the cheapest exact form that the scheme and the span allow:
                no bias               the causal kernel
                a bias by distance    a Toeplitz view of one vector (toeplitz.py): no (query, key) matrix
                per-row positions or documents    a mask built for one chunk of queries at a time

A query that sees no key (padding) gives 0.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from posenc_train.model import toeplitz
from posenc_train.positions.base import PositionScheme, Span

CHUNK = 256  # queries per mask, where a mask must be built


def attend(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b h k d"],
    v: Float[Tensor, "b h k d"],
    scheme: PositionScheme,
    span: Span,
    backend: str = "fused",
) -> Float[Tensor, "b h q d"]:
    """Causal attention under a scheme. q and k come as projected; the scale 1/sqrt(d) is that of their width here,
    before the scheme may widen them. Autocast is off inside: biases stay float32 beside bfloat16 q, k and v."""
    scale = 1 / math.sqrt(q.shape[-1])
    with torch.autocast(q.device.type, enabled=False):
        if scheme.rotate is not None:
            q, k = scheme.rotate(q, k, span)
        q, k = q.to(v.dtype), k.to(v.dtype)
        ways = {"reference": reference, "fused": fused}
        return ways[backend](q, k, v, scheme, span, scale)


def visible(span: Span) -> Bool[Tensor, "*b q k"]:
    """Which keys a query may see: none after it, none of another document, no padding."""
    i = torch.arange(span.start, span.start + span.queries, device=span.q_pos.device)
    mask = i[:, None] >= torch.arange(span.keys, device=span.q_pos.device)
    if span.q_doc is not None:
        mask = mask & (span.q_doc[:, :, None] == span.k_doc[:, None, :]) & (span.k_doc >= 0)[:, None, :]
    return mask


def heads_first(x: Tensor) -> Tensor:
    """[q k] or [b q k] -> something that broadcasts against [b h q k]."""
    return x if x.ndim == 2 else x.unsqueeze(1)


def bias_of(scheme: PositionScheme, span: Span) -> Tensor | None:
    """The scheme's bias for every pair, broadcasting against [b h q k]; None without one."""
    if scheme.by_distance is None:
        return None
    bias = scheme.by_distance(span.distance())
    return bias if bias.ndim == 3 else bias.movedim(0, 1)


def reference(q, k, v, scheme: PositionScheme, span: Span, scale: float) -> Float[Tensor, "b h q d"]:
    """softmax(scale q k^T + bias, over the visible keys) v."""
    scores = scale * (q.float() @ k.float().mT)
    bias = bias_of(scheme, span)
    if bias is not None:
        scores = scores + bias
    seen = heads_first(visible(span))
    weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
    weights = weights.masked_fill(~seen, 0.0)  # a row that sees nothing is NaN until here
    return (weights @ v.float()).to(v.dtype)


def fused(q, k, v, scheme: PositionScheme, span: Span, scale: float) -> Float[Tensor, "b h q d"]:
    plain = scheme.by_distance is None
    if span.q_doc is not None or not (plain or span.consecutive):
        return masked(q, k, v, scheme, span, scale)
    if plain and span.queries == span.keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    if plain and span.queries == 1:  # one new token: it sees every key
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    return toeplitz.attention(q, k, v, scheme.by_distance, span.start, scale)


def masked(q, k, v, scheme: PositionScheme, span: Span, scale: float) -> Float[Tensor, "b h q d"]:
    """The fused kernel under an explicit mask, for a chunk of queries at a time: linear memory."""
    out = []
    for first in range(0, span.queries, CHUNK):
        part = span.chunk(first, min(first + CHUNK, span.queries))
        seen = heads_first(visible(part))
        blind = ~seen.any(dim=-1, keepdim=True)
        mask = torch.zeros(seen.shape, device=q.device).masked_fill(~(seen | blind), -math.inf)
        bias = bias_of(scheme, part)
        if bias is not None:
            mask = mask + bias
        if q.device.type != "cpu":
            mask = mask.to(q.dtype)  # other devices' kernels want one type
        piece = F.scaled_dot_product_attention(
            q[:, :, first : first + CHUNK], k[:, :, : part.keys], v[:, :, : part.keys], attn_mask=mask, scale=scale
        )
        out.append(piece.masked_fill(blind, 0.0))
    return torch.cat(out, dim=2)
