"""What a task is: token batches of any length, addressed by (seed, step, row).

Two kinds of ids. ``0 … vocab-1`` can be predicted; ``vocab … vocab+marks-1`` are only ever fed (a
beginning-of-text mark, a separator) and are never a target. A *length* is always the number of tokens fed.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64
from torch import Tensor

from posenc_train.config import UserError
from posenc_train.tasks.names import digest as digest

NEXT_TOKEN = ("nonoverlapping", "same_targets", "per_position", "sliding", "masked_window", "window")  # protocols
IGNORE = -100  # the target where nothing is asked; torch's cross entropy leaves it out


class Batch(NamedTuple):
    """``inputs[i, t]`` is fed at position t; ``targets[i, t]`` should come next (IGNORE: nothing).

    Of a task with one answer a sequence, ``targets[i, 0]`` is that answer.
    """

    inputs: Int64[Tensor, "b n"]
    targets: Int64[Tensor, "b m"]
    doc: Int64[Tensor, "b n"] | None = None  # of what is fed; None: every row is a part of one document
    pos: Int64[Tensor, "b n"] | None = None  # of what is fed; None: the sampling gives the positions


class Layout(NamedTuple):
    """Evaluation windows of `longest + 1` ids that hold several documents."""

    doc: Int64[np.ndarray, "w m"]  # which attention keeps apart, each at positions from 0; -1 is padding
    asked: Bool[np.ndarray, "w n"]  # which of the ids from the second on are targets


class Task:
    """The interface. A task knows no model, and holds nothing that changes what a batch is."""

    protocols: tuple[str, ...]  # the evaluation protocols that apply to it
    vocab: int  # ids that are predicted: 0 … vocab-1
    marks: int  # ids that are only fed: vocab … vocab+marks-1
    unit: str  # what one target is: "byte" or "token"
    next_token: bool = True  # a target is the next input: no task for a model that sees what comes next
    pooled: bool = False  # there is one target a sequence, targets are [b 1], for what is read from all its tokens
    begin: int | None = None  # the id that is fed in place of an evaluation window's first
    bytes_per_id: np.ndarray | None = None  # where ids stand for bytes of a text
    shortest: int  # the least length, in tokens fed
    fingerprint: str  # 16 hex digits that name the data
    symbols: Sequence[str]  # a name for every id, for people to read

    def batch(self, seed: int, step: int, rows: range, length: int) -> Batch:
        """The given rows of the global batch of one step.

        A function of (seed, step, row, length) alone: not of the other rows asked for, of earlier calls, or
        of the process. So any division of a batch over workers, devices or accumulation steps is the same
        batch.
        """
        raise NotImplementedError

    def held_out(self, length: int, longest: int) -> Batch:
        """Rows that are neither trained on nor evaluated, always the same, for choices that are made before anything
        is compared. longest: the length of the evaluation texts."""
        raise UserError(f"{type(self).__name__} has no rows to choose by: give it a method `held_out`, as in Task")

    def ready(self, train_length: int, lengths: Sequence[int]) -> None:
        """Raises UserError for a training length or an evaluation length that the task cannot have."""

    def layout(self, longest: int) -> Layout | None:
        """What the evaluation windows of a next-token task hold; None: each is a part of one document."""
        return None

    def documents(self, longest: int) -> Int64[np.ndarray, "w"] | None:
        """The number of the document that each evaluation window is from; None: each is its own."""
        return None

    def window_slices(self, longest: int) -> Mapping[str, np.ndarray]:
        """What evaluation windows may be told apart by, such as their corpus: name -> a value for each window."""
        return {}

    def words(self, ids: np.ndarray) -> np.ndarray | None:
        """How many words begin within each of the ids [..., n]; None where a task has no words."""
        return None

    def report(self, length: int, longest: int) -> dict:
        """What of the data is used at a training length and a longest evaluation length, for the log."""
        return {"fingerprint": self.fingerprint}


def generator(seed: int, purpose: str, step: int) -> np.random.Generator:
    """Random numbers that are a function of the three arguments and of the order they are drawn in.

    A counter-based generator with the step in the counter's highest word: steps are 2^192 numbers apart. The
    key holds the first eight bytes of `purpose`, so that two uses of one seed share nothing.
    """
    key = [seed % 2**64, int.from_bytes(purpose.encode()[:8], "little")]
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, step]))
