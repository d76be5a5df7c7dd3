"""Samples of a task as people read them: what is fed over what should come next."""

import textwrap
from collections.abc import Sequence

from posenc_train.tasks.base import IGNORE, Batch

HEADS = ("fed", "targets", "document")


def drawn(batch: Batch, symbols: Sequence[str], width: int = 80) -> str:
    """Every sample in blocks of lines of at most `width`. _ is no target. Where nearly all symbols are of one character
    they stand close: text reads as text. One answer to a whole sequence stands below it."""
    fed = [[symbols[id] for id in row] for row in batch.inputs.tolist()]
    targets = [["_" if id == IGNORE else symbols[id] for id in row] for row in batch.targets.tolist()]
    documents = [] if batch.doc is None else [[str(doc) for doc in row] for row in batch.doc.tolist()]
    whole = batch.targets.shape[1] < batch.inputs.shape[1]
    rows = zip(fed, *([] if whole else [targets]), *([documents] if documents else []), strict=True)
    samples = [list(zip(*lines, strict=True)) for lines in rows]
    widths = [len(cell) for sample in samples for column in sample for cell in column]
    gap = "" if sum(wide > 1 for wide in widths) <= 0.1 * len(widths) else " "
    indent = max(map(len, HEADS[: 3 if documents else 2])) + 2
    below = [f"\n{'answer':<{indent}}{answer}" if whole else "" for (answer, *_) in targets]
    drawn = (_sample(sample, gap, width, indent) + answer for sample, answer in zip(samples, below, strict=True))
    return "\n\n".join(drawn)


def folded(paragraph: str, width: int = 80) -> str:
    """A docstring's drawing, its lines cut at the same tokens where they are wider; what is no drawing is filled."""
    lines, begin = paragraph.splitlines(), len("    targets  ")
    if not paragraph.startswith(" "):
        return textwrap.fill(" ".join(paragraph.split()), width)
    if max(map(len, lines)) <= width:
        return paragraph
    room = (width - begin) // 2 * 2
    starts = range(begin, max(map(len, lines)), room)
    return "\n".join(f"{line[:begin]}{line[start : start + room]}".rstrip() for start in starts for line in lines)


def _sample(columns: Sequence[Sequence[str]], gap: str, width: int, indent: int) -> str:
    """Columns of cells, one cell for each of HEADS, broken into blocks that fit."""
    blocks, used = [[]], 0
    for column in columns:
        wide = max(map(len, column))
        if used + wide > width - indent:
            blocks, used = [*blocks, []], 0
        blocks[-1].append([cell.ljust(wide) for cell in column])
        used += wide + len(gap)
    return "\n".join(
        f"{head:<{indent}}{gap.join(cells)}".rstrip()
        for block in blocks
        for head, cells in zip(HEADS, zip(*block, strict=True), strict=False)
    )
