"""Assignments in real text: a variable is a number, the next is that variable, and so on; what is the last one?

Two chains of one hop each: AB = 123, CD = AB; and XY = 789, UV = XY. Asked for is CD, and the answer leads back to the
number, AB 123; _ is no target. 50 tokens, 16 of them text:

    fed      d e f ‹ A B 1 2 3 › _ m a ‹ X Y 7 8 9 › i n ‹ C D A B › ( a r g s ‹ U V X Y › ) : ⁇ C D A B 1 2 3
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ A B 1 2 3 _

No two variables have the same letter in the same place; each is assigned once, and before it is used. Slots are any,
where assignments can be neighbours. With ask=number the number alone is the answer, and the way to it must be gone in
silence, one layer or more a hop.
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Sequences
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.haystack import Haystack, bury


class VariableTracking(Haystack):
    """chains: how many, one of which is asked for; hops: assignments of a variable to another in each; ask: way (the
    variables that lead to the number, then the number) or number; letters: of the alphabet of variables; digits: of the
    number. Where the text comes from: see Haystack."""

    name = "variable_tracking"

    def __init__(self, chains: int = 2, hops: int = 1, ask: str = "way", letters: int = 10, digits: int = 3, **source):
        self.alphabet = letters
        self.enough(chains * (hops + 1), chains, digits)
        if ask not in ("way", "number"):
            raise UserError(f"task.ask={ask}: must be one of way, number")
        self.chains, self.hops, self.way, self.width = chains, hops, ask == "way", digits
        self.answer = digits + 2 * hops * self.way
        self.overhead = chains * (4 + digits + 6 * hops) + 3 + self.answer
        super().__init__(**source)

    def told(self) -> tuple:
        return self.chains, self.hops, self.way, self.alphabet, self.width

    def write(self, draw: Draw, size: int) -> Sequences:
        rows, chains, steps, room = len(draw.rows), self.chains, self.hops + 1, size - self.overhead
        text = self.passages(draw.split, draw.uniform(), room)
        slots = np.sort(draw.integers(room + 1, chains, steps), axis=2)
        variables = self.drawn_keys(draw, chains * steps).reshape(rows, chains, steps, 2)
        numbers = self.drawn_numbers(draw, chains, self.width)
        firsts = self.needle(variables[:, :, 0], numbers)
        later = self.needle(*(part.reshape(rows, -1, 2) for part in (variables[:, :, 1:], variables[:, :, :-1])))
        ids = bury(text, [firsts, later], [slots[:, :, 0], slots[:, :, 1:].reshape(rows, -1)])
        asked = draw.integers(chains)
        row = np.arange(rows)
        way = variables[row, asked, -2::-1].reshape(rows, -1)[:, : 2 * self.hops * self.way]
        return Sequences(np.concatenate([ids, self.ask(variables[row, asked, -1]), way, numbers[row, asked]], axis=1))
