"""Learned absolute positions, added to the embedding (as in GPT-2): a table that ends somewhere."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme


class Learned(PositionScheme):
    """x_p + E[p]; E is [reach, width], N(0, 0.02).

    reach: rows of the table; None: the training length.
    beyond: what position p >= reach means. "refuse": nothing, the scheme cannot represent it (evaluation reports
        "beyond reach"); "clamp": E[reach - 1].
    Raises ValueError for a position beyond a table that refuses.
    """

    def __init__(self, dims: Dims, reach: int | None = None, beyond: str = "refuse"):
        super().__init__()
        if beyond not in ("refuse", "clamp"):
            raise ValueError(f"position.beyond={beyond}: must be refuse or clamp")
        self.rows = dims.train_length if reach is None else reach
        self.beyond = beyond
        self.reach = self.rows if beyond == "refuse" else None
        self.table = nn.Parameter(torch.empty(self.rows, dims.width).normal_(std=0.02))

    def embed(self, x: Float[Tensor, "b n w"], pos: Int[Tensor, "*b n"]) -> Float[Tensor, "b n w"]:
        if self.beyond == "clamp":
            pos = pos.clamp(max=self.rows - 1)
        elif (longest := int(pos.max()) + 1) > self.rows:
            raise ValueError(
                f"learned positions reach {self.rows} tokens, not {longest}: position.beyond=clamp reuses the last one"
            )
        return x + self.table[pos].to(x.dtype)

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "rows width"]]:
        return {"table": (torch.arange(self.rows) >= length)[:, None].expand_as(self.table)}
