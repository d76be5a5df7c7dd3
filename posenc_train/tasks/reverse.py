"""Reversing: random letters, and then the same letters from the last to the first.

fed      | c a t e r | r e t a c $
targets  _ _ _ _ _ _ r e t a c $ _
"""

import numpy as np

from posenc_train.tasks.copy import Copy


class Reverse(Copy):
    """As Copy."""

    name = "reverse"

    def answer(self, word: np.ndarray) -> list[np.ndarray]:
        return [word[:, ::-1]]
