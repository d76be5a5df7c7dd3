"""N-gram look-up (Jelassi et al. 2024, arXiv 2402.01032): random letters, some of them once more as the key, and the
model says what followed them. The key stands in one place only.

key: suffix is asked when all has been read; key_letters = 2, answer = 3, 8 letters in 15 tokens:

    fed      c a t e r p i l | t e | r p i
    targets  _ _ _ _ _ _ _ _ _ _ _ r p i _

key: prefix says first what is looked for:

    fed      t e | c a t e r p i l | r p i
    targets  _ _ _ _ _ _ _ _ _ _ _ r p i _
"""

from collections.abc import Sequence

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked, Sequences
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import letters

TRIES = 40  # at letters in which some key stands once …
FEW = 10  # … of which so many must do for each of 256 rows where a length is new: then 40 fail once in a billion


class Ngram(Asked):
    """alphabet: number of letters; key_letters: of the key; answer: letters said; key: suffix | prefix."""

    name = "ngram"
    marks = 1

    def __init__(
        self,
        alphabet: int = 26,
        key_letters: int = 2,
        answer: int = 4,
        key: str = "suffix",
        examples: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        if alphabet < 2:
            raise UserError(f"task.alphabet={alphabet}: must be at least 2")
        if key not in ("suffix", "prefix"):
            raise UserError(f"task.key={key}: must be one of suffix, prefix")
        self.alphabet, self.key_letters, self.answer, self.key = alphabet, key_letters, answer, key
        self.vocab, self.symbols = alphabet, [*letters(alphabet), "|"]
        self.filler = self.separator = alphabet
        self.least = key_letters + answer
        self.fingerprint = digest(self.name, alphabet, key_letters, answer, key)

    def tokens(self, size: int) -> int:
        return size + self.key_letters + 2 + self.answer

    def asked(self, size: int) -> np.ndarray:
        return np.arange(self.tokens(size)) >= self.tokens(size) - self.answer

    def ready(self, train_length: int, lengths: Sequence[int]) -> None:
        super().ready(train_length, lengths)
        for size in {self.size(length) for length in (train_length, *lengths)}:
            self._unique(Draw(0, "training", 0, np.arange(256)), size, FEW)

    def write(self, draw: Draw, size: int) -> Sequences:
        word, place = self._unique(draw, size)
        ids = np.full((len(draw.rows), self.tokens(size)), self.separator)
        first, key = (0, size + 1) if self.key == "suffix" else (self.key_letters + 1, 0)
        ids[:, first : first + size] = word
        ids[:, key : key + self.key_letters] = np.take_along_axis(word, place + np.arange(self.key_letters), axis=1)
        said = place + self.key_letters + np.arange(self.answer)
        ids[:, -self.answer :] = np.take_along_axis(word, said, axis=1)
        return Sequences(ids)

    def _unique(self, draw: Draw, size: int, tries: int = TRIES) -> tuple[np.ndarray, np.ndarray]:
        """Letters [b n], and a place [b 1] of a key that stands nowhere else, with room for the answer behind it."""
        word, place = np.empty((len(draw.rows), size), np.int64), np.empty((len(draw.rows), 1), np.int64)
        waiting = np.arange(len(draw.rows))
        for _ in range(tries):
            drawn, order = draw.integers(self.alphabet, size), draw.uniform(size)
            once = self._once(drawn[waiting])
            found = once.any(1)
            here = waiting[found]
            word[here] = drawn[here]
            place[here, 0] = np.where(once, order[waiting, : once.shape[1]], -1.0).argmax(1)[found]
            waiting = waiting[~found]
            if not len(waiting):
                return word, place
        raise UserError(
            f"task=ngram: no {self.key_letters} of {size} letters stand in one place only: give a larger "
            "task.alphabet or task.key_letters"
        )

    def _once(self, word: np.ndarray) -> np.ndarray:
        """Where a key could begin: bool [b, n - key_letters - answer + 1]."""
        places = word.shape[1] - self.key_letters + 1
        code = np.zeros((len(word), places), np.int64)
        for letter in range(self.key_letters):
            code = code * self.alphabet + word[:, letter : letter + places]
        order = np.argsort(code, axis=1, kind="stable")
        ordered = np.take_along_axis(code, order, axis=1)
        same = np.pad(ordered[:, 1:] == ordered[:, :-1], ((0, 0), (1, 1)))
        once = np.empty_like(ordered, bool)
        np.put_along_axis(once, order, ~(same[:, 1:] | same[:, :-1]), axis=1)
        return once[:, : places - self.answer]
