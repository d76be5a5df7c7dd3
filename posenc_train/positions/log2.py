"""One learned scalar per head and bucket of distance, far buckets doubling: T5 as introductory texts simplify it."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme


def borders(buckets: int) -> list[int]:
    """The first distance of every bucket of b(d) = d for d <= 8, else 8 + floor(log2(d / 8)) + 1.

    0, 1, … 8, 9, 16, 32, 64, …: bucket 9 holds 9 … 15. In integers: no logarithm that rounds.
    """
    return [bucket if bucket <= 9 else 8 << (bucket - 9) for bucket in range(buckets)]


class Log2(PositionScheme):
    """bias = table[min(b(|distance|), buckets - 1), head], zero at first. 20 buckets: the last begins at 8,192.

    Causal models have one table, [buckets, heads] (the future, masked anyway, reads bucket 0). Bidirectional ones have
    a second, for keys after the query, in the rows behind it.
    """

    paper = "none: introductory texts, after Raffel et al. 2020"
    parameters_formula = "buckets x heads"

    def __init__(self, dims: Dims, buckets: int = 20):
        super().__init__()
        self.buckets, self.causal = buckets, dims.causal
        if not dims.causal:
            self.parameters_formula = "2 buckets x heads"
        self.table = nn.Parameter(torch.zeros(buckets if dims.causal else 2 * buckets, dims.heads))

    def bucket(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        past = distance.clamp(min=0) if self.causal else distance.abs()
        begun = torch.tensor(borders(self.buckets)[1:], device=distance.device)
        bucket = torch.bucketize(past.contiguous(), begun, right=True)  # how many have begun by this distance
        return bucket if self.causal else bucket + self.buckets * (distance < 0)

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        return self.table.float()[self.bucket(distance)].movedim(-1, 0)

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "rows h"]]:
        reached = torch.zeros(len(self.table), dtype=torch.bool)
        reached[self.bucket(torch.arange(0 if self.causal else 1 - length, length))] = True
        return {"table": ~reached[:, None].expand_as(self.table)}
