"""Attention under a bias that depends on distance alone, without a (query, key) matrix of it.

Such a bias is a vector over distances. With the queries in reverse order, row i and column j need entry i + j:
a (q, k) mask with strides (1, 1) over that one vector, which occupies q + k numbers instead of q x k. An entry of
-inf hides a distance; every future one makes it causal too. Chunks of queries skip the masked half.
"""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 128  # queries per call of the fused kernel
MATERIALISE = 192  # up to this many keys a learned bias trains faster through a materialised mask (measured, CPU)


def attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b h k d"],
    v: Float[Tensor, "b h k d"],
    bias: Callable[[Int[Tensor, "m"]], Float[Tensor, "#h m"]],
    start: int,
    scale: float,
    causal: bool = True,
) -> Float[Tensor, "b h q d"]:
    """Attention of queries that stand at indices start, start + 1, … of the keys; distance = start + i - j.

    bias gives the float32 bias of a vector of distances, one row for all heads or one for each.
    """
    queries, keys = q.shape[2], k.shape[2]
    distance = torch.arange(start + queries - 1, start - keys, -1, device=q.device)
    vector = bias(distance)
    if causal:
        vector = vector.masked_fill(distance < 0, -math.inf)
    learned = vector.requires_grad and torch.is_grad_enabled()
    if q.device.type == "cpu" and not (learned and keys <= MATERIALISE):
        q, k, v = dense(q.flip(2)), dense(k), dense(v)
        return _Toeplitz.apply(q, k, v, vector.contiguous(), start if causal else None, scale).flip(2)
    # The kernels of other devices take no overlapping view, and no mask of another type than q.
    out = []
    for rows, seen, mask in chunks(vector, queries, keys, start if causal else None):
        index = torch.arange(mask.shape[2], device=q.device)[:, None] + torch.arange(seen, device=q.device)
        mask = vector[None, :, rows.start + index].to(q.dtype)
        part = q.flip(2)[:, :, rows]
        out.append(F.scaled_dot_product_attention(part, k[:, :, :seen], v[:, :, :seen], attn_mask=mask, scale=scale))
    return torch.cat(out[::-1], dim=2).flip(2)


def dense(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
    """The kernel reads vectors as if their numbers stood side by side, and is wrong without a word where they do not:
    of head width 2, what RoPE returns has its halves apart."""
    return x if x.stride(-1) == 1 else x.contiguous()


def view(vector: Float[Tensor, "h m"], queries: int, keys: int) -> Float[Tensor, "1 h q k"]:
    """[i, j] -> vector[i + j]. The view reports q x k elements and stores q + k - 1."""
    heads, stride = vector.shape[0], vector.stride(0)
    return vector.as_strided((1, heads, queries, keys), (0, stride, 1, 1), vector.storage_offset())


def chunks(vector: Tensor, queries: int, keys: int, start: int | None) -> Iterator[tuple[slice, int, Tensor]]:
    """For each chunk of queries, from the first: its rows in reversed order, the keys it sees (all of them where
    start is None), its mask."""
    for first in range(0, queries, CHUNK):
        last = min(first + CHUNK, queries)
        seen = keys if start is None else min(keys, start + last)
        part = vector[:, queries - last : queries - first + seen - 1]
        yield slice(queries - last, queries - first), seen, view(part, last - first, seen)


class _Toeplitz(torch.autograd.Function):
    """The fused CPU kernel, forward and backward, over the view; q is reversed, vector contiguous.

    The kernel falls back to materialised attention when its mask needs a gradient. Here it never sees one: the
    gradient of the bias is the sum of dS = P (dP - rowsum(dO O)) over the diagonals i + j, where the weights
    P = exp(S - logsumexp) are rebuilt from the saved log-sum-exp for one chunk of queries at a time.
    """

    @staticmethod
    def forward(ctx, q, k, v, vector, start, scale):
        out, lse = torch.empty_like(q), torch.empty(q.shape[:3])
        for rows, seen, mask in chunks(vector, q.shape[2], k.shape[2], start):
            out[:, :, rows], lse[:, :, rows] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q[:, :, rows], k[:, :, :seen], v[:, :, :seen], attn_mask=mask, scale=scale
            )
        ctx.save_for_backward(q, k, v, vector, out, lse)
        ctx.start, ctx.scale = start, scale
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, vector, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        dvector = torch.zeros_like(vector) if ctx.needs_input_grad[3] else None
        for rows, seen, mask in chunks(vector, q.shape[2], k.shape[2], ctx.start):
            part = grad[:, :, rows], q[:, :, rows], k[:, :, :seen], v[:, :, :seen], out[:, :, rows], lse[:, :, rows]
            dq[:, :, rows], to_k, to_v = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *part, 0.0, False, attn_mask=mask, scale=ctx.scale
            )
            dk[:, :, :seen] += to_k
            dv[:, :, :seen] += to_v
            if dvector is not None:
                dvector[:, rows.start : rows.stop + seen - 1] += bias_gradient(*part, mask, ctx.scale)
        return dq, dk, dv, dvector, None, None


def bias_gradient(grad, q, k, v, out, lse, mask, scale: float) -> Float[Tensor, "h m"]:
    """The gradient of a chunk's part of the vector, m = q + k - 1."""
    grad, q, k, v = grad.float(), q.float(), k.float(), v.float()
    weights = (q @ k.mT).mul_(scale).add_(mask).sub_(lse[..., None]).exp_()
    delta = (grad * out.float()).sum(-1, keepdim=True)
    return sum_diagonals((grad @ v.mT).sub_(delta).mul_(weights).sum(0))


def sum_diagonals(x: Float[Tensor, "h q k"]) -> Float[Tensor, "h m"]:
    """[h, m] = the sum of x[h, i, j] over i + j = m. [[1, 2], [3, 4]] -> [1, 5, 4]."""
    heads, queries, keys = x.shape
    # With zeros behind every row, reading rows one number shorter starts each a place further right.
    skewed = F.pad(x, (0, queries)).flatten(1)[:, : queries * (queries + keys - 1)]
    return skewed.view(heads, queries, queries + keys - 1).sum(1)
