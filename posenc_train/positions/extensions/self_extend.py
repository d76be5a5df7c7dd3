"""Self-Extend (Jin et al. 2024, arXiv 2401.01325): far positions are counted in groups, near ones one by one."""

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.two_span import extended


def self_extend(
    scheme: PositionScheme, dims: Dims, scale: float, window: int | None = None, group: int | None = None
) -> PositionScheme:
    """From distance w on, a query at i stands at i // G + w - w // G and a key at j at j // G, rounded down.

    w = 4, G = 2: the query at 9 has the distances 6, 6, 5, 5, 4, 4, 3, 2, 1, 0 to the keys at 0 … 9.
    window: w; None: a quarter of the trained length, as the authors' 1,024 of 4,096.
    group: G; None: the least for which no distance within scale times the trained length reaches the trained length.
        Groups end at multiples of G, so that moving all positions changes something.
    At a scale of 1 the plain scheme. Raises ValueError for a window that is not below the trained length.
    """
    trained = dims.train_length
    window = max(1, trained // 4) if window is None else window
    if not 0 < window < trained:
        raise ValueError(
            f"extension.self_extend.window={window}: must be at least 1 and below train_length={trained}, "
            "to leave distances for the groups"
        )
    group = least(round(scale * trained), trained, window) if group is None else group

    def far(q_pos, k_pos):
        return q_pos // group + window - window // group, k_pos // group

    return extended("self_extend", scheme, dims, scale, window, far)


def least(length: int, trained: int, window: int) -> int:
    """The smallest group with which no distance in a text is `trained` or more. 32,768, 4,096, 1,024: 11."""
    return next(g for g in range(1, length + 1) if (length - 1) // g + window - window // g < trained)
