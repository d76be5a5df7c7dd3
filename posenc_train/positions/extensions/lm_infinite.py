"""LM-Infinite (Han et al. 2023, arXiv 2308.16137): the first tokens and the near ones are seen, no distance counts as
more than the trained length."""

import torch

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.two_span import extended


def lm_infinite(
    scheme: PositionScheme, dims: Dims, scale: float, first: int = 10, local: int | None = None
) -> PositionScheme:
    """A query sees the positions below `first`, and `local` positions up to its own; the distance d to the former
    counts as min(d, local).

    local: None: the trained length, as published. Then d = local is by one more than any distance trained.
    first: the authors' 10 to 100 do about as well. It is a mask as well for a scheme without positions.
    At a scale of 1 the plain scheme. Raises ValueError for a `local` above the trained length.
    """
    local = dims.train_length if local is None else local
    if not 0 < local <= dims.train_length:
        raise ValueError(
            f"extension.lm_infinite.local={local}: must be at least 1 and at most train_length={dims.train_length}"
        )

    def far(q_pos, k_pos):
        return torch.full_like(q_pos, local), torch.zeros_like(k_pos)

    return extended("lm_infinite", scheme, dims, scale, local, far, first)
