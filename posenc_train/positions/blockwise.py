"""Blockwise causal attention (Sun et al. 2022, arXiv 2212.10554, section 3.3)."""

from jaxtyping import Bool
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span


class Blockwise(PositionScheme):
    """Positions fall into blocks, position // block; a query sees its own block and the one before. Where the future is
    seen, also the one after (our choice: the paper is causal). It has no other sign of position.

    block: None: half the training length, as in the paper: a text of the training length is then seen whole.
    Block 3: the query at 7 sees 3, 4, 5, 6, 7. Moving all positions moves the borders.
    Raises ValueError for a block below 1.
    """

    paper = "Sun et al. 2022, arXiv 2212.10554"
    relative = False

    def __init__(self, dims: Dims, block: int | None = None):
        super().__init__()
        self.block = max(1, dims.train_length // 2) if block is None else block
        if self.block < 1:
            raise ValueError(f"position.block={block}: must be at least 1, or null for half of train_length")
        self.causal = dims.causal

    def visible(self, span: Span) -> Bool[Tensor, "#b 1 q k"]:
        apart = (span.q_pos // self.block)[..., :, None] - (span.k_pos // self.block)[..., None, :]
        seen = (apart if self.causal else apart.abs()) <= 1
        return seen.reshape(-1, 1, *seen.shape[-2:])
