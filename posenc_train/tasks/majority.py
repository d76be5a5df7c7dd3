"""Are there more cats or more mice: a question that the order of the words does not touch.

    fed      . cat3 , mouse5 cat1 ; : cat7      answer: cats (0)

The control of `order`: the same words, read out in the same way, in random order. All schemes are to tie, and none as
well: what differs between them in `order` is then order. Half of the tokens are animals, rounded up; those in the
minority are at most a third of them (drawn uniformly from none on), so that nothing hinges on a single one.
"""

import numpy as np
from jaxtyping import Int

from posenc_train.config import UserError
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.judged import Judged
from posenc_train.tasks.symbols import letters


class Majority(Judged):
    """animals: number of cats, and of mice; fillers: number of those. Ids from 2 on: cats, mice, fillers."""

    name = "majority"
    shortest = 4

    def __init__(
        self,
        animals: int = 8,
        fillers: int = 16,
        examples: int = 512,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        if min(animals, fillers, examples) < 1:
            raise UserError(f"task.animals={animals}, task.fillers={fillers}: must be at least 1")
        self.animals, self.fillers, self.marks = animals, fillers, 2 * animals + fillers
        animal = [f"{kind}{n}" for kind in ("cat", "mouse") for n in range(animals)]
        self.symbols = ["cats!", "mice!", *animal, *letters(fillers)]
        self.fingerprint = digest("majority", animals, fillers)

    def write(self, draw: Draw, length: int) -> tuple[Int[np.ndarray, "b n"], Int[np.ndarray, "b"]]:
        answers, animals = draw.integers(2)[:, None], (length + 1) // 2
        few = draw.integers(animals // 3 + 1)[:, None]
        place = draw.distinct(length, length)  # of every token in a row sorted by kind: the few, the many, the fillers
        kind = np.where(place < few, 1 - answers, answers)
        animal = self.vocab + kind * self.animals + draw.integers(self.animals, length)
        filler = self.vocab + 2 * self.animals + draw.integers(self.fillers, length)
        return np.where(place < animals, animal, filler), answers[:, 0]
