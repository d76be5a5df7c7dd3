"""Sorting: random letters, and then the same letters in the order of the alphabet, each as often as it was there.

fed      | c a t e r a | a a c e r t $
targets  _ _ _ _ _ _ _ a a c e r t $ _
"""

import numpy as np

from posenc_train.tasks.copy import Copy


class Sorting(Copy):
    """As Copy; the order of the letters is that of their ids."""

    name = "sorting"

    def answer(self, word: np.ndarray) -> list[np.ndarray]:
        return [np.sort(word, axis=1)]
