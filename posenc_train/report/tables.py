"""From rows to tables: the only place where a sum is divided by a count (what follows from two of these numbers is in
derived.py).

What stands together in one table has the same task, model, train length, protocol, unit and quantity. A line
of it is one scheme, extension, sampling and training configuration; a column is one length. What a cell
averages are seeds and nothing else: perplexity is exp(total / count) of each seed, then the mean of these.
"""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from posenc_train.evaluation.rows import ALONG
from posenc_train.report import statistics
from posenc_train.report.derived import SHORT, WORTH, derived
from posenc_train.report.intervals import wilson
from posenc_train.report.store import SCORED

TASKS = ("text", "copy")  # the order of tables; anything else follows by name
PROTOCOLS = (
    "same_targets", "nonoverlapping", "sliding", "masked_window", "window", "regret", "free_running", "teacher_forced",
    "classified",
)  # fmt: skip
QUANTITIES = ("perplexity", "bits per byte", "word perplexity", "regret", "token accuracy", "exact match", "stopping")
SCHEMES = (  # those of the quickstart, then others by family; anything else follows by name
    "nope", "sinusoidal", "learned", "rope", "alibi", "t5", "integer", "p_rope", "xpos", "fope", "pope",
    "inverse", "clipped", "log2", "kerple_log", "kerple_power", "sandwich", "fire",
)  # fmt: skip
NAMES = {"token": "token accuracy", "exact": "exact match", "stops": "stopping"}  # a row's metric, in words
MEANINGS = {
    "beyond reach": "the scheme cannot represent this length",
    "not finite": "the sum was NaN or infinite",
    "out of memory": "not measured on this machine",
    "1x not measured": "without a length up to the trained one nobody knows whether it was learned",
}
PROVENANCE = {"eval_hash": "evaluation data (eval_hash)", "data": "training data (data)", "code": "code"}
DISTINCTIONS = {  # what tells two lines of one scheme apart, and how their labels say so; # is the run's hash
    "study": "in ", "recipe": "#", "checkpoint": "@", "data": "data ", "eval_hash": "evaluation ",
    "code": "code ", "tokens_seen": "tokens ", "cell": "#",
}  # fmt: skip
BY_POSITION = ("per_position", "regret")  # protocols of which there are curves
EXAMPLES = "in brackets: 95 % interval (Wilson) over the examples"
DOCUMENTS = (
    "in brackets: 95 % interval over the evaluation's documents, resampled (bootstrap): what another text would "
    "change, and not another training"
)
CLUSTERED = ", each taken as wholly right or wrong: never too narrow for tokens that go together"
MARK = "†"
FEW = 30  # targets

Record = dict[str, Any]  # a row of the frame

_TABLE = ("task", "model", "train_length", "protocol", "quantity", "unit", "by")
_LINE = ("study", "scheme", "extension", "sampling", "recipe", "checkpoint", "tokens_seen", "part")
_COLUMN = ("length", "slice")
_MODEL = ("study", "cell", "protocol", "checkpoint")
_SAME_MEASUREMENT = [  # of two rows that differ in nothing but their code, the later one counts
    "study", "cell", "extension", "checkpoint", "tokens_seen", "length", "protocol", "slice", "metric",
    "unit", "eval_hash", "data",
]  # fmt: skip


class Column(NamedTuple):
    """`length` is tokens fed; `slice` says in words which part was scored: "size 24", or ""."""

    length: int
    slice: str


@dataclass(frozen=True)
class Cell:
    """Mean over seeds, its sample standard deviation (None for one seed) and, unless one of them has no number, the
    `values` of the seeds. `counts`: the numbers of scored targets that occur. `interval`: 95 %, of a rate over the
    examples that one seed was asked (see intervals.py), of a difference of losses, where there is one seed, over its
    resampled documents. `quantity`: what it is, where a table holds several. Whoever shows a `value` whose `status` is
    not "ok" shows the status with it."""

    value: float | None
    sd: float | None
    seeds: tuple[int, ...]
    counts: tuple[int, ...]
    status: str
    eval_hash: str
    data: str
    code: str
    quantity: str
    interval: tuple[float, float] | None = None
    marked: bool = False
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Line:
    """One scheme in one table. `costs` are means over seeds and may lack any of their keys. `part`: in a table by parts
    or along the training, which part or length it is of."""

    label: str
    scheme: str
    extension: str
    sampling: str
    run: str  # the 8 hex digits its first seed's folder name ends with
    checkpoint: str
    tokens_seen: int
    seeds: tuple[int, ...]
    costs: dict[str, float]
    cells: dict[Column, Cell]
    part: str = ""


@dataclass(frozen=True)
class Table:
    """All lines of one (task, model, train length, protocol, quantity, unit). `by`: what tells parts of the scored
    targets apart, each a line ("depth"); ALONG: lines are lengths, and a column's `length` is tokens seen in training.
    """

    task: str
    model: str
    train_length: int
    protocol: str
    quantity: str
    unit: str
    by: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    gate: float
    notes: tuple[str, ...] = ()


class Curve(NamedTuple):
    """Loss by position of one line at one length. `points`: rows as dicts, one per seed and bucket; their `floor` is
    the total of the best predictor, or NaN."""

    label: str
    scheme: str
    length: int
    points: list[Record]


class Curves(NamedTuple):
    """The loss-by-position curves of one (task, model, train length, protocol, unit)."""

    task: str
    model: str
    train_length: int
    protocol: str
    unit: str
    seeds: tuple[int, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Report:
    """What a study says; `formats` shows its tables and `figures` draws it.

    `parts`: the same numbers by depth, corpus, …; `worth`: what follows from two lengths; `along`: by tokens seen,
    where the training was measured on its way. `tolerance`: within which a length is usable.
    """

    studies: tuple[str, ...]
    tables: tuple[Table, ...]
    curves: tuple[Curves, ...]
    notes: tuple[str, ...] = ()
    parts: tuple[Table, ...] = ()
    worth: tuple[Table, ...] = ()
    along: tuple[Table, ...] = ()
    tolerance: float = 0.05


def summary(
    frame: pd.DataFrame, gate: float = 0.95, tolerance: float = 0.05, documents: pd.DataFrame | None = None
) -> Report:
    """Tables and curves from the rows of `store.read`.

    Where a cell was evaluated twice by different code, the last row counts. `gate`: a model whose token
    accuracy at the longest length up to its train length is below this has not learned the task, and its
    longer cells say so. `tolerance`: a length is usable while perplexity is at most 1 + tolerance times that of the
    trained length, or accuracy at least 1 - tolerance times. documents: as of `store.documents`.
    """
    rows = [_folded(row) for row in frame.drop_duplicates(_SAME_MEASUREMENT, keep="last").to_dict("records")]
    asked = {_sitting(row): row["count"] for row in rows if row["metric"] == "exact" and row["status"] == "ok"}
    training = [row for row in rows if row["protocol"] == "training"]
    above = {_place(row): row["total"] for row in rows if row["metric"] == "regret" and row["status"] == "ok"}
    losses = [
        row | {"quantity": "loss", "floor": row["total"] - above.get(_place(row), math.nan)}
        for row in rows
        if bare(row["protocol"]) in BY_POSITION and row["metric"] == "nll" and not _along(row)
    ]
    scores = list(_gated([score for row in rows for score in _scores(row, asked)], gate))
    last = [score for score in scores if not _along(score)]
    worth = list(derived([score for score in last if not score["by"]], tolerance))
    for record, interval in _resampled(worth, documents):
        record["interval"] = interval
    costs = _costs(training)

    def tables(of: Iterable[Record]) -> tuple[Table, ...]:
        made = [_table(key, of_table, costs, gate) for key, of_table in _grouped(of, _TABLE).items()]
        return tuple(sorted(made, key=_table_order))

    curves = [_curves(key, of_table) for key, of_table in _grouped(losses, _TABLE).items()]
    unfinished = frame.attrs.get("unfinished", ())
    whole = tables(score for score in last if not score["by"])
    return Report(
        studies=tuple(sorted({row["study"] for row in rows})),
        tables=whole,
        curves=tuple(sorted(curves, key=lambda c: (_rank(TASKS, c.task), c.model, c.train_length, c.protocol))),
        notes=(
            *_apart(whole),
            *((f"runs without rows, not in these tables: {', '.join(unfinished)}",) * bool(unfinished)),
            *frame.attrs.get("notes", ()),
        ),
        parts=tables(score for score in last if score["by"]),
        worth=tables(itertools.chain.from_iterable(of for of in _grouped(worth, _TABLE).values() if _any_known(of))),
        along=tables(_by_tokens(scores)),
        tolerance=tolerance,
    )


# ---- what rows become ------------------------------------------------------------------------------------


def _grouped(rows: Iterable[Record], keys: tuple[str, ...]) -> dict[tuple, list[Record]]:
    groups: dict[tuple, list[Record]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def _any_known(rows: Iterable[Record]) -> bool:
    return any(row["status"] == "ok" for row in rows)


def _folded(row: Record) -> Record:
    """The row with its slice in words, but for what makes lines of their own, where columns would be too wide: `by` is
    its name, such as depth, and `part` its value."""
    words = json.loads(row["slice"])
    by = [name for name in words if name not in ("size", "position")]
    told = ", ".join(f"{name} {value}" for name, value in words.items() if name not in by)
    return row | {"by": ", ".join(by), "part": ", ".join(str(words[name]) for name in by), "slice": told}


def _part_order(part: str) -> tuple[float, str]:
    """ "0.25" before "0.5" before "65-128" before "never"."""
    number = re.match(r"[0-9.]+", part)
    return (float(number[0]) if number else math.inf, part)


def _along(row: Record) -> bool:
    return row["checkpoint"].startswith(ALONG)


def _sitting(row: Record) -> tuple:
    """Equal for the metrics of one evaluation of the same examples."""
    names = ("study", "cell", "extension", "checkpoint", "length", "protocol", "by", "part", "eval_hash", "code")
    return tuple(row[name] for name in names)


def _place(row: Record) -> tuple:
    """Equal for the loss of some targets and for how far it is above the optimum."""
    names = ("study", "cell", "extension", "checkpoint", "length", "protocol", "slice", "eval_hash")
    return tuple(row[name] for name in names)


def _scores(row: Record, asked: dict[tuple, int]) -> Iterator[Record]:
    """The row with `quantity` and `value`, the divided number (None if there is none), once for each quantity
    that is made of it. asked: the number of examples of a sitting."""
    protocol = bare(row["protocol"])
    if protocol in ("training", "per_position") or row["slice"].startswith("position"):
        return
    ratio = row["total"] / row["count"] if row["status"] == "ok" else None
    row = row | {"mean": ratio, "examples": row["count"] if row["unit"] == "example" else asked.get(_sitting(row))}
    if row["metric"] != "nll":
        yield row | {"quantity": NAMES.get(row["metric"], row["metric"]), "value": ratio}
        return
    yield row | {"quantity": "word perplexity" if row["unit"] == "word" else "perplexity", "value": _exp(ratio)}
    if protocol in ("nonoverlapping", "sliding") and row["unit"] == "byte":
        yield row | {"quantity": "bits per byte", "value": None if ratio is None else ratio / math.log(2)}


def _by_tokens(scores: list[Record]) -> Iterator[Record]:
    """The scores of trainings that were measured on their way, their end included: a line is a length, a column the
    tokens seen."""
    measured = {(row["study"], row["cell"]) for row in scores if _along(row)}
    for row in scores:
        ours = (row["study"], row["cell"]) in measured and " " not in row["checkpoint"]  # "last@400 edited 1a2b3c4d"
        if ours and not row["by"]:
            at = {"by": ALONG, "part": f"{row['length'] / row['train_length']:.3g}x {row['length']}"}
            yield row | at | {"length": row["tokens_seen"], "slice": "", "checkpoint": "", "tokens_seen": 0}


def _exp(value: float | None) -> float | None:
    try:
        return None if value is None else math.exp(value)
    except OverflowError:
        return math.inf


def _costs(rows: list[Record]) -> dict[tuple[str, str], dict[str, float]]:
    """{(study, cell): {"parameters": …, "seconds": …, "tokens_per_second": …, "bytes": …}}, if measured."""
    costs: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["status"] == "ok":
            cost = costs.setdefault((row["study"], row["cell"]), {})
            cost[row["metric"]] = row["total"]
            if row["metric"] == "seconds" and row["total"] > 0:
                cost["tokens_per_second"] = row["tokens_seen"] / row["total"]
    return costs


def _gated(scores: list[Record], gate: float) -> Iterator[Record]:
    """Turns the status of accuracies beyond the train length to "not learned" where 1x failed.

    A model is judged by its plain self: by the row without extension, where there is one.
    """
    judges: dict[tuple, tuple[tuple, float | None]] = {}
    for row in scores:
        if row["quantity"] == "token accuracy" and row["length"] <= row["train_length"] and not row["by"]:
            key, rank = tuple(row[name] for name in _MODEL), (row["extension"] == "none", row["length"])
            if key not in judges or rank >= judges[key][0]:
                judges[key] = rank, row["value"]
    for row in scores:
        asked = row["quantity"] in NAMES.values() and row["length"] > row["train_length"] and row["status"] == "ok"
        key = tuple(row[name] for name in _MODEL)
        if asked and key not in judges:
            yield row | {"status": "1x not measured"}
        elif asked and not (judges[key][1] or 0.0) >= gate:
            yield row | {"status": "not learned"}
        else:
            yield row


def _resampled(worth: list[Record], documents: pd.DataFrame | None) -> Iterator[tuple[Record, tuple | None]]:
    """The differences of losses of what has one seed, each with its interval over the documents that all of them were
    scored on, where those are known."""
    if documents is None or documents.empty:
        return
    made = [record for record in worth if record.get("parts") and record["status"] == "ok"]
    by_row = {key: of_row.set_index("document")[["total", "count"]] for key, of_row in documents.groupby(list(SCORED))}
    kinds = ("study", "scheme", "extension", "sampling", "recipe", "length", "protocol", "of")
    for same in _grouped(made, kinds).values():
        for record in same if len({row["seed"] for row in same}) == 1 else ():
            sums = [by_row.get(tuple(row[name] for name in SCORED)) for _, row in record["parts"]]
            if any(of_row is None for of_row in sums) or any(set(of_row.index) - set(sums[0].index) for of_row in sums):
                continue
            # `window` has targets in some documents alone.
            sums = [of_row.reindex(sums[0].index, fill_value=0) for of_row in sums]
            factors = [factor for factor, _ in record["parts"]]
            parts = [(f, of_row["total"], of_row["count"]) for f, of_row in zip(factors, sums, strict=True)]
            yield record, statistics.over_documents(parts)


# ---- lines -----------------------------------------------------------------------------------------------


def _lines(rows: list[Record]) -> list[tuple[str, list[Record]]]:
    """(label, rows in the order of seeds) of each line, in the order in which they are shown; labels differ.

    Seeds whose rows come from other data or code are lines of their own: they are shown, and never averaged.
    """
    parts = [part for group in _grouped(rows, _LINE).values() for part in _split(group)]
    parts = [sorted(part, key=lambda row: row["seed"]) for part in parts]
    named = list(zip(_labels([part[0] for part in parts]), parts, strict=True))
    named.sort(key=lambda line: (_rank(SCHEMES, line[1][0]["scheme"]), line[0], _part_order(line[1][0]["part"])))
    return [(" ".join(filter(None, (label, part[0]["part"]))), part) for label, part in named]


def _split(rows: list[Record]) -> Iterable[list[Record]]:
    """Cuts a line wherever one of its columns would hold two kinds of numbers."""
    columns = _grouped(rows, _COLUMN).values()
    keys = ("data", "code", "eval_hash")
    mixed = tuple(key for key in keys if any(len({row[key] for row in column}) > 1 for column in columns))
    if any(len(same) > 1 for same in _grouped(rows, (*_COLUMN, *mixed, "seed")).values()):
        mixed += ("cell",)
    return _grouped(rows, mixed).values()


def _labels(firsts: list[Record]) -> list[str]:
    """Names lines by their first row: the scheme, what is unusual, and what tells two equals apart."""
    plain = [_label(first) for first in firsts]
    labels = []
    for first, label in zip(firsts, plain, strict=True):
        same = [other for other, name in zip(firsts, plain, strict=True) if name == label]
        for key, sign in DISTINCTIONS.items():
            if len({other[key] for other in same}) > 1:
                label += f" {sign}{_hash(first['cell']) if sign == '#' else first[key]}"
                same = [other for other in same if other[key] == first[key]]
        labels.append(label)
    return labels


def _label(row: Record) -> str:
    extension = "" if row["extension"] == "none" else f" + {row['extension']}"
    sampling = "" if row["sampling"] == "consecutive" else f", {row['sampling']}"
    return f"{row['scheme']}{extension}{sampling}"


def _hash(cell: str) -> str:
    """The 8 hex digits that a run folder's name ends with."""
    return cell.rsplit("-", 1)[-1]


# ---- tables ----------------------------------------------------------------------------------------------


def _table(key: tuple, rows: list[Record], costs: dict, gate: float) -> Table:
    columns = sorted({Column(row["length"], row["slice"]) for row in rows})
    columns = tuple(sorted(columns, key=lambda c: (c.length, SHORT.index(c.slice) if c.slice in SHORT else len(SHORT))))
    return annotated(Table(*key, columns, tuple(_line(*line, costs) for line in _lines(rows)), gate))


def _line(label: str, rows: list[Record], costs: dict) -> Line:
    first = rows[0]
    measured = [costs[run] for run in _grouped(rows, ("study", "cell")) if run in costs]
    names = dict.fromkeys(name for cost in measured for name in cost)
    return Line(
        label=label,
        scheme=first["scheme"],
        extension=first["extension"],
        sampling=first["sampling"],
        run=_hash(first["cell"]),
        checkpoint=first["checkpoint"],
        tokens_seen=first["tokens_seen"],
        seeds=tuple(sorted({row["seed"] for row in rows})),
        costs={name: float(np.mean([cost[name] for cost in measured if name in cost])) for name in names}
        | {"tokens_seen": float(first["tokens_seen"])},
        cells={Column(*column): _cell(of_seeds) for column, of_seeds in _grouped(rows, _COLUMN).items()},
        part=first["part"],
    )


def _cell(rows: list[Record]) -> Cell:
    """One cell from its seeds' rows. If any seed has no number, the cell has none: the mean of those that
    survived would flatter the scheme."""
    failed = Counter(row["status"] for row in rows if row["status"] != "ok")
    every = len(failed) == 1 and failed.total() == len(rows)
    statuses = [name if every else f"{name} {n}/{len(rows)}" for name, n in sorted(failed.items())]
    values = [row["value"] for row in rows if row["value"] is not None]
    last = rows[-1]
    usable = last.get("form") == "length"  # the least of the seeds' lengths: there is no such thing as their mean
    examples = min((row["examples"] or 0 for row in rows), default=0) if last["quantity"] in NAMES.values() else 0
    return Cell(
        value=float(np.min(values) if usable else np.mean(values)) if values else None,
        sd=float(np.std(values, ddof=1)) if len(values) > 1 and np.isfinite(values).all() and not usable else None,
        seeds=tuple(row["seed"] for row in rows),
        counts=tuple(sorted({row["count"] for row in rows if row["count"]})),
        status="; ".join(statuses) or "ok",
        eval_hash=last["eval_hash"],
        data=last["data"],
        code=last["code"],
        quantity=last.get("of", last["quantity"]),
        interval=wilson(float(np.mean(values)), examples) if values and examples else last.get("interval"),
        values=() if statuses else tuple(values),
    )


def annotated(table: Table) -> Table:
    """Marks what was not measured like the rest of its table, and writes the lines that stand under it."""
    marked: set[tuple[int, Column]] = set()
    notes = []
    for key, words in PROVENANCE.items():
        odd = _odd_ones(table, key)
        if odd:
            marked |= {place for places in odd.values() for place in places}
            notes.append(f"{MARK} {words} differs from the rest: {_where(table, odd)}")
            if key == "eval_hash" and table.quantity not in (*NAMES.values(), WORTH):
                notes.append("texts are as long as the longest length asked for: ask for all lengths together")
    lines = tuple(
        replace(line, cells={c: replace(cell, marked=(i, c) in marked) for c, cell in line.cells.items()})
        for i, line in enumerate(table.lines)
    )
    return replace(table, lines=lines, notes=(*notes, *_remarks(table)))


def _odd_ones(table: Table, key: str) -> dict[str, list[tuple[int, Column]]]:
    """{value: cells} of all values of `key` but the commonest (of equally common ones, the first).

    The examples of a generated task are others at each length, so their hash is compared within each length.
    """
    by_length = key == "eval_hash" and table.quantity in (*NAMES.values(), WORTH)
    groups: dict[Any, dict[str, list[tuple[int, Column]]]] = {}
    for i, line in enumerate(table.lines):
        for column in sorted(line.cells):
            same = (line.part if table.by == ALONG else column) if by_length else None
            value = getattr(line.cells[column], key)
            # Of code, the part that all have in common: in the other, schemes differ by what they are.
            value = value.partition("-")[0] if key == "code" else value
            groups.setdefault(same, {}).setdefault(value, []).append((i, column))
    odd: dict[str, list[tuple[int, Column]]] = {}
    for places in groups.values():
        usual = max(places, key=lambda value: len(places[value]))
        for value in places:
            if value != usual:
                odd.setdefault(value, []).extend(places[value])
    return odd


def _where(table: Table, groups: dict[str, list[tuple[int, Column]]]) -> str:
    """ "rope, t5 at 4x 512, 8x 1024: 9f8e7d6c; alibi: 1a2b3c4d" """
    said = []
    for value, places in groups.items():
        lines = []
        for i in dict.fromkeys(i for i, _ in places):
            columns = [column for line, column in places if line == i]
            at = f" at {', '.join(heading(table, column) for column in columns)}"
            lines.append(table.lines[i].label + ("" if len(columns) == len(table.lines[i].cells) else at))
        said.append(f"{', '.join(lines)}: {value}")
    return "; ".join(said)


def _remarks(table: Table) -> Iterator[str]:
    statuses = " ".join(cell.status for line in table.lines for cell in line.cells.values())
    if "not learned" in statuses:
        yield f"not learned: token accuracy below {table.gate:g} at 1x, so longer lengths say nothing"
    yield from (f"{status}: {meaning}" for status, meaning in MEANINGS.items() if status in statuses)
    if any(re.search(r"\bmemory=[1-9]", line.scheme) for line in table.lines):
        yield (
            f"memory: n tokens are read as segments of {table.train_length} with n - {table.train_length} tokens of "
            "memory would be, all at once"
        )
    if any("#" in line.label for line in table.lines):
        yield "#: the end of the run folder's name, where only the training configuration differs"
    if any(cell.interval for line in table.lines for cell in line.cells.values()):
        yield DOCUMENTS if table.quantity == WORTH else EXAMPLES + CLUSTERED * (table.unit == "token")
    if any(is_few(cell) for line in table.lines for cell in line.cells.values()):
        yield f"(of n): of so few {table.unit}s that another text could say anything"
    seeds = all_seeds(table.lines)
    for fewer in dict.fromkeys(line.seeds for line in table.lines if line.seeds != seeds):
        labels = [line.label for line in table.lines if line.seeds == fewer]
        yield f"only seed{'s' * (len(fewer) > 1)} {', '.join(map(str, fewer))}: {'; '.join(labels)}"


def is_few(cell: Cell) -> bool:
    """Whether a perplexity is of few targets."""
    return cell.status == "ok" and cell.quantity == "perplexity" and min(cell.counts) < FEW


def heading(table: Table, column: Column) -> str:
    """ "4x 512", or "4x 204, size 100"; along the training "1.64M tokens" """
    if table.by == ALONG:
        return f"{short(column.length)} tokens"
    factor = f"{column.length / table.train_length:.3g}x {column.length}"
    return f"{factor}, {column.slice}" if column.slice else factor


def all_seeds(lines: Iterable[Line]) -> tuple[int, ...]:
    return tuple(sorted({seed for line in lines for seed in line.seeds}))


def bare(name: str) -> str:
    """A name without its settings: "same_targets(k=64)" -> "same_targets" """
    return name.split("(", 1)[0]


def short(value: float) -> str:
    """Three digits: 41.3, 168k, 1.64M."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def _apart(tables: Iterable[Table]) -> Iterator[str]:
    """What keeps numbers of one task, model or protocol in tables of their own: "text and text(bos=true) are apart:
    task.bos differs" """
    for group in ("task", "model", "protocol"):
        kinds: dict[str, dict[str, dict[str, str]]] = {}  # bare name -> label -> its settings
        for label in dict.fromkeys(getattr(table, group) for table in tables):
            kinds.setdefault(bare(label), {})[label] = _settings(label)
        for name, labels in kinds.items():
            keys = dict.fromkeys(key for own in labels.values() for key in own)
            differ = [key for key in keys if len({own.get(key) for own in labels.values()}) > 1]
            where = f"protocol.{name}" if group == "protocol" else group
            if differ:
                told = ", ".join(f"{where}.{key}" for key in differ)
                yield f"{' and '.join(labels)} are apart: {told} differ{'s' * (len(differ) == 1)}"
    lengths: dict[str, set[int]] = {}
    for table in tables:
        lengths.setdefault(table.task, set()).add(table.train_length)
    for task, several in lengths.items():
        if len(several) > 1:
            yield f"{task} trained on {' and '.join(map(str, sorted(several)))} tokens are apart: train_length differs"


def _settings(label: str) -> dict[str, str]:
    """ "same_targets(k=64)" -> {"k": "64"}"""
    inside = label[len(bare(label)) + 1 : -1]
    return dict(part.partition("=")[::2] for part in inside.split(", ")) if inside else {}


def _rank(order: tuple[str, ...], name: str) -> tuple[int, str]:
    return (order.index(bare(name)) if bare(name) in order else len(order)), name


def _table_order(table: Table) -> tuple:
    return (
        _rank(TASKS, table.task), table.model, table.train_length,
        _rank(QUANTITIES, table.quantity), _rank(PROTOCOLS, table.protocol), table.unit, table.by,
    )  # fmt: skip


# ---- loss by position ------------------------------------------------------------------------------------


def _curves(key: tuple, rows: list[Record]) -> Curves:
    """Each line at the longest length of which every position has a number."""
    curves = []
    for label, of_line in _lines(rows):
        failed = {row["length"] for row in of_line if row["status"] != "ok"}
        longest = max({row["length"] for row in of_line} - failed, default=None)
        if longest is not None:
            points = [row for row in of_line if row["length"] == longest]
            curves.append(Curve(label, of_line[0]["scheme"], longest, points))
    task, model, train_length, protocol, _, unit, _ = key
    seeds = tuple(sorted({row["seed"] for row in rows}))
    return Curves(task, model, train_length, protocol, unit, seeds, tuple(curves))


# ---- for verdicts and notebooks --------------------------------------------------------------------------


def final(frame: pd.DataFrame, gate: float = 0.95) -> list[Record]:
    """The rows of the ends of trainings, of all that was scored and not of one depth or another part; gated as the
    tables are, and once for each metric and unit."""
    rows = [_folded(row) for row in frame.drop_duplicates(_SAME_MEASUREMENT, keep="last").to_dict("records")]
    scores = _gated([score for row in rows for score in _scores(row, {})], gate)
    seen = {"bits per byte"}  # the rows of perplexity again
    return [row for row in scores if not (_along(row) or row["by"] or row["quantity"] in seen)]


def divided(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame of `store.read` with `value`, total / count, beside the two."""
    frame = frame.copy()
    frame.insert(frame.columns.get_loc("count") + 1, "value", frame["total"] / frame["count"])
    return frame
