"""What a report's tables look like: in a terminal, as Markdown, as CSV and parquet (in latex.py: as LaTeX)."""

import html
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO, StringIO

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Drawn
from rich.text import Text

from posenc_train.evaluation.rows import ALONG
from posenc_train.report import statistics
from posenc_train.report.derived import GAIN, LONGER, RATIO, STARVED, USABLE, WORTH
from posenc_train.report.tables import (
    MARK,
    NAMES,
    Cell,
    Column,
    Line,
    Report,
    Table,
    all_seeds,
    annotated,
    bare,
    heading,
    is_few,
    short,
)

COSTS = {"parameters": "params", "tokens_seen": "tokens", "seconds": "train s", "tokens_per_second": "tok/s"}
FORMULAS = {
    "perplexity": " = exp(nll / count)",
    "word perplexity": " = exp(nll / words)",
    "bits per byte": " = nll / count / ln 2",
    "regret": " = (nll - that of the best predictor) / count, in nats",
}
WORDS = {
    "same_targets": " (the same last k targets, with growing context)",
    "nonoverlapping": " (every target of windows side by side)",
    "sliding": " (every target once, with all the context that the stride leaves)",
    "masked_window": " (windows side by side, a query sees the last L keys)",
    "window": " (from the L tokens before, fed alone)",
    "recurrence": " (by how many tokens back the target's context last occurred)",
    "regret": " (texts from their beginning)",
    "classified": " (one answer a sequence)",
    "free_running": " (the model's own generation)",
    "teacher_forced": " (with the right answer so far)",
}
AGAIN = ("bits per byte", "word perplexity")  # of losses that are shown as perplexity too
LOOK = {  # protocol -> what is shown, of the tables of what longer context is worth; the rest is in the CSV
    "same_targets": (GAIN, RATIO, USABLE),
    "nonoverlapping": (STARVED, LONGER),
    "free_running": (RATIO, USABLE),
    "classified": (RATIO, USABLE),
}


def title(table: Table, tolerance: float = 0.05) -> tuple[str, str]:
    """What was trained and is shown; by which protocol, in which unit, over how many targets and seeds."""
    seeds = all_seeds(table.lines)
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ±sd over seeds {_list(seeds)}"
    what = f"{table.task}, {table.model}, trained on {table.train_length} tokens: {table.quantity}"
    what += " per token" * (table.quantity == "perplexity" and table.unit == "token")  # of text, there is one per byte
    if table.quantity == WORTH:
        return what, f"{table.protocol}: {_worth(table, tolerance)}; {over}"
    counts = sorted({n for line in table.lines for cell in line.cells.values() for n in cell.counts})
    scored = " to ".join(f"{n:,}" for n in dict.fromkeys([*counts[:1], *counts[-1:]])) or "no"
    by = {"": "", ALONG: ", along the training"}.get(table.by, f", by {table.by}")
    return (
        f"{what}{FORMULAS.get(table.quantity, '')}{by}",
        f"{table.protocol}{WORDS.get(bare(table.protocol), '')}; {scored} scored {table.unit}s; {over}",
    )


def _worth(table: Table, tolerance: float) -> str:
    if bare(table.protocol) == "nonoverlapping":
        return (
            f"by how many nats per {table.unit} the loss falls from 1x, and why (fewer starved tokens, longer context)"
        )
    if table.unit == "target":
        return f"share at a length / share at 1x; usable to: at least {1 - tolerance:g} of 1x"
    return (
        f"nats per {table.unit} gained over 1x on the same targets (positive: longer context helps), perplexity / "
        f"perplexity at 1x; usable to: perplexity at most {1 + tolerance:g} times that of 1x"
    )


def shown(report: Report) -> Iterator[Table]:
    """The tables in the order in which they are read, task by task, without what only the CSV holds."""
    worth = [_short_of_it(table) for table in report.worth if bare(table.protocol) in LOOK]
    main = [table for table in report.along if bare(table.protocol) in ("same_targets", "free_running", "classified")]
    along = [table for table in main or report.along if table.quantity in ("perplexity", "token accuracy")]
    every = [*report.tables, *report.parts, *worth, *along]
    for trained in dict.fromkeys((table.task, table.model, table.train_length) for table in every):
        of = [table for table in every if (table.task, table.model, table.train_length) == trained]
        yield from (table for table in of if table.columns)


def _short_of_it(table: Table) -> Table:
    """Ratios at the longest length alone."""
    looked_at = {c: cell.quantity for line in table.lines for c, cell in line.cells.items()}
    longest = max(column.length for column in table.columns)
    columns = [
        column
        for column in table.columns
        if looked_at[column].startswith(LOOK[bare(table.protocol)])
        if column.length == longest or not looked_at[column].startswith(RATIO)
    ]
    cells = [{column: cell for column, cell in line.cells.items() if column in columns} for line in table.lines]
    lines = [replace(line, cells=own) for line, own in zip(table.lines, cells, strict=True) if own]
    return annotated(replace(table, columns=tuple(columns), lines=tuple(lines), notes=()))


# ---- the terminal ----------------------------------------------------------------------------------------


def show(report: Report, console: Console | None = None) -> None:
    """Prints the tables within the width of the terminal, each loss in one unit: the files have the others."""
    console = console or Console()
    tables = list(shown(report))
    for table in tables:
        if table.quantity not in AGAIN:
            for part in _parts(table, console.width, report.tolerance):
                console.print(part)
    if again := [quantity for quantity in AGAIN if any(table.quantity == quantity for table in tables)]:
        console.print(Text(f"the same losses as {' and '.join(again)}: table.md, table.csv"))
    for note in report.notes:
        console.print(Text(note))


def render(report: Report, width: int = 80) -> str:
    """The tables as plain text of at most `width` columns."""
    out = StringIO()
    show(report, Console(file=out, width=width, color_system=None, force_terminal=False))
    return out.getvalue()


def _parts(table: Table, width: int, tolerance: float) -> Iterator[RenderableType]:
    """Title, table, notes. Lengths that do not fit the width follow in blocks below."""
    costs = _costs(table)
    head = ["", *(heading(table, column).replace(", ", "\n") for column in table.columns), *costs.values()]
    body = [[line.label, *_texts(table, line), *_cost_texts(line, costs)] for line in table.lines]
    grid = list(zip(head, *body, strict=True))
    natural = [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in grid]
    least = [max(cell_len(word) for text in [name.replace(" ", "_"), *texts] for word in text.split() or [""])
             for name, *texts in grid]  # fmt: skip
    natural[0] = least[0] = min(natural[0], max(12, width // 3))
    for text in title(table, tolerance):
        yield Text(text, style="bold")
    for columns in _blocks(least, width, len(costs)):
        fits = sum(natural[i] + 2 for i in columns) + natural[0] <= width
        yield _block(head, body, natural if fits else least, [0, *columns])
        yield Text()
    for note in table.notes:
        yield Text(note, style="dim")
    if table.notes:
        yield Text()


def _costs(table: Table) -> dict[str, str]:
    """Costs stand beside the numbers of whole runs."""
    return {} if table.by or table.quantity == WORTH else COSTS


def _blocks(widths: list[int], width: int, costs: int) -> list[list[int]]:
    """Which columns stand beside the labels: lengths, and behind the last of them, or below, the costs together."""
    last = list(range(len(widths) - costs, len(widths)))
    blocks: list[list[int]] = [[]]
    room = width - widths[0]
    for columns in [*([i] for i in range(1, len(widths) - costs)), last]:
        needed = sum(widths[i] + 2 for i in columns)
        if needed > room and blocks[-1]:
            blocks.append([])
            room = width - widths[0]
        blocks[-1] += columns
        room -= needed
    return blocks


def _block(head: list[str], body: list[list[str]], widths: list[int], columns: list[int]) -> Drawn:
    drawn = Drawn(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for i in columns:  # the divider is one space wide, the other one between two columns is in the second one
        look = {"justify": "right", "width": widths[i] + 1} if i else {"width": widths[i]}
        drawn.add_column(Text(head[i]), overflow="fold", **look)
    for row in body:
        drawn.add_row(*(Text(row[i]) for i in columns))
    return drawn


# ---- files -----------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """All tables in Markdown, safe whatever names the study's schemes, tasks and models have."""
    parts = [f"# {_escaped(', '.join(report.studies))}"]
    for table in shown(report):
        first, second = title(table, report.tolerance)
        costs = _costs(table)
        head = ["scheme", *(heading(table, column) for column in table.columns), *costs.values()]
        body = [[line.label, *_texts(table, line), *_cost_texts(line, costs)] for line in table.lines]
        rows = [" | ".join(_escaped(text) for text in row) for row in [head, *body]]
        rows.insert(1, " | ".join(["---", *["---:"] * (len(head) - 1)]))
        parts += [f"### {_escaped(first)}", _escaped(second), "\n".join(f"| {row} |" for row in rows)]
        parts += ["\n".join(f"- {_escaped(note)}" for note in table.notes)] if table.notes else []
    return "\n\n".join([*parts, *(_escaped(note) for note in report.notes)]) + "\n"


def _escaped(text: str) -> str:
    text = html.escape(text, quote=False)
    for sign in "\\`*_{}[]~$|#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def csv(report: Report) -> str:
    return frame(report).to_csv(index=False, lineterminator="\n")


def parquet(report: Report) -> bytes:
    """What `csv` has, with the types of its columns."""
    out = BytesIO()
    frame(report).to_parquet(out, index=False)
    return out.getvalue()


def frame(report: Report) -> pd.DataFrame:
    """One line per cell of every table, numbers in full; `value` is missing unless `status` is ok. `by` says of which
    kind: empty, or the name of the parts (depth, …), or "training" for what was measured along it, its end included.
    """
    records = [
        _record(table, line, column, line.cells[column])
        for table in (*report.tables, *report.parts, *report.worth, *report.along)
        for line in table.lines
        for column in sorted(line.cells)
    ]
    return pd.DataFrame.from_records(records)


def _record(table: Table, line: Line, column: Column, cell: Cell) -> dict:
    good, along = cell.status == "ok", table.by == ALONG
    length = int(line.part.split()[1]) if along else column.length
    low, high = cell.interval if good and cell.interval else (None, None)
    bar = table.gate if cell.quantity in NAMES.values() else None
    seeds = statistics.spread(cell.values, bar) if cell.values else None
    return {
        "task": table.task, "model": table.model, "train_length": table.train_length,
        "protocol": table.protocol, "quantity": cell.quantity, "unit": table.unit, "label": line.label,
        "scheme": line.scheme, "extension": line.extension, "sampling": line.sampling, "run": line.run,
        "checkpoint": line.checkpoint, "length": length, "factor": length / table.train_length,
        "slice": "" if table.quantity == WORTH else column.slice, "by": "training" if along else table.by,
        "part": "" if along else line.part,
        "value": cell.value if good else None, "sd": cell.sd if good else None,
        **{name: getattr(seeds, name, None) for name in ("median", "max", "success")}, "low": low, "high": high,
        "status": cell.status, "n": len(cell.seeds), "seeds": _list(cell.seeds), "count": _list(cell.counts),
        "gate": table.gate, "parameters": line.costs.get("parameters"),
        "tokens_seen": column.length if along else line.tokens_seen,
        "seconds": line.costs.get("seconds"), "tokens_per_second": line.costs.get("tokens_per_second"),
        "peak_bytes": line.costs.get("bytes"), "eval_hash": cell.eval_hash, "data": cell.data,
        "code": cell.code,
    }  # fmt: skip


# ---- cells -----------------------------------------------------------------------------------------------


def _texts(table: Table, line: Line) -> list[str]:
    return [_text(line, column, line.cells.get(column)) for column in table.columns]


def _text(line: Line, column: Column, cell: Cell | None) -> str:
    if cell is None:
        return "–"
    mark = MARK if cell.marked else ""
    if cell.status != "ok":
        return cell.status + mark
    if cell.quantity.startswith(USABLE):
        return f"{'≥' * (cell.value == column.length)}{cell.value:.0f}{mark}"
    form = _perplexity if "perplexity" in cell.quantity or cell.quantity.startswith(RATIO) else "{:.3f}".format
    difference = cell.quantity in (GAIN, STARVED, LONGER)
    plus = "+" * (difference and cell.value >= 0)
    sd = "" if cell.sd is None else f" ±{form(cell.sd)}"
    ends = "" if cell.interval is None else " ({:.2f}–{:.2f})".format(*cell.interval)
    ends = " ({:.3f}…{:.3f})".format(*cell.interval) if ends and difference else ends
    fewer = "" if cell.seeds == line.seeds else f" (n={len(cell.seeds)})"
    few = f" (of {min(cell.counts)})" if is_few(cell) else ""
    return f"{plus}{form(cell.value)}{mark}{sd}{ends}{few}{fewer}"


def _perplexity(value: float) -> str:
    if value < 1000:
        return f"{value:.2f}" if value < 100 else f"{value:.1f}"
    return f"{value:,.0f}" if value < 1e5 else f"{value:.1e}"


def _cost_texts(line: Line, costs: dict[str, str]) -> list[str]:
    return [short(line.costs[name]) if name in line.costs else "–" for name in costs]


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
