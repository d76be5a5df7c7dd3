"""Attention that sharpens with the logarithm of what a query sees (Su, github.com/bojone/rerope)."""

import math

from jaxtyping import Float
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span


def log_seen(span: Span) -> Float[Tensor, "*b 1 q 1"]:
    """ln n for every query, n the number of keys that it may see, itself included; broadcasts against [b h q d].

    Counted, not read off positions: moved or drawn positions change nothing, and padding or another document in front
    is not counted. A query that sees nothing (padding) has ln 1.
    """
    return span.seen().clamp(min=1).float().log()[..., None, :, None]


class Logn(PositionScheme):
    """q_i max(1, ln n_i / ln L): n_i keys seen by query i, L the training length. No other sign of position.

    L = 512: 1 up to 512 keys, 1.111111 at 1,024, 1.333333 at 4,096. n is that of each query, not of the whole text,
    which would be one constant for all. Raises ValueError for a training length of 1, whose logarithm is 0.
    """

    paper = "Su 2023, github.com/bojone/rerope"
    placeless = True

    def __init__(self, dims: Dims):
        super().__init__()
        if dims.train_length < 2:
            raise ValueError(f"train_length={dims.train_length}: must be at least 2 for position=logn")
        self.log_trained = math.log(dims.train_length)

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h k d"]]:
        factor = (log_seen(span) / self.log_trained).clamp(min=1)
        return (factor * q.float()).to(q.dtype), k
