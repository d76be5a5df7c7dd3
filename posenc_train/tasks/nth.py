"""The letter at a stated index, counted from the start or from the end.

6 letters in 9 tokens, frame: start (what is far away is asked for, and needs an absolute frame):

    fed      | c a t e r s 3 t
    targets  _ _ _ _ _ _ _ t _

and frame: end (a relative frame is enough):

    fed      | c a t e r s 3 e
    targets  _ _ _ _ _ _ _ e _

The index is one of 1 … indices at every length: a longer sequence has more letters and no greater index.
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import digits, letters


class Nth(Asked):
    """frame: start | end; indices: the greatest index, and the fewest letters; alphabet: number of letters (ids
    0 … alphabet - 1). | and the indices are only fed."""

    name = "nth"

    def __init__(
        self,
        frame: str = "start",
        indices: int = 4,
        alphabet: int = 26,
        examples: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        if frame not in ("start", "end"):
            raise UserError(f"task.frame={frame}: must be one of start, end")
        for setting, value, low in ("indices", indices, 1), ("alphabet", alphabet, 2):
            if value < low:
                raise UserError(f"task.{setting}={value}: must be at least {low}")
        self.frame, self.indices, self.least = frame, indices, indices
        self.vocab, self.marks = alphabet, indices + 1
        self.symbols = [*letters(alphabet), "|", *digits(indices + 1)[1:]]
        self.filler = self.mark = alphabet
        self.fingerprint = digest(self.name, frame, indices, alphabet)

    def tokens(self, size: int) -> int:
        return size + 3

    def asked(self, size: int) -> np.ndarray:
        return np.arange(self.tokens(size)) == size + 2

    def write(self, draw: Draw, size: int) -> Sequences:
        word, index = draw.integers(self.vocab, size), draw.integers(self.indices, 1)
        place = index if self.frame == "start" else size - 1 - index
        said = np.take_along_axis(word, place, axis=1)
        mark = np.full_like(index, self.mark)
        return Sequences(np.hstack([mark, word, self.mark + 1 + index, said]))
