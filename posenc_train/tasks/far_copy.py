"""The token some steps back returns: how much of it a model finds at a known distance.

    fed      c a d b c a a b c d …
    targets  a d b c a a b c d ?    4 steps before ? is a: p(a) = .8 + .2 / 16

With probability p a token is the one `distance` steps before it, else (and at the first `distance` tokens) one of K
symbols, each as likely, that one included. So the optimum is known:

    loss = -ln(p [it is the same as `distance` steps before] + (1 - p) / K)
           ln K where there is nothing so far back

At the defaults, ln 16 = 2.77 nats for the first 31 targets and 0.99 on average from there on. Of 64 targets half have
no source, of 512 a sixteenth: so over all targets the loss of a model that copies falls with the length, and the regret
of one that does not grows, to 1.78 nats, while the same targets gain nothing from a context beyond the distance. It is
to be tolerated, and no more: look at the regret by position, or on the same targets.
"""

import numpy as np
from jaxtyping import Float, Int

from posenc_train.config import UserError
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.source import Source
from posenc_train.tasks.symbols import letters


class FarCopy(Source):
    """symbols: K (ids 0 … K - 1). probability: p, that a token is copied."""

    name = "far_copy"

    def __init__(
        self,
        distance: int = 32,
        probability: float = 0.8,
        symbols: int = 16,
        windows: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(windows, longest, eval_seed)
        if distance < 1 or symbols < 2 or not 0 <= probability < 1:
            raise UserError(
                f"task.distance={distance}, task.symbols={symbols}, task.probability={probability}: must be at least "
                "1, at least 2, and at least 0 and below 1"
            )
        self.distance, self.probability = distance, probability
        self.vocab, self.symbols = symbols, letters(symbols)
        self.fingerprint = digest("far_copy", distance, str(probability), symbols)

    @property
    def shortest(self) -> int:
        """Up to the first target that has a source."""
        return self.distance

    def write(self, draw: Draw, count: int) -> Int[np.ndarray, "b count"]:
        ids, copied = draw.integers(self.vocab, count), draw.uniform(count) < self.probability
        for first in range(self.distance, count, self.distance):
            here = slice(first, min(first + self.distance, count))
            source = ids[:, first - self.distance : here.stop - self.distance]
            ids[:, here] = np.where(copied[:, here], source, ids[:, here])
        return ids

    def optimum(self, ids: Int[np.ndarray, "b m"]) -> Float[np.ndarray, "b m-1"]:
        p, d = self.probability, self.distance
        chance = np.full((len(ids), ids.shape[1]), 1 / self.vocab)
        chance[:, d:] = p * (ids[:, d:] == ids[:, :-d]) + (1 - p) / self.vocab
        return -np.log(chance[:, 1:])
