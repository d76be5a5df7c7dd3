"""Relative positions as vectors beside keys and values (Shaw et al. 2018, arXiv 1803.02155)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span

SIDES = ("both", "key", "value")


class Shaw(PositionScheme):
    """score = q (k + a^K_r) / sqrt(d), out = sum of weight (v + a^V_r), where r = clip(k_pos - q_pos, -clip, clip) +
    clip: row 0 of a table is `clip` and further into the past, row `clip` the token itself.

    The tables, of one vector for all heads a row, are a layer's own. Bidirectional models have 2 clip + 1 rows, causal
    ones the first clip + 1 of them (the future, masked anyway, reads the token's own). Beyond `clip` distances are
    alike; with clip >= train_length no pair trains row 0, which longer texts then read.
    sides: key or value leaves the other term out, which is no longer the paper's scheme.
    tied: one table for keys and values, where the paper has two.
    Vectors start from N(0, 0.02); the authors' code (tensor2tensor) leaves that to its library's default.
    A query meets every row of a table once, and gathers; weights are summed by row before they meet the vectors: no
    tensor holds a vector for each pair.
    Raises ValueError for unknown sides, and for tied tables where there is only one.
    """

    paper = "Shaw et al. 2018, arXiv 1803.02155"
    shared = False

    def __init__(self, dims: Dims, clip: int = 16, sides: str = "both", tied: bool = False):
        super().__init__()
        if sides not in SIDES:
            raise ValueError(f"position.sides={sides}: must be one of {', '.join(SIDES)}")
        if tied and sides != "both":
            raise ValueError(f"position.tied=true: must be false with position.sides={sides}, which has one table")
        self.clip, self.ahead = clip, 0 if dims.causal else clip

        def table() -> nn.Parameter:
            return nn.Parameter(torch.empty(clip + 1 + self.ahead, dims.head_width).normal_(std=0.02))

        if sides != "value":
            self.key_table = table()
        if sides != "key":
            self.value_table = self.key_table if tied else table()
        if sides == "value":
            self.refine = None
        if sides == "key":
            self.mix = None
        rows = "(clip + 1)" if dims.causal else "(2 clip + 1)"
        self.parameters_formula = f"{rows} x head_width" if tied or sides != "both" else f"2 x {rows} x head_width"

    def row(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """clip 2, distances 3 … -3: 0, 0, 1, 2, then 3, 4, 4 (bidirectional) or 2, 2, 2."""
        return (-distance).clamp(-self.clip, self.ahead) + self.clip

    def refine(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b h k d"],
        seen: Bool[Tensor, "#b #h q k"],
        span: Span,
    ) -> Float[Tensor, "b h q k"]:
        by_row = q.shape[-1] ** -0.5 * (q @ self.key_table.float().T)
        return scores + by_row.gather(-1, self._rows(span).expand_as(scores))

    def mix(
        self, weights: Float[Tensor, "b h q k"], v: Float[Tensor, "b h k d"], span: Span
    ) -> Float[Tensor, "b h q d"]:
        table = self.value_table.float()
        by_row = weights.new_zeros(*weights.shape[:-1], len(table))
        by_row = by_row.scatter_add(-1, self._rows(span).expand_as(weights), weights)
        return weights @ v + by_row @ table

    def _rows(self, span: Span) -> Int[Tensor, "#b 1 q k"]:
        return self.row(span.distance()).reshape(-1, 1, span.queries, span.keys)

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "rows d"]]:
        tables = dict(self.named_parameters())  # one, if tied
        reached = torch.zeros(self.clip + 1 + self.ahead, dtype=torch.bool)
        reached[self.row(torch.arange(0 if self.ahead == 0 else 1 - length, length))] = True
        return {key: ~reached[:, None].expand_as(table) for key, table in tables.items()}
