"""No extension: the trained scheme as it is."""

from posenc_train.positions.base import Dims, PositionScheme


def none(scheme: PositionScheme, dims: Dims, scale: float) -> PositionScheme:
    return scheme
