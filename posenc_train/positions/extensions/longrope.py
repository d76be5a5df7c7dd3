"""LongRoPE (Ding et al. 2024, arXiv 2402.13753): every pair has a factor of its own, found by a search."""

import math

import torch

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.extensions.rotary import pairs, stretched, times
from posenc_train.positions.rope import Rope


def temperature(scale: float, length: int) -> float:
    """sqrt(1 + ln s / ln L), on queries and keys both. L = 4,096: s = 8 gives 1.118034, s = 32 gives 1.190238."""
    return math.sqrt(1 + math.log(scale) / math.log(length)) if scale > 1 and length > 1 else 1.0


def longrope(
    scheme: PositionScheme,
    dims: Dims,
    scale: float,
    factors: list[float] | str = "search",
    population: int = 16,
    generations: int = 6,
    tokens: int = 8192,
) -> PositionScheme:
    """Frequency c divided by factors[c], at least 1 and not decreasing; at scale 1 the plain scheme.

    factors: one per pair, the fastest first, or "search", for which the evaluation puts in what its evolutionary search
        finds. population, generations, tokens: its size, and on how many training tokens it scores a candidate.
    Left out: the paper's n-hat, a number of first tokens whose positions are not interpolated. It makes the score of
    two tokens depend on where they stand, and transformers has none either.
    Raises ValueError for factors that are not one per pair, decrease, or are below 1.
    """
    if factors == "search":
        if scale > 1:
            raise ValueError("extension.longrope.factors=search: must be the factors found, where nothing searches")
    elif any(not factor >= 1 for factor in factors) or sorted(factors) != list(factors):
        raise ValueError(
            f"extension.longrope.factors={list(factors)}: must be numbers of at least 1 that do not decrease"
        )

    def stretch(rope: Rope):
        count = pairs(rope)
        if factors == "search":
            return times(torch.ones(count))
        if len(factors) != count:
            raise ValueError(
                f"extension.longrope.factors: must be {count} numbers, one for each pair of rotated dimensions, and "
                f"there are {len(factors)}; extension.longrope.factors=search finds them"
            )
        return times(1 / torch.tensor(factors if scale > 1 else [1.0] * count, dtype=torch.float64))

    return stretched(scheme, stretch, temperature(scale, dims.train_length))
