"""Rotary positions (Su et al. 2021, arXiv 2104.09864)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span


def frequencies(width: int, base: float = 10000.0, device: torch.device | None = None) -> Float[Tensor, "pairs"]:
    """theta_c = base^(-2c/width) for c = 0 … width/2 - 1, float32. Width 4: [1, 0.01]."""
    return (base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)).float()


def turn(
    x: Float[Tensor, "b h n d"], pos: Int[Tensor, "*b n"], frequency: Float[Tensor, "pairs"], pairing: str
) -> Float[Tensor, "b h n d"]:
    """Rotates pair c of every vector by the angle pos x frequency[c], in float32; returned in x's type.

    pairing "half" pairs dimension c with c + d/2 (GPT-NeoX, LLaMA in transformers), "interleaved" 2c with 2c + 1
    (RoFormer, GPT-J): the same scheme up to a permutation of the head's dimensions, not on one checkpoint.
    x = [1, 2, 3, 4] at position 3: half [-1.413353, 1.879118, -2.828857, 4.058191],
    interleaved [-1.272233, -1.838865, 2.878668, 4.088187].
    """
    angle = pos[..., None].float() * frequency
    cos, sin = angle.cos().unsqueeze(-3), angle.sin().unsqueeze(-3)  # one for all heads
    if pairing == "half":
        first, second = x.float().chunk(2, dim=-1)
        out = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    else:
        first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        out = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
    return out.to(x.dtype)


class Rope(PositionScheme):
    """Raises ValueError when the width of a head is odd or the pairing unknown."""

    def __init__(self, dims: Dims, base: float = 10000.0, pairing: str = "half"):
        super().__init__()
        if dims.head_width % 2:
            raise ValueError(f"model.width / model.heads = {dims.head_width}: rotary positions need an even head width")
        if pairing not in ("half", "interleaved"):
            raise ValueError(f"position.pairing={pairing}: must be half or interleaved")
        self.base, self.pairing = base, pairing

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h k d"]]:
        frequency = frequencies(q.shape[-1], self.base, q.device)
        return turn(q, span.q_pos, frequency, self.pairing), turn(k, span.k_pos, frequency, self.pairing)
