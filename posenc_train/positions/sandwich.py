"""Sandwich: the inner product of sinusoidal positions as a bias (Chi et al. 2022, arXiv 2212.10356)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme


def kernel(distance: Int[Tensor, "*shape"], width: int = 128, first: int = 0) -> Float[Tensor, "*shape"]:
    """The sum of cos(distance x 10000^(-2c/width)) - 1 over width/2 numbers c from `first` on: 0 at distance 0.

    Width 128, from c = 0, distances 1 and 512: -1.906316, -49.956840; from c = 1: -1.446619, -47.961317.
    """
    far = distance.abs().float()
    total = torch.zeros_like(far)
    for c in range(first, first + width // 2):  # one at a time: `distance` can be as large as memory allows
        total += torch.cos(far * 10000.0 ** (-2 * c / width)) - 1
    return total


class Sandwich(PositionScheme):
    """bias of head h = 1 … H: kernel(distance) / (8 h / H), not learned.

    width: that of the sinusoidal vectors whose product it is, a number of its own and not the head's width.
    first: the first c, 0 (as in sinusoidal positions) or 1 (as in NVIDIA's NeMo); which one the paper means is
        unverified.
    NeMo subtracts width/2 as here; softmax ignores it. Raises ValueError for an odd width and another first.
    """

    paper = "Chi et al. 2022, arXiv 2212.10356"

    def __init__(self, dims: Dims, width: int = 128, first: int = 0):
        super().__init__()
        if width < 2 or width % 2:
            raise ValueError(f"position.width={width}: must be even and at least 2; the default is 128")
        if first not in (0, 1):
            raise ValueError(f"position.first={first}: must be 0 or 1")
        self.width, self.first = width, first
        self.ratios = [8 * head / dims.heads for head in range(1, dims.heads + 1)]

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        ratio = torch.tensor(self.ratios, device=distance.device).view(-1, *[1] * distance.ndim)
        return kernel(distance, self.width, self.first) / ratio
