"""What generation remembers: keys before rotation, values and positions, of every layer."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass
class Cache:
    """Keys are kept as projected and rotated at every use, so that a scheme may depend on where the query stands."""

    keys: list[Float[Tensor, "b h k d"]] = field(default_factory=list)
    values: list[Float[Tensor, "b h k d"]] = field(default_factory=list)
    pos: Int[Tensor, "*b k"] | None = None
    doc: Int[Tensor, "b k"] | None = None

    @property
    def length(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def place(self, pos: Tensor | None, doc: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Adds the positions and documents of new tokens and returns those of all tokens; None means natural.

        Raises ValueError when some calls name them and others do not.
        """
        if self.length and ((pos is None) != (self.pos is None) or (doc is None) != (self.doc is None)):
            raise ValueError("with a cache, positions and documents are given at every call or at none")
        if self.length:
            pos = None if pos is None else torch.cat([self.pos, pos], dim=-1)
            doc = None if doc is None else torch.cat([self.doc, doc], dim=-1)
        self.pos, self.doc = pos, doc
        return pos, doc

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Adds this call's keys and values to a layer and returns all of them."""
        if layer == len(self.keys):
            self.keys.append(k)
            self.values.append(v)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], k], dim=2)
            self.values[layer] = torch.cat([self.values[layer], v], dim=2)
        return self.keys[layer], self.values[layer]
