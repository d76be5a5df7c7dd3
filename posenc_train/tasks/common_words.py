"""A list of words, few of which are common: which ones?

2 common words, three times each, among 4 others; asked for in the order of the alphabet. _ is no target:

    fed      d a c d f a e b d a ? a d
    targets  _ _ _ _ _ _ _ _ _ _ a d _

Every common word occurs equally often, at least `ratio` times as often as any other; the places that are left are
shared by the others as evenly as they can be (RULER's: 30 times and 3 times; there the vocabulary grows with the list).
"""

import numpy as np
from jaxtyping import Int

from posenc_train.config import UserError
from posenc_train.tasks.base import digest
from posenc_train.tasks.word_list import WordList


class CommonWords(WordList):
    """words: how many there are; asked: how many of them are common; ratio: see above."""

    name = "common_words"

    def __init__(
        self,
        words: int = 32,
        asked: int = 3,
        ratio: int = 4,
        examples: int = 200,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(words, asked, examples, longest, eval_seed)
        if 2 * asked > words:
            raise UserError(f"task.asked={asked}: must be at most {words // 2}, half of task.words={words}")
        self.ratio = ratio
        self.least = asked * ratio + 1  # each common word `ratio` times, and another once
        self.fingerprint = digest("common_words", words, asked, ratio)

    def counts(self, size: int) -> Int[np.ndarray, "w"]:
        """The fewest that the common words can have, with what follows for the others."""
        others = self.vocab - self.answer
        common = self.ratio
        while common < self.ratio * -(-(size - self.answer * common) // others):
            common += 1
        left = size - self.answer * common
        return np.concatenate([np.full(self.answer, common), (left + others - 1 - np.arange(others)) // others])

    def said(self, words: Int[np.ndarray, "b k"]) -> Int[np.ndarray, "b k"]:
        return np.sort(words, axis=1)
