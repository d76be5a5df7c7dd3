"""Several needles in real text, each with a key and a number; at the end some of the keys, one after another.

Of the keys ab and xy first xy is asked for, then ab; _ is no target. 42 tokens, 16 of them text, the needles at the
slots 5 and 12:

    fed      d e f _ m ‹ a b 1 2 3 › a i n ( a r g ‹ x y 7 8 9 › s ) : \\ ⁇ x y 7 8 9 ⁇ a b 1 2 3
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ 7 8 9 _ _ _ 1 2 3 _

Keys are different, and so are numbers. Slots are any, where needles can be neighbours; which keys are asked for, and in
which order, has nothing to do with them.
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Sequences
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.haystack import Haystack, bury, enough


class MultiQuery(Haystack):
    """keys: how many needles; queries: how many of them are asked for; digits: of each number. Where the text comes
    from: see Haystack."""

    name = "multi_query"

    def __init__(self, keys: int = 3, queries: int = 2, digits: int = 3, **source):
        if queries > keys:
            raise UserError(f"task.queries={queries}: must be at most task.keys={keys}: each key is asked for once")
        enough(keys, keys, digits)
        self.keys, self.queries, self.width = keys, queries, digits
        self.answer = queries * (3 + digits)
        self.overhead = keys * (4 + digits) + self.answer
        super().__init__(**source)

    def told(self) -> tuple:
        return self.keys, self.queries, self.width

    def asked(self, size: int) -> np.ndarray:
        """The numbers at the end, without the keys before them."""
        asked = np.full(size, False)
        asked[size - self.answer :].reshape(self.queries, -1)[:, 3:] = True
        return asked

    def write(self, draw: Draw, size: int) -> Sequences:
        count, room = self.keys, size - self.overhead
        text = self.passages(draw.split, draw.uniform(), room)
        keys, numbers = self.drawn_keys(draw, count), self.drawn_numbers(draw, count, self.width)
        ids = [bury(text, [self.needle(keys, numbers)], [draw.integers(room + 1, count)])]
        for query in range(self.queries):
            ids += [self.ask(keys[:, query]), numbers[:, query]]
        return Sequences(np.concatenate(ids, axis=1))
