"""Copying twice: random letters, and then the same letters two times, with "," between.

fed      | c a t | c a t , c a t $
targets  _ _ _ _ c a t , c a t $ _
"""

import numpy as np

from posenc_train.tasks.copy import Copy


class CopyTwice(Copy):
    """As Copy."""

    name = "copy_twice"
    words = 2
    least = 2  # of one letter there are few, and of 26 none is evaluation's

    def answer(self, word: np.ndarray) -> list[np.ndarray]:
        return [word, word]
