"""No positions at all: order enters through the causal mask alone (Haviv et al. 2022, Kazemnejad et al. 2023)."""

from posenc_train.positions.base import Dims, PositionScheme


class Nope(PositionScheme):
    def __init__(self, dims: Dims):
        super().__init__()
