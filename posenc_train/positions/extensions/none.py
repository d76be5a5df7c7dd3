"""No extension: the trained scheme as it is."""

from posenc_train.positions.base import PositionScheme


def none(scheme: PositionScheme) -> PositionScheme:
    return scheme
