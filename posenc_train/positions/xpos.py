"""xPos: rotary positions that also decay with the distance (Sun et al. 2022, arXiv 2212.10554, the LeX Transformer)."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc_train.positions.base import Dims, Span
from posenc_train.positions.rope import Rope


def decays(width: int, gamma: float = 0.4) -> list[float]:
    """zeta_c = (c / (width/2) + gamma) / (1 + gamma), one per pair, at most 1: the fast pairs decay most.

    Width 8: [0.285714, 0.464286, 0.642857, 0.821429]. A gamma that grows without bound gives 1, which is RoPE.
    """
    half = width // 2
    return [(c / half + gamma) / (1 + gamma) for c in range(half)]


class Xpos(Rope):
    """RoPE, with pair c of a query at i times zeta_c^(i / scale_base) and of a key at j times zeta_c^(-j / scale_base):
    a pair's score carries zeta_c^((i - j) / scale_base). A query at 300 and a key at 200, width 8:
    [0.782955, 0.860833, 0.917323, 0.962309].

    The paper's Algorithm 1 has no scale_base; 512 is that of the authors' code (torchscale), without which the factors
    vanish and overflow within 100 tokens. Their attention in blocks is another scheme (`blockwise`), without which the
    published extrapolation is not to be expected.
    i and j are counted from the middle of the keys of each call, so that a factor grows with half a text's length only:
    for the defaults it is finite in float32 and bfloat16 up to 70,000 tokens (7e34 at 65,536; in float16 to 8,000).
    Raises ValueError for a model that sees the future, where the factor would grow with the distance.
    """

    paper = "Sun et al. 2022, arXiv 2212.10554"

    def __init__(
        self,
        dims: Dims,
        base: float = 10000.0,
        pairing: str = "half",
        gamma: float = 0.4,
        scale_base: float = 512.0,
    ):
        super().__init__(dims, base, pairing)
        if not dims.causal:
            raise ValueError("position=xpos model.causal=false: must be true; the factors grow towards the future")
        self.logs = [math.log(zeta) / scale_base for zeta in decays(dims.head_width, gamma)]

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h k d"]]:
        low, high = span.k_pos.aminmax(dim=-1, keepdim=True)
        middle = (low + high) // 2
        turned_q, turned_k = super().rotate(q.float(), k.float(), span)
        return (
            (turned_q * self.factor(span.q_pos - middle)).to(q.dtype),
            (turned_k * self.factor(middle - span.k_pos)).to(k.dtype),
        )

    def factor(self, exponent: Int[Tensor, "*b n"]) -> Float[Tensor, "*b 1 n d"]:
        """zeta^(exponent / scale_base), laid out like the pairs of a head."""
        logs = torch.tensor(self.logs, device=exponent.device)
        each = logs.repeat(2) if self.pairing == "half" else logs.repeat_interleave(2)
        return (exponent[..., None].float() * each).exp().unsqueeze(-3)
