"""ReRoPE (Su 2023, https://kexue.fm/archives/9708; github.com/bojone/rerope): no distance counts as more than w."""

import torch

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.extensions import logn as log_n
from posenc_train.positions.two_span import extended


def rerope(
    scheme: PositionScheme, dims: Dims, scale: float, window: int | None = None, logn: bool = False
) -> PositionScheme:
    """Distance d counts as min(d, window): RoPE turns the query of a far pair by `window` and its key not at all.

    Under a bias by distance it is that bias, cut off: of ALiBi -m min(d, window). xPos decays by min(d, window).
    window: None: half of the trained length. The author's code has 512 of 4,096.
    logn: log-n scaling of the queries as well, which the author's code has, and others' uses often have not.
    At a scale of 1 the plain scheme, although the author changes short texts as well; give a scale for that.
    Raises ValueError for a window that is not below the trained length.
    """
    window = dims.train_length // 2 if window is None else window
    if not 0 < window < dims.train_length:
        raise ValueError(
            f"extension.rerope.window={window}: must be at least 1 and below train_length={dims.train_length}, "
            "as distances beyond were never trained"
        )

    def far(q_pos, k_pos):
        return torch.full_like(q_pos, window), torch.zeros_like(k_pos)

    def rectified(scheme: PositionScheme) -> PositionScheme:
        return extended("rerope", scheme, dims, scale, window, far, relative=True)

    other = rectified(scheme)
    return rectified(log_n.logn(scheme, dims, scale)) if logn and other is not scheme else other
