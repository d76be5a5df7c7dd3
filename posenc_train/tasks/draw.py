"""Random numbers by address: a function of (seed, split, step, row, attempt) and of the order they are asked for in."""

import hashlib

import numpy as np
from jaxtyping import Float, Int, UInt64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(x: UInt64[np.ndarray, "*n"]) -> UInt64[np.ndarray, "*n"]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): neighbouring numbers come out unrelated."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Draw:
    """Numbers for some rows of one step. A row's numbers depend on no other row; every call gives new ones.

    Drawn for rows 0 … 31 at once, in four parts, or by four workers, they are the same numbers.
    """

    def __init__(self, seed: int, split: str, step: int, rows: Int[np.ndarray, "b"], attempt: int = 0):
        self.split, self.rows = split, rows
        name = hashlib.blake2b(f"{seed} {split} {step} {attempt}".encode(), digest_size=8).digest()
        self._row = mixed(np.uint64(int.from_bytes(name, "little")) + rows.astype(np.uint64) * GOLDEN)
        self._used = 0

    def bits(self, *shape: int) -> UInt64[np.ndarray, "b *shape"]:
        """64 random bits in every number."""
        count = int(np.prod(shape))
        counter = np.arange(self._used + 1, self._used + count + 1, dtype=np.uint64) * GOLDEN
        self._used += count
        return mixed(self._row[:, None] + counter).reshape(len(self.rows), *shape)

    def uniform(self, *shape: int) -> Float[np.ndarray, "b *shape"]:
        """float64 in [0, 1)."""
        return (self.bits(*shape) >> np.uint64(11)) * 2.0**-53

    def integers(self, high: int, *shape: int) -> Int[np.ndarray, "b *shape"]:
        """0 … high - 1, for high below 2^31, each as likely as another to within high / 2^32."""
        return ((self.bits(*shape) >> np.uint64(32)) * np.uint64(high) >> np.uint64(32)).astype(np.int64)

    def distinct(self, count: int, high: int) -> Int[np.ndarray, "b count"]:
        """`count` different numbers out of 0 … high - 1 in random order; all of them are a permutation."""
        return np.argsort(self.bits(high), axis=1)[:, :count]
