"""Sorting: random letters of a few kinds, and then the same letters in the order of the alphabet, each as often as it
was there. What is to be found out is how many there are of each.

    fed      | c a b c a e | a a b c c e $
    targets  _ _ _ _ _ _ _ a a b c c e $ _
"""

import numpy as np

from posenc_train.tasks.copy import Copy


class Sorting(Copy):
    """As Copy; the order of the letters is that of their ids."""

    name = "sorting"
    least = 4  # 5^4 sequences: some for each split

    def __init__(self, alphabet: int = 5, examples: int = 128, longest: int | None = None, eval_seed: int = 0):
        super().__init__(alphabet, examples, longest, eval_seed)

    def answer(self, word: np.ndarray) -> list[np.ndarray]:
        return [np.sort(word, axis=1)]
