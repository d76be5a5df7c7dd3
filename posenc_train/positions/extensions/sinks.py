"""StreamingLLM (Xiao et al. 2023, arXiv 2309.17453): the cache holds the first and the latest tokens, and positions
are counted within it."""

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.two_span import extended


def sinks(
    scheme: PositionScheme, dims: Dims, scale: float, sinks: int = 4, window: int | None = None
) -> PositionScheme:
    """A query sees the positions below `sinks` and `window` positions up to its own: C in all. From C on, it stands at
    C - 1 in the cache, so that its distance to sink j is C - 1 - j wherever it is; others keep their distance.

    window: None: the trained length without the sinks. The authors' perplexity code sees one key more: it evicts after
        a token has been read. 0 sinks are a window, which the paper shows to fail.
    The keys are masked, not evicted: the numbers are those of eviction, memory and time are not.
    It is a mask as well for a scheme without positions. At a scale of 1 the plain scheme.
    Raises ValueError for a cache longer than the trained length.
    """
    window = dims.train_length - sinks if window is None else window
    if not 0 < window <= dims.train_length - sinks:
        raise ValueError(
            f"extension.sinks.sinks={sinks}, extension.sinks.window={window}: must be a window of at least 1, and "
            f"together at most train_length={dims.train_length}"
        )

    def far(q_pos, k_pos):
        return q_pos.clamp(max=sinks + window - 1), k_pos.clamp(max=max(sinks - 1, 0))  # no other key is seen

    return extended("sinks", scheme, dims, scale, window, far, first=sinks)
