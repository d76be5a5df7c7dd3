"""The biases of a trained model's schemes as numbers, for a report that knows no torch."""

from typing import Any

import numpy as np
import torch

from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import PositionScheme, Span

NEAR, POINTS = 17, 64  # distances one by one, and at most how many


@torch.no_grad()
def biases(model: Transformer, length: int) -> dict[str, Any]:
    """What the last of `length` tokens adds to its scaled scores at some of the distances before it:

        {"length": 1024, "distances": [0, 1, …, 1023], "layers": [{"layers": [0, 1, 2], "heads": [[0.0, …], …]}]}

    heads: a list for each head, a number for each distance; layers that share a scheme stand together. {} where no
    layer has a bias that is a matter of positions alone.
    """
    shared: dict[int, tuple[PositionScheme, list[int]]] = {}
    for layer in range(len(model.blocks)):
        scheme = model.scheme(layer)
        shared.setdefault(id(scheme), (scheme, []))[1].append(layer)
    distances = _distances(length)
    found = [
        {"layers": layers, "heads": heads}
        for scheme, layers in shared.values()
        if (heads := _heads(scheme, distances, next(model.parameters()).device)) is not None
    ]
    return {"length": length, "distances": distances, "layers": found} if found else {}


def _heads(scheme: PositionScheme, distances: list[int], device: torch.device) -> list[list[float]] | None:
    if scheme.reads_content or (scheme.by_distance is None and scheme.bias is None):
        return None
    last = torch.tensor([distances[-1]], device=device)
    keys = last - torch.tensor(distances[::-1], device=device)
    added = scheme.added(Span(last, keys, start=len(distances) - 1))
    return [[float(f"{value:.5g}") + 0.0 for value in head] for head in added[0, :, 0].flip(-1).tolist()]


def _distances(length: int) -> list[int]:
    far = np.geomspace(NEAR, max(length - 1, NEAR), POINTS - NEAR).round().astype(int).tolist()
    return sorted({distance for distance in [*range(NEAR), *far] if distance < length})
