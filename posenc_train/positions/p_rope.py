"""p-RoPE: rotary positions without their slowest frequencies (Barbero et al. 2024, arXiv 2410.06205, section 6.1)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from posenc_train.positions.base import Dims
from posenc_train.positions.rope import Rope


class PRope(Rope):
    """Keeps the floor(fraction x d/2) highest frequencies of RoPE, computed over the whole width d; the other pairs do
    not turn. Width 8, fraction 0.75: [1, 0.1, 0.01, 0]. Fraction 1 is RoPE, fraction 0 is NoPE.

    Not partial rotary (`rope` with a fraction), which spreads all its frequencies over fewer dimensions.
    """

    paper = "Barbero et al. 2024, arXiv 2410.06205"

    def __init__(self, dims: Dims, base: float = 10000.0, pairing: str = "half", fraction: float = 0.75):
        super().__init__(dims, base, pairing)
        if not 0 <= fraction <= 1:
            raise ValueError(f"position.fraction={fraction:g}: must be a number from 0 to 1; 1 is RoPE")
        self.kept = math.floor(fraction * dims.head_width / 2)

    def trained(self, device: torch.device | None = None) -> Float[Tensor, "pairs"]:
        frequency = super().trained(device)
        frequency[self.kept :] = 0
        return frequency
