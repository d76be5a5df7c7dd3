"""What the page of a study draws: numbers and words for assets/page.js, in the colours of `figures`.

A chart is a dict: `kind`, its words, `trained` (the trained length, a line across it), `floor` and `ceiling` where the
axis has ends, and `lines`, each with the label by which a reader switches it on and off. A point is [x, y, low, high,
said]: low and high are the ends of its whisker, or null, and `said` is what is shown where a reader points at it.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.colors import to_hex, to_rgb

from posenc_train.config import UserError
from posenc_train.report import figures, formats, store, tables
from posenc_train.report.tables import Cell, Column, Curve, Curves, Line, Report, Table, bare

POINTS = {  # matplotlib's marker -> Chart.js's point style and its turn in degrees
    "o": ("circle", 0), "s": ("rect", 0), "D": ("rectRot", 0), "^": ("triangle", 0), "v": ("triangle", 180),
    "P": ("cross", 0), "X": ("crossRot", 0), "<": ("triangle", -90), ">": ("triangle", 90), "*": ("star", 0),
    "p": ("rectRounded", 0), "h": ("rectRounded", 45), "d": ("rectRot", 0), "8": ("circle", 0),
}  # fmt: skip
QUANTITIES = (("perplexity",), ("token accuracy", "exact match"), ("regret",))  # those drawn against length
SHARES = ("token accuracy", "exact match")

Group = tuple[str, str, int]  # task, model, train length
Chart = dict[str, Any]


def styles(report: Report) -> dict[str, dict[str, Any]]:
    """How a line looks in every figure, by its label: {color, dark, point, turn, hollow}; dark: on a dark screen."""
    lines = [line for table in report.tables for line in table.lines]
    drawn = figures._styles([*lines, *(curve for curves in report.curves for curve in curves.curves)])
    return {
        label: {
            "color": style.color, "dark": _on_dark(style.color), "point": POINTS[style.marker][0],
            "turn": POINTS[style.marker][1], "hollow": style.markerfacecolor == "white",
        }
        for label, style in drawn.items()
    }  # fmt: skip


def _on_dark(colour: str) -> str:
    red, green, blue = to_rgb(colour)
    light = 0.299 * red + 0.587 * green + 0.114 * blue
    return "#f2f2f2" if light < 0.05 else to_hex([c + (1 - c) * max(0.0, 0.5 - light) for c in (red, green, blue)])


def group(of: Table | Curves) -> Group:
    return of.task, of.model, of.train_length


# ---- against length --------------------------------------------------------------------------------------


def against_length(report: Report) -> Iterator[tuple[Group, Chart]]:
    for quantities in QUANTITIES:
        for together in figures._together(report, quantities):
            for table in together:
                yield group(table), _length_chart(table)


def _length_chart(table: Table) -> Chart:
    share = table.quantity in SHARES
    named = {line.label: figures._name(line) for line in table.lines}
    return {
        "kind": "length",
        "title": table.quantity,
        "under": f"{_protocol(table)}; {_seeds(table, 'mean ± sd')}",
        "x": "length (tokens fed)",
        "y": "share that is right" if share else f"{table.quantity} per {table.unit}",
        "log": not share,
        "floor": 0 if share else None,
        "ceiling": 1 if share else None,
        "trained": table.train_length,
        "ticks": sorted({column.length for column in table.columns}),
        "notes": [name for label, name in named.items() if name != label],
        "lines": [
            {"label": line.label, "dashed": "not learned" in named[line.label], "points": list(_points(line))}
            for line in table.lines
        ],
    }


def _points(line: Line) -> Iterator[list]:
    for column, cell in sorted(line.cells.items()):
        if figures._drawn(cell):
            low, high = _ends(cell)
            yield [column.length, cell.value, low, high, _said(cell)]


def _ends(cell: Cell) -> tuple[float | None, float | None]:
    if cell.sd is not None:
        return max(cell.value - cell.sd, cell.value * 1e-3), cell.value + cell.sd
    return cell.interval or (None, None)


def _said(cell: Cell) -> str:
    """ "6.9432 ± 0.012, 3 seeds" """
    words = f"{cell.value:.5g}"
    if cell.sd is not None:
        words += f" ± {cell.sd:.2g}, {len(cell.seeds)} seeds"
    elif cell.interval:
        words += " ({:.2f}–{:.2f})".format(*cell.interval)
    return words if cell.status == "ok" else f"{words}, {cell.status}"


def _protocol(table: Table) -> str:
    return table.protocol + formats.WORDS.get(bare(table.protocol), "")


def _seeds(table: Table, shown: str) -> str:
    seeds = tables.all_seeds(table.lines)
    if len(seeds) > 1:
        return f"{shown} over {len(seeds)} seeds"
    rates = any(cell.interval for line in table.lines for cell in line.cells.values())
    return f"seed {seeds[0]}" + ", 95 % interval over the examples" * rates


# ---- by position -----------------------------------------------------------------------------------------


def by_position(report: Report) -> Iterator[tuple[Group, Chart]]:
    for curves in report.curves:
        if curves.curves:
            yield group(curves), _position_chart(curves)


def _position_chart(curves: Curves) -> Chart:
    """Bytes in bits, tokens in nats, as in the figures."""
    scale, name = (1 / math.log(2), "bits") if curves.unit == "byte" else (1.0, "nats")
    lines = [_position_line(curve, "total", scale, curve.label) for curve in curves.curves]
    known = max(curves.curves, key=lambda curve: curve.length)
    if all(math.isfinite(point["floor"]) for point in known.points):
        lines.append(_position_line(known, "floor", scale, "the best predictor") | {"dashed": True, "always": True})
    longest = max(curve.length for curve in curves.curves)
    seeds = f"seed {curves.seeds[0]}" if len(curves.seeds) == 1 else f"mean ± sd over {len(curves.seeds)} seeds"
    shorter = [f"{curve.label}: length {curve.length}" for curve in curves.curves if curve.length != longest]
    return {
        "kind": "position",
        "title": "loss by position" + " and the optimum" * (bare(curves.protocol) == "regret"),
        "under": f"{curves.protocol} at length {longest}, {figures.PER_OCTAVE} points an octave; {seeds}",
        "x": "tokens seen (position + 1)",
        "y": f"loss, {name} per {curves.unit}",
        "log": False,
        "floor": None,
        "ceiling": None,
        "trained": curves.train_length,
        "ticks": [2**n for n in range(longest.bit_length())],
        "notes": shorter,
        "lines": lines,
    }


def _position_line(curve: Curve, total: str, scale: float, label: str) -> dict[str, Any]:
    points = []
    for bucket in figures._buckets(curve, total).itertuples():
        value, sd = bucket.mean * scale, bucket.sd * scale
        ends, more = ([value - sd, value + sd], f" ± {sd:.2g}") if math.isfinite(sd) else ([None, None], "")
        points.append([bucket.x, value, *ends, f"{value:.5g}{more}"])
    return {"label": label, "dashed": False, "points": points}


# ---- biases ----------------------------------------------------------------------------------------------


def biases(report: Report, folders: Mapping[str, Path]) -> Iterator[tuple[Group, Chart]]:
    """A chart for each line's first seed and each of its schemes. folders: run folders by the end of their names."""
    done = set()
    for table in report.tables:
        for line in table.lines:
            folder = folders.get(line.run)
            if folder is None or line.extension != "none" or line.run in done:
                continue
            done.add(line.run)
            if (found := _stored(folder / store.BIASES)) is not None:
                for layers in found["layers"]:
                    yield group(table), _bias_chart(table, line, found, layers)


def _stored(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: found[name] for name in ("length", "distances", "layers")}
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path}: is damaged: remove it") from error


def _bias_chart(table: Table, line: Line, found: Mapping[str, Any], layers: Mapping[str, Any]) -> Chart:
    numbers = ", ".join(str(layer + 1) for layer in layers["layers"])
    which = f"layer{'s' * (len(layers['layers']) > 1)} {numbers}"
    return {
        "kind": "bias",
        "title": line.label,
        "under": f"{which}; the last of {found['length']:,} tokens; seed {line.seeds[0]}",
        "x": "distance + 1",
        "y": "bias",
        "log": False,
        "floor": None,
        "ceiling": None,
        "trained": table.train_length,
        "ticks": [4**n for n in range(int(found["length"]).bit_length() // 2 + 1)],
        "notes": [],
        "lines": [
            {
                "label": line.label, "head": i, "of": len(layers["heads"]), "dashed": False,
                "points": [
                    [d + 1, value, None, None, f"head {i + 1}, distance {d}: {value:.5g}"]
                    for d, value in zip(found["distances"], head, strict=True)
                ],
            }
            for i, head in enumerate(layers["heads"])
        ],
    }  # fmt: skip


# ---- depth by length -------------------------------------------------------------------------------------


def depths(report: Report) -> Iterator[tuple[Group, dict[str, Any]]]:
    """Maps: {title, under, columns, panels: [{label, name, rows: [(depth, [shade or None])]}]}, 0 (before all text) on
    top. A shade is {said, back, fore, doubtful, words}."""
    for table in figures._depths(report):
        panels: dict[tuple, list[Line]] = {}
        for line in table.lines:
            key = (line.scheme, line.extension, line.sampling, line.run, line.checkpoint, line.tokens_seen)
            panels.setdefault(key, []).append(line)
        yield group(table), {
            "title": f"{table.quantity} by depth and length",
            "under": f"{_protocol(table)}; {_seeds(table, 'mean')}",
            "columns": [(column.length, f"{column.length / table.train_length:.3g}x") for column in table.columns],
            "panels": [_panel(lines, table.columns) for lines in panels.values()],
        }  # fmt: skip


def _panel(lines: list[Line], columns: tuple[Column, ...]) -> dict[str, Any]:
    lines = sorted(lines, key=lambda line: float(line.part))
    label = lines[0].label.removesuffix(f" {lines[0].part}")
    unlearned = any("not learned" in cell.status for line in lines for cell in line.cells.values())
    return {
        "label": label,
        "name": label + " (not learned)" * unlearned,
        "rows": [(f"{float(line.part):g}", [_shade(line.cells.get(column)) for column in columns]) for line in lines],
    }


def _shade(cell: Cell | None) -> dict[str, Any] | None:
    if cell is None:
        return None
    if not figures._drawn(cell):
        return {"said": cell.status, "back": "", "fore": "", "doubtful": False, "words": cell.status}
    fore = "#ffffff" if cell.value < 0.5 else "#000000"
    back = to_hex(matplotlib.colormaps["cividis"](cell.value))
    doubtful = cell.status != "ok"
    return {"said": f"{cell.value:.2f}", "back": back, "fore": fore, "doubtful": doubtful, "words": _said(cell)}
