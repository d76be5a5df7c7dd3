"""The bare number of the position in the embedding, as introductory texts try first: a negative control."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posenc_train.positions.absolute import Absolute
from posenc_train.positions.base import Dims


class Integer(Absolute):
    """Fuses p u with the embedding, u one learned direction, N(0, width^-1/2): positions of norm about p, which
    drown embeddings of norm sqrt(width) and know no end.

    by_train_length: p / train_length in place of p: it does not drown them, and neighbours hardly differ.
    """

    paper = "none: a wrong turn of introductory texts"
    parameters_formula = "position_width"

    def __init__(
        self,
        dims: Dims,
        by_train_length: bool = False,
        scale: float = 1.0,
        fuse: str = "add",
        every_layer: bool = False,
        position_width: int | None = None,
    ):
        super().__init__(dims, fuse, scale, every_layer, position_width)
        self.unit = dims.train_length if by_train_length else 1
        self.direction = nn.Parameter(torch.empty(self.position_width).normal_(std=dims.width**-0.5))

    def vectors(self, pos: Int[Tensor, "*b n"]) -> Float[Tensor, "*b n position_width"]:
        return (pos.float() / self.unit)[..., None] * self.direction.float()
