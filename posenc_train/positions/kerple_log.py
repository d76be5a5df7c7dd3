"""KERPLE, logarithmic: kernelized relative positions (Chi et al. 2022, arXiv 2205.09921)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.within import within


def logarithmic(
    distance: Int[Tensor, "*shape"], r1: Float[Tensor, "h"], r2: Float[Tensor, "h"]
) -> Float[Tensor, "h *shape"]:
    """-r1 ln(1 + r2 |distance|). r1 = 1, r2 = 0.5, distances 1, 10, 512: -0.405465, -1.791759, -5.549076."""
    r1, r2 = (r.view(-1, *[1] * distance.ndim) for r in (r1, r2))
    return -r1 * torch.log1p(r2 * distance.abs().float())


class KerpleLog(PositionScheme):
    """bias = -r1 ln(1 + r2 |distance|), r1 and r2 learned per head, one copy for all layers.

    The bias is added after the scores are scaled by 1/sqrt(d), as in the authors' code (chijames/KERPLE); the paper's
    equation 2 divides it too. As there, r1 starts from U(0, 2), r2 from U(0, 1), and both stay at 0.01 or more.
    The authors clamp the stored numbers before every step; here they are clamped as they are read.
    """

    paper = "Chi et al. 2022, arXiv 2205.09921"
    parameters_formula = "2 x heads"

    def __init__(self, dims: Dims):
        super().__init__()
        self.r1 = nn.Parameter(torch.empty(dims.heads).uniform_(0, 2))
        self.r2 = nn.Parameter(torch.empty(dims.heads).uniform_(0, 1))

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        return logarithmic(distance, within(self.r1, 0.01), within(self.r2, 0.01))
