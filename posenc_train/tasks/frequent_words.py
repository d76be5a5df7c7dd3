"""A list of words as frequent as Zipf's law has it: which are the most frequent, the most frequent first?

6 words, 7, 3, 1, 1, 1 and 0 times in a list of 13; 2 are asked for, d and a. _ is no target:

    fed      d a d d c d a d e d b a d ? d a
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ d a _

The word of rank r has the share r^-exponent of the list, rounded down, and what is left goes to the first. A list is
long enough for every word that is asked for to be more frequent than the next, whatever the rounding.
"""

import numpy as np
from jaxtyping import Int

from posenc_train.config import UserError
from posenc_train.tasks.base import digest
from posenc_train.tasks.word_list import WordList


class FrequentWords(WordList):
    """words: how many there are; asked: how many of them are to be said; exponent: of Zipf's law."""

    name = "frequent_words"

    def __init__(
        self,
        words: int = 16,
        asked: int = 3,
        exponent: float = 2.0,
        examples: int = 200,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(words, asked, examples, longest, eval_seed)
        if not exponent > 0:
            raise UserError(f"task.exponent={exponent}: must be above 0, or all words are equally frequent")
        share = np.arange(1, words + 1) ** -float(exponent)
        self.exponent, self.share = exponent, share / share.sum()
        self.least = int(1 / (self.share[asked - 1] - self.share[asked])) + 1  # the smallest gap is above one place
        self.fingerprint = digest("frequent_words", words, asked, str(float(exponent)))

    def counts(self, size: int) -> Int[np.ndarray, "w"]:
        counts = np.floor(size * self.share).astype(np.int64)
        counts[0] += size - counts.sum()
        return counts

    def said(self, words: Int[np.ndarray, "b k"]) -> Int[np.ndarray, "b k"]:
        return words
