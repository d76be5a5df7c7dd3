"""A larger base ("adjusted base frequency", Xiong et al. 2023, arXiv 2309.16039, section 4.1)."""

import torch

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.extensions.rotary import pairs, several, stretched, times
from posenc_train.positions.rope import Rope


def abf(scheme: PositionScheme, dims: Dims, scale: float, base: float = 500000.0) -> PositionScheme:
    """base^(-2c/d) whatever the length: the plain scheme only where it was trained with that base.

    The paper trains on after the change; put under a trained model as here, it changes short contexts as well.
    Raises ValueError for a single pair, and for one frequency for all pairs.
    """

    def stretch(rope: Rope):
        count, trained = pairs(rope), several(rope, "abf")
        return times((base / trained) ** (-torch.arange(count, dtype=torch.float64) / count))

    return stretched(scheme, stretch)
