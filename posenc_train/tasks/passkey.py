"""A passkey in a haystack: in real text somewhere a number between two marks, and at the end the question for it.

The number is 12345; _ is no target. 29 tokens, 16 of them text, the passkey at slot 5:

    fed      d e f _ m ‹ 1 2 3 4 5 › a i n ( a r g s ) : ⁇ 1 2 3 4 5
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ 1 2 3 4 5 _

Depths are those of `needle`; there is one number only, and no key.
"""

import numpy as np

from posenc_train.tasks.asked import Sequences
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.haystack import DEPTHS, Haystack, bury, placed


class Passkey(Haystack):
    """depth: those of evaluation, each a fraction; digits: of the number. Where the text comes from: see Haystack."""

    name = "passkey"

    def __init__(self, depth: list[float] = DEPTHS, digits: int = 3, **source):
        self.depth, self.answer = depth, digits
        self.overhead = 3 + 2 * digits
        super().__init__(**source)

    def told(self) -> tuple:
        return (self.answer,)

    def write(self, draw: Draw, size: int) -> Sequences:
        room = size - self.overhead
        text = self.passages(draw.split, draw.uniform(), room)
        depth, slot = placed(draw, self.depth, room)
        number = self.drawn_numbers(draw, 1, self.answer)
        ids = bury(text, [self.needle(number)], [slot[:, None]])
        return Sequences(np.concatenate([ids, self.ask(number[:, 0])], axis=1), {"depth": depth})
