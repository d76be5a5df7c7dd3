"""Fourier position embedding (Hua et al. 2024, arXiv 2412.17739): every dimension a mix of frequencies."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims
from posenc_train.positions.rope import Rope, angles, mixed


class Fope(Rope):
    """RoPE in which pair c of head h turns by cosines and sines that are mixes of those of all pairs:
    cos'_c = sum_w cosines[h, w, c] cos(pos theta_w), sin'_c = sum_w sines[h, w, c] sin(pos theta_w).

    floor: pairs that do not complete a period within the training length (theta < 2 pi / train_length) neither turn
        nor enter a mix. Width 64: 16 of 32 pairs are left at 512 tokens, 18 at 1,024.
    noise: the mixes begin as the identity plus xavier_normal_(gain=noise), whose fans torch reads off the shape
        [heads, kept, kept] (a deviation of noise x sqrt(2 / (kept (kept + heads)))), as in the authors' code, which
        has 0.3 for 60M, 0.4 for 180M and 0.6 for 1.2B parameters.
    learned: whether training changes the mixes. In the authors' code and configurations it does not: they stay as
        drawn (`learned: false`).

    With the identity and no floor it is RoPE; otherwise cos'^2 + sin'^2 is not 1 and moving all positions changes the
    scores. Differs from the authors' code, by intent, in two things: dropped pairs are left as they are (there they
    get cos = sin = 1, which leaves them unrotated but doubles their part of the score), and there are as many mixes as
    pairs kept (there at most d/4). The listing in the paper's appendix divides every mix by its sum; the
    authors' configurations do not, nor do we. How this compares with their runs is unverified.
    Raises ValueError where the floor leaves no pair (a training length of 6 or less).
    """

    paper = "Hua et al. 2024, arXiv 2412.17739"
    parameters_formula = "2 x heads x kept^2, kept = pairs of frequency 2 pi / train_length or more"
    shared = False

    def __init__(
        self,
        dims: Dims,
        base: float = 10000.0,
        pairing: str = "half",
        noise: float = 0.3,
        floor: bool = True,
        learned: bool = True,
    ):
        super().__init__(dims, base, pairing)
        self.lowest = 2 * math.pi / dims.train_length if floor else 0.0
        self.kept = int((super().trained() >= self.lowest).sum())
        if self.kept == 0:
            raise ValueError(
                f"position.floor=true: no pair completes a period within train_length={dims.train_length}; "
                "must be false, or train_length at least 7"
            )
        self.relative = noise == 0 and not learned
        for name in ("cosines", "sines"):
            mix = torch.eye(self.kept) + nn.init.xavier_normal_(
                torch.empty(dims.heads, self.kept, self.kept), gain=noise
            )
            if learned:
                self.register_parameter(name, nn.Parameter(mix))
            else:
                self.register_buffer(name, mix)

    def trained(self, device: torch.device | None = None) -> Float[Tensor, "pairs"]:
        frequency = super().trained(device)
        return frequency.where(frequency >= self.lowest, 0.0)

    def _turn(
        self, x: Float[Tensor, "b h n d"], pos: Int[Tensor, "*#b n"], frequency: Float[Tensor, "*#b pairs"]
    ) -> Float[Tensor, "b h n d"]:
        angle = angles(pos, frequency[..., : self.kept]).unsqueeze(-3)
        cos, sin = angle.cos() @ self.cosines.float(), angle.sin() @ self.sines.float()
        still = (*cos.shape[:-1], self.rotated // 2 - self.kept)
        cos, sin = torch.cat([cos, cos.new_ones(still)], -1), torch.cat([sin, sin.new_zeros(still)], -1)
        return (self.temperature * mixed(x.float(), cos, sin, self.pairing)).to(x.dtype)
