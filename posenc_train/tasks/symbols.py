"""Names for ids, of one width in one task."""

import itertools
import string
from collections.abc import Sequence


def letters(count: int) -> list[str]:
    """a, b, c, …; more than 26 are aa, ab, …"""
    return _words(string.ascii_lowercase, count)


def digits(count: int) -> list[str]:
    """0, 1, 2, …; more than ten are 00, 01, …"""
    return _words(string.digits, count)


def _words(alphabet: Sequence[str], count: int) -> list[str]:
    width = 1
    while len(alphabet) ** width < count:
        width += 1
    return ["".join(word) for word in itertools.islice(itertools.product(alphabet, repeat=width), count)]
