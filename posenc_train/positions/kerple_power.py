"""KERPLE, power: kernelized relative positions (Chi et al. 2022, arXiv 2205.09921)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.within import within


def power(distance: Int[Tensor, "*shape"], r1: Float[Tensor, "h"], r2: Float[Tensor, "h"]) -> Float[Tensor, "h *shape"]:
    """-r1 |distance|^r2. r1 = 0.1, r2 = 0.5, distances 1, 10, 512: -0.1, -0.316228, -2.262742.

    By pow, whose gradient is 0 at distance 0; that of exp(r2 ln distance) would be NaN.
    """
    r1, r2 = (r.view(-1, *[1] * distance.ndim) for r in (r1, r2))
    return -r1 * distance.abs().float().pow(r2)


class KerplePower(PositionScheme):
    """bias = -r1 |distance|^r2, r1 and r2 learned per head, one copy for all layers. r2 = 1 is ALiBi of slope r1.

    The bias is added after the scores are scaled by 1/sqrt(d), as in the authors' code (chijames/KERPLE); the paper's
    equation 2 divides it too. As there, r1 starts from U(0, 1), r2 from U(0, 2); both stay at 0.01 or more (ALiBi's
    smallest slopes are less), and r2, for the kernel to be one, at 2 or less.
    The authors clamp the stored numbers before every step; here they are clamped as they are read.
    """

    paper = "Chi et al. 2022, arXiv 2205.09921"
    parameters_formula = "2 x heads"

    def __init__(self, dims: Dims):
        super().__init__()
        self.r1 = nn.Parameter(torch.empty(dims.heads).uniform_(0, 1))
        self.r2 = nn.Parameter(torch.empty(dims.heads).uniform_(0, 2))

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        return power(distance, within(self.r1, 0.01), within(self.r2, 0.01, 2.0))
