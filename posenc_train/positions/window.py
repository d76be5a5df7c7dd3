"""Sliding-window attention (Beltagy et al. 2020, arXiv 2004.05150), with attention sinks (Xiao et al. 2023,
arXiv 2309.17453)."""

from jaxtyping import Bool
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span


class Window(PositionScheme):
    """A query sees the keys at distance 0 … window - 1: `window` positions, itself included. Where the future is seen,
    |distance| < window. It has no other sign of position.

    sinks: the first `sinks` positions of every text stay visible from anywhere. They keep their true positions;
        StreamingLLM counts positions within its cache instead.
    Window 3: the query at 6 sees 4, 5, 6. With 2 sinks: 0, 1, 4, 5, 6.
    Raises ValueError for a window below 1 and for sinks below 0.
    """

    paper = "Beltagy et al. 2020, arXiv 2004.05150; sinks: Xiao et al. 2023, arXiv 2309.17453"

    def __init__(self, dims: Dims, window: int = 64, sinks: int = 0):
        super().__init__()
        if window < 1:
            raise ValueError(f"position.window={window}: must be at least 1, a query's own position")
        if sinks < 0:
            raise ValueError(f"position.sinks={sinks}: must be at least 0")
        self.window, self.sinks, self.causal = window, sinks, dims.causal
        self.relative = sinks == 0

    def visible(self, span: Span) -> Bool[Tensor, "#b 1 q k"]:
        distance = span.distance()
        seen = (distance if self.causal else distance.abs()) < self.window
        if self.sinks:
            seen = seen | (span.k_pos < self.sinks)[..., None, :]
        return seen.reshape(-1, 1, *seen.shape[-2:])
