"""Several schemes at once: embeddings, rotations and refinements chain, biases add, masks intersect."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span

HOOKS = ("embed", "rotate", "by_distance", "bias", "visible", "refine", "mix")
Build = Callable[[Mapping[str, Any], Dims], list[PositionScheme]]  # settings, dims -> one scheme per layer


class Composition(PositionScheme):
    """A scheme made of named others; its hooks are those that any of them has, its facts follow from theirs."""

    paper = "a composition"
    forwarded = HOOKS
    """The hooks that only call those of the parts: None where no part has any."""

    def __init__(self, parts: Mapping[str, PositionScheme]):
        super().__init__()
        self.parts = nn.ModuleDict(parts)
        for hook in self.forwarded:
            if not self.having(hook):
                setattr(self, hook, None)
        self.shared = all(part.shared for part in parts.values())
        self.relative = all(part.relative for part in parts.values())
        self.reads_content = any(part.reads_content for part in parts.values())
        self.memory = max(part.memory for part in parts.values())
        self.recurrent = any(part.recurrent for part in parts.values())
        self.replaces_scores = any(part.replaces_scores for part in parts.values())
        self.parameters_formula = (
            " + ".join(part.parameters_formula for part in parts.values() if part.parameters_formula != "0") or "0"
        )

    def having(self, hook: str) -> list[PositionScheme]:
        return [part for part in self.parts.values() if getattr(part, hook) is not None]

    @property
    def reach(self) -> int | None:
        return min((part.reach for part in self.parts.values() if part.reach is not None), default=None)

    def with_parts(self, parts: Mapping[str, PositionScheme]) -> "Composition":
        """The same composition of other parts with the same hooks (extended ones); this one stays as it is."""
        other = copy.copy(self)
        other._modules = self._modules | {"parts": nn.ModuleDict(parts)}
        return other

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "..."]]:
        return self._of_parts("unreached", length)

    def uniform(self, length: int) -> dict[str, Bool[Tensor, "..."]]:
        return self._of_parts("uniform", length)

    def _of_parts(self, what: str, length: int) -> dict[str, Bool[Tensor, "..."]]:
        masks = {name: getattr(part, what)(length) for name, part in self.parts.items()}
        return {f"parts.{name}.{key}": mask for name, part in masks.items() for key, mask in part.items()}


def one_for_all(columns: Mapping[str, list[PositionScheme]]) -> bool:
    """Whether no part, one scheme per layer each, differs between layers."""
    return all(scheme is column[0] for column in columns.values() for scheme in column)


class Stack(Composition):
    """`Stack({"rope": Rope(dims), "window": Window(dims)})`. Raises ValueError when one part embeds before every
    layer and another once, and when one embeds beside Transformer-XL; for a part behind another rotation which is not
    linear in q and k (PoPE), for a rotation beside a part that computes the scores anew (PaTH), and for two parts that
    sum the values in ways of their own."""

    def __init__(self, parts: Mapping[str, PositionScheme]):
        super().__init__(parts)
        if len({part.every_layer for part in self.having("embed")}) > 1:
            raise ValueError("position.parts: embed all before every layer or all once (every_layer)")
        self.every_layer = any(part.every_layer for part in self.having("embed"))
        if self.recurrent and self.having("embed"):
            absolute = next(name for name, part in parts.items() if part.embed is not None)
            raise ValueError(
                f"position.parts.{absolute}: stands in the embedding, and tokens that Transformer-XL remembers would "
                "keep their positions of an earlier segment; leave it out"
            )
        if len(self.having("mix")) > 1:
            mixers = [name for name, part in parts.items() if part.mix is not None]
            raise ValueError(
                f"position.parts: {' and '.join(mixers)} each sum the values in a way of their own; keep one"
            )
        rotating = [name for name, part in parts.items() if part.rotate is not None]
        for name in rotating[1:]:
            if not parts[name].linear:
                raise ValueError(f"position.parts.{name}: takes q and k as projected; put it before {rotating[0]}")
        self.linear = all(part.linear for part in parts.values())
        for name in [name for name, part in parts.items() if part.replaces_scores]:
            before = list(parts)[: list(parts).index(name)]
            lost = rotating + [other for other in before if parts[other].refine is not None]
            for other in [other for other in lost if other != name]:
                remedy = "leave it out" if other in rotating else f"put it behind {name}"
                raise ValueError(f"position.parts.{other}: is lost on {name}, which computes its own scores; {remedy}")

    @classmethod
    def assemble(cls, dims: Dims, build: Build, parts: Mapping[str, Any]) -> list["Stack"]:
        """One stack per layer; each part is one for all layers or one per layer as it says itself."""
        columns = {name: build(settings, dims) for name, settings in parts.items()}
        layers = [cls({name: column[i] for name, column in columns.items()}) for i in range(dims.layers)]
        return [layers[0]] * dims.layers if one_for_all(columns) else layers

    def embed(self, x: Float[Tensor, "b n w"], pos: Int[Tensor, "*b n"]) -> Float[Tensor, "b n w"]:
        for part in self.having("embed"):
            x = part.embed(x, pos)
        return x

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h k e"]]:
        for part in self.having("rotate"):
            q, k = part.rotate(q, k, span)
        return q, k

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        return sum(part.by_distance(distance) for part in self.having("by_distance"))

    def bias(self, span: Span) -> Float[Tensor, "#b #h q k"]:
        return sum(part.bias(span) for part in self.having("bias"))

    def visible(self, span: Span) -> Bool[Tensor, "#b #h q k"]:
        first, *rest = (part.visible(span) for part in self.having("visible"))
        for mask in rest:
            first = first & mask
        return first

    def refine(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b h k d"],
        seen: Bool[Tensor, "#b #h q k"],
        span: Span,
    ) -> Float[Tensor, "b h q k"]:
        for part in self.having("refine"):
            scores = part.refine(scores, q, k, seen, span)
        return scores

    def mix(
        self, weights: Float[Tensor, "b h q k"], v: Float[Tensor, "b h k d"], span: Span
    ) -> Float[Tensor, "b h q d"]:
        return self.having("mix")[0].mix(weights, v, span)
