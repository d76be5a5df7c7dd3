"""PoPE: polar coordinates, content in the lengths and position in the angles (Gopalakrishnan et al. 2025,
arXiv 2509.10534)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from posenc_train.positions.base import Dims, Span
from posenc_train.positions.rope import Rope, angles, frequencies
from posenc_train.positions.within import within


class Pope(Rope):
    """score_ij = sum_c softplus(q_c) softplus(k_c) cos((j - i) theta_c + delta[h, c]) / sqrt(d), theta_c = base^(-c/d)
    for c = 0 … d - 1: every dimension, not every pair, has a frequency.

    Made of queries and keys of twice the width, [cos | sin]; the scale stays that of the width before, 1/sqrt(d).
    delta is added to the angles of keys alone, begins at 0 and is held within [-2 pi, 0].
    Width 2, q = (0.5, -1) at 5, k = (1, 2) at 2, delta = 0: the sum is -0.600431.
    One delta per layer; whether the authors share it is unverified (x-transformers does).
    """

    paper = "Gopalakrishnan et al. 2025, arXiv 2509.10534"
    parameters_formula = "heads x head_width"
    shared = False
    linear = False

    def __init__(self, dims: Dims, base: float = 10000.0):
        super().__init__(dims, base)
        self.delta = nn.Parameter(torch.zeros(dims.heads, dims.head_width))

    def trained(self, device: torch.device | None = None) -> Float[Tensor, "d"]:
        return frequencies(2 * self.rotated, self.base, device)

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q 2*d"], Float[Tensor, "b h k 2*d"]]:
        frequency = self.frequency(span)
        delta = within(self.delta, -2 * math.pi, 0.0)[:, None]
        return (
            self._polar(q, angles(span.q_pos, frequency).unsqueeze(-3)),
            self._polar(k, angles(span.k_pos, frequency).unsqueeze(-3) + delta),
        )

    def _polar(self, x: Float[Tensor, "b h n d"], angle: Float[Tensor, "*#bh n d"]) -> Float[Tensor, "b h n 2*d"]:
        length = self.temperature * F.softplus(x.float())
        return torch.cat([length * angle.cos(), length * angle.sin()], dim=-1).to(x.dtype)
