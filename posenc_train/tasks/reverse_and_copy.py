"""Reversing and copying: random letters, then the same letters from the last to the first, "," and as they were.

fed      | c a t | t a c , c a t $
targets  _ _ _ _ t a c , c a t $ _
"""

import numpy as np

from posenc_train.tasks.copy import Copy


class ReverseAndCopy(Copy):
    """As Copy."""

    name = "reverse_and_copy"
    words = 2
    least = 2  # of one letter there are few, and of 26 none is evaluation's

    def answer(self, word: np.ndarray) -> list[np.ndarray]:
        return [word[:, ::-1], word]
