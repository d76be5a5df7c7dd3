"""The scale of scores of DroPE's evaluation (Gelberg et al. 2025, arXiv 2512.12167, appendix C.2), over any scheme."""

import math

from jaxtyping import Float
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.stack import Stack


class Scaled(PositionScheme):
    """Multiplies queries, and so scores, by one number."""

    def __init__(self, dims: Dims, by: float = 1.0):
        super().__init__()
        self.by = by

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h k d"]]:
        return (self.by * q.float()).to(q.dtype), k


def drope(scheme: PositionScheme, dims: Dims, scale: float, slope: float = 0.412) -> PositionScheme:
    """Scores times 1 + slope ln s. 0.412 is what the authors fitted to held-out text for a model of 0.5B parameters
    trained from scratch, 0.103 for SmolLM: a number fitted at the target length, so fit it for other schemes too."""
    return Stack({"scheme": scheme, "scaled": Scaled(dims, 1 + slope * math.log(scale))})
