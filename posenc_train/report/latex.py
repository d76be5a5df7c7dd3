"""Tables for a paper: booktabs, the best of each column bold, and what its seeds do not tell from the best marked.

The comparison is that of `statistics.tied`: paired differences over seeds, Holm over the column. Where all lines have
one seed, the least or greatest number is bold and the caption says that nothing tells it from the others. What is
compared are numbers alike: of the same part (a depth, …), of the same data and code as the rest of the table, measured.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator

from posenc_train.report import statistics
from posenc_train.report.derived import GAIN, LONGER, WORTH
from posenc_train.report.formats import _cost_texts, _costs, _texts, shown, title
from posenc_train.report.published import BEST, TIED, Beside, Block, _rows
from posenc_train.report.tables import NAMES, Cell, Column, Report, Table, heading

HIGHEST = (*NAMES.values(), GAIN, LONGER)  # quantities of which more is better
LOWEST = ("perplexity", "bits per byte", "word perplexity", "regret")  # of others there is no best: a ratio, a length
SIGN = "$^{=}$"  # of a tie
SIGNS = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "[": "{[}", "]": "{]}", "*": "{*}",
    "`": r"\textasciigrave{}", "'": r"\textquotesingle{}", "±": r"$\pm$", "≥": r"$\geq$", "–": "--",
    "†": r"$^{\dagger}$", "…": r"\ldots{}",
} | {sign: f"\\{sign}" for sign in "{}$%&#_"}  # fmt: skip


NEEDS = r"% needs \usepackage{booktabs} and, for names with quotation marks, \usepackage[T1]{fontenc}, textcomp"


def text(report: Report) -> str:
    """All tables that are shown, each a float with its caption; what they need is said in the first line."""
    parts = [NEEDS, *(_table(table, report.tolerance) for table in shown(report))]
    return "\n\n".join([*parts, *(f"% {' '.join(note.split())}" for note in report.notes)]) + "\n"


def published(table: Beside) -> str:
    """A published table with ours beside it, a float for each of its blocks. Marks are of ours."""
    return "\n\n".join([NEEDS, *(_block(block, table.source) for block in table.blocks)]) + "\n"


def _block(block: Block, source: str) -> str:
    body = []
    for line in block.lines:
        ours, theirs = ([escaped(cell) for cell in cells] for cells in _rows(block, line, block.columns))
        for place, column in enumerate(block.columns, start=2):
            best, tied = block.best.get(column) == line, line in block.ties.get(column, ())
            if best or tied:
                said = ours[place].removesuffix(escaped(BEST if best else TIED))
                ours[place] = marked(said, "best" if best else "tied")
        body += [ours, theirs]
    marks = {"best"} if block.best else set()
    marks |= {"tied"} if block.ties else set()
    caption = " ".join([escaped(f"{block.title}. Theirs: {source}"), *_legend(marks, one=False)])
    return _float(caption, ["", "", *block.columns], 2, body)


def _table(table: Table, tolerance: float) -> str:
    costs, marks = _costs(table), _marks(table)
    head = ["scheme", *(heading(table, column) for column in table.columns), *costs.values()]
    body = []
    for number, line in enumerate(table.lines):
        cells = [
            marked(escaped(said), marks.get((number, column)))
            for column, said in zip(table.columns, _texts(table, line), strict=True)
        ]
        body.append([escaped(line.label), *cells, *map(escaped, _cost_texts(line, costs))])
    first, second = title(table, tolerance)
    one = all(len(line.seeds) < 2 for line in table.lines)
    caption = " ".join([escaped(f"{first}. {second}."), *_legend(set(marks.values()), one)])
    return _float(caption, head, 1, body, table.notes)


def _float(caption: str, head: list[str], left: int, body: list[list[str]], notes: Iterable[str] = ()) -> str:
    """caption and body are LaTeX already; the first `left` columns begin at their left."""
    columns = "l" * left + "r" * (len(head) - left)
    lines = [
        r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule",
        _row(map(escaped, head)), r"\midrule", *map(_row, body), r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
    lines += [r"\par\smallskip\footnotesize " + r"\\ ".join(map(escaped, notes))] if notes else []
    return "\n".join([*lines, r"\end{table}"])


def _row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _legend(marks: Collection[str], one: bool) -> Iterator[str]:
    """one: whether every line has one seed."""
    if "best" in marks:
        yield r"\textbf{Bold}: the best" + ("; one seed tells it from no other." if one else ".")
    if "tied" in marks:
        yield f"{SIGN}: not told from it by its seeds (paired $t$-test, Holm)."


def _marks(table: Table) -> dict[tuple[int, Column], str]:
    """{(number of the line, column): "best" or "tied"}"""
    marks = {}
    for column in table.columns:
        for part in dict.fromkeys(line.part for line in table.lines):
            cells = {
                i: cell
                for i, line in enumerate(table.lines)
                if line.part == part and (cell := line.cells.get(column)) and cell.values and _compared(table, cell)
            }
            marks |= {(i, column): mark for i, mark in _judged(cells).items()}
    return marks


def _compared(table: Table, cell: Cell) -> bool:
    known = (GAIN, LONGER) if table.quantity == WORTH else (*HIGHEST, *LOWEST)
    return cell.status == "ok" and not cell.marked and cell.quantity in known and all(map(math.isfinite, cell.values))


def _judged(cells: dict[int, Cell]) -> dict[int, str]:
    """A column, or a part of it: which lines are best and which tied with the best; nothing where there is but one."""
    if len(cells) < 2:
        return {}
    highest = next(iter(cells.values())).quantity in HIGHEST
    values = {str(i): dict(zip(cell.seeds, cell.values, strict=True)) for i, cell in cells.items()}
    best, ties = statistics.tied(values, highest)
    equal = {i: "best" for i, cell in cells.items() if cell.value == cells[int(best)].value}
    several = any(len(cell.seeds) > 1 for cell in cells.values())
    return ({int(i): "tied" for i in ties} if several else {}) | equal


def marked(said: str, mark: str | None) -> str:
    return rf"\textbf{{{said}}}" if mark == "best" else said + SIGN if mark == "tied" else said


def escaped(words: str) -> str:
    """One line in which LaTeX finds no command of its own; a minus before a number is one."""
    words = "".join(SIGNS.get(sign, sign) for sign in " ".join(words.split()))
    return re.sub(r"(?<![\w.)}-])-(?=\d)", "$-$", words)
