"""Induction (as in Gu and Dao 2023, arXiv 2312.00752): somewhere among random letters stands a mark, and after the mark
at the end the model says the letter that followed it there.

6 letters in 9 tokens; # is the mark:

    fed      c a # t e r s # t
    targets  _ _ _ _ _ _ _ t _
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import letters


class Induction(Asked):
    """alphabet: number of letters (ids 0 … alphabet - 1); the mark is only fed."""

    name = "induction"
    marks = 1
    least = 2

    def __init__(self, alphabet: int = 16, examples: int = 128, longest: int | None = None, eval_seed: int = 0):
        super().__init__(examples, longest, eval_seed)
        if alphabet < 2:
            raise UserError(f"task.alphabet={alphabet}: must be at least 2")
        self.vocab, self.symbols = alphabet, [*letters(alphabet), "#"]
        self.filler = self.mark = alphabet
        self.fingerprint = digest(self.name, alphabet)

    def tokens(self, size: int) -> int:
        return size + 3

    def asked(self, size: int) -> np.ndarray:
        return np.arange(self.tokens(size)) == size + 2

    def write(self, draw: Draw, size: int) -> Sequences:
        word, place = draw.integers(self.vocab, size), draw.integers(size, 1)
        ids = np.full((len(draw.rows), self.tokens(size)), self.mark)
        at = np.arange(size)
        np.put_along_axis(ids, at + (at >= place), word, axis=1)  # the letters from `place` on make room for the mark
        ids[:, -1:] = np.take_along_axis(word, place, axis=1)
        return Sequences(ids)
