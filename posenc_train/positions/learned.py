"""Learned absolute positions, added to the embedding (as in GPT-2): a table that ends somewhere."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.absolute import Absolute
from posenc_train.positions.base import Dims


class Learned(Absolute):
    """Fuses E[p] with the embedding; E, `table`, is [rows, position_width], N(0, 0.02). GPT-2 adds.

    reach: rows of the table; None: the training length.
    beyond: what position p >= reach means. "refuse": nothing, the scheme cannot represent it (evaluation reports
        "beyond reach"); "clamp": E[rows - 1]; "wrap": E[p mod rows].
    An extension sets `stretch`: positions are divided by it before they are looked up, so the reach grows by it.
    Raises ValueError for a position beyond a table that refuses.
    """

    paper = "Gehring et al. 2017, arXiv 1705.03122"
    parameters_formula = "train_length x position_width"
    stretch: float = 1.0

    def __init__(
        self,
        dims: Dims,
        reach: int | None = None,
        beyond: str = "refuse",
        scale: float = 1.0,
        fuse: str = "add",
        every_layer: bool = False,
        position_width: int | None = None,
    ):
        super().__init__(dims, fuse, scale, every_layer, position_width)
        if beyond not in ("refuse", "clamp", "wrap"):
            raise ValueError(f"position.beyond={beyond}: must be refuse, clamp or wrap")
        self.rows = dims.train_length if reach is None else reach
        self.beyond = beyond
        self.table = nn.Parameter(torch.empty(self.rows, self.position_width).normal_(std=0.02))

    @property
    def reach(self) -> int | None:
        """Of a table that refuses; 1e-6 so that 300 rows stretched by 1000/300 reach 1,000 positions, not 999."""
        return int(self.rows * self.stretch + 1e-6) if self.beyond == "refuse" else None

    def rows_at(self, pos: Int[Tensor, "*b n"] | Float[Tensor, "*b n"]) -> Float[Tensor, "*b n position_width"]:
        """E at these positions, between two rows interpolated linearly; behind the last row, that row. float32."""
        pos = pos.clamp(max=self.rows - 1)
        if not pos.is_floating_point():
            return self.table[pos].float()
        below = pos.floor().long()
        above = (below + 1).clamp(max=self.rows - 1)
        return torch.lerp(self.table[below].float(), self.table[above].float(), (pos - below)[..., None])

    def vectors(self, pos: Int[Tensor, "*b n"]) -> Float[Tensor, "*b n position_width"]:
        if self.reach is not None and (longest := int(pos.max()) + 1) > self.reach:
            raise ValueError(
                f"learned positions reach {self.reach} tokens, not {longest}: position.beyond=clamp reuses the last one"
            )
        return self.rows_at(self._in_table(pos))

    def _in_table(self, pos: Int[Tensor, "*b n"]) -> Int[Tensor, "*b n"] | Float[Tensor, "*b n"]:
        if self.stretch != 1:
            pos = pos / self.stretch
        return pos % self.rows if self.beyond == "wrap" else pos

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "rows position_width"]]:
        pos = self._in_table(torch.arange(length)).clamp(max=self.rows - 1)
        reached = torch.zeros(self.rows, dtype=torch.bool)
        reached[pos.floor().long()] = True
        reached[pos.ceil().long()] = True
        return {"table": ~reached[:, None].expand_as(self.table)}
