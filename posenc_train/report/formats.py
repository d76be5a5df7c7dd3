"""What a report's tables look like: in a terminal, as Markdown, as CSV."""

import html
from collections.abc import Iterator
from io import StringIO

import pandas as pd
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table as Drawn
from rich.text import Text

from posenc_train.report.tables import MARK, Cell, Column, Line, Report, Table, all_seeds, bare, heading

COSTS = {"parameters": "params", "tokens_seen": "tokens", "seconds": "train s", "tokens_per_second": "tok/s"}
FORMULAS = {"perplexity": " = exp(nll / count)", "bits per byte": " = nll / count / ln 2"}
WORDS = {
    "same_targets": " (the same last k targets, with growing context)",
    "nonoverlapping": " (every target, in windows side by side)",
    "recurrence": " (by how many tokens back the target's context last occurred)",
    "free_running": " (the model's own generation)",
    "teacher_forced": " (with the right answer so far)",
}


def title(table: Table) -> tuple[str, str]:
    """What was trained and is shown; by which protocol, in which unit, over how many targets and seeds."""
    seeds = all_seeds(table.lines)
    counts = sorted({n for line in table.lines for cell in line.cells.values() for n in cell.counts})
    scored = " to ".join(f"{n:,}" for n in dict.fromkeys([*counts[:1], *counts[-1:]])) or "no"
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ±sd over seeds {_list(seeds)}"
    return (
        f"{table.task}, {table.model}, trained on {table.train_length} tokens: "
        f"{table.quantity}{FORMULAS.get(table.quantity, '')}",
        f"{table.protocol}{WORDS.get(bare(table.protocol), '')}; {scored} scored {table.unit}s; {over}",
    )


# ---- the terminal ----------------------------------------------------------------------------------------


def show(report: Report, console: Console | None = None) -> None:
    """Prints the tables within the width of the terminal."""
    console = console or Console()
    for table in report.tables:
        for part in _parts(table, console.width):
            console.print(part)
    for note in report.notes:
        console.print(Text(note))


def render(report: Report, width: int = 80) -> str:
    """The tables as plain text of at most `width` columns."""
    out = StringIO()
    show(report, Console(file=out, width=width, color_system=None, force_terminal=False))
    return out.getvalue()


def _parts(table: Table, width: int) -> Iterator[RenderableType]:
    """Title, table, notes. Lengths that do not fit the width follow in blocks below."""
    head = ["", *(heading(table, column).replace(", ", "\n") for column in table.columns), *COSTS.values()]
    body = [[line.label, *_texts(table, line), *_cost_texts(line)] for line in table.lines]
    grid = list(zip(head, *body, strict=True))
    natural = [max(cell_len(line) for text in texts for line in text.split("\n")) for texts in grid]
    least = [max(cell_len(word) for text in [name.replace(" ", "_"), *texts] for word in text.split() or [""])
             for name, *texts in grid]  # fmt: skip
    natural[0] = least[0] = min(natural[0], max(12, width // 3))
    for text in title(table):
        yield Text(text, style="bold")
    for columns in _blocks(least, width):
        fits = sum(natural[i] + 2 for i in columns) + natural[0] <= width
        yield _block(head, body, natural if fits else least, [0, *columns])
        yield Text()
    for note in table.notes:
        yield Text(note, style="dim")
    if table.notes:
        yield Text()


def _blocks(widths: list[int], width: int) -> list[list[int]]:
    """Which columns stand beside the labels: lengths, and behind the last of them, or below, the costs together."""
    costs = list(range(len(widths) - len(COSTS), len(widths)))
    blocks: list[list[int]] = [[]]
    room = width - widths[0]
    for columns in [*([i] for i in range(1, costs[0])), costs]:
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
    for table in report.tables:
        first, second = title(table)
        head = ["scheme", *(heading(table, column) for column in table.columns), *COSTS.values()]
        body = [[line.label, *_texts(table, line), *_cost_texts(line)] for line in table.lines]
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
    """One line per cell of every table, numbers in full; `value` is empty unless `status` is ok."""
    records = [
        _record(table, line, column, line.cells[column])
        for table in report.tables
        for line in table.lines
        for column in sorted(line.cells)
    ]
    return pd.DataFrame.from_records(records).to_csv(index=False, lineterminator="\n")


def _record(table: Table, line: Line, column: Column, cell: Cell) -> dict:
    good = cell.status == "ok"
    return {
        "task": table.task, "model": table.model, "train_length": table.train_length,
        "protocol": table.protocol, "quantity": table.quantity, "unit": table.unit, "label": line.label,
        "scheme": line.scheme, "extension": line.extension, "sampling": line.sampling, "run": line.run,
        "checkpoint": line.checkpoint, "length": column.length, "factor": column.length / table.train_length,
        "slice": column.slice, "value": cell.value if good else None, "sd": cell.sd if good else None,
        "status": cell.status, "n": len(cell.seeds), "seeds": _list(cell.seeds), "count": _list(cell.counts),
        "gate": table.gate, "parameters": line.costs.get("parameters"), "tokens_seen": line.tokens_seen,
        "seconds": line.costs.get("seconds"), "tokens_per_second": line.costs.get("tokens_per_second"),
        "peak_bytes": line.costs.get("bytes"), "eval_hash": cell.eval_hash, "data": cell.data,
        "code": cell.code,
    }  # fmt: skip


# ---- cells -----------------------------------------------------------------------------------------------


def _texts(table: Table, line: Line) -> list[str]:
    return [_text(table, line, line.cells.get(column)) for column in table.columns]


def _text(table: Table, line: Line, cell: Cell | None) -> str:
    if cell is None:
        return "–"
    mark = MARK if cell.marked else ""
    if cell.status != "ok":
        return cell.status + mark
    form = _perplexity if table.quantity == "perplexity" else "{:.3f}".format
    sd = "" if cell.sd is None else f" ±{form(cell.sd)}"
    fewer = "" if cell.seeds == line.seeds else f" (n={len(cell.seeds)})"
    return f"{form(cell.value)}{mark}{sd}{fewer}"


def _perplexity(value: float) -> str:
    if value < 1000:
        return f"{value:.2f}" if value < 100 else f"{value:.1f}"
    return f"{value:,.0f}" if value < 1e5 else f"{value:.1e}"


def _cost_texts(line: Line) -> list[str]:
    return [_short(line.costs[name]) if name in line.costs else "–" for name in COSTS]


def _short(value: float) -> str:
    """Three digits: 41.3, 168k, 1.64M."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def _list(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
