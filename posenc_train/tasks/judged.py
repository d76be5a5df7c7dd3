"""Tasks that ask one thing of a whole sequence: the model gives one answer, read from the mean over its tokens.

A sequence has as many tokens as are fed: no padding whose extent, and no mark whose place, could tell anything.
Training and evaluation share no sequence: its contents decide to which it belongs, as in the tasks that ask for tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from posenc_train.config import UserError
from posenc_train.tasks.asked import ATTEMPTS, split_of
from posenc_train.tasks.base import Batch, Task, digest
from posenc_train.tasks.draw import Draw


class Verdicts(NamedTuple):
    """ids[i] is fed, answers[i] is right."""

    ids: Int[Tensor, "b n"]
    answers: Int[Tensor, "b"]
    fingerprint: str


class Judged(Task):
    """The interface: `write`, and `partners` where the examples of an evaluation come in pairs."""

    protocols = ("classified",)
    unit = "example"
    next_token = False
    pooled = True
    vocab = 2  # the answers; what is fed are marks
    name: str  # in messages

    def __init__(self, examples: int = 512, longest: int | None = None, eval_seed: int = 0):
        self.count, self.longest, self.eval_seed = examples, longest, eval_seed

    def write(self, draw: Draw, length: int) -> tuple[Int[np.ndarray, "b n"], Int[np.ndarray, "b"]]:
        """A sequence of `length` tokens for every row of the draw, and the answer."""
        raise NotImplementedError

    def partners(self, ids: Int[np.ndarray, "b n"]) -> Int[np.ndarray, "b n"] | None:
        """For every sequence the one that has the other answer; that one's partner is this one. None: it has none."""
        return None

    def sequences(self, seed: int, split: str, step: int, rows: Int[np.ndarray, "b"], length: int):
        """(ids, answers) of the rows, which belong to the split; partners belong to one split.

        Raises UserError below the shortest length, and when the split has no sequences of this length.
        """
        if length < self.shortest:
            raise UserError(f"length {length}: the smallest length of {self.name} is {self.shortest} tokens")
        ids, answers = np.empty((len(rows), length), np.int64), np.empty(len(rows), np.int64)
        waiting = np.arange(len(rows))
        for attempt in range(ATTEMPTS):
            ids[waiting], answers[waiting] = self.write(Draw(seed, split, step, rows[waiting], attempt), length)
            waiting = waiting[self._splits(ids[waiting]) != split]
            if not len(waiting):
                return ids, answers
        raise UserError(
            f"task={self.name}: too few different sequences of {length} tokens for a split of their own to {split}: "
            "give more symbols or a greater length"
        )

    def _splits(self, ids: Int[np.ndarray, "b n"]) -> np.ndarray:
        others = self.partners(ids)
        return split_of(ids if others is None else np.hstack([np.minimum(ids, others), np.maximum(ids, others)]))

    def ready(self, train_length: int, lengths: Sequence[int]) -> None:
        row = np.arange(1)
        self.sequences(0, "training", 0, row, train_length)
        for length in lengths:
            self.sequences(self.eval_seed, "evaluation", length, row, length)

    def batch(self, seed: int, step: int, rows: range, length: int, split: str = "training") -> Batch:
        ids, answers = self.sequences(seed, split, step, np.arange(rows.start, rows.stop), length)
        return Batch(torch.from_numpy(ids), torch.from_numpy(answers)[:, None])

    def held_out(self, length: int, longest: int) -> Batch:
        return self.batch(self.eval_seed, 0, range(self.count), length, "validation")

    def examples(self, length: int) -> Verdicts:
        """The evaluation examples of a length, fixed by (task, length, eval_seed). Where there are partners the second
        half are those of the first: a model that does not tell a sequence from its partner is right in half of them.
        """
        index = np.arange(self.count)
        ids, answers = self.sequences(self.eval_seed, "evaluation", length, index, length)
        half = self.count // 2
        others = self.partners(ids[:half])
        if others is not None:
            ids, answers = np.concatenate([ids[:half], others]), np.concatenate([answers[:half], 1 - answers[:half]])
        return Verdicts(torch.from_numpy(ids), torch.from_numpy(answers), digest(ids, answers))
