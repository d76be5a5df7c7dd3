"""Copying: random letters after a separator, and after another the same letters again, then an end mark.

5 letters in 13 tokens; _ is no target, | is the separator, $ the end, and what would follow $ is filler:

    fed      | c a t e r | c a t e r $
    targets  _ _ _ _ _ _ c a t e r $ _

`length` is tokens fed: (length - 3) // 2 letters fit. Training draws the number of letters uniformly from 1 to what
fits; evaluation uses what fits.

Tasks with another answer derive from this one. An answer of several words has "," between them, which the model must
say too: that is how Kazemnejad et al. 2023 (arXiv 2305.19466) have it, whose tasks these are.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import letters


class Copy(Asked):
    """alphabet: number of letters (ids 0 … alphabet - 1); then come the end mark, "," if there are several words, and
    the separator, which is only fed."""

    name = "copy"
    marks = 1
    words = 1  # of an answer

    def __init__(self, alphabet: int = 26, examples: int = 128, longest: int | None = None, eval_seed: int = 0):
        super().__init__(examples, longest, eval_seed)
        if alphabet < 2:
            raise UserError(f"task.alphabet={alphabet}: must be at least 2")
        between = "," if self.words > 1 else ""
        self.alphabet, self.symbols = alphabet, [*letters(alphabet), "$", *between, "|"]
        self.end = self.filler = alphabet
        self.vocab, self.separator = len(self.symbols) - 1, len(self.symbols) - 1
        self.fingerprint = digest(self.name, alphabet)

    def answer(self, word: Int[np.ndarray, "b n"]) -> Sequence[Int[np.ndarray, "b n"]]:
        """The words of the answer, each as long as the word that is asked about."""
        return [word]

    def tokens(self, size: int) -> int:
        return 2 + size + self.words * (size + 1)

    def asked(self, size: int) -> np.ndarray:
        return np.arange(self.tokens(size)) > size + 1

    def write(self, draw: Draw, size: int) -> Sequences:
        ids = np.full((len(draw.rows), self.tokens(size)), self.separator)
        ids[:, 1 : size + 1] = word = draw.integers(self.alphabet, size)
        for place, said in enumerate(self.answer(word), start=1):
            first = 1 + place * (size + 1)
            ids[:, first : first + size] = said
            ids[:, first + size] = self.end if place == self.words else self.separator - 1
        return Sequences(ids)
