"""No positions at all: order enters through the causal mask alone (Haviv et al. 2022, Kazemnejad et al. 2023)."""

from posenc_train.positions.base import Dims, PositionScheme


class Nope(PositionScheme):
    """Nothing is added anywhere. A model that sees the future then sees a bag of words."""

    paper = "Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023, arXiv 2305.19466"

    def __init__(self, dims: Dims):
        super().__init__()
