"""Samples of a task as people read them: what is fed over what should come next."""

from collections.abc import Sequence
from itertools import zip_longest

from posenc_train.tasks.base import IGNORE, Batch

HEADS = ("fed", "targets", "document")


def drawn(batch: Batch, symbols: Sequence[str], width: int = 80) -> str:
    """Every sample in blocks of lines of at most `width`. _ is no target. Where nearly all symbols are of one character
    they stand close: text reads as text."""
    fed = [[symbols[id] for id in row] for row in batch.inputs.tolist()]
    targets = [["_" if id == IGNORE else symbols[id] for id in row] for row in batch.targets.tolist()]
    documents = [] if batch.doc is None else [[str(doc) for doc in row] for row in batch.doc.tolist()]
    rows = zip(fed, targets, *([documents] if documents else []), strict=True)
    samples = [list(zip_longest(*lines, fillvalue="")) for lines in rows]  # one answer to a whole stands at its start
    widths = [len(cell) for sample in samples for column in sample for cell in column]
    gap = "" if sum(wide > 1 for wide in widths) <= 0.1 * len(widths) else " "
    return "\n\n".join(_sample(sample, gap, width) for sample in samples)


def _sample(columns: Sequence[Sequence[str]], gap: str, width: int) -> str:
    """Columns of cells, one cell for each of HEADS, broken into blocks that fit."""
    blocks, used = [[]], 0
    indent = max(map(len, HEADS[: len(columns[0])])) + 2
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
