"""YaRN as its authors released it (Peng et al. 2023, arXiv 2309.00071; jquesnelle/yarn, and transformers)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.extensions.rotary import base_of, pairs, stretched, times
from posenc_train.positions.rope import Rope


def temperature(scale: float) -> float:
    """0.1 ln s + 1, on queries and keys both, so that scores are multiplied by its square. s = 8: 1.207944."""
    return 0.1 * math.log(scale) + 1 if scale > 1 else 1.0


def borders(width: int, base: float, length: int, fast: float = 32.0, slow: float = 1.0) -> tuple[int, int]:
    """Between which pairs the ramp runs: those that turn `fast` and `slow` times within the trained length, the first
    rounded down and the second up. The upper bound width - 1 is the code's, although the last pair is width/2 - 1.

    Width 128, L = 4,096: (20, 46). Width 64, base 10,000: L = 512 (3, 16), L = 1,024 (5, 18).
    """

    def pair(turns: float) -> float:
        return width * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base))

    return max(math.floor(pair(fast)), 0), min(math.ceil(pair(slow)), width - 1)


def ratio(
    count: int, base: float, length: int, scale: float, fast: float = 32.0, slow: float = 1.0
) -> Float[Tensor, "pairs"]:
    """(1 - r) + r/s, the ramp r rising from 0 to 1 over the index of the pair between the borders.

    d = 64, L = 512, s = 4, pairs 0, 4, 8, 12, 16: [1, 0.942308, 0.711538, 0.480769, 0.25].
    """
    low, high = borders(2 * count, base, length, fast, slow)
    if high < low:  # every pair turns less than `slow` times: the code's ramp would leave all of them as they are
        return torch.full((count,), 1 / scale, dtype=torch.float64)
    ramp = (torch.arange(count, dtype=torch.float64) - low) / (high - low if high != low else 0.001)
    ramp = ramp.clamp(0, 1)
    return 1 - ramp + ramp / scale


def yarn(
    scheme: PositionScheme, dims: Dims, scale: float, beta_fast: float = 32.0, beta_slow: float = 1.0
) -> PositionScheme:
    """The ramp is linear in the index of the pair, unlike the paper's (`yarn_by_turns`).

    Raises ValueError unless beta_slow < beta_fast, and for one frequency for all pairs.
    """
    if not beta_slow < beta_fast:
        raise ValueError(
            f"extension.yarn.beta_fast={beta_fast:g}: must be a number above extension.yarn.beta_slow={beta_slow:g}"
        )

    def stretch(rope: Rope):
        base = base_of(rope, "yarn")
        return times(ratio(pairs(rope), base, dims.train_length, scale, beta_fast, beta_slow))

    return stretched(scheme, stretch, temperature(scale))
