"""Two sets of positions in one attention: the true ones for near pairs, others for the rest.

What ReRoPE, Self-Extend, LM-Infinite and StreamingLLM have in common; they differ in the other positions, and in
whether all of the far keys are seen.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.stack import Composition

Far = Callable[[Int[Tensor, "*b q"], Int[Tensor, "*b k"]], tuple[Int[Tensor, "*b q"], Int[Tensor, "*b k"]]]

MADE_OF = {"by_distance": (), "bias": ("by_distance", "bias"), "refine": ("rotate", "refine")}  # hook -> the scheme's


class TwoSpan(Composition):
    """A scheme under which pairs at a distance of `window` or more count as standing where `far` puts them.

    scheme: rotates, refines, biases or all of it, at the true positions and again at the far ones, and each pair takes
        what is its own. Whatever else a scheme does to q and k, log-n scaling for one, acts on both.
    far: (q_pos, k_pos) -> the positions of queries and keys in far pairs.
    first: far keys are hidden, those at positions below `first` excepted; None: none is.
    relative: whether moving all positions by a constant changes nothing, if it changes nothing in the scheme.
    Biases by distance become biases by pair. A scheme that sums the values itself must be linear in the weights.
    Twice the scores of the scheme, for 256 queries at a time. Positions that stand in embeddings cannot differ from
    pair to pair: ValueError.
    """

    paper = "a composition"

    def __init__(self, scheme: PositionScheme, window: int, far: Far, first: int | None = None, relative: bool = False):
        if scheme.embed is not None:
            raise ValueError("positions in the embedding are the same for all pairs of tokens")
        self.first = first
        super().__init__({"scheme": scheme})
        self.window, self.far_positions = window, far
        self.relative, self.linear = relative and scheme.relative, scheme.linear
        self.replaces_scores = self.refine is not None  # those of far pairs

    @property
    def scheme(self) -> PositionScheme:
        return self.parts["scheme"]

    def having(self, hook: str) -> list[PositionScheme]:
        """The scheme, where something of it becomes this hook."""
        made_of = MADE_OF.get(hook, (hook,))
        there = any(getattr(self.scheme, name) is not None for name in made_of)
        return [self.scheme] if there or (hook == "visible" and self.first is not None) else []

    def far(self, span: Span) -> Span:
        """The same tokens where far pairs see them. What is counted, not read off positions, stays as it is."""
        q_pos, k_pos = self.far_positions(span.q_pos, span.k_pos)
        return replace(span, q_pos=q_pos, k_pos=k_pos, consecutive=False)

    def near(self, span: Span) -> Bool[Tensor, "#b 1 q k"]:
        return (span.distance() < self.window).reshape(-1, 1, span.queries, span.keys)

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h k e"]]:
        return self.scheme.rotate(q, k, span)

    def refine(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b h k d"],
        seen: Bool[Tensor, "#b #h q k"],
        span: Span,
    ) -> Float[Tensor, "b h q k"]:
        far = self.far(span)
        far_q, far_k = (q, k) if self.scheme.rotate is None else self.scheme.rotate(q, k, far)
        far_scores = q.shape[-1] ** -0.5 * (far_q @ far_k.mT)
        if self.scheme.refine is not None:
            scores = self.scheme.refine(scores, q, k, seen, span)
            far_scores = self.scheme.refine(far_scores, q, k, seen, far)
        return torch.where(self.near(span), scores, far_scores)

    def bias(self, span: Span) -> Float[Tensor, "#b #h q k"]:
        span = replace(span, final=False)  # what is the same for all near keys is not for all keys
        return torch.where(self.near(span), self.scheme.added(span), self.scheme.added(self.far(span)))

    def visible(self, span: Span) -> Bool[Tensor, "#b #h q k"]:
        if self.first is None:
            return self.scheme.visible(span)
        seen = self.near(span) | (span.k_pos < self.first).reshape(-1, 1, 1, span.keys)
        return seen if self.scheme.visible is None else seen & self.scheme.visible(span)

    def mix(
        self, weights: Float[Tensor, "b h q k"], v: Float[Tensor, "b h k d"], span: Span
    ) -> Float[Tensor, "b h q d"]:
        near = self.near(span)
        return self.scheme.mix(weights * near, v, span) + self.scheme.mix(weights * ~near, v, self.far(span))


def placed(scheme: PositionScheme) -> bool:
    """Whether distances count in anything but what it hides."""
    if isinstance(scheme, Composition):
        return any(placed(part) for part in scheme.parts.values())
    hooks = (scheme.rotate, scheme.by_distance, scheme.bias, scheme.refine, scheme.mix)
    return not scheme.placeless and any(hook is not None for hook in hooks)


def extended(
    name: str,
    scheme: PositionScheme,
    dims: Dims,
    scale: float,
    window: int,
    far: Far,
    first: int | None = None,
    relative: bool = False,
) -> PositionScheme:
    """What the extension `name` makes of a scheme; at a scale of at most 1 a plain copy. A scheme without positions
    comes back as the very same object, unless far keys are hidden.

    Raises ValueError for positions in the embedding, and for a model that sees the future."""
    if not dims.causal:
        raise ValueError(f"model.causal=false: must be true with extension={name}, which is for distances to the past")
    if scheme.embed is not None:
        raise ValueError(
            f"extension={name}: needs positions that enter attention, where they may differ from pair to pair, and "
            "this position enters the embedding; choose one of none, logn"
        )
    if first is None and not placed(scheme):
        return scheme
    return TwoSpan(scheme, window, far, first, relative) if scale > 1 else copy.copy(scheme)
