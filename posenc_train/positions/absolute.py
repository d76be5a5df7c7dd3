"""Absolute positions: every position has a vector of its own, which is fused with the embedding of its token.

    add         x + s P
    scaled_add  x + alpha s P             alpha learned, at first width^-1/2 (as in x-transformers)
    concat      W [x; s P]                W: width + position_width -> width, at first [identity, N(0, 0.02)]
    gated       g x + (1 - g) s P         g = sigmoid(W_g [x; s P] + b), at first 0.881: W_g = 0, b = 2

concat and gated have no single source: these are their definitions here. scaled_add at alpha = 0 and gated at g = 1
are no positions at all; concat with W = [identity, identity] is add.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme

FUSIONS = {  # -> the number of parameters
    "add": "0",
    "scaled_add": "1",
    "concat": "width x (width + position_width)",
    "gated": "width x (2 width + 1)",
}


class Absolute(PositionScheme):
    """Fuses `vectors(pos)`, which a subclass defines, with the embeddings; no scheme by itself.

    fuse: add, scaled_add, concat or gated. scale: s, multiplies the position's vector.
    every_layer: fuse before every layer, with the same parameters, not before the first alone.
    position_width: that of the position's vector; None: the model's, and only concat takes another.
    Raises ValueError for an unknown fusion, and for another width under a fusion that has no use for one.
    """

    relative = False

    def __init__(
        self,
        dims: Dims,
        fuse: str = "add",
        scale: float = 1.0,
        every_layer: bool = False,
        position_width: int | None = None,
    ):
        super().__init__()
        if fuse not in FUSIONS:
            raise ValueError(f"position.fuse={fuse}: must be one of {', '.join(FUSIONS)}")
        if position_width not in (None, dims.width) and fuse != "concat":
            raise ValueError(
                f"position.position_width={position_width}: must be null or model.width={dims.width} with "
                f"position.fuse={fuse}; position.fuse=concat takes any"
            )
        self.fuse, self.scale, self.every_layer = fuse, scale, every_layer
        self.position_width = dims.width if position_width is None else position_width
        both = dims.width + self.position_width
        if fuse == "scaled_add":
            self.alpha = nn.Parameter(torch.tensor(dims.width**-0.5))
        elif fuse == "concat":
            noise = torch.empty(dims.width, self.position_width).normal_(std=0.02)  # zero would not teach P
            self.mixing = nn.Parameter(torch.cat([torch.eye(dims.width), noise], dim=1))
        elif fuse == "gated":
            self.gate = nn.Parameter(torch.zeros(dims.width, both))
            self.gate_bias = nn.Parameter(torch.full((dims.width,), 2.0))
        learned = [formula for formula in (self.parameters_formula, FUSIONS[fuse]) if formula != "0"]
        self.parameters_formula = " + ".join(learned) or "0"

    def vectors(self, pos: Int[Tensor, "*b n"]) -> Float[Tensor, "*b n position_width"]:
        """The vector of every position, float32, before it is scaled."""
        raise NotImplementedError

    def embed(self, x: Float[Tensor, "b n w"], pos: Int[Tensor, "*b n"]) -> Float[Tensor, "b n w"]:
        with torch.autocast(x.device.type, enabled=False):
            return self._fused(x.float(), self.scale * self.vectors(pos)).to(x.dtype)

    def _fused(self, x: Float[Tensor, "b n w"], p: Float[Tensor, "*b n v"]) -> Float[Tensor, "b n w"]:
        if self.fuse == "add":
            return x + p
        if self.fuse == "scaled_add":
            return x + self.alpha.float() * p
        both = torch.cat([x, p.expand(len(x), -1, -1)], dim=-1)
        if self.fuse == "concat":
            return F.linear(both, self.mixing.float())
        g = F.linear(both, self.gate.float(), self.gate_bias.float()).sigmoid()
        return g * x + (1 - g) * p
