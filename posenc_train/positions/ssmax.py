"""Scalable softmax (Nakanishi 2025, arXiv 2501.19399): weights proportional to n^(s z) instead of e^z."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.logn import log_seen


class Ssmax(PositionScheme):
    """q_i s_h ln n_i: n_i keys seen by query i, s_h learned, one per head and layer. No other sign of position.

    init: where s begins; None: 1 / ln(train_length), which changes nothing for a query that sees so many keys
        (0.160299 at 512). The authors' own is unverified.
    Raises ValueError for init None with a training length of 1, whose logarithm is 0.
    """

    paper = "Nakanishi 2025, arXiv 2501.19399"
    parameters_formula = "heads"
    shared = False
    placeless = True

    def __init__(self, dims: Dims, init: float | None = None):
        super().__init__()
        if init is None and dims.train_length < 2:
            raise ValueError(
                f"position.init=null: must be a number where train_length={dims.train_length}; for example 0.43"
            )
        start = 1 / math.log(dims.train_length) if init is None else init
        self.s = nn.Parameter(torch.full((dims.heads,), float(start)))

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h k d"]]:
        factor = self.s.float()[:, None, None] * log_seen(span)
        return (factor * q.float()).to(q.dtype), k
