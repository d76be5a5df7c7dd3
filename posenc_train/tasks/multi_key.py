"""Several needles in real text, each with a key and a number; at the end some of the keys, one after another.

Of the keys AB, CD and XY first XY is asked for, then AB; CD distracts. _ is no target. 46 tokens, 13 of them text:

    fed      d e f _ m ‹ A B 1 2 3 › a i n ‹ C D 4 5 6 › ( ‹ X Y 7 8 9 › s ) : \\ ⁇ X Y 7 8 9 ⁇ A B 1 2 3
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ 7 8 9 _ _ _ 1 2 3 _

Numbers are different, and no two keys of a text have the same letter in the same place. Slots are any, where needles
can be neighbours; which keys are asked for, and in which order, has nothing to do with them. Training draws how many
needles there are from `keys`; of the evaluation's examples each of them has as many as the others, and rows of its own.

Several questions a text, since each is a chance to learn: with one of two or four needles, the default model had
learned to match keys neither under RoPE nor under ALiBi in 1,200 steps.
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Sequences
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.haystack import Haystack, bury

KEYS = [2, 3]


class MultiKey(Haystack):
    """keys: how many needles; queries: how many of them are asked for; letters: of the alphabet of keys; digits: of a
    number. Where the text comes from: see Haystack."""

    name = "multi_key"

    def __init__(self, keys: list[int] = KEYS, queries: int = 2, letters: int = 10, digits: int = 3, **source):
        if queries > min(keys):
            raise UserError(f"task.queries={queries}: must be at most {min(keys)}, the needles that task.keys gives")
        self.keys, self.queries, self.alphabet, self.width = keys, queries, letters, digits
        self.enough(max(keys), max(keys), digits)
        self.answer = queries * (3 + digits)
        self.overhead = max(keys) * (4 + digits) + self.answer
        super().__init__(**source)

    def told(self) -> tuple:
        return self.keys, self.queries, self.alphabet, self.width

    def asked(self, size: int) -> np.ndarray:
        """The numbers at the end, without the keys before them."""
        asked = np.full(size, False)
        asked[size - self.answer :].reshape(self.queries, -1)[:, 3:] = True
        return asked

    def write(self, draw: Draw, size: int) -> Sequences:
        most, rows, counts = max(self.keys), len(draw.rows), np.array(self.keys)
        which = draw.integers(len(counts)) if draw.split == "training" else draw.rows % len(counts)
        count, at = counts[which], draw.uniform()
        keys, numbers = self.drawn_keys(draw, most), self.drawn_numbers(draw, most, self.width)
        places = draw.uniform(most)
        ids = np.empty((rows, size), np.int64)
        for n in np.unique(count):
            here, room = count == n, size - int(n) * (4 + self.width) - self.answer
            order = np.argsort(places[here, :n], axis=1)  # of the text, neighbours too
            slots = (np.take_along_axis(places[here], order, axis=1) * (room + 1)).astype(np.int64)
            needles = self.needle(keys[here, :n], numbers[here, :n])
            needles = np.take_along_axis(needles, order[:, :, None], axis=1)
            parts = [bury(self.passages(draw.split, at[here], room), [needles], [slots])]
            for query in range(self.queries):
                parts += [self.ask(keys[here, query]), numbers[here, query]]
            ids[here] = np.concatenate(parts, axis=1)
        return Sequences(ids, {"keys": count} if len(counts) > 1 else {})
