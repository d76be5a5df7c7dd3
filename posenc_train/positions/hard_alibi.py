"""Hard-ALiBi: some heads see the last few tokens, the others everything (Jelassi et al. 2024, arXiv 2402.01032)."""

import torch
from jaxtyping import Bool
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span

EVERYTHING = 2**62


class HardAlibi(PositionScheme):
    """Of the first `masked` heads, head h = 0, 1, 2, … sees exactly h + 1 keys, at distances 0 … h; the other heads see
    all and have no sign of position. Where the future is seen, |distance| <= h (our choice: the paper is causal).

    masked: None: half of the heads, as in the paper (8 of 16).
    Raises ValueError for more masked heads than there are, or fewer than none.
    """

    paper = "Jelassi et al. 2024, arXiv 2402.01032"

    def __init__(self, dims: Dims, masked: int | None = None):
        super().__init__()
        count = dims.heads // 2 if masked is None else masked
        if not 0 <= count <= dims.heads:
            raise ValueError(
                f"position.masked={masked}: must be from 0 to model.heads={dims.heads}, or null for half of them"
            )
        self.farthest = [*range(count), *[EVERYTHING] * (dims.heads - count)]
        self.causal = dims.causal

    def visible(self, span: Span) -> Bool[Tensor, "#b h q k"]:
        distance = span.distance()
        distance = distance.reshape(-1, 1, *distance.shape[-2:])
        farthest = torch.tensor(self.farthest, device=distance.device)[:, None, None]
        return (distance if self.causal else distance.abs()) <= farthest
