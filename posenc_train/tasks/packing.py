"""Whole documents one after another in a window, and nothing of one lost or asked twice.

Documents abcd, efg and hi in a window of 11 items, 10 of which are fed; _ is no target, · is padding:

    fed      a b c d e f g h i ·
    targets  b c d _ f g _ i _ _

A document longer than a window is cut into windows of its own, each of which begins with the last target of the one
before; what remains is packed like a document. Packing is the same for every seed: a window takes the longest piece
that still fits, and again, until none does (best fit, decreasing: Ding et al. 2024, arXiv 2404.10830).
"""

import numpy as np
from jaxtyping import Bool, Int

from posenc_train.tasks.corpus import Documents
from posenc_train.tasks.draw import Draw


class Packs:
    """All windows of `length` fed tokens that hold the documents. A document of fewer than two items has no target."""

    def __init__(self, documents: Documents, length: int):
        self.documents, self.length = documents, length
        targets = np.maximum(documents.lengths - 1, 0)
        self._full = targets // length  # windows that a document fills alone
        self._ends = np.cumsum(self._full)
        rest = targets % length
        self._short = np.flatnonzero(rest)
        self._bins = filled(rest[self._short] + 1, length + 1)

    def __len__(self) -> int:
        return int(self._full.sum()) + len(self._bins)

    def padding(self) -> int:
        """Places of all windows together at which nothing of a document is fed."""
        room = len(self._bins) * (self.length + 1)
        return room - int(((self.documents.lengths[self._short] - 1) % self.length + 1).sum())

    def pieces(self, number: int) -> list[tuple[int, int, int]]:
        """The pieces of a window: the document, its first item and the number of items of each."""
        full = len(self) - len(self._bins)
        if number < full:
            document = int(np.searchsorted(self._ends, number, side="right"))
            before = number - int(self._ends[document] - self._full[document])
            return [(document, before * self.length, self.length + 1)]
        documents = self._short[self._bins[number - full]]
        firsts = self._full[documents] * self.length
        sizes = self.documents.lengths[documents] - firsts
        return list(zip(documents.tolist(), firsts.tolist(), sizes.tolist(), strict=True))

    def rows(
        self, numbers: Int[np.ndarray, "b"], draw: Draw, padded_first: bool = False
    ) -> tuple[Int[np.ndarray, "b m"], Int[np.ndarray, "b m"]]:
        """ids and documents (0, 1, … in each row, -1 for padding) of windows, each [b, length + 1]; the draw, of the
        same rows, gives the order of the documents in each."""
        ids = np.zeros((len(numbers), self.length + 1), np.int64)
        doc = np.full(ids.shape, -1)
        windows = [self.pieces(int(number)) for number in numbers]
        bits = draw.bits(max(map(len, windows), default=0))
        for row, pieces in enumerate(windows):
            place = self.length + 1 - sum(size for *_, size in pieces) if padded_first else 0
            for count, which in enumerate(np.argsort(bits[row, : len(pieces)])):
                document, first, size = pieces[which]
                ids[row, place : place + size] = self.documents[document][first : first + size]
                doc[row, place : place + size] = count
                place += size
        return ids, doc


def filled(sizes: Int[np.ndarray, "n"], capacity: int) -> list[Int[np.ndarray, "m"]]:
    """Which of the sizes, none above the capacity, go together. [5, 3, 3, 2], capacity 8: [0, 1], [2, 3].

    n steps, whatever the sizes: `below` leads from a size to the largest one up to it that is left.
    """
    order = np.argsort(sizes, kind="stable")
    ends = np.cumsum(np.bincount(sizes, minlength=capacity + 1)).tolist()
    taken = [0, *ends[:-1]]
    below = [size if taken[size] < ends[size] else max(size - 1, 0) for size in range(capacity + 1)]
    together, room, bins = [], capacity, []
    for _ in range(len(sizes)):
        if not (size := _left(below, room)):
            bins.append(np.array(together))
            together, room = [], capacity
            size = _left(below, room)
        together.append(order[taken[size]])
        taken[size] += 1
        room -= size
        if taken[size] == ends[size]:
            below[size] = size - 1
    return [*bins, np.array(together)] if together else bins


def _left(below: list[int], size: int) -> int:
    """The end of the chain that starts at a size; halves the chain on its way."""
    while below[size] != size:
        below[size] = below[below[size]]
        size = below[size]
    return size


def asked(doc: Int[np.ndarray, "b m"]) -> Bool[np.ndarray, "b n"]:
    """Which of the m - 1 targets of a row belong to the document of what is fed before them."""
    return (doc[:, 1:] == doc[:, :-1]) & (doc[:, 1:] >= 0)


def within(doc: Int[np.ndarray, "b n"]) -> Int[np.ndarray, "b n"]:
    """The position of every item in its document: [0, 0, 0, 1, 1, -1] -> [0, 1, 2, 0, 1, 0]."""
    place = np.broadcast_to(np.arange(doc.shape[1]), doc.shape)
    begins = np.ones(doc.shape, bool)
    begins[:, 1:] = doc[:, 1:] != doc[:, :-1]
    return place - np.maximum.accumulate(np.where(begins, place, 0), axis=1)
