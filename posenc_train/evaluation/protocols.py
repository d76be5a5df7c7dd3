"""The protocols that score next-token losses: which windows of an evaluation text are fed, and which targets count.

A text of 9 fed tokens has the targets 0 … 8 (target t follows fed token t). At length 4, each window in brackets, a dot
for a target of it that is not scored there:

    nonoverlapping      [1 2 3 4] [5 6 7 8]                       from the end: target 0 is left over
    per_position        the same, by position in the window
    recurrence          the same, by how far back a target's context last occurred (recurrence.py)
    same_targets(k=2)             [. . 7 8]                       the same targets at every length
    sliding(stride=2)   [0 1 2 3] [. . 4 5] [. . 6 7] [. . . 8]   every target once; the last window ends with the text
    masked_window(L=3)  as nonoverlapping, and a query sees the last 3 keys only
    regret              [0 1 2 3]                                 from the beginning, where the best predictor is known
    window(L=4)         [. . . 3] [. . . 4] … [. . . 8]           fed alone: at the length L and at no other
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

Settings = Mapping[str, Any]
Cuts = Int[np.ndarray, "m 3"]  # windows: the text of each, where it begins there, how many of its last targets count


def protocol_label(name: str, settings: Settings, train_length: int) -> str:
    """Name and settings in one string: "same_targets(k=64)", "window(L=128, targets=1024)"."""
    told = resolved(name, settings, train_length)
    words = ", ".join(f"{key}={'all' if value is None else value}" for key, value in told.items())
    return f"{name}({words})" if words else name


def resolved(name: str, settings: Settings, train_length: int) -> dict[str, Any]:
    """The settings with what null stands for. No default depends on the evaluation length: a label is one of all."""
    half = max(1, train_length // 2)
    stands_for = {"k": half, "stride": half, "L": train_length}
    return {key: stands_for.get(key) if settings.get(key) is None else settings[key] for key in SETTINGS.get(name, ())}


SETTINGS = {
    "same_targets": ("k",),
    "sliding": ("stride",),
    "masked_window": ("L",),
    "window": ("L", "targets"),
    "recurrence": ("bytes",),
}


def applies(name: str, settings: Settings, length: int, train_length: int) -> bool:
    """Whether a protocol has targets to score at a length."""
    own = resolved(name, settings, train_length)
    if name == "same_targets":
        return own["k"] <= length
    if name == "sliding":
        return own["stride"] <= length
    return name != "window" or own["L"] == length


def cuts(name: str, settings: Settings, texts: int, longest: int, length: int, train_length: int) -> Cuts:
    """The windows that a protocol feeds of `texts` texts of `longest` fed tokens, in the order of the texts."""
    own = resolved(name, settings, train_length)
    if name == "window":
        places = texts * (longest - length + 1)
        count = min(places, own["targets"] or places)
        row, start = np.divmod((2 * np.arange(count) + 1) * places // (2 * count), longest - length + 1)
        return np.stack([row, start, np.ones_like(row)], axis=1)
    if name == "same_targets":
        start, scored = np.array([longest - length]), np.array([own["k"]])
    elif name == "regret":
        start, scored = np.array([0]), np.array([length])
    elif name == "sliding":
        end = np.append(np.arange(length, longest, own["stride"]), longest)
        start, scored = end - length, np.diff(end, prepend=0)
    else:
        start = np.arange(longest % length, longest, length)
        scored = np.full_like(start, length)
    row = np.repeat(np.arange(texts), len(start))
    return np.stack([row, np.tile(start, texts), np.tile(scored, texts)], axis=1)


def where(windows: Cuts, length: int, texts: int, longest: int) -> Bool[np.ndarray, "text target"]:
    """The targets that the windows score."""
    edges = np.zeros((texts, longest + 1), np.int64)
    row, end = windows[:, 0], windows[:, 1] + length
    np.add.at(edges, (row, end - windows[:, 2]), 1)
    np.add.at(edges, (row, end), -1)
    return edges.cumsum(axis=1)[:, :-1] > 0


def tokens_fed(name: str, settings: Settings, texts: int, longest: int, length: int, train_length: int) -> int:
    return length * len(cuts(name, settings, texts, longest, length, train_length))
