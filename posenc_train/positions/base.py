"""The interface between attention and a position scheme.

Letters used in every annotation: b batch, h head, q query, k key, d head width, n tokens, w model width.
Distance is q_pos - k_pos: the past is positive.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Dims:
    """What a scheme may know about the model it is built for."""

    width: int
    heads: int
    head_width: int
    layers: int
    train_length: int
    causal: bool = True


@dataclass(frozen=True)
class Span:
    """Where the queries and the keys of one attention call stand.

    q_pos, k_pos: integer positions, [q] and [k] when every row has the same, else [b, q] and [b, k].
    start: index of the first query among the keys; under the causal mask query i may see key j if j <= start + i.
    q_doc, k_doc: the document of each token ([b, q], [b, k]); -1 is padding. None: one document.
    causal: whether there is that mask.
    x: what the layer's queries, keys and values were projected from, at all keys, for schemes that read content.
    consecutive: the caller knows that q_pos[i] - k_pos[j] == start + i - j for every pair, so that a bias
        by distance is one vector. Never guessed from the values: that would cost a pass over them.
    final: a bias asked for is added last, right before the softmax, so that one number more for all keys of a query is
        nothing. Not so within a scheme that makes something else of it.
    """

    q_pos: Int[Tensor, "*b q"]
    k_pos: Int[Tensor, "*b k"]
    start: int = 0
    q_doc: Int[Tensor, "b q"] | None = None
    k_doc: Int[Tensor, "b k"] | None = None
    consecutive: bool = False
    causal: bool = True
    x: Float[Tensor, "b k w"] | None = None
    final: bool = True

    @classmethod
    def of(cls, length: int, cached: int = 0, device: torch.device | str | None = None, causal: bool = True) -> "Span":
        """`length` queries that follow `cached` earlier tokens, all at their natural positions."""
        k_pos = torch.arange(cached + length, device=device)
        q_pos = k_pos[cached:] if cached else k_pos
        return cls(q_pos, k_pos, start=cached, consecutive=True, causal=causal)

    @property
    def queries(self) -> int:
        return self.q_pos.shape[-1]

    @property
    def keys(self) -> int:
        return self.k_pos.shape[-1]

    def distance(self) -> Int[Tensor, "*b q k"]:
        return self.q_pos[..., :, None] - self.k_pos[..., None, :]

    def allowed(self) -> Bool[Tensor, "*b q k"]:
        """Which keys a query may see before any scheme has its say: none after it (causal), none of another
        document, no padding."""
        device = self.q_pos.device
        mask = torch.ones(self.queries, self.keys, dtype=torch.bool, device=device)
        if self.causal:
            mask = mask.tril(self.start)
        if self.q_doc is not None:
            mask = mask & (self.q_doc[:, :, None] == self.k_doc[:, None, :]) & (self.k_doc >= 0)[:, None, :]
        return mask

    def seen(self) -> Int[Tensor, "*b q"]:
        """How many keys each query may see, itself included: [1, 2, 3, …] in a text of one document. Documents and
        padding are left out; what a scheme hides is not."""
        if self.q_doc is None:
            first = torch.arange(1, self.queries + 1, device=self.q_pos.device)
            return (self.start + first if self.causal else torch.full_like(first, self.keys)).expand(self.q_pos.shape)
        parts = [self.chunk(i, min(i + 256, self.queries)) for i in range(0, self.queries, 256)]
        return torch.cat([part.allowed().sum(-1) for part in parts], dim=-1)

    def chunk(self, first: int, last: int) -> "Span":
        """Queries first … last-1 with the keys that the causal mask, if any, lets them see."""
        keys = min(self.keys, self.start + last) if self.causal else self.keys
        return replace(
            self,
            q_pos=self.q_pos[..., first:last],
            k_pos=self.k_pos[..., :keys],
            start=self.start + first,
            q_doc=None if self.q_doc is None else self.q_doc[:, first:last],
            k_doc=None if self.k_doc is None else self.k_doc[:, :keys],
            x=None if self.x is None else self.x[:, :keys],
        )


class PositionScheme(nn.Module):
    """A scheme defines the hooks it needs; a hook left None does not happen.

    Built as `Scheme(dims, **its own settings)`; every setting has a default. Hooks are functions of positions,
    never of a length. Whatever the precision of the model, a scheme computes positions, frequencies, distances,
    gates and biases in float32; only the result is cast.
    """

    def __init__(self, dims: Dims | None = None):
        super().__init__()

    embed: Callable[[Float[Tensor, "b n w"], Int[Tensor, "*b n"]], Float[Tensor, "b n w"]] | None = None
    """(x, pos) -> x, once, after the token embedding; before every layer if `every_layer`."""

    rotate: Callable[..., tuple[Tensor, Tensor]] | None = None
    """(q, k, span) -> q, k, before the dot product; q is [b h q d], k is [b h k d]. It may widen both: the scale
    1/sqrt(d) is that of the width before."""

    by_distance: Callable[[Int[Tensor, "*shape"]], Float[Tensor, "h *shape"]] | None = None
    """(distance) -> bias, added to the scaled scores. Called with a vector of distances wherever it can be."""

    bias: Callable[[Span], Float[Tensor, "#b #h q k"]] | None = None
    """(span) -> a bias that is more than a function of the distance, of four dimensions, 1 where it does not matter.
    Asked for a chunk of queries at a time. Positions are [q] and [k], or [b q] and [b k] where rows differ, so that
    something of the shape of `span.distance()` becomes one by `.reshape(-1, 1, span.queries, span.keys)`."""

    visible: Callable[[Span], Bool[Tensor, "#b #h q k"]] | None = None
    """(span) -> False where a query must not see a key that it otherwise might. Every query sees its own key. Asked
    for a chunk of queries at a time, or, where the scheme is `relative`, for one vector of distances."""

    refine: Callable[..., Float[Tensor, "b h q k"]] | None = None
    """(scores, q, k, seen, span) -> scores: those of the rotated q and k, scaled, before any bias; q, k as projected;
    seen is True where the query sees the key. For a chunk of queries at a time, with all of their keys."""

    mix: Callable[..., Float[Tensor, "b h q d"]] | None = None
    """(weights, v, span) -> out, in place of weights @ v; weights are [b h q k]. For a chunk of queries, too."""

    reads_content: bool = False
    """Whether it wants the layer's input, `span.x`."""

    placeless: bool = False
    """Whether what it does to q, k, scores and weights depends on tokens or their number, and on no position."""

    memory: int = 0
    """Tokens of earlier segments of the same text that training reads, without gradient (segment recurrence)."""

    recurrent: bool = False
    """Whether it is made for such a memory, so that no positions may stand in the embedding beside it: what is
    remembered would have those of its own segment."""

    shared: bool = True
    """One copy for all layers, or one per layer."""

    every_layer: bool = False
    """Whether `embed` is repeated before every layer."""

    linear: bool = True
    """Whether `rotate` is linear in q and in k, so that another rotation or a scale may come before it in a stack."""

    replaces_scores: bool = False
    """Whether `refine` computes the scores from q and k as projected, whatever they were, so that nothing in a stack
    may rotate q and k or refine the scores before it."""

    relative: bool = True
    """Whether moving all positions by a constant changes nothing (the Shift law, or the proof that it fails)."""

    reach: int | None = None
    """The longest context that the scheme can represent; None: any."""

    paper: str = ""
    """Who proposed it, when and where, for the catalogue."""

    parameters_formula: str = "0"
    """The number of learned parameters of one copy, in terms of the dims and the settings, for the catalogue."""

    def added(self, span: Span) -> Float[Tensor, "#b #h q k"] | None:
        """What is added to the scaled scores of every pair, by distance and otherwise; None where nothing is."""
        bias = None if self.bias is None else self.bias(span)
        if self.by_distance is not None:
            by_distance = self.by_distance(span.distance())
            by_distance = by_distance[None] if by_distance.ndim == 3 else by_distance.movedim(0, 1)
            bias = by_distance if bias is None else by_distance + bias
        return bias

    def unreached(self, length: int) -> dict[str, Tensor]:
        """Parameter name -> mask of the entries that no pair within `length` tokens reaches (no gradient)."""
        return {}

    def uniform(self, length: int) -> dict[str, Tensor]:
        """… and of those that add one number to all keys of a query, which a softmax does not see (no gradient)."""
        return {}
