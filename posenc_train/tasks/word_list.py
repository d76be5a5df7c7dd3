"""Lists of words of which some are to be said: what `common_words` and `frequent_words` share. A word is one id.

How often the first, the second, … word occurs is stated for every size; which word is the first, and where in the list
each stands, is drawn. Words that are asked for are more frequent than all others, so there is one answer.
"""

import numpy as np
from jaxtyping import Int

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import letters


class WordList(Asked):
    """words: how many there are (ids 0 … words - 1); asked: how many are to be said. The question is only fed.

    A size is the number of places in the list, which is as long as the length asks for, in training too."""

    marks = 1

    def __init__(self, words: int, asked: int, examples: int, longest: int | None, eval_seed: int):
        super().__init__(examples, longest, eval_seed)
        if asked >= words:
            raise UserError(f"task.words={words}: must be more than task.asked={asked}: others must be less frequent")
        self.vocab, self.answer, self.symbols = words, asked, [*letters(words), "?"]
        self.filler = self.question = words

    def counts(self, size: int) -> Int[np.ndarray, "w"]:
        """How often each word occurs, from the most frequent on; together `size`."""
        raise NotImplementedError

    def said(self, words: Int[np.ndarray, "b k"]) -> Int[np.ndarray, "b k"]:
        """The answer, from its words in the order of `counts`."""
        raise NotImplementedError

    def tokens(self, size: int) -> int:
        return size + 1 + self.answer

    def sizes(self, draw: Draw, length: int) -> Int[np.ndarray, "b"]:
        return np.full(len(draw.rows), self.size(length))

    def asked(self, size: int) -> np.ndarray:
        return np.arange(self.tokens(size)) > size

    def write(self, draw: Draw, size: int) -> Sequences:
        rows = len(draw.rows)
        words = draw.distinct(self.vocab, self.vocab)
        listed = np.repeat(words, self.counts(size), axis=1)
        listed = np.take_along_axis(listed, draw.distinct(size, size), axis=1)
        return Sequences(
            np.concatenate([listed, np.full((rows, 1), self.question), self.said(words[:, : self.answer])], axis=1)
        )
