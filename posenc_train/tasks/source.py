"""Text from a source whose best predictor is known: how low the loss of every target can be.

A task of this kind is how sequences are drawn, and the loss of the optimum. No sequence of training is one of
evaluation or validation: what it holds decides to which split it belongs, as of the tasks that ask (asked.py).
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int

from posenc_train.config import UserError
from posenc_train.tasks.asked import fill
from posenc_train.tasks.base import NEXT_TOKEN, Batch, Task
from posenc_train.tasks.draw import Draw


class Source(Task):
    """The interface: `write` and `optimum`. windows: number of evaluation sequences; longest: their length."""

    protocols = (*NEXT_TOKEN, "regret")
    unit = "token"
    marks = 0
    name: str  # in messages

    def __init__(self, windows: int = 128, longest: int | None = None, eval_seed: int = 0):
        self.count, self.longest, self.eval_seed = windows, longest, eval_seed

    def write(self, draw: Draw, count: int) -> Int[np.ndarray, "b count"]:
        """A sequence of `count` ids for every row of the draw."""
        raise NotImplementedError

    def optimum(self, ids: Int[np.ndarray, "b m"]) -> Float[np.ndarray, "b m-1"]:
        """-ln of the best predictor's probability of every id but the first, given those before it and nothing else,
        float64."""
        raise NotImplementedError

    def ready(self, train_length: int, lengths: Sequence[int]) -> None:
        for length in (train_length, *lengths):
            self._long_enough(length)
        self.sequences(0, "training", 0, np.arange(1), train_length)
        self.held_out(train_length, max(lengths, default=train_length))
        self.windows(max(lengths, default=train_length))

    def batch(self, seed: int, step: int, rows: range, length: int, split: str = "training") -> Batch:
        ids = self.sequences(seed, split, step, np.arange(rows.start, rows.stop), length)
        ids = torch.from_numpy(ids.astype(np.int64))
        return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())

    def held_out(self, length: int, longest: int) -> Batch:
        return self.batch(self.eval_seed, 0, range(self.count), length, "validation")

    def windows(self, longest: int) -> Int[np.ndarray, "b longest+1"]:
        """Evaluation text: one sequence a window, fixed by (task, longest, eval_seed)."""
        return self.sequences(self.eval_seed, "evaluation", longest, np.arange(self.count), longest)

    def sequences(
        self, seed: int, split: str, step: int, rows: Int[np.ndarray, "b"], length: int
    ) -> Int[np.ndarray, "b length+1"]:
        """What is fed at a length and its last target, in the smallest unsigned type that holds the ids."""
        self._long_enough(length)
        ids = np.empty((len(rows), length + 1), np.min_scalar_type(self.vocab - 1))
        fill(
            ids,
            lambda waiting, attempt: self.write(Draw(seed, split, step, rows[waiting], attempt), length + 1),
            split, f"task={self.name}", f"{length} tokens",
        )  # fmt: skip
        return ids

    def _long_enough(self, length: int) -> None:
        if length < self.shortest:
            raise UserError(f"length {length}: the smallest length of {self.name} is {self.shortest} tokens")
