"""Rotary positions (Su et al. 2021, arXiv 2104.09864)."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span


def frequencies(width: int, base: float = 10000.0, device: torch.device | None = None) -> Float[Tensor, "pairs"]:
    """theta_c = base^(-2c/width) for c = 0 … width/2 - 1, float32. Width 4: [1, 0.01]."""
    return (base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)).float()


def turn(
    x: Float[Tensor, "b h n d"], pos: Int[Tensor, "*#b n"], frequency: Float[Tensor, "*#b pairs"], pairing: str
) -> Float[Tensor, "b h n d"]:
    """Rotates pair c of every vector by the angle pos x frequency[c], in float32; returned in x's type.

    pairing "half" pairs dimension c with c + d/2 (GPT-NeoX, LLaMA in transformers), "interleaved" 2c with 2c + 1
    (RoFormer, GPT-J): the same scheme up to a permutation of the head's dimensions, not on one checkpoint.
    x = [1, 2, 3, 4] at position 3: half [-1.413353, 1.879118, -2.828857, 4.058191],
    interleaved [-1.272233, -1.838865, 2.878668, 4.088187].
    """
    angle = angles(pos, frequency).unsqueeze(-3)  # one for all heads
    return mixed(x, angle.cos(), angle.sin(), pairing)


def angles(pos: Int[Tensor, "*#b n"], frequency: Float[Tensor, "*#b pairs"]) -> Float[Tensor, "*#b n pairs"]:
    return pos[..., None].float() * frequency[..., None, :]


def mixed(
    x: Float[Tensor, "b h n d"], cos: Float[Tensor, "*#bh n pairs"], sin: Float[Tensor, "*#bh n pairs"], pairing: str
) -> Float[Tensor, "b h n d"]:
    """Pair (a, b) becomes (a cos - b sin, b cos + a sin), in float32; returned in x's type."""
    if pairing == "half":
        first, second = x.float().chunk(2, dim=-1)
        out = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    else:
        first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        out = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
    return out.to(x.dtype)


class Rope(PositionScheme):
    """Rotates the first `fraction` of the dimensions of every query and key; the rest pass unrotated (GPT-NeoX's
    partial rotary; p-RoPE is another thing). Their frequencies are computed over the rotated dimensions alone.

    single: one frequency for all pairs, as in introductory texts: relative still, but periodic in 2 pi / single.
    Every other rotary scheme is a subclass, and an extension to longer contexts sets two attributes:
    stretch: the trained frequencies, and where queries and keys stand -> those used instead, for all rows or each.
    temperature: multiplies rotated queries and keys both, so the scores by its square.
    Raises ValueError for a number of rotated dimensions that is odd or zero, and for an unknown pairing.
    """

    paper = "Su et al. 2021, arXiv 2104.09864"
    stretch: Callable[[Float[Tensor, "pairs"], Span], Float[Tensor, "*b pairs"]] | None = None
    temperature: float = 1.0

    def __init__(
        self,
        dims: Dims,
        base: float = 10000.0,
        pairing: str = "half",
        fraction: float = 1.0,
        single: float | None = None,
    ):
        super().__init__()
        self.rotated = round(fraction * dims.head_width)
        whole = abs(fraction * dims.head_width - self.rotated) < 1e-6
        if not whole or self.rotated % 2 or not 0 < self.rotated <= dims.head_width:
            part = "" if fraction == 1 else f" x position.fraction={fraction:g}"
            raise ValueError(
                f"model.width / model.heads = {dims.head_width}{part}: rotary positions turn pairs of dimensions, "
                f"and {fraction * dims.head_width:g} is not an even number of them"
            )
        if pairing not in ("half", "interleaved"):
            raise ValueError(f"position.pairing={pairing}: must be half or interleaved")
        self.base, self.pairing, self.single = base, pairing, single

    def trained(self, device: torch.device | None = None) -> Float[Tensor, "pairs"]:
        """The frequency of every pair as it was trained, the fastest first."""
        if self.single is not None:
            return torch.full((self.rotated // 2,), self.single, device=device)
        return frequencies(self.rotated, self.base, device)

    def frequency(self, span: Span) -> Float[Tensor, "*b pairs"]:
        """The frequency of every pair in this call."""
        trained = self.trained(span.q_pos.device)
        return trained if self.stretch is None else self.stretch(trained, span)

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h k d"]]:
        frequency = self.frequency(span)
        return self._turn(q, span.q_pos, frequency), self._turn(k, span.k_pos, frequency)

    def _turn(self, x: Float[Tensor, "b h n d"], pos, frequency) -> Float[Tensor, "b h n d"]:
        out = turn(x[..., : self.rotated], pos, frequency, self.pairing)
        if self.temperature != 1:
            out = (self.temperature * out.float()).to(x.dtype)
        return out if self.rotated == x.shape[-1] else torch.cat([out, x[..., self.rotated :]], dim=-1)
