"""The inverse of the distance as a bias, as introductory texts have it."""

from jaxtyping import Float, Int
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme


class Inverse(PositionScheme):
    """bias = 1 / (1 + |distance|), the same for every head, not learned. Distances 0, 1, 4: 1, 0.5, 0.2.

    It can raise the score of near keys by 1 at most, and beyond some tens of tokens it is flat.
    """

    paper = "none: introductory texts"

    def __init__(self, dims: Dims):
        super().__init__()
        self.heads = dims.heads

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        return (1 / (1 + distance.abs().float())).expand(self.heads, *distance.shape)
