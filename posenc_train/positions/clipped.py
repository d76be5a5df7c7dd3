"""One learned scalar per head and distance, up to a distance where they end (the clipping of Shaw et al. 2018, on
scalars in the scores in place of vectors)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme


class Clipped(PositionScheme):
    """bias = table[clip(k_pos - q_pos, -clip, clip) + clip, head], zero at first.

    The index is Shaw's: row 0 is `clip` and further into the past, row `clip` the token itself. Bidirectional models
    have 2 clip + 1 rows, causal ones the first clip + 1 of them (the future, masked anyway, reads the token's own).
    Beyond `clip` distances are alike. With clip >= train_length no pair trains row 0, which longer texts then read.
    shared: one table for all layers, or one per layer.
    """

    paper = "after Shaw et al. 2018, arXiv 1803.02155"
    parameters_formula = "(clip + 1) x heads"

    def __init__(self, dims: Dims, clip: int = 64, shared: bool = True):
        super().__init__()
        self.clip, self.shared, self.ahead = clip, shared, 0 if dims.causal else clip
        if not dims.causal:
            self.parameters_formula = "(2 clip + 1) x heads"
        self.table = nn.Parameter(torch.zeros(clip + 1 + self.ahead, dims.heads))

    def row(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """clip 2, distances 3 … -3: 0, 0, 1, 2, then 3, 4, 4 (bidirectional) or 2, 2, 2."""
        return (-distance).clamp(-self.clip, self.ahead) + self.clip

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        return self.table.float()[self.row(distance)].movedim(-1, 0)

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "rows h"]]:
        reached = torch.zeros(len(self.table), dtype=torch.bool)
        reached[self.row(torch.arange(0 if self.ahead == 0 else 1 - length, length))] = True
        return {"table": ~reached[:, None].expand_as(self.table)}
