"""T5's relative bias: one learned scalar per head and logarithmic bucket of distance (Raffel et al. 2020;
mesh_tensorflow's `_relative_position_bucket`)."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme


def buckets_of(largest: int, buckets: int = 32, max_distance: int = 128) -> list[int]:
    """The bucket of every distance 0 … largest: itself below buckets/2, then logarithmic up to max_distance.

    In float64 and in this order of operations, as integers, once: low precision moves the exact borders.
    Distances 16-18 -> 16, 19 -> 17, 64 -> 26, 113 and more -> 31.
    """
    exact = buckets // 2

    def bucket(distance: int) -> int:
        if distance < exact:
            return distance
        steps = math.log(distance / exact) / math.log(max_distance / exact) * (buckets - exact)
        return min(buckets - 1, exact + int(steps))

    return [bucket(distance) for distance in range(largest + 1)]


class T5(PositionScheme):
    """bias = table[bucket(distance), head], added to scores that, unlike T5's own, are scaled by 1/sqrt(d).

    by_root_d: the bias is multiplied by the square root of the head's width, as in GPT-NeoX and x-transformers: the
        same functions, but larger at first and learned faster.

    table is [buckets, heads], N(0, width^-1/2) as in T5; one for all layers (`shared`, as T5 does) or one per layer.
    Causal models have all buckets for the past; otherwise half of them serve the future (keys after the query).
    Raises ValueError unless buckets/2 (causal) or buckets/4 is at least 1 and below max_distance.
    """

    paper = "Raffel et al. 2020, arXiv 1910.10683"
    parameters_formula = "buckets x heads"

    def __init__(
        self,
        dims: Dims,
        buckets: int = 32,
        max_distance: int = 128,
        shared: bool = True,
        by_root_d: bool = False,
    ):
        super().__init__()
        self.factor = dims.head_width**0.5 if by_root_d else 1.0
        self.shared, self.causal, self.max_distance = shared, dims.causal, max_distance
        self.sided = buckets if dims.causal else buckets // 2  # buckets of one side
        if not 1 <= self.sided // 2 < max_distance:
            raise ValueError(
                f"position.buckets={buckets}, position.max_distance={max_distance}: "
                f"half of one side's {self.sided} buckets must be at least 1 and less than max_distance"
            )
        # Distances beyond max_distance share the last bucket, so a list up to there is all there is.
        self.known = buckets_of(max_distance, self.sided, max_distance)
        self.table = nn.Parameter(torch.empty(buckets, dims.heads).normal_(std=dims.width**-0.5))

    def bucket(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Causal: the future falls into bucket 0 (it is masked). Otherwise the future has the second half."""
        past = distance.clamp(min=0) if self.causal else distance.abs()
        bucket = torch.tensor(self.known, device=distance.device)[past.clamp(max=self.max_distance)]
        return bucket if self.causal else bucket + self.sided * (distance < 0)

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        return self.factor * self.table.float()[self.bucket(distance)].movedim(-1, 0)

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "buckets h"]]:
        reached = torch.zeros(len(self.table), dtype=torch.bool)
        reached[self.bucket(torch.arange(0 if self.causal else 1 - length, length))] = True
        return {"table": ~reached[:, None].expand_as(self.table)}
