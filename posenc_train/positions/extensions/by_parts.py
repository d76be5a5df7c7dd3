"""NTK-by-parts (Peng et al. 2023, arXiv 2309.00071, Definition 2; also the scaling of Llama 3.1)."""

import math

from jaxtyping import Float
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.extensions.rotary import Stretch, stretched


def ratio(
    trained: Float[Tensor, "pairs"], length: int, scale: float, alpha: float, beta: float
) -> Float[Tensor, "pairs"]:
    """(1 - g)/s + g with g = clip((r - alpha)/(beta - alpha), 0, 1), r = L theta / 2 pi turns in the trained length L.

    A pair that turned more than `beta` times is left alone, one of less than `alpha` turns is interpolated as by PI.
    d = 64, L = 512, s = 4, pairs 0, 4, 8, 12, 16: [1, 0.849239, 0.422953, 0.288150, 0.25].
    """
    turns = length * trained.double() / (2 * math.pi)
    kept = ((turns - alpha) / (beta - alpha)).clamp(0, 1)
    return kept + (1 - kept) / scale


def ramp(name: str, dims: Dims, scale: float, alpha: float, beta: float) -> Stretch:
    """Raises ValueError unless alpha < beta."""
    if not alpha < beta:
        raise ValueError(f"extension.{name}.beta={beta:g}: must be a number above extension.{name}.alpha={alpha:g}")

    def frequency(trained: Float[Tensor, "pairs"], span: Span) -> Float[Tensor, "pairs"]:
        return trained * ratio(trained, dims.train_length, scale, alpha, beta).to(trained)

    return frequency


def by_parts(
    scheme: PositionScheme, dims: Dims, scale: float, alpha: float = 1.0, beta: float = 32.0
) -> PositionScheme:
    """YaRN without its temperature, with the paper's ramp: linear in the number of turns."""
    frequency = ramp("by_parts", dims, scale, alpha, beta)
    return stretched(scheme, lambda rope: frequency)
