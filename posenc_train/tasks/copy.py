"""Copying: random letters after a separator, and after another the same letters again, then an end mark.

5 letters in 13 tokens; _ is no target, | is the separator, $ the end, and what would follow $ is filler:

    fed      | c a t e r | c a t e r $
    targets  _ _ _ _ _ _ c a t e r $ _

`length` is tokens fed: (length - 3) // 2 letters fit. Training draws the number of letters uniformly from 1 to what
fits; evaluation uses what fits.
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw


class Copy(Asked):
    """alphabet: number of letters (ids 0 … alphabet - 1); alphabet is the end mark, and the separator is only fed."""

    name = "copy"
    marks = 1

    def __init__(self, alphabet: int = 26, examples: int = 128, longest: int | None = None, eval_seed: int = 0):
        super().__init__(examples, longest, eval_seed)
        if alphabet < 2:
            raise UserError(f"task.alphabet={alphabet}: must be at least 2")
        self.alphabet, self.vocab = alphabet, alphabet + 1
        self.end = self.filler = alphabet
        self.separator = alphabet + 1
        self.fingerprint = digest("copy", alphabet)

    def tokens(self, size: int) -> int:
        return 2 * size + 3

    def asked(self, size: int) -> np.ndarray:
        return np.arange(self.tokens(size)) > size + 1

    def write(self, draw: Draw, size: int) -> Sequences:
        ids = np.full((len(draw.rows), self.tokens(size)), self.separator)
        ids[:, 1 : size + 1] = ids[:, size + 2 : -1] = draw.integers(self.alphabet, size)
        ids[:, -1] = self.end
        return Sequences(ids)
