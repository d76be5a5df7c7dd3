"""Different schemes for different layers: a window and RoPE on three of four, no positions on the fourth."""

from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.stack import Build


class Layers:
    """Not a scheme but an arrangement of some: the layers take the parts in the order of `pattern`, again and again."""

    @classmethod
    def assemble(
        cls, dims: Dims, build: Build, parts: Mapping[str, Any], pattern: Sequence[str]
    ) -> list[PositionScheme]:
        """Raises ValueError for a pattern of unknown parts or one that the layers do not hold once, and for a part
        that works on the embedding, which no single layer has."""
        if set(pattern) != set(parts):
            raise ValueError(f"position.pattern=[{','.join(pattern)}]: must be made of the parts {', '.join(parts)}")
        if len(pattern) > dims.layers:
            raise ValueError(
                f"model.layers={dims.layers}: must be at least {len(pattern)}, the length of "
                f"position.pattern=[{','.join(pattern)}]"
            )
        columns = {name: build(settings, dims) for name, settings in parts.items()}
        layers = [columns[name][i] for i, name in enumerate(islice(cycle(pattern), dims.layers))]
        if any(scheme.embed is not None for scheme in layers):
            raise ValueError("position.parts: one works on the embedding, which belongs to no layer: stack it instead")
        return layers
