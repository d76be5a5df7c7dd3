"""Several needles in real text, each with a key and a number of its own; at the end one of the keys: which number?

Of the keys ab and xy, ab is asked for; _ is no target. 36 tokens, 16 of them text, the needle at slot 5, the other one
at slot 12:

    fed      d e f _ m ‹ a b 1 2 3 › a i n ( a r g ‹ x y 7 8 9 › s ) : \\ ⁇ a b 1 2 3
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ 1 2 3 _

`depth` is that of the needle asked for, as in `needle`; the others are at any other slots, where two can be neighbours.
Keys are different, and so are numbers. Training draws how many needles there are from `keys`; of the evaluation's
examples each of them has as many as the others (within one round of the depths), and rows of its own.
"""

import numpy as np

from posenc_train.tasks.asked import Sequences
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.haystack import DEPTHS, Haystack, apart, bury, enough, placed

KEYS = [2, 4]


class MultiKey(Haystack):
    """keys: how many needles, the one asked for among them; depth, digits: as for `needle`. Where the text comes from:
    see Haystack."""

    name = "multi_key"

    def __init__(self, keys: list[int] = KEYS, depth: list[float] = DEPTHS, digits: int = 3, **source):
        self.keys, self.depth, self.answer = keys, depth, digits
        enough(max(keys), max(keys), digits)
        self.overhead = max(keys) * (4 + digits) + 3 + digits
        super().__init__(**source)

    def told(self) -> tuple:
        return self.keys, self.answer

    def write(self, draw: Draw, size: int) -> Sequences:
        most, rows, counts = max(self.keys), draw.rows // len(self.depth), np.array(self.keys)
        which = draw.integers(len(counts)) if draw.split == "training" else rows % len(counts)
        count = counts[which]
        room = size - count * (4 + self.answer) - 3 - self.answer
        depth, slot = placed(draw, self.depth, room)
        slots = np.concatenate([slot[:, None], apart(draw, most - 1, slot, room)], axis=1)
        at, keys, numbers = draw.uniform(), self.drawn_keys(draw, most), self.drawn_numbers(draw, most, self.answer)
        ids = np.empty((len(draw.rows), size), np.int64)
        for n in np.unique(count):
            here = count == n
            text = self.passages(draw.split, at[here], int(room[here][0]))
            needles = self.needle(keys[here, :n], numbers[here, :n])
            asked = [self.ask(keys[here, 0]), numbers[here, 0]]
            ids[here] = np.concatenate([bury(text, [needles], [slots[here, :n]]), *asked], axis=1)
        return Sequences(ids, {"depth": depth, "keys": count})
