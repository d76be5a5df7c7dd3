"""A Markov chain of its own in every sequence: what follows each symbol must be learned from the sequence itself.

    fed      c a b c a d c a …    so far b has followed a once, d once
    targets  a b c a d c a ?      of 4 symbols, alpha = 0.3: b and d 1.3 / 3.2 each

Every row of a sequence's transition matrix is drawn from Dirichlet(alpha, …, alpha), its first symbol from all alike.
So the best prediction of the token after `s`, of K symbols, is known, the matrix integrated out:

    p(next) = (how often next has followed s so far + alpha)
            / (how often anything has followed s so far + K alpha)

It is all that anybody can know of a sequence fed from its beginning, as in training. At the defaults its loss falls
from 2.08 nats (ln 8) to 1.45 at the 64th target and 1.26 at the 512th, towards 1.24 (the entropy of a known matrix).
Eight times the context is worth 0.19 nats to whoever uses it, and a regret that grows by as much merely tolerates it.

So `regret` feeds evaluation sequences from their beginning. In a window from within one, where some symbols are more
frequent than others, the first token would tell a little of the matrix, which the formula leaves out.
"""

import numpy as np
from jaxtyping import Float, Int

from posenc_train.config import UserError
from posenc_train.tasks.base import digest
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.source import Source
from posenc_train.tasks.symbols import letters


class Markov(Source):
    """symbols: K, the states (ids 0 … K - 1). alpha: of the prior; small: a few successors each, large: all alike."""

    name = "markov"
    shortest = 1

    def __init__(
        self,
        symbols: int = 8,
        alpha: float = 0.3,
        windows: int = 128,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(windows, longest, eval_seed)
        if symbols < 2 or not alpha > 0:
            raise UserError(f"task.symbols={symbols}, task.alpha={alpha}: must be at least 2, and above 0")
        self.vocab, self.alpha, self.symbols = symbols, alpha, letters(symbols)
        self.fingerprint = digest("markov", symbols, alpha)

    def write(self, draw: Draw, count: int) -> Int[np.ndarray, "b count"]:
        ids, row = np.empty((len(draw.rows), count), np.int64), np.arange(len(draw.rows))
        ids[:, 0], moves = draw.integers(self.vocab), draw.uniform(count - 1)
        below = np.cumsum(dirichlet(draw, self.alpha, self.vocab, self.vocab), axis=-1)[..., :-1]
        for t in range(count - 1):
            ids[:, t + 1] = (moves[:, t, None] >= below[row, ids[:, t]]).sum(-1)
        return ids

    def optimum(self, ids: Int[np.ndarray, "b m"]) -> Float[np.ndarray, "b m-1"]:
        followed, row = np.full((len(ids), self.vocab, self.vocab), float(self.alpha)), np.arange(len(ids))
        loss = np.empty((len(ids), ids.shape[1] - 1))
        for t in range(loss.shape[1]):
            here, then = ids[:, t], ids[:, t + 1]
            loss[:, t] = np.log(followed[row, here].sum(-1)) - np.log(followed[row, here, then])
            followed[row, here, then] += 1
        return loss


def dirichlet(draw: Draw, alpha: float, *shape: int) -> Float[np.ndarray, "b *shape"]:
    """Points of the simplex, along the last axis, from Dirichlet(alpha, …, alpha): gamma variables over their sum.

    How many numbers it takes depends on all rows, so nothing may be drawn after it.
    """
    log = log_gamma(draw, alpha, *shape)
    weight = np.exp(log - log.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def log_gamma(draw: Draw, alpha: float, *shape: int) -> Float[np.ndarray, "b *shape"]:
    """Logarithms of gamma variables of shape alpha, which for a small one underflow: those of alpha + 1 by the method
    of Marsaglia and Tsang (2000), times U^(1 / alpha). What is rejected (4 % at most) is drawn again."""
    d = alpha + 1 - 1 / 3
    power = np.log1p(-draw.uniform(*shape)) / alpha
    out = np.full(power.shape, np.nan)
    while np.isnan(out).any():
        normal = np.sqrt(-2 * np.log1p(-draw.uniform(*shape))) * np.cos(2 * np.pi * draw.uniform(*shape))
        log_v = 3 * np.log(np.maximum(1 + normal / np.sqrt(9 * d), 1e-300))
        good = np.log1p(-draw.uniform(*shape)) < normal**2 / 2 + d - d * np.exp(log_v) + d * log_v
        out = np.where(np.isnan(out) & good, np.log(d) + log_v, out)
    return out + power
