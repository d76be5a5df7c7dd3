"""A needle in a haystack: in real text somewhere a key with a number, and at the end the key again: which number?

The key AB has the number 123; _ is no target. 29 tokens, 16 of them text, the needle at slot 5:

    fed      d e f _ m ‹ A B 1 2 3 › a i n ( a r g s ) : ⁇ A B 1 2 3
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ 1 2 3 _

`depth` is the slot over the number of text tokens: 0 is before all text and 1 right before the question. Training draws
the slot uniformly; of the evaluation's examples each depth has as many as the others (within one), and rows of its own.
"""

import numpy as np

from posenc_train.tasks.asked import Sequences
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.haystack import DEPTHS, Haystack, bury, placed


class Needle(Haystack):
    """depth: those of evaluation, each a fraction; digits: of the number. Where the text comes from: see Haystack."""

    name = "needle"

    def __init__(self, depth: list[float] = DEPTHS, digits: int = 3, **source):
        self.depth, self.answer = depth, digits
        self.overhead = 7 + 2 * digits
        super().__init__(**source)

    def told(self) -> tuple:
        return (self.answer,)

    def write(self, draw: Draw, size: int) -> Sequences:
        room = size - self.overhead
        text = self.passages(draw.split, draw.uniform(), room)
        depth, slot = placed(draw, self.depth, room)
        key, number = self.drawn_keys(draw, 1), self.drawn_numbers(draw, 1, self.answer)
        ids = bury(text, [self.needle(key, number)], [slot[:, None]])
        return Sequences(np.concatenate([ids, self.ask(key[:, 0]), number[:, 0]], axis=1), {"depth": depth})
