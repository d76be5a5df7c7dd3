"""Copying: random letters after a separator, and after another the same letters again, then an end mark.

5 letters in 13 tokens; _ is no target, | is the separator, $ the end, and what would follow $ is filler:

    fed      | c a t e r | c a t e r $
    targets  _ _ _ _ _ _ c a t e r $ _

`length` is tokens fed: (length - 3) // 2 letters fit. Training draws the number of letters uniformly from 1 to what
fits; evaluation uses what fits. Scored by free-running generation.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from posenc_train.config import UserError
from posenc_train.tasks.base import IGNORE, Batch, Task, digest, generator


class Examples(NamedTuple):
    """prompts end where the answer begins; answers end with the end mark. Every row has the same number of letters."""

    prompts: Int[Tensor, "b n"]
    answers: Int[Tensor, "b m"]
    size: int
    fingerprint: str


class Copy(Task):
    """alphabet: number of letters (ids 0 … alphabet - 1); alphabet is the end mark, and the separator is only fed."""

    protocols = ("free_running",)
    unit = "token"
    shortest = 5
    marks = 1

    def __init__(self, alphabet: int = 26, examples: int = 128, longest: int | None = None, eval_seed: int = 0):
        if alphabet < 2:
            raise UserError(f"task.alphabet={alphabet}: must be at least 2")
        self.examples_count, self.longest, self.eval_seed = examples, longest, eval_seed
        self.alphabet, self.vocab = alphabet, alphabet + 1
        self.end, self.separator = alphabet, alphabet + 1
        self.fingerprint = digest("copy", alphabet)

    def size(self, length: int) -> int:
        """Letters that fit `length` fed tokens. Raises UserError below the shortest length."""
        if length < self.shortest:
            raise UserError(f"length {length}: the smallest length of copy is {self.shortest} tokens (one letter)")
        return (length - 3) // 2

    def batch(self, seed: int, step: int, rows: range, length: int) -> Batch:
        largest = self.size(length)
        # Drawn from the first row on, so that a row does not depend on which other rows are asked for.
        drawn = generator(seed, "train", step).random((rows.stop, largest + 1))[rows.start :]
        sizes = 1 + (drawn[:, 0] * largest).astype(np.int64)
        letters = (drawn[:, 1:] * self.alphabet).astype(np.int64)
        inputs = np.full((len(rows), length), self.end)
        targets = np.full((len(rows), length), IGNORE)
        for row, size in enumerate(sizes):
            word = letters[row, :size]
            inputs[row, : 2 * size + 2] = [self.separator, *word, self.separator, *word]
            targets[row, size + 1 : 2 * size + 2] = [*word, self.end]
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets))

    def examples(self, length: int) -> Examples:
        """The evaluation examples of a length: the same for every scheme, fixed by (length, eval_seed)."""
        size = self.size(length)
        draw = generator(self.eval_seed, "evaluation", length).random((self.examples_count, size))
        letters = torch.from_numpy((draw * self.alphabet).astype(np.int64))
        column = torch.ones(len(letters), 1, dtype=torch.int64)
        prompts = torch.cat([column * self.separator, letters, column * self.separator], dim=1)
        answers = torch.cat([letters, column * self.end], dim=1)
        return Examples(prompts, answers, size, digest(prompts.numpy()))
