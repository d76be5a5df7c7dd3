"""Which positions the tokens of a row are given. One idea a class; every scheme works under every sampling.

Six tokens, positions below longest = 20:

    consecutive     0  1  2  3  4  5
    shifted         9 10 11 12 13 14    every row by another number
    randomized      1  4  5 11 16 18    the same for all rows of a step; at evaluation too
    pose            0  1  9 10 11 12    every row by another number, after another token

What is drawn is a function of the seed, the step and the row: not of the other rows asked for, of earlier calls or of
the process. So any division of a batch over devices is the same batch.
"""

import hashlib

import torch
from jaxtyping import Int
from torch import Tensor


def drawn(below: int, *what: int | str) -> int:
    """A number from 0 to below - 1, uniform over different `what` and always the same for the same one."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below  # of 2^64 numbers: uniform to below / 2^64


def shifts(most: int, seed: int, step: int, rows: range, purpose: str) -> Int[Tensor, "b 1"]:
    """One number from 0 to most, both included, for each row."""
    return torch.tensor([drawn(most + 1, purpose, seed, step, row) for row in rows], dtype=torch.int64)[:, None]


def room(longest: int, length: int) -> int:
    """By how much the positions of a row can grow. Raises ValueError for a row that is longer than `longest`."""
    if longest < length:
        raise ValueError(
            f"sampling.longest={longest}: must be at least the {length} tokens of a row; raise it or shorten the row"
        )
    return longest - length


class Sampling:
    """The interface, and what holds where a sampling says nothing else: consecutive positions.

    draws: over how many draws of positions an evaluation is averaged; 1 where nothing is drawn.
    """

    draws: int = 1

    def __call__(self, rows: range, length: int, seed: int, step: int) -> Int[Tensor, "*b n"] | None:
        """Positions for the given rows of the global batch of one training step: [n] if all rows have the same.

        None stands for 0, 1, 2, …: attention knows faster ways when nothing else is meant.
        """
        return None

    def at_evaluation(self, length: int, draw: int) -> Int[Tensor, "n"] | None:
        """Positions for every row of that length in an evaluation; draw counts from 0 to draws - 1. A prompt and its
        answer are one row."""
        return None


class Consecutive(Sampling):
    """0, 1, 2, …"""


class Shifted(Sampling):
    """SHAPE (Kiyono et al. 2021, arXiv 2109.05644): a row begins at k from U{0, …, longest - n}, anew at every row.

    At evaluation consecutive, as published. The paper names the largest k; here it follows from `longest`,
    below which all positions are.
    """

    def __init__(self, longest: int = 2048):
        self.longest = longest

    def __call__(self, rows: range, length: int, seed: int, step: int) -> Int[Tensor, "b n"]:
        return torch.arange(length) + shifts(room(self.longest, length), seed, step, rows, "shifted")


class Randomized(Sampling):
    """Randomized positional encodings (Ruoss et al. 2023, arXiv 2305.16843): n of 0, …, longest - 1, in order.

    All sets of n positions are equally likely, so that the mean gap is (longest + 1) / (n + 1): 49.976 for 40 tokens
    and longest = 2048, the paper's. One draw a step for all rows, and for queries and keys alike. Random at
    evaluation too, where every number is the mean over `draws` of them, fixed by (length, draw): the same for every
    batch, scheme and seed. (In the authors' code every forward draws anew.) longest = n is 0, 1, 2, …
    """

    def __init__(self, longest: int = 2048, draws: int = 4):
        self.longest, self.draws = longest, draws

    def __call__(self, rows: range, length: int, seed: int, step: int) -> Int[Tensor, "n"]:
        return self._subset(length, "randomized", seed, step)

    def at_evaluation(self, length: int, draw: int) -> Int[Tensor, "n"]:
        return self._subset(length, "randomized at evaluation", length, draw)

    def _subset(self, length: int, *what: int | str) -> Int[Tensor, "n"]:
        room(self.longest, length)
        generator = torch.Generator().manual_seed(drawn(2**32, *what))  # more bits than its engine would use
        return torch.randperm(self.longest, generator=generator)[:length].sort().values


class Pose(Sampling):
    """PoSE (Zhu et al. 2023, arXiv 2309.10400): two chunks, the second moved on, so that short rows show far distances.

    Of a row of n tokens the first chunk has m from U{1, …, (n + 1) // 2}, at positions 0, …, m - 1; the second follows
    after a gap from U{0, …, longest - n}. Drawn for every row. As in the paper's first version the text has no gap:
    the second chunk is what follows the first (later, and in the authors' code, it comes from further on in the
    document). The loss across the jump counts. At evaluation consecutive.
    """

    def __init__(self, longest: int = 2048):
        self.longest = longest

    def __call__(self, rows: range, length: int, seed: int, step: int) -> Int[Tensor, "b n"]:
        gap = shifts(room(self.longest, length), seed, step, rows, "pose gap")
        first = 1 + shifts((length + 1) // 2 - 1, seed, step, rows, "pose chunk")
        pos = torch.arange(length)
        return pos + gap * (pos >= first)
