"""Tasks that ask: sequences of tokens some of which the model must say. A task of this kind is how one sequence of a
given size is written; batches, splits and evaluation examples are here.

No example of training is one of evaluation or validation, whatever the alphabet: the contents of a sequence decide to
which split it belongs (a sixteenth each to evaluation and validation), and what was drawn for another is drawn again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt64
from torch import Tensor

from posenc_train.config import UserError
from posenc_train.tasks.base import IGNORE, Batch, Task, digest
from posenc_train.tasks.draw import Draw, mixed

SHARES = 16  # of all sequences: the first is evaluation's, the second validation's, the others training's
SPLITS = ("evaluation", "validation")
ATTEMPTS = 1000  # at a sequence of the right split: where there is one in a hundred, all but one in 20,000 find it
BLOCK = 4096  # sequences written at once, which bounds the memory


class Sequences(NamedTuple):
    """ids[i]: a whole sequence, prompt and answers; slices: what the rows may be told apart by, such as a depth."""

    ids: Int[np.ndarray, "b n"]
    slices: Mapping[str, np.ndarray] = {}  # name -> a value for each row


class Examples(NamedTuple):
    """What an evaluation asks: the model must say ids[:, asked], having been fed all that stands before."""

    ids: Int[Tensor, "b n"]
    asked: Bool[Tensor, "n"]
    size: int
    slices: Mapping[str, np.ndarray]
    fingerprint: str


class Asked(Task):
    """The interface: `write`, `asked`, `tokens`, and the largest `size` for a length.

    A sequence's size is what the task counts by (letters, pairs, …); all sequences of one size have one layout.
    """

    protocols = ("free_running", "teacher_forced")
    unit = "token"
    least = 1  # the smallest size
    most: int | None = None  # the largest size; None: any
    bounded_by = ""  # the setting that a larger `most` needs, such as "task.keys"
    name: str  # in messages
    vocab: int
    marks: int
    end: int | None = None  # the id that ends an answer, asked for last; None: answers have a known number of tokens
    filler: int  # the id that is fed behind a sequence shorter than its batch
    symbols: Sequence[str]  # a name for every id, 0 … vocab + marks - 1, no two alike
    disjoint = True  # by the contents of sequences; False: the task sees to it itself

    def __init__(self, examples: int = 128, longest: int | None = None, eval_seed: int = 0):
        self.count, self.longest, self.eval_seed = examples, longest, eval_seed

    def tokens(self, size: int) -> int:
        """The number of tokens of a sequence."""
        raise NotImplementedError

    def size(self, length: int) -> int:
        """The largest size whose sequences fit `length` fed tokens. Raises UserError below the shortest length and
        above the longest."""
        if length < self.shortest:
            raise UserError(f"length {length}: the smallest length of {self.name} is {self.shortest} tokens")
        size = self.least
        while self.tokens(size + 1) <= length:
            size += 1
        if self.most is not None and size > self.most:
            greatest = self.tokens(self.most + 1) - 1
            raise UserError(
                f"length {length}: the greatest length of {self.name} is {greatest} tokens; raise {self.bounded_by}"
            )
        return size

    def asked(self, size: int) -> Bool[np.ndarray, "n"]:
        """Which tokens of a sequence the model must say; never the first."""
        raise NotImplementedError

    def write(self, draw: Draw, size: int) -> Sequences:
        """A sequence for every row of the draw."""
        raise NotImplementedError

    @property
    def shortest(self) -> int:
        return self.tokens(self.least)

    def ready(self, train_length: int, lengths: Sequence[int]) -> None:
        """Raises UserError where a batch of a training length, or the examples of an evaluation length, could not be
        written: too short, too long, too few different sequences."""
        for size in (self.least, self.size(train_length)):  # the others have no fewer sequences than the smallest
            self.sequences(0, "training", 0, np.arange(1), size)
        for length in lengths:
            self.sequences(self.eval_seed, "evaluation", 0, np.arange(1), self.size(length))

    def sequences(self, seed: int, split: str, step: int, rows: Int[np.ndarray, "b"], size: int) -> Sequences:
        """The rows' sequences, all of one size, in the smallest unsigned type that holds the ids.

        Raises UserError when the split has no sequences of this size.
        """
        ids = np.empty((len(rows), self.tokens(size)), np.min_scalar_type(self.vocab + self.marks))
        slices: dict[str, np.ndarray] = {}

        def write(waiting: Int[np.ndarray, "w"], attempt: int) -> np.ndarray:
            written = self.write(Draw(seed, split, step, rows[waiting], attempt), size)
            for name, values in written.slices.items():
                slices.setdefault(name, np.empty(len(rows), values.dtype))[waiting] = values
            return written.ids

        fill(ids, write, split if self.disjoint else None, f"task={self.name}", f"size {size}")
        return Sequences(ids, slices)

    def sizes(self, draw: Draw, length: int) -> Int[np.ndarray, "b"]:
        """The sizes of training rows: uniform over those that fit."""
        return self.least + draw.integers(self.size(length) - self.least + 1)

    def batch(self, seed: int, step: int, rows: range, length: int) -> Batch:
        index = np.arange(rows.start, rows.stop)
        sizes = self.sizes(Draw(seed, "sizes", step, index), length)
        return self._fed(seed, "training", step, index, sizes, length)

    def held_out(self, length: int, longest: int) -> Batch:
        sizes = np.full(self.count, self.size(length))  # as in evaluation: of small ones a split may have too few
        return self._fed(self.eval_seed, "validation", 0, np.arange(self.count), sizes, length)

    def _fed(self, seed: int, split: str, step: int, index: Int[np.ndarray, "b"], sizes, length: int) -> Batch:
        inputs = np.full((len(index), length), self.filler)
        targets = np.full((len(index), length), IGNORE)
        for size in np.unique(sizes):
            here = sizes == size
            ids = self.sequences(seed, split, step, index[here], int(size)).ids.astype(np.int64)
            end, asked = ids.shape[1], self.asked(int(size))
            inputs[here, :end] = ids
            targets[here, : end - 1] = np.where(asked[1:], ids[:, 1:], IGNORE)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets))

    def examples(self, length: int) -> Examples:
        """The evaluation examples of a length: the same for every scheme, fixed by (size that fits, eval_seed). None
        occurs twice, so where a split has few they are fewer than asked for: an interval counts each as one."""
        size = self.size(length)
        ids, slices = self.sequences(self.eval_seed, "evaluation", size, np.arange(self.count), size)
        first = np.sort(np.unique(hashed(ids), return_index=True)[1])
        ids, slices = ids[first].astype(np.int64), {name: values[first] for name, values in slices.items()}
        return Examples(torch.from_numpy(ids), torch.from_numpy(self.asked(size)), size, slices, digest(ids))


def fill(
    ids: Int[np.ndarray, "b n"],
    write: Callable[[Int[np.ndarray, "w"], int], Int[np.ndarray, "w n"]],
    split: str | None,
    task: str,
    what: str,
) -> None:
    """Fills ids with write(rows, attempt), BLOCK rows at once, and draws again what belongs to another split than
    `split`; None: nothing. Raises UserError, which names the task and what of it, where the split has none."""
    for first in range(0, len(ids), BLOCK):
        waiting = np.arange(first, min(first + BLOCK, len(ids)))
        for attempt in range(ATTEMPTS):
            ids[waiting] = write(waiting, attempt)
            waiting = waiting[(split_of(ids[waiting]) != split) & (split is not None)]
            if not len(waiting):
                break
        else:
            raise UserError(
                f"{task}: too few different sequences of {what} for a split of their own to {split}: give a larger "
                "alphabet or a greater length"
            )


def split_of(ids: Int[np.ndarray, "b n"]) -> np.ndarray:
    """The split to which each sequence belongs, by its contents."""
    share = hashed(ids) % np.uint64(SHARES)
    return np.select([share == number for number in range(len(SPLITS))], SPLITS, "training")


def hashed(ids: Int[np.ndarray, "b n"]) -> UInt64[np.ndarray, "b"]:
    """64 bits for every sequence: a polynomial in its ids, mixed."""
    length = ids.shape[1]
    powers = np.full(length + 1, 0xD6E8FEB86659FD93, np.uint64)
    powers[0] = 1
    powers = np.cumprod(powers)  # modulo 2^64, as all of this
    letters = (ids.astype(np.uint64) + np.uint64(1)) @ powers[-2::-1]
    return mixed(letters + length * powers[-1:])
