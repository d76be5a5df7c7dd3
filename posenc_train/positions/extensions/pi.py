"""Position interpolation (Chen et al. 2023, arXiv 2306.15595): positions divided by the scale."""

import copy

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.extensions.rotary import changed, extended
from posenc_train.positions.learned import Learned
from posenc_train.positions.rope import Rope


def pi(scheme: PositionScheme, dims: Dims, scale: float) -> PositionScheme:
    """Position p counts as p/s: for rotary positions their frequencies divided by s, for a learned table a row between
    two rows. The positions themselves stay integers: dividing those would cut off what comes after the point."""

    def change(part: PositionScheme) -> PositionScheme:
        if isinstance(part, Rope):
            return extended(part, lambda rope: lambda trained, span: trained / scale)
        if isinstance(part, Learned):
            part = copy.copy(part)
            part.stretch = scale
        return part

    return changed(scheme, change)
