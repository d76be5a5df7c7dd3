"""Sinusoidal absolute positions, added to the embedding (Vaswani et al. 2017, arXiv 1706.03762, section 3.5)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc_train.positions.absolute import Absolute
from posenc_train.positions.base import Dims


def sinusoids(pos: Int[Tensor, "*n"], width: int, base: float = 10000.0) -> Float[Tensor, "*n width"]:
    """PE(p, 2c) = sin(p / base^(2c/width)), PE(p, 2c+1) = cos(the same), interleaved, in float32.

    Width 4, position 1: [0.841471, 0.540302, 0.010000, 0.999950]. An odd width ends on a sine.
    """
    frequency = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=pos.device) / width)
    angle = pos[..., None].float() * frequency.float()
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :width]


class Sinusoidal(Absolute):
    """Fuses scale x PE with embeddings of unit variance (the model multiplies them by the square root of its width,
    as section 3.4 does; without that the signal, of norm sqrt(width/2), would drown them). The paper adds."""

    paper = "Vaswani et al. 2017, arXiv 1706.03762"

    def __init__(
        self,
        dims: Dims,
        base: float = 10000.0,
        scale: float = 1.0,
        fuse: str = "add",
        every_layer: bool = False,
        position_width: int | None = None,
    ):
        super().__init__(dims, fuse, scale, every_layer, position_width)
        self.base = base

    def vectors(self, pos: Int[Tensor, "*b n"]) -> Float[Tensor, "*b n position_width"]:
        return sinusoids(pos, self.position_width, self.base)
