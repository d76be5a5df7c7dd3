"""Repeating one letter as often as another stands there: what is to be counted is all alike, and matching letters does
not help. The letter to say comes first:

    fed      | e c c c c c | e e e e e $
    targets  _ _ _ _ _ _ _ e e e e e $ _

varied: false is copying a word of one letter:

    fed      | c c c c c | c c c c c $
    targets  _ _ _ _ _ _ c c c c c $ _

This has as few sequences of a size as letters, and 26 are too few to have some for training and others for evaluation.
"""

import numpy as np

from posenc_train.tasks.asked import Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.copy import Copy
from posenc_train.tasks.draw import Draw


class RepeatCopy(Copy):
    """alphabet: number of letters; varied: the letter to say is another than the one that stands there."""

    name = "repeat_copy"

    def __init__(
        self,
        alphabet: int = 26,
        varied: bool = True,
        examples: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(alphabet, examples, longest, eval_seed)
        self.varied = varied
        self.fingerprint = digest(self.name, alphabet, varied)

    def tokens(self, size: int) -> int:
        return 2 * size + 3 + self.varied

    def asked(self, size: int) -> np.ndarray:
        return np.arange(self.tokens(size)) > size + 1 + self.varied

    def write(self, draw: Draw, size: int) -> Sequences:
        ids = np.full((len(draw.rows), self.tokens(size)), self.separator)
        seen = draw.integers(self.alphabet, 1)
        said = (seen + 1 + draw.integers(self.alphabet - 1, 1)) % self.alphabet if self.varied else seen
        first = 1 + self.varied
        ids[:, 1:2] = said
        ids[:, first : first + size] = seen
        ids[:, -1 - size : -1] = said
        ids[:, -1] = self.end
        return Sequences(ids)
