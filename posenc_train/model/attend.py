"""The only place where attention is computed: one definition, and faster ways that must agree with it.

    reference   the definition: float32 scores, every (query, key) pair at once
    fused       torch's fused kernel, fed in the cheapest exact form that the scheme and the span allow:
                no bias, no mask                      the plain kernel
                bias and mask by distance alone       a Toeplitz view of one vector (toeplitz.py): no matrix
                any other bias or mask, per-row positions or documents
                                                      a mask built for one chunk of queries at a time
                scores or a sum of values of its own  the definition, for one chunk of queries at a time

A query that sees no key (padding) gives 0.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
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
    """Attention under a scheme. q and k come as projected; the scale 1/sqrt(d) is that of their width here,
    before the scheme may widen them. Autocast is off inside: biases stay float32 beside bfloat16 q, k and v."""
    scale = 1 / math.sqrt(q.shape[-1])
    with torch.autocast(q.device.type, enabled=False):
        projected = q, k
        if scheme.rotate is not None:
            q, k = scheme.rotate(q, k, span)
        q, k = q.to(v.dtype), k.to(v.dtype)
        if backend == "reference":
            return reference(q, k, v, scheme, span, scale, *projected)
        if scheme.refine is not None or scheme.mix is not None:
            return chunked(q, k, v, scheme, span, scale, *projected)
        return fused(q, k, v, scheme, span, scale)


def reference(q, k, v, scheme: PositionScheme, span: Span, scale: float, bare_q, bare_k) -> Float[Tensor, "b h q d"]:
    """softmax(scale q k^T, refined, + bias, over the visible keys) v, or what the scheme mixes of the weights and v.

    bare_q, bare_k: before they were rotated."""
    scores = scale * (q.float() @ k.float().mT)
    seen = visible(scheme, span)
    if scheme.refine is not None:
        scores = scheme.refine(scores, bare_q.float(), bare_k.float(), seen, span)
    bias = scheme.added(span)
    if bias is not None:
        scores = scores + bias
    weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
    weights = weights.masked_fill(~seen, 0.0)  # a row that sees nothing is NaN until here
    out = weights @ v.float() if scheme.mix is None else scheme.mix(weights, v.float(), span)
    return out.to(v.dtype)


def chunked(q, k, v, scheme: PositionScheme, span: Span, scale: float, bare_q, bare_k) -> Float[Tensor, "b h q d"]:
    """The definition for a chunk of queries at a time: linear memory."""
    out = []
    for first in range(0, span.queries, CHUNK):
        part, rows = span.chunk(first, min(first + CHUNK, span.queries)), slice(first, first + CHUNK)
        k_, v_, bare = (x[:, :, : part.keys] for x in (k, v, bare_k))
        out.append(reference(q[:, :, rows], k_, v_, scheme, part, scale, bare_q[:, :, rows], bare))
    return torch.cat(out, dim=2)


def visible(scheme: PositionScheme, span: Span) -> Bool[Tensor, "#b #h q k"]:
    """Which keys a query sees: those that the span allows and the scheme does not hide."""
    allowed = span.allowed()
    allowed = allowed[None, None] if allowed.ndim == 2 else allowed[:, None]
    return allowed if scheme.visible is None else allowed & scheme.visible(span)


def fused(q, k, v, scheme: PositionScheme, span: Span, scale: float) -> Float[Tensor, "b h q d"]:
    width = v.shape[-1]
    if q.shape[-1] != width:  # a scheme widened q and k: the kernel is fused for equal widths only
        v = F.pad(v, (0, q.shape[-1] - width))
    return _fused(q, k, v, scheme, span, scale)[..., :width]


def _fused(q, k, v, scheme: PositionScheme, span: Span, scale: float) -> Float[Tensor, "b h q d"]:
    plain = scheme.by_distance is None and scheme.visible is None
    by_distance = plain or (span.consecutive and (scheme.visible is None or scheme.relative))
    if span.q_doc is not None or scheme.bias is not None or not by_distance:
        return masked(q, k, v, scheme, span, scale)
    if plain and not span.causal or plain and span.queries == 1:  # one new token: it sees every key
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    if plain and span.queries == span.keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return toeplitz.attention(q, k, v, lambda distance: vector(scheme, distance), span.start, scale, span.causal)


def vector(scheme: PositionScheme, distance: Int[Tensor, "m"]) -> Float[Tensor, "#h m"]:
    """Bias and mask of a scheme for which both are functions of the distance."""
    bias = torch.zeros(1, len(distance), device=distance.device)
    if scheme.by_distance is not None:
        bias = scheme.by_distance(distance).float()
    if scheme.visible is not None:
        seen = scheme.visible(Span(distance, distance.new_zeros(1), causal=False))[0, :, :, 0]
        bias = torch.where(seen, bias, -math.inf)
    return bias


def masked(q, k, v, scheme: PositionScheme, span: Span, scale: float) -> Float[Tensor, "b h q d"]:
    """The fused kernel under an explicit mask, for a chunk of queries at a time: linear memory."""
    out = []
    for first in range(0, span.queries, CHUNK):
        part = span.chunk(first, min(first + CHUNK, span.queries))
        seen = visible(scheme, part)
        blind = ~seen.any(dim=-1, keepdim=True)
        mask = torch.zeros(seen.shape, device=q.device).masked_fill(~(seen | blind), -math.inf)
        bias = scheme.added(part)
        if bias is not None:
            mask = mask + bias
        if q.device.type != "cpu":
            mask = mask.to(q.dtype)  # other devices' kernels want one type
        piece = F.scaled_dot_product_attention(
            q[:, :, first : first + CHUNK], k[:, :, : part.keys], v[:, :, : part.keys], attn_mask=mask, scale=scale
        )
        out.append(piece.masked_fill(blind, 0.0))
    return torch.cat(out, dim=2)
