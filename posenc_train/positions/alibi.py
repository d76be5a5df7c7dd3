"""Attention with linear biases (Press et al. 2021, arXiv 2108.12409)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme


def slopes(heads: int) -> list[float]:
    """The slope m of every head: 2^(-8/H), 2^(-16/H), … for H a power of two; else those of the power of two
    below, then every other one of the power above (the authors' rule; the list is not sorted).

    8 heads: 1/2 … 1/256. 6 heads: .25, .0625, .015625, .00390625, .5, .125.
    """
    below = 2 ** math.floor(math.log2(heads))
    powers = [2 ** (-8 * (head + 1) / below) for head in range(below)]
    if below == heads:
        return powers
    return powers + slopes(2 * below)[0::2][: heads - below]


class Alibi(PositionScheme):
    """bias = -m_h |distance|, added after the scores are scaled. The paper's m is positive.

    learned: the slopes are parameters, one copy for all layers, which start at the formula's; not the scheme of the
        paper, which found that learned slopes did not extrapolate well.
    """

    paper = "Press et al. 2021, arXiv 2108.12409"

    def __init__(self, dims: Dims, learned: bool = False):
        super().__init__()
        self.slopes = slopes(dims.heads)  # not a buffer: a cast of the module must not round it
        self.slope = nn.Parameter(torch.tensor(self.slopes)) if learned else None
        if learned:
            self.parameters_formula = "heads"

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        m = torch.tensor(self.slopes, device=distance.device) if self.slope is None else self.slope.float()
        return -m.view(-1, *[1] * distance.ndim) * distance.abs().float()
