"""Multi-query associative recall (Arora et al. 2023, arXiv 2312.04927): pairs of a key and a value, and then the keys
again in random order, each to be followed by its value.

3 pairs, each asked for 2 times, in 19 tokens:

    fed      k 3 t 0 e 7 | e 7 k 3 t 0 k 3 e 7 t 0
    targets  _ _ _ _ _ _ _ 7 _ 3 _ 0 _ 3 _ 7 _ 0 _

No key stands in two pairs, so there are at most as many pairs as keys.
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import digits, letters


class Recall(Asked):
    """keys, values: how many different ones there are; times: how often each pair is asked for. A value (ids
    0 … values - 1) is said, a key only fed."""

    name = "recall"
    bounded_by = "task.keys"

    def __init__(
        self,
        keys: int = 128,
        values: int = 10,
        times: int = 3,
        examples: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        for setting, value, low in ("keys", keys, 2), ("values", values, 2), ("times", times, 1):
            if value < low:
                raise UserError(f"task.{setting}={value}: must be at least {low}")
        self.keys, self.vocab, self.marks, self.times = keys, values, keys + 1, times
        self.symbols = [*digits(values), *letters(keys), "|"]
        self.filler = self.separator = values + keys
        self.most = keys
        self.fingerprint = digest(self.name, keys, values, times)

    def tokens(self, size: int) -> int:
        return 2 * size + 1 + 2 * self.times * size

    def asked(self, size: int) -> np.ndarray:
        place = np.arange(self.tokens(size))
        return (place > 2 * size) & (place % 2 == 0)

    def write(self, draw: Draw, size: int) -> Sequences:
        ids = np.full((len(draw.rows), self.tokens(size)), self.separator)
        ids[:, 0 : 2 * size : 2] = keys = self.vocab + draw.distinct(size, self.keys)
        ids[:, 1 : 2 * size : 2] = values = draw.integers(self.vocab, size)
        order = draw.distinct(self.times * size, self.times * size) % size
        ids[:, 2 * size + 1 :: 2] = np.take_along_axis(keys, order, axis=1)
        ids[:, 2 * size + 2 :: 2] = np.take_along_axis(values, order, axis=1)
        return Sequences(ids)
