"""Addition of two numbers of as many digits; the sum has one more. 382 + 475 = 857, so with 3 digits each

order: columns, column by column from the units on: what is added, and the digit of the sum. The sum's last is behind =.
What was said before is enough for the next, so a model that holds for a few columns holds for any number:

    fed      2 5 7 8 7 5 3 4 8 = 0
    targets  _ 7 _ _ 5 _ _ 8 _ 0 _

order: reversed, number by number, the units first, as in Zhou et al. 2024 (arXiv 2402.09371):

    fed      2 8 3 + 5 7 4 = 7 5 8 0
    targets  _ _ _ _ _ _ _ 7 5 8 0 _

order: plain:

    fed      3 8 2 + 4 7 5 = 0 8 5 7
    targets  _ _ _ _ _ _ _ 0 8 5 7 _

hints, for numbers: before each digit stands a letter that tells its place. The letters are a run out of `hints` that
begins anywhere, so that short sums train all of them. They are fed, in the sum too; there the paper's model says them:

    fed      e 2 f 8 g 3 + e 5 f 7 g 4 = e 7 f 5 g 8 h 0
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ 7 _ 5 _ 8 _ 0 _
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import digits, letters

BASE = 10


class Addition(Asked):
    """order: columns | reversed | plain; hints: how many different ones there are, more than a number has digits, or 0
    for none. Digits (ids 0 … 9) are said; hints, + and = are only fed."""

    name = "addition"
    vocab = BASE
    bounded_by = "task.hints"

    def __init__(
        self,
        order: str = "columns",
        hints: int = 0,
        examples: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        if order not in ("columns", "reversed", "plain"):
            raise UserError(f"task.order={order}: must be one of columns, reversed, plain")
        if hints < 0 or hints == 1 or (hints and order == "columns"):
            raise UserError(f"task.hints={hints}: must be 0 or at least 2, and 0 with task.order=columns")
        self.order, self.hints = order, hints
        self.marks, self.symbols = hints + 2, [*digits(BASE), *letters(hints), "+", "="]
        self.plus, self.equals = BASE + hints, BASE + hints + 1
        self.filler = self.equals
        self.most = hints - 1 if hints else None
        self.fingerprint = digest(self.name, order, hints)

    def tokens(self, size: int) -> int:
        if self.order == "columns":
            return 3 * size + 2
        return (3 * size + 1) * (2 if self.hints else 1) + 2

    def asked(self, size: int) -> np.ndarray:
        place, digit = np.arange(self.tokens(size)), 2 if self.hints else 1
        if self.order == "columns":
            return (place % 3 == 2) & (place < 3 * size) | (place > 3 * size)
        first = self.tokens(size) - digit * (size + 1)
        return (place >= first) & ((place - first) % digit == digit - 1)

    def write(self, draw: Draw, size: int) -> Sequences:
        numbers = draw.integers(BASE, 2, size)  # the units first
        columns = np.pad(numbers.sum(1), ((0, 0), (0, 1)))
        for column in range(size):
            columns[:, column + 1] += columns[:, column] // BASE
        written = [*numbers.swapaxes(0, 1), columns % BASE]
        mark = np.ones((len(draw.rows), 1), np.int64)
        if self.order == "columns":
            said = np.stack([written[0], written[1], written[2][:, :-1]], axis=2).reshape(len(mark), -1)
            return Sequences(np.hstack([said, self.equals * mark, written[2][:, -1:]]))
        if self.hints:
            place = BASE + draw.integers(self.hints - size, 1) + np.arange(size + 1)
            written = [np.stack([place[:, : n.shape[1]], n], axis=2).reshape(len(n), -1) for n in written]
        if self.order == "plain":
            written = [self._plain(number) for number in written]
        return Sequences(np.hstack([written[0], self.plus * mark, written[1], self.equals * mark, written[2]]))

    def _plain(self, number: np.ndarray) -> np.ndarray:
        """The digits, each with its hint, in reverse."""
        digit = 2 if self.hints else 1
        return number.reshape(len(number), -1, digit)[:, ::-1].reshape(len(number), -1)
