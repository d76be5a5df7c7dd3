"""How far back the context of a target last occurred: the one measure of retrieval on real text, out of losses that are
there anyway.

With a context of 3 bytes (`recurrence` takes 8), in a text of 15 fed bytes:

    fed       a b c d , _ x y _ a b c d ; _
    target      b c d , _ x y _ a b c d ; _ z
    distance  - - - - - - - - - - - 9 9 - -     ("abc" stood 9 tokens before, and then came d; "bcd" as well)

A distance counts fed tokens from one occurrence to the other, so that whoever reads further back than that can have
seen what followed. Each target has one distance, whatever the length it is scored at.
"""

import numpy as np
from jaxtyping import Int

NEVER = "never"


def distances(
    windows: Int[np.ndarray, "text t"],
    spelt: Int[np.ndarray, "id"],
    context: int,
    doc: Int[np.ndarray, "text t"] | None = None,
) -> Int[np.ndarray, "text target"]:
    """The distance of every target, the ids from the second on; 0: never, or the text has no whole context before it.

    spelt: bytes of each id. The context of a target are the fewest tokens before it that make `context` bytes, and they
    must stand as the same tokens. doc: occurrences in other documents than the target's do not count.
    """
    texts, size = windows.shape
    row, place = np.divmod(np.arange(texts * size), size)
    ids = windows.reshape(-1).astype(np.int64)
    length = spelt[ids].astype(np.int64)
    group = row if doc is None else np.unique(row * size + doc.reshape(-1), return_inverse=True)[1]
    # The context of each place as a number, made longer by a token at a time until it has its bytes: numbers are equal
    # where tokens are, and nothing is hashed. `todo` are the places whose context is not long enough yet.
    todo = place > 0
    key, covered = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    finished = np.full(len(ids), -1)
    for step in range(1, context + 1):
        todo &= place >= step
        here = np.flatnonzero(todo)
        key[here] = np.unique(key[here] * len(spelt) + ids[here - step], return_inverse=True)[1]
        covered[here] += length[here - step]
        done = here[covered[here] >= context]
        finished[done] = key[done] * (context + 1) + step
        todo[done] = False
        if not todo.any():
            break
    known = np.flatnonzero(finished >= 0)
    order = known[np.lexsort((finished[known], group[known]))]  # stable: of equal ones the earlier first
    same = (group[order[1:]] == group[order[:-1]]) & (finished[order[1:]] == finished[order[:-1]])
    found = np.zeros(len(ids), np.int64)
    found[order[1:][same]] = (order[1:] - order[:-1])[same]
    return found.reshape(texts, size)[:, 1:]


def slices(train_length: int, longest: int) -> dict[str, tuple[int, int]]:
    """Name -> least and greatest distance. L = 128, longest 1,024: 1-64, 65-128, 129-256, 257-512, 513-1024, never."""
    edges = [max(1, train_length // 2)]
    if train_length > edges[0]:
        edges.append(train_length)
    while edges[-1] < longest:
        edges.append(2 * edges[-1])
    bounds = [(low + 1, min(high, longest)) for low, high in zip([0, *edges], edges, strict=False) if low < longest]
    return {f"{low}-{high}": (low, high) for low, high in bounds} | {NEVER: (0, 0)}
