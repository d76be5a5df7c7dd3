"""Modular counting: how many of what came so far are counted (x, not .), modulo a number.

running: true asks after each; modulus 3, 6 of them in 12 tokens:

    fed      x 1 . 1 x 2 x 0 . 0 x 1
    targets  1 _ 1 _ 2 _ 0 _ 0 _ 1 _

What was said before is enough for the next, so a model that holds for two tokens holds for any number. running: false
asks once, and has no such step:

    fed      x . x x . x = 1
    targets  _ _ _ _ _ _ 1 _
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import digits


class ModularCounting(Asked):
    """modulus: of the counts, ids 0 … modulus - 1; running: asked after each, not only at the end. x, . and = are only
    fed."""

    name = "modular_counting"
    marks = 3
    least = 8  # 2^8 sequences: some for each split

    def __init__(
        self,
        modulus: int = 5,
        running: bool = True,
        examples: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        if modulus < 2:
            raise UserError(f"task.modulus={modulus}: must be at least 2")
        self.vocab, self.running, self.symbols = modulus, running, [*digits(modulus), ".", "x", "="]
        self.filler = self.equals = modulus + 2
        self.fingerprint = digest(self.name, modulus, running)

    def tokens(self, size: int) -> int:
        return 2 * size if self.running else size + 2

    def asked(self, size: int) -> np.ndarray:
        place = np.arange(self.tokens(size))
        return place % 2 == 1 if self.running else place == size + 1

    def write(self, draw: Draw, size: int) -> Sequences:
        counted = draw.integers(2, size)
        counts = counted.cumsum(1) % self.vocab
        ids = np.full((len(draw.rows), self.tokens(size)), self.equals)
        seen, said = (slice(0, None, 2), slice(1, None, 2)) if self.running else (slice(0, size), slice(size + 1, None))
        ids[:, seen] = self.vocab + counted
        ids[:, said] = counts if self.running else counts[:, -1:]
        return Sequences(ids)
