"""A published table beside our own: every cell of theirs, with ours or a dash.

The numbers are posenc_train/data/published/<name>.csv, one cell a line, with their source in the comment at the top:

    scheme,train_length,length,protocol,metric,value,sd,note

Schemes are named as in our tables, protocols too; metric is perplexity, exact or token (shares). More columns where
they are needed: unit, of a perplexity (where it is word so is ours, else ours is the task's own); extension, init and
sampling, which tell ours apart; task; size, where theirs count what is asked and not tokens; model, their own name of a
model or a data set. An empty length stands for "long", and ours is that of our longest. An empty value has a note that
says why.
"""

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from posenc_train.experiments import NONE_GIVEN, PUBLISHED, Side, bare, source_of
from posenc_train.report import statistics, tables
from posenc_train.report.claims import Undecided, picked
from posenc_train.report.statistics import Order, Spread

DASH, BEST, TIED = "–", "*", "="
OURS = {"perplexity": "nll"}  # the metric of our rows, where its name is another
WIDTH = 80
LABEL = 44  # columns of a label at most

Record = dict[str, Any]


class Theirs(NamedTuple):
    """text: as it is written in the file."""

    value: float | None
    text: str


@dataclass(frozen=True)
class Ours:
    """`seeds`: seed -> value. Without any, `status` says why, "" where nothing was run."""

    seeds: Mapping[int, float]
    spread: Spread | None = None
    unit: str = ""
    status: str = ""


@dataclass(frozen=True)
class Block:
    """One protocol and metric, and one task where it has several lengths. `lines` and `columns` are labels in the
    order of the file; a cell is [line, column]. `best`: by column, the label of our best line; `ties`: those that
    cannot be told from it; `orders`: by column, Kendall's tau of our means with theirs."""

    title: str
    lines: tuple[str, ...]
    columns: tuple[str, ...]
    theirs: Mapping[tuple[str, str], Theirs]
    ours: Mapping[tuple[str, str], Ours]
    records: Mapping[tuple[str, str], Record]
    best: Mapping[str, str]
    ties: Mapping[str, set[str]]
    orders: Mapping[str, Order]


@dataclass(frozen=True)
class Beside:
    """All of a published table. Without blocks there are no published numbers, and `source` says so."""

    title: str
    source: str
    matched: tuple[str, ...]
    not_matched: tuple[str, ...]
    blocks: tuple[Block, ...]


def load(name: str) -> list[Record]:
    """The cells of a published table, as text."""
    frame = pd.read_csv(PUBLISHED / f"{name}.csv", comment="#", dtype=str, keep_default_na=False)
    return frame.to_dict("records")


def beside(frame: pd.DataFrame, experiment: Mapping[str, Any], gate: float = 0.95) -> Beside:
    """frame: as of `store.read`, the rows of one study. gate: as of `tables.summary`."""
    name, source = experiment["published"], experiment["source"]
    blocks: tuple[Block, ...] = ()
    if name is not None:
        scores = tables.final(frame, gate)
        rows = load(name)
        groups: dict[tuple, list[Record]] = {}
        for row in rows:
            groups.setdefault(_block_key(row, rows), []).append(row)
        blocks = tuple(_block(of_block, scores, gate) for of_block in groups.values())
        source = source_of(PUBLISHED / f"{name}.csv")
    return Beside(experiment["title"], source, tuple(experiment["matched"]), tuple(experiment["not_matched"]), blocks)


# ---- what a file becomes ---------------------------------------------------------------------------------


def _block_key(row: Record, rows: list[Record]) -> tuple:
    """Each of their models by itself; tasks of one length each beside each other, others below."""
    task = row.get("task", "")
    places = {_place(other) for other in rows if other.get("task", "") == task}
    return row.get("model", ""), row["protocol"], row["metric"], row.get("unit", ""), task if len(places) > 1 else ""


def _place(row: Record) -> str:
    return f"size {row['size']}" if row.get("size") else row["length"] or "long"


def _block(rows: list[Record], scores: list[Record], gate: float) -> Block:
    tasks, places = ({row.get("task", "") for row in rows}, {_place(row) for row in rows})
    trained = {row["train_length"] for row in rows}
    theirs, ours, records, units = {}, {}, {}, set()
    for row in rows:
        column = _place(row) if len(tasks) == 1 else row["task"]
        cell = _label(row, len(trained) > 1), column
        theirs[cell] = Theirs(float(row["value"]) if row["value"] else None, _written(row))
        ours[cell] = _ours(row, scores, gate)
        records[cell] = row
        units |= {ours[cell].unit} - {""}
    lines, columns = (tuple(dict.fromkeys(cell[i] for cell in theirs)) for i in (0, 1))
    unit = f" per {rows[0]['unit']}" if rows[0].get("unit") else ""
    words = [
        rows[0].get("model", ""),
        rows[0]["metric"] + unit,
        rows[0]["protocol"],
        *(tasks if len(tasks) == 1 else ()),
    ]
    words += [f"at {next(iter(places))} tokens"] if len(places) == 1 and len(tasks) > 1 else []
    words += [f"trained on {next(iter(trained))} tokens"] if len(trained) == 1 and "" not in trained else []
    words += [f"ours per {' and '.join(sorted(units))}"] if unit and units and units != {rows[0]["unit"]} else []
    judged = {column: _judged(column, lines, theirs, ours, rows[0]["metric"]) for column in columns}
    return Block(
        ", ".join(word for word in words if word), lines, columns, theirs, ours, records,
        {column: best for column, (best, _, _) in judged.items() if best},
        {column: ties for column, (_, ties, _) in judged.items() if ties},
        {column: order for column, (_, _, order) in judged.items() if order.n},
    )  # fmt: skip


def _label(row: Record, with_length: bool) -> str:
    """ "rope + pi, L=512" """
    label = row["scheme"] + (f" + {row['extension']}" if row.get("extension") else "")
    label += f" from {row['init']}" if row.get("init") else ""
    label += f", {row['sampling']}" if row.get("sampling") else ""
    label += f", L={row['train_length']}" if with_length and row["train_length"] else ""
    return label.replace("*", "")


def _written(row: Record) -> str:
    """ "23.9 ±0.6", or why there is no number."""
    return row["value"] + (f" ±{row['sd']}" if row.get("sd") else "") if row["value"] else row["note"]


def _ours(row: Record, scores: list[Record], gate: float) -> Ours:
    """Our cell for one of theirs. Ours is what is named as theirs is; of two such that differ, neither."""
    metric = OURS.get(row["metric"], row["metric"])
    names = {name: row[name] for name in ("scheme", "extension", "init", "sampling", "task") if row.get(name)}
    near = [
        score
        for score in scores
        if row.get("size", "") in ("", str(score.get("size")))
        if row["protocol"] in (score["protocol"], bare(score["protocol"]))
    ]
    if row.get("size"):
        lengths = {score["length"] for score in near if not row.get("task") or score["task"] == row["task"]}
    else:
        lengths = {int(row["length"])} if row["length"] else {max((score["length"] for score in near), default=0)}
    if len(lengths) != 1:
        return Ours({}, status="several" if lengths else "")
    side = Side(names, _whole_number(row["train_length"]), tuple(map(str, lengths)))
    try:
        found = picked(side, metric, row["protocol"], near, "word" if row.get("unit") == "word" else "")
    except Undecided as why:
        return Ours({}, status=why.short)
    values = {seed: _value(score, row["metric"]) for seed, (score,) in sorted(found.items())}
    bar = None if row["metric"] == "perplexity" else gate
    unit = next(iter(found.values()))[0]["unit"]
    return Ours(values, statistics.spread(list(values.values()), bar), unit)


def _whole_number(text: str) -> int | None:
    return int(text) if text else None


def _value(score: Record, metric: str) -> float:
    mean = score["total"] / score["count"]
    return (math.exp(mean) if mean < 700 else math.inf) if metric == "perplexity" else mean


def _judged(column: str, lines: tuple[str, ...], theirs: Mapping, ours: Mapping, metric: str) -> tuple:
    """Our best line, those tied with it (of lines with several seeds), and the order beside theirs."""
    both = [
        line for line in lines
        if (line, column) in theirs and theirs[line, column].value is not None and ours[line, column].spread
    ]  # fmt: skip
    repeated = {
        line: seeds
        for line in lines
        if (line, column) in ours and len(seeds := ours[line, column].seeds) > 1
        if all(map(math.isfinite, seeds.values()))
    }
    best, ties = statistics.tied(repeated, highest=metric != "perplexity") if len(repeated) > 1 else (None, set())
    means = [ours[line, column].spread.mean for line in both]
    return best, ties, statistics.kendall(means, [theirs[line, column].value for line in both])


# ---- what it looks like ----------------------------------------------------------------------------------


def text(table: Beside) -> str:
    """Plain text of at most 80 columns; blocks of columns where they do not fit beside each other."""
    lines = [*_wrapped(table.title), *_wrapped(table.source), *_said(table)]
    for block in table.blocks:
        lines += ["", *_wrapped(block.title), *_drawn(block), *(line for said in _orders(block) for line in said)]
    if marks := _legend(table):
        lines += ["", *_wrapped(marks)]
    return "\n".join(lines) + "\n"


def markdown(table: Beside) -> str:
    from posenc_train.report.formats import _escaped

    parts = [f"### {_escaped(table.title)}", _escaped(table.source)]
    parts += ["\n".join(f"- {_escaped(line)}" for line in _facts(table))] if _facts(table) else []
    for block in table.blocks:
        head = ["", "", *block.columns]
        body = [row for line in block.lines for row in _rows(block, line, block.columns)]
        rows = [" | ".join(map(_escaped, row)) for row in [head, *body]]
        rows.insert(1, " | ".join(["---", "---", *["---:"] * len(block.columns)]))
        parts += [_escaped(block.title), "\n".join(f"| {row} |" for row in rows)]
        parts += [_escaped(" ".join(line.strip() for line in said)) for said in _orders(block)]
    return "\n\n".join([*parts, *([_escaped(_legend(table))] if _legend(table) else [])]) + "\n"


def csv(table: Beside) -> str:
    """One line per published cell, ours beside it."""
    records = [
        {key: value for key, value in row.items() if key not in ("value", "sd", "note")} | _record(block, cell, row)
        for block in table.blocks
        for cell, row in block.records.items()
    ]
    return pd.DataFrame.from_records(records).to_csv(index=False, lineterminator="\n")


def _record(block: Block, cell: tuple[str, str], row: Record) -> Record:
    ours = block.ours[cell]
    spread = ours.spread or Spread(None, None, None, None, None, 0)
    return {
        "published": row["value"], "published_sd": row.get("sd"), "note": row.get("note"), "ours": spread.mean,
        "sd": spread.sd, "median": spread.median, "max": spread.max, "success": spread.success, "n": spread.n,
        "seeds": " ".join(map(str, ours.seeds)), "unit": ours.unit,
        "status": "ok" if ours.spread else ours.status or "not run",
    }  # fmt: skip


def _said(table: Beside) -> Iterator[str]:
    for line in _facts(table):
        yield from textwrap.wrap(line, WIDTH, subsequent_indent="  ")


def _facts(table: Beside) -> list[str]:
    said = [f"matched: {'; '.join(table.matched)}"] if table.matched else []
    said += [f"not matched: {'; '.join(table.not_matched)}"] if table.not_matched else []
    return said + ([NONE_GIVEN] if not table.blocks and NONE_GIVEN not in table.source.lower() else [])


def _rows(block: Block, line: str, columns: Iterable[str]) -> list[list[str]]:
    """Ours and theirs of one line."""
    ours, theirs = [], []
    for column in columns:
        cell = line, column
        ours.append(_our_text(block, cell) if cell in block.ours else "")
        theirs.append(block.theirs[cell].text if cell in block.theirs else "")
    return [[line, "ours", *ours], ["", "theirs", *theirs]]


def _our_text(block: Block, cell: tuple[str, str]) -> str:
    ours, (line, column) = block.ours[cell], cell
    if ours.spread is None:
        return ours.status or DASH
    mark = BEST if block.best.get(column) == line else TIED if line in block.ties.get(column, ()) else ""
    sd = "" if ours.spread.sd is None else f" ±{_short(ours.spread.sd)}"
    return f"{_short(ours.spread.mean)}{sd}{mark}"


def _short(value: float) -> str:
    """Four digits: 0.4213, 18.41, 178.9, 22,621."""
    if value >= 1000:
        return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _drawn(block: Block) -> Iterator[str]:
    body = [row for line in block.lines for row in _rows(block, line, block.columns)]
    label = min(LABEL, max(len(row[0]) for row in body))
    widths = [max(len(text) for text in [head, *(row[i + 2] for row in body)]) for i, head in enumerate(block.columns)]
    room = WIDTH - label - len(" theirs")
    for part in _parts(widths, room):
        yield " " * (WIDTH - room) + "".join(f"  {block.columns[i]:>{widths[i]}}" for i in part)
        for row in body:
            cells = "".join(f"  {row[i + 2]:>{widths[i]}}" for i in part)
            if any(row[i + 2] for i in part):
                yield f"{_cut(row[0], label):<{label}} {row[1]:<6}{cells}".rstrip()


def _cut(label: str, width: int) -> str:
    return label if len(label) <= width else label[: width - 1] + "…"


def _parts(widths: list[int], room: int) -> list[list[int]]:
    """Which columns stand beside each other."""
    parts: list[list[int]] = [[]]
    left = room
    for i, width in enumerate(widths):
        if width + 2 > left and parts[-1]:
            parts.append([])
            left = room
        parts[-1].append(i)
        left -= width + 2
    return parts


def _orders(block: Block) -> Iterator[list[str]]:
    said = [
        f"{column}: {order.tau:+.2f} of {order.n} ({order.verdict})"
        for column, order in block.orders.items()
        if order.tau is not None
    ]
    if said:
        yield textwrap.wrap(f"Kendall's tau with theirs: {'; '.join(said)}", WIDTH, subsequent_indent="  ")


def _legend(table: Beside) -> str:
    marked = any(block.best for block in table.blocks)
    return f"{BEST} our best, {TIED} not told from it by its seeds (paired t-test, Holm)" if marked else ""


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH)
