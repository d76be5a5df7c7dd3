"""What the extensions of rotary positions share.

An extension is a function `name(scheme, dims, scale, **settings)` that returns a shallow copy of the scheme: the very
parameters, other frequencies. Scale is how many times longer the context is than the trained one; at 1 the copy does
what the scheme does. What is not rotary is handed back as it is, so that a scheme which comes back as the very same
object has nothing to extend. A shallow copy means: no attribute of the original is ever set.
"""

import copy
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from posenc_train.positions.base import PositionScheme, Span
from posenc_train.positions.rope import Rope

Stretch = Callable[[Tensor, Span], Tensor]  # Rope.stretch


def ropes(scheme: PositionScheme) -> Iterator[Rope]:
    """Every rotary scheme in a scheme: itself, or the parts of a composition, at any depth."""
    if isinstance(scheme, Rope):
        yield scheme
    for part in getattr(scheme, "parts", {}).values():
        yield from ropes(part)


def changed(scheme: PositionScheme, change: Callable[[PositionScheme], PositionScheme]) -> PositionScheme:
    """The scheme with `change` applied to whatever in it is no composition; itself if that changes nothing."""
    if not hasattr(scheme, "parts"):
        return change(scheme)
    parts = {name: changed(part, change) for name, part in scheme.parts.items()}
    return scheme.with_parts(parts) if any(parts[name] is not part for name, part in scheme.parts.items()) else scheme


def stretched(scheme: PositionScheme, stretch: Callable[[Rope], Stretch], temperature: float = 1.0) -> PositionScheme:
    """The scheme with other frequencies, and another size of rotated queries and keys, in whatever is rotary.

    What a scheme has beside its frequencies, xPos' decay or FoPE's mixes, stays as it is.
    stretch: the function of each Rope that becomes its `stretch`; it raises ValueError for one that it cannot extend.
    """
    return changed(scheme, lambda part: extended(part, stretch, temperature) if isinstance(part, Rope) else part)


def extended(rope: Rope, stretch: Callable[[Rope], Stretch], temperature: float = 1.0) -> Rope:
    other = copy.copy(rope)
    other.stretch, other.temperature = stretch(rope), temperature
    return other


def times(ratio: Float[Tensor, "pairs"]) -> Stretch:
    """The trained frequencies times one number each, for every call."""
    return lambda trained, span: trained * ratio.to(trained)


def pairs(rope: Rope) -> int:
    """How many frequencies it has: half of its rotated dimensions, but all of them in PoPE."""
    return rope.trained().shape[0]


def exponents(count: int) -> Float[Tensor, "pairs"]:
    """2c/(d - 2) for c = 0 … d/2 - 1, float64: 0 for the fastest pair, 1 for the slowest. d = 6: [0, 0.5, 1]."""
    return torch.arange(count, dtype=torch.float64) / max(count - 1, 1)


def base_of(rope: Rope, name: str) -> float:
    """The base of its frequencies. Raises ValueError for a scheme that has none: one frequency for all pairs."""
    if getattr(rope, "single", None) is not None:
        raise ValueError(
            f"extension={name}: position.single={rope.single:g} is one frequency for all pairs, which has no base; "
            "choose one of pi, by_parts, yarn_by_turns, longrope"
        )
    return rope.base


def several(rope: Rope, name: str) -> float:
    """The base of frequencies of which more than one turns: the fastest stays as it is whatever the base. Raises
    ValueError for others."""
    base = base_of(rope, name)
    if int((rope.trained() > 0).sum()) < 2:
        raise ValueError(f"extension={name}: needs at least two pairs of dimensions that turn; choose pi")
    return base
