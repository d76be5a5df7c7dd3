"""What is remembered of earlier tokens: by generation, keys before rotation, values and positions of every layer; by
training on segments of one text, the layers' inputs."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass
class Cache:
    """Keys are kept as projected and rotated at every use, so that a scheme may depend on where the query stands."""

    keys: list[Float[Tensor, "b h k d"]] = field(default_factory=list)
    values: list[Float[Tensor, "b h k d"]] = field(default_factory=list)
    inputs: list[Float[Tensor, "b k w"]] = field(default_factory=list)  # where the scheme reads content
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

    def extend(self, layer: int, k: Tensor, v: Tensor, x: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Adds this call's keys and values, and inputs if they are read, to a layer and returns all of them."""

        def added(store: list[Tensor], new: Tensor, dim: int) -> Tensor:
            if layer == len(store):
                store.append(new)
            else:
                store[layer] = torch.cat([store[layer], new], dim=dim)
            return store[layer]

        return added(self.keys, k, 2), added(self.values, v, 2), None if x is None else added(self.inputs, x, 1)


@dataclass
class Memory:
    """Segment recurrence (Dai et al. 2019, arXiv 1901.02860): the inputs of every layer for the last `size` tokens of
    the segments before, without gradient. What is read off them changes with the weights; a cache holds what was."""

    size: int
    inputs: list[Float[Tensor, "b m w"]] = field(default_factory=list)
    doc: Int[Tensor, "b m"] | None = None

    @property
    def length(self) -> int:
        return self.inputs[0].shape[1] if self.inputs else 0

    def before(self, layer: int, x: Float[Tensor, "b n w"]) -> Float[Tensor, "b k w"]:
        """What a layer reads: what is remembered of its inputs, and these, which are remembered from now on."""
        known = layer < len(self.inputs)  # from a checkpoint perhaps, on another device
        whole = torch.cat([self.inputs[layer].to(x.device), x], dim=1) if known else x
        self.inputs[layer : layer + 1] = [whole[:, -self.size :].detach()]
        return whole

    def place(self, doc: Int[Tensor, "b n"] | None) -> Int[Tensor, "b k"] | None:
        """The documents of all tokens. Raises ValueError when some calls name them and others do not."""
        if self.inputs and (doc is None) != (self.doc is None):
            raise ValueError("with a memory, documents are given at every call or at none")
        whole = doc if doc is None or self.doc is None else torch.cat([self.doc.to(doc.device), doc], dim=1)
        self.doc = None if whole is None else whole[:, -self.size :]
        return whole
