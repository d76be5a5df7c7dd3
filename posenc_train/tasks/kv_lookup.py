"""Key-value look-up, with keys and values of several tokens: after all pairs, some of the keys are asked for.

5 pairs of which 4 are asked, with keys of 2 letters and values of 2 digits, in 45 tokens:

    fed      : c a 3 1 : t e 0 5 : r s 9 9 : o b 3 3 : e l 7 0 ? t e 0 5 ? c a 3 1 ? e l 7 0 ? r s 9 9
    targets  _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ 0 5 _ _ _ 3 1 _ _ _ 7 0 _ _ _ 9 9 _

No key stands in two pairs, so there are at most as many pairs as keys.
"""

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import digits, letters

DIGITS = 10


class KvLookup(Asked):
    """alphabet: number of letters, which are only fed; key, value: tokens of each; queries: pairs asked for, or all
    where there are fewer."""

    name = "kv_lookup"
    vocab = DIGITS
    bounded_by = "task.alphabet or task.key"

    def __init__(
        self,
        alphabet: int = 26,
        key: int = 2,
        value: int = 2,
        queries: int = 4,
        examples: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        if not 2 <= alphabet**key <= 2**16:
            raise UserError(f"task.alphabet={alphabet} task.key={key}: alphabet to the power of key must be 2 to 65536")
        self.alphabet, self.key, self.value, self.queries = alphabet, key, value, queries
        self.marks, self.symbols = alphabet + 2, [*digits(DIGITS), *letters(alphabet), ":", "?"]
        self.pair, self.query = DIGITS + alphabet, DIGITS + alphabet + 1
        self.filler = self.query
        self.most = alphabet**key
        self.fingerprint = digest(self.name, alphabet, key, value, queries)

    def tokens(self, size: int) -> int:
        return (size + min(size, self.queries)) * (1 + self.key + self.value)

    def asked(self, size: int) -> np.ndarray:
        place, width = np.arange(self.tokens(size)), 1 + self.key + self.value
        return (place >= size * width) & (place % width > self.key)

    def write(self, draw: Draw, size: int) -> Sequences:
        b, queries = len(draw.rows), min(size, self.queries)
        code = draw.distinct(size, self.most)
        pairs = np.empty((b, size, 1 + self.key + self.value), np.int64)
        pairs[:, :, 0] = self.pair
        for letter in range(self.key):
            pairs[:, :, 1 + letter] = DIGITS + code // self.alphabet**letter % self.alphabet
        pairs[:, :, 1 + self.key :] = draw.integers(DIGITS, size, self.value)
        asked = np.take_along_axis(pairs, draw.distinct(queries, size)[:, :, None], axis=1)
        asked[:, :, 0] = self.query
        return Sequences(np.concatenate([pairs, asked], axis=1).reshape(b, -1))
