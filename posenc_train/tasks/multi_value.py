"""Several needles in real text, all with one key and each with a number of its own; at the end the key: which numbers?

The key AB has the numbers 123 and 789, in the order of the text; _ is no target. 39 tokens, 16 of them text, the
needles at the slots 5 and 12:

    fed      d e f _ m ‹ A B 1 2 3 › a i n ( a r g ‹ A B 7 8 9 › s ) : \\ ⁇ A B 1 2 3 7 8 9
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ 1 2 3 7 8 9 _

Numbers are different. Slots are any, where needles can be neighbours.
"""

import numpy as np

from posenc_train.tasks.asked import Sequences
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.haystack import Haystack, bury


class MultiValue(Haystack):
    """values: how many numbers the key has; digits: of each. Where the text comes from: see Haystack."""

    name = "multi_value"

    def __init__(self, values: int = 2, digits: int = 3, **source):
        self.enough(1, values, digits)
        self.values, self.width = values, digits
        self.answer = values * digits
        self.overhead = values * (4 + digits) + 3 + self.answer
        super().__init__(**source)

    def told(self) -> tuple:
        return self.values, self.width

    def write(self, draw: Draw, size: int) -> Sequences:
        count, room, rows = self.values, size - self.overhead, len(draw.rows)
        text = self.passages(draw.split, draw.uniform(), room)
        slots = np.sort(draw.integers(room + 1, count), axis=1)
        key, numbers = self.drawn_keys(draw, 1), self.drawn_numbers(draw, count, self.width)
        ids = bury(text, [self.needle(np.repeat(key, count, axis=1), numbers)], [slots])
        return Sequences(np.concatenate([ids, self.ask(key[:, 0]), numbers.reshape(rows, -1)], axis=1))
