"""CoPE, contextual position encoding (Golovneva et al. 2024, arXiv 2405.18719)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span


def counted(
    content: Float[Tensor, "b h q k"], seen: Bool[Tensor, "#b #h q k"], positions: int
) -> Float[Tensor, "b h q k"]:
    """How many keys count from this one to the query, both included: the sum of sigmoid(content), at most
    positions - 1. Scores 0, 2, -2, 0: 2, 1.5, 0.619203, 0.5."""
    gates = content.sigmoid().masked_fill(~seen, 0.0)  # before the sum, which is from the end
    return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=positions - 1)


def interpolated(z: Float[Tensor, "b h q p"], at: Float[Tensor, "b h q k"]) -> Float[Tensor, "b h q k"]:
    """Between the entries of z below and above `at`; gradients go through the weights of the two."""
    below = at.detach().long()
    step = F.pad(z.diff(dim=-1), (0, 1))
    return z.gather(-1, below) + (at - below) * step.gather(-1, below)


class Cope(PositionScheme):
    """score += q · e[p], p the sum of the gates sigmoid(q · k / sqrt(d)) of the keys from this one to the query, which
    need not be whole: e is interpolated. What counts is for the content to say, and no position is read.

    positions: how many vectors e has, 0 … positions - 1; whatever counts more shares the last. One table a layer,
        the same for all heads, zero at first.
    divide: q · e is divided by sqrt(d) as well, the default of the authors' repository (facebookresearch/RAM). The
        code printed in the paper (appendix B) does not, nor does x-transformers: the default here.
    The gates see q and k as projected, so that in a stack a rotation stays out of them, as positions stay out of the
    authors' gates. With e = 0 they learn nothing, from the first step on they do.
    Raises ValueError for a bidirectional model: the count ends at the query.
    """

    paper = "Golovneva et al. 2024, arXiv 2405.18719"
    parameters_formula = "positions x head_width"
    shared = False
    placeless = True

    def __init__(self, dims: Dims, positions: int = 64, divide: bool = False):
        super().__init__()
        if not dims.causal:
            raise ValueError("position=cope model.causal=false: must be true; keys are counted up to the query")
        self.divide = divide
        self.table = nn.Parameter(torch.zeros(positions, dims.head_width))

    def refine(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b h k d"],
        seen: Bool[Tensor, "#b #h q k"],
        span: Span,
    ) -> Float[Tensor, "b h q k"]:
        root = q.shape[-1] ** 0.5
        p = counted(q @ k.mT / root, seen, len(self.table))
        z = q @ self.table.float().T
        return scores + interpolated(z / root if self.divide else z, p)

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "p d"]]:
        """What no content can reach: a gate is below 1, so `length` of them count less than that. How much more is
        not reached the content decides."""
        rows = torch.arange(len(self.table), device=self.table.device)[:, None]
        return {"table": (rows > length).expand_as(self.table)}
