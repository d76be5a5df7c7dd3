"""Relative positions of Transformer-XL (Dai et al. 2019, arXiv 1901.02860)."""

import sys

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.rope import frequencies
from posenc_train.positions.stack import Build


def vectors(distance: Int[Tensor, "m"], width: int) -> Float[Tensor, "m width"]:
    """R: [sin(distance w_c) … | cos(distance w_c) …], w_c = 10000^(-2c/width), in float32.

    Width 4, distance 1: [0.841471, 0.010000, 0.540302, 0.999950]. Of -distance the sines have the other sign.
    """
    angle = distance[:, None].float() * frequencies(width, device=distance.device)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def distinct(distance: Int[Tensor, "*shape"]) -> tuple[Int[Tensor, "m"], Int[Tensor, "*shape"]]:
    """The distances that occur, ascending, and the index among them of each: [[5, 2], [9, 5]] gives
    [2, 5, 9] and [[1, 0], [2, 1]]. Takes memory for their range, which is that of positions, and sorts nothing."""
    low, high = distance.min(), distance.max()
    there = torch.zeros(int(high - low) + 1, dtype=torch.int64, device=distance.device)
    there[distance - low] = 1
    return there.nonzero()[:, 0] + low, (there.cumsum(0) - 1)[distance - low]


class TransformerXl(PositionScheme):
    """score = [(q + u) k + (q + v) (W_R R_distance)] / sqrt(d), with R as wide as the model.

    W_R is a layer's own, without a bias; u and v, a vector each per head, are one for all layers, as in the authors'
    code. That needs an arrangement: `assemble` gives every layer a scheme of its own that holds the same u and v.
    untied: u and v per layer (untie_r of the authors' TensorFlow code; XLNet has them so).
    clamp: distances above it are alike (the authors' clamp_len); None: none are.
    u and v start from N(0, 0.02). The authors start all weights so, at width 410; here W_R starts as the model's
    own projections do, from N(0, 1/sqrt(width)), which at that width is 0.05. Theirs drops out entries of R; this not.
    Bidirectional models (the paper has none; XLNet is one) have negative distances, whose sines have the other sign,
    so that past and future differ; clamp then bounds them on both sides. In causal models the future, masked anyway,
    reads distance 0.
    memory: tokens of earlier segments that training reads, with task.contiguous=true (the paper's mem_len; 0: none).
    They are keys before the first query, like those of a cache. Evaluation at n tokens reads them at once, which is the
    same as segments of the trained length L with all tokens before them as memory: n - L, if the first may be shorter.
    At n = L there is none, whatever the training had. Positions in the embedding are refused beside it.
    W_R R is computed once for each distance that occurs among 256 queries.
    Raises ValueError for an odd width, which sines and cosines cannot share.
    """

    paper = "Dai et al. 2019, arXiv 1901.02860"
    parameters_formula = "2 x heads x head_width + width x heads x head_width, the latter"
    shared = False
    recurrent = True

    def __init__(self, dims: Dims, untied: bool = False, clamp: int | None = None, memory: int = 0):
        super().__init__()
        if dims.width % 2:
            raise ValueError(
                f"model.width={dims.width}: must be even, half of it for sines and half for cosines of distances"
            )
        self.clamp, self.causal, self.width, self.memory = clamp, dims.causal, dims.width, memory
        if untied:
            self.parameters_formula = "(2 + width) x heads x head_width"
        self.u = nn.Parameter(torch.empty(dims.heads, dims.head_width).normal_(std=0.02))
        self.v = nn.Parameter(torch.empty(dims.heads, dims.head_width).normal_(std=0.02))
        self.w = nn.Parameter(torch.empty(dims.heads, dims.head_width, dims.width).normal_(std=dims.width**-0.5))

    @classmethod
    def assemble(
        cls, dims: Dims, build: Build, untied: bool = False, clamp: int | None = None, memory: int = 0
    ) -> list["TransformerXl"]:
        """One for each layer; unless they are untied, all with the u and v of the first."""
        layers = [cls(dims, untied, clamp, memory) for _ in range(dims.layers)]
        for layer in layers if not untied else ():
            layer.u, layer.v = layers[0].u, layers[0].v
        return layers

    def refine(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b h k d"],
        seen: Bool[Tensor, "#b #h q k"],
        span: Span,
    ) -> Float[Tensor, "b h q k"]:
        distance, row = self._distances(span)
        relative = torch.einsum("mw,hdw->hdm", vectors(distance, self.width), self.w.float())
        position = (q + self.v.float()[:, None]) @ relative
        row = row.reshape(-1, 1, span.queries, span.keys).expand_as(scores)
        content = self.u.float()[:, None] @ k.mT  # one number for each key
        return scores + q.shape[-1] ** -0.5 * (content + position.gather(-1, row))

    def _distances(self, span: Span) -> tuple[Int[Tensor, "m"], Int[Tensor, "*b q k"]]:
        """The distances that occur, clamped, and the index among them of each pair's."""
        high = sys.maxsize if self.clamp is None else self.clamp
        low = 0 if self.causal else -high
        distance = span.distance().clamp(low, high)
        if not span.consecutive:
            return distinct(distance)
        low, high = max(low, span.start + 1 - span.keys), min(high, span.start + span.queries - 1)
        return torch.arange(low, high + 1, device=distance.device), distance - low
