"""Different schemes for different heads of one layer: half ALiBi, half RoPE."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.stack import Build, Composition, one_for_all


class Heads(Composition):
    """The first counts[first name] heads follow the first part, the next ones the next; a part is built for its
    number of heads (ALiBi's slopes are those of so many).

    Raises ValueError for a part that works on the embedding, which has no heads.
    """

    def __init__(self, parts: Mapping[str, PositionScheme], counts: Mapping[str, int]):
        super().__init__(parts)
        self.counts = dict(counts)
        self.linear = all(part.linear for part in parts.values())
        for name, part in parts.items():
            if part.embed is not None:
                raise ValueError(f"position.parts.{name}: works on the embedding, which has no heads: stack it instead")

    @classmethod
    def assemble(cls, dims: Dims, build: Build, parts: Mapping[str, Any], share: Mapping[str, float]) -> list["Heads"]:
        """One per layer. share: the fraction of the heads of each part; together 1, each a whole number of heads."""
        if set(share) != set(parts):
            raise ValueError(f"position.share: must name the parts, {', '.join(parts)}, and no others")
        counts = {name: round(share[name] * dims.heads) for name in parts}
        if any(abs(share[name] * dims.heads - counts[name]) > 1e-6 or counts[name] < 1 for name in parts) or (
            sum(counts.values()) != dims.heads
        ):
            shares = ", ".join(f"{name}: {value:g}" for name, value in share.items())
            raise ValueError(
                f"position.share={{{shares}}}: must be fractions of model.heads={dims.heads} that make whole heads, "
                "together all of them"
            )
        columns = {name: build(parts[name], replace(dims, heads=counts[name])) for name in parts}
        layers = [cls({name: column[i] for name, column in columns.items()}, counts) for i in range(dims.layers)]
        return [layers[0]] * dims.layers if one_for_all(columns) else layers

    def rotate(
        self, q: Float[Tensor, "b h q d"], k: Float[Tensor, "b h k d"], span: Span
    ) -> tuple[Float[Tensor, "b h q e"], Float[Tensor, "b h k e"]]:
        sizes = list(self.counts.values())
        turned = [
            (q_, k_) if part.rotate is None else part.rotate(q_, k_, span)
            for part, q_, k_ in zip(self.parts.values(), q.split(sizes, dim=1), k.split(sizes, dim=1), strict=True)
        ]
        width = max(q_.shape[-1] for q_, _ in turned)  # of a part that widens them; zeros add nothing to a dot product

        def joined(pieces: list[Tensor]) -> Tensor:
            return torch.cat([F.pad(x, (0, width - x.shape[-1])) for x in pieces], dim=1)

        return joined([q_ for q_, _ in turned]), joined([k_ for _, k_ in turned])

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        nothing = torch.zeros(distance.shape, device=distance.device)
        return torch.cat(
            [
                nothing.expand(self.counts[name], *distance.shape)
                if part.by_distance is None
                else part.by_distance(distance)
                for name, part in self.parts.items()
            ]
        )

    def bias(self, span: Span) -> Float[Tensor, "#b h q k"]:
        zeros = torch.zeros(1, 1, span.queries, span.keys, device=span.q_pos.device)
        return self._by_head([zeros if part.bias is None else part.bias(span) for part in self.parts.values()])

    def visible(self, span: Span) -> Bool[Tensor, "#b h q k"]:
        ones = torch.ones(1, 1, span.queries, span.keys, dtype=torch.bool, device=span.q_pos.device)
        return self._by_head([ones if part.visible is None else part.visible(span) for part in self.parts.values()])

    def refine(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b h k d"],
        seen: Bool[Tensor, "#b #h q k"],
        span: Span,
    ) -> Float[Tensor, "b h q k"]:
        seen = seen.expand(-1, scores.shape[1], -1, -1)
        split = (x.split(list(self.counts.values()), dim=1) for x in (scores, q, k, seen))
        return torch.cat(
            [
                part[0] if scheme.refine is None else scheme.refine(*part, span)
                for scheme, *part in zip(self.parts.values(), *split, strict=True)
            ],
            dim=1,
        )

    def mix(
        self, weights: Float[Tensor, "b h q k"], v: Float[Tensor, "b h k d"], span: Span
    ) -> Float[Tensor, "b h q d"]:
        split = (x.split(list(self.counts.values()), dim=1) for x in (weights, v))
        return torch.cat(
            [
                w @ v_ if scheme.mix is None else scheme.mix(w, v_, span)
                for scheme, w, v_ in zip(self.parts.values(), *split, strict=True)
            ],
            dim=1,
        )

    def _by_head(self, pieces: list[Tensor]) -> Tensor:
        rows = max(piece.shape[0] for piece in pieces)
        counts = self.counts.values()
        return torch.cat([x.expand(rows, count, -1, -1) for x, count in zip(pieces, counts, strict=True)], dim=1)
