"""From a report to pictures, each as PNG and SVG, and for a paper as PDF: the same numbers as in its tables.

A scheme has one colour and one marker in every figure: fixed ones for those that have been here from the
start, and for any other name a hash decides. Colours are those of Okabe and Ito, which colour-blind readers
can tell apart. The same report gives the same bytes.
"""

import contextlib
import hashlib
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from posenc_train.report.tables import SCHEMES, Cell, Column, Curve, Curves, Line, Report, Table, all_seeds, bare

COLOURS = ("#000000", "#E69F00", "#56B4E9", "#D55E00", "#0072B2", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "*", "p", "h", "d", "8")
PER_OCTAVE = 3  # points of a loss-by-position curve; single positions are too noisy to look at
DRAWN = ("ok", "not learned", "1x not measured")  # statuses of cells whose value is one
COLUMN, PAGE, HIGH = 3.25, 6.75, 2.1  # inches: of a paper in two columns; a panel without its legend
SMALLEST = 6.5  # points
SETTINGS = {
    "pdf.fonttype": 42,  # TrueType, embedded: journals refuse matplotlib's usual Type 3
    "svg.hashsalt": "posenc-train",
    "text.parse_math": False,  # a name with a dollar sign is a name
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlepad": 15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
}


class Style(NamedTuple):
    """How a line looks; what `Line2D` calls these things."""

    color: str
    marker: str
    markerfacecolor: str
    linestyle: str = "-"


class Entry(NamedTuple):
    """A line of the legend. `last` is where the drawn line ends."""

    last: float
    label: str
    style: Style


def draw(report: Report) -> dict[str, bytes]:
    """{file name: content}, PNG and SVG. What has nothing to show has no file."""
    with _settings():
        return {f"{name}.{kind}": _bytes(it, kind) for name, it in _figures(report).items() for kind in ("png", "svg")}


def for_paper(report: Report) -> dict[str, bytes]:
    """{file name: content}, PDF with its fonts embedded: as wide as a column, or as a page where there are several
    panels, with the legend below and without a headline, which is the caption's business."""
    with _settings():
        return {f"{name}.pdf": _bytes(typeset(it), "pdf") for name, it in _figures(report).items()}


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # names in other scripts are drawn as boxes
        yield


def _figures(report: Report) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for tables in _together(report, ("perplexity",)):
        figures[_file(figures, "perplexity", tables[0])] = against_length(tables, "perplexity")
    for tables in _together(report, ("token accuracy", "exact match")):
        figures[_file(figures, "accuracy", tables[0])] = against_length(tables, "accuracy")
    for curves in report.curves:
        if curves.curves:
            kind = "loss_and_optimum" if bare(curves.protocol) == "regret" else "loss_by_position"
            figures[_file(figures, kind, curves)] = loss_by_position(curves)
    for table in _depths(report):
        figures[_file(figures, f"depth_{table.quantity.replace(' ', '_')}", table)] = depth_by_length(table)
    return figures


def _together(report: Report, quantities: tuple[str, ...]) -> list[list[Table]]:
    """The tables of these quantities that hold numbers at several lengths, by (task, model, train length)."""
    groups: dict[tuple, list[Table]] = {}
    for table in report.tables:
        apart = bare(table.protocol) == "recurrence" or table.unit == "word"  # the same losses in other parts
        if not apart and table.quantity in quantities and _lengths([table]):
            groups.setdefault((table.task, table.model, table.train_length), []).append(table)
    return [tables for tables in groups.values() if len(_lengths(tables)) > 1]


def _lengths(tables: Iterable[Table]) -> set[int]:
    lines = [line for table in tables for line in table.lines]
    return {column.length for line in lines for column, cell in line.cells.items() if _drawn(cell)}


def _depths(report: Report) -> list[Table]:
    """The tables by depth that hold any number: of the model's own answers, or where there are none, of what it would
    say next."""
    tables = [
        table
        for table in report.parts
        if table.by == "depth" and any(_drawn(cell) for line in table.lines for cell in line.cells.values())
    ]
    own = {(t.task, t.model, t.train_length) for t in tables if bare(t.protocol) == "free_running"}
    return [t for t in tables if bare(t.protocol) == "free_running" or (t.task, t.model, t.train_length) not in own]


def _drawn(cell: Cell) -> bool:
    return cell.status.startswith(DRAWN) and cell.value is not None and math.isfinite(cell.value)


def _file(taken: dict, kind: str, of: Table | Curves) -> str:
    """perplexity_text_tiny_L128; with a hash where names are strange, so that no two figures share a file."""
    plain = f"{kind}_{of.task}_{of.model}_L{of.train_length}"
    name = re.sub(r"[^A-Za-z0-9._=-]", "_", plain)
    if name == plain and len(name) <= 150 and name not in taken:
        return name
    return f"{name[:150]}_{hashlib.sha256(f'{plain} {of.protocol} {of.unit}'.encode()).hexdigest()[:6]}"


def _bytes(figure: Figure, kind: str) -> bytes:
    out = BytesIO()
    undated = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}[kind]
    figure.savefig(out, format=kind, dpi=200, metadata=undated)
    return out.getvalue()


def typeset(figure: Figure) -> Figure:
    """The same figure at the width of a paper's column or page, in letters of SMALLEST points and more."""
    panels = [axes for axes in figure.axes if axes.get_title()]  # without the bar of colours
    keyed = [axes for axes in panels if axes.get_legend()]
    across = len({axes.get_subplotspec().colspan.start for axes in panels})
    wide = COLUMN if across == 1 else PAGE
    high = HIGH if keyed else figure.get_figheight() * max(0.8, wide / figure.get_figwidth())
    figure.suptitle("")
    for text in figure.findobj(Text):
        text.set_fontsize(max(SMALLEST, 0.85 * text.get_fontsize()))
    for line in figure.findobj(Line2D):
        line.set(markersize=0.75 * line.get_markersize(), linewidth=0.75 * line.get_linewidth())
    for axes in panels if keyed else ():
        axes.set_title(textwrap.fill(axes.get_title().replace("\n", " "), int(13 * wide / across)))
    lines = sum(_legend_below(figure, axes, wide) for axes in keyed)
    figure.set_size_inches(wide, high + 0.15 * lines)
    return figure


def _legend_below(figure: Figure, axes: Axes, wide: float) -> int:
    """Moves the legend of a panel under all of them; returns its number of lines."""
    old = axes.get_legend()
    names = [text.get_text().replace("\n", " ") for text in old.get_texts()]
    columns = max(1, min(len(names), int(wide / (0.5 + 0.05 * max(map(len, names))))))  # inches: a line, a letter
    place = {"loc": "outside lower center", "ncols": columns, "fontsize": SMALLEST, "columnspacing": 1.0}
    new = figure.legend(old.legend_handles, ["" for _ in names], **place)
    for text, name in zip(new.get_texts(), names, strict=True):
        text.set_text(name)
    old.remove()
    return -(-len(names) // columns)


# ---- the figures -----------------------------------------------------------------------------------------


def against_length(tables: list[Table], what: str) -> Figure:
    """One panel per table. Perplexity is logarithmic; what has not learned 1x is dashed and says so."""
    styles = _styles([line for table in tables for line in table.lines])
    figure, panels = _panels(len(tables))
    entries: dict[str, Entry] = {}
    for axes, table in zip(panels, tables, strict=True):
        for line in table.lines:
            last = _line(axes, line, styles[line.label])
            entries.setdefault(line.label, Entry(last, _name(line), styles[line.label]))
        _length_axis(axes, table)
        axes.set_title(textwrap.fill(f"{table.quantity}, {table.protocol}", 60))
    if what == "perplexity":
        _log_axis(panels[0])
        panels[0].set_ylabel(f"perplexity per {tables[0].unit}")
    else:
        panels[0].set_ylim(-0.04, 1.04)
        panels[0].set_ylabel("share that is right")
    seeds = all_seeds(line for table in tables for line in table.lines)
    _headline(figure, f"{what} against length", tables[0], seeds)
    _legend(panels[-1], list(entries.values()))
    return figure


def loss_by_position(curves: Curves) -> Figure:
    """Loss against tokens seen, each scheme at its longest length; bytes in bits, tokens in nats."""
    scale, name = (1 / math.log(2), "bits") if curves.unit == "byte" else (1.0, "nats")
    styles = _styles(curves.curves)
    longest = max(curve.length for curve in curves.curves)
    figure, (axes,) = _panels(1)
    entries = []
    for curve in curves.curves:
        points, style = _buckets(curve), styles[curve.label]
        loss, sd = points["mean"] * scale, points["sd"] * scale
        axes.plot(points["x"], loss, markersize=3.5, **style._asdict())
        if sd.notna().any():
            axes.fill_between(points["x"], loss - sd, loss + sd, color=style.color, alpha=0.15, linewidth=0)
        label = curve.label + ("" if curve.length == longest else f" (length {curve.length})")
        entries.append(Entry(float(loss.iloc[-1]), label, style))
    known = max(curves.curves, key=lambda curve: curve.length)
    if all(math.isfinite(point["floor"]) for point in known.points):
        floor, style = _buckets(known, "floor"), Style("#555555", "", "none", "--")
        axes.plot(floor["x"], floor["mean"] * scale, **style._asdict())
        entries.append(Entry(float(floor["mean"].iloc[-1] * scale), "the best predictor", style))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    _trained(axes, curves.train_length)
    axes.set_xlabel("tokens seen (position + 1)")
    axes.set_ylabel(f"loss, {name} per {curves.unit}")
    what = "loss from the beginning of a text" if bare(curves.protocol) == "regret" else curves.protocol
    axes.set_title(f"{what} at length {longest}, {PER_OCTAVE} points an octave")
    _headline(figure, "loss by position", curves, curves.seeds)
    _legend(axes, entries)
    return figure


def depth_by_length(table: Table) -> Figure:
    """A panel per scheme: columns are lengths, rows depths, 0 (before all text) on top. Shades say the same as the
    numbers; what has no number says why, and what has not learned 1x is hatched."""
    panels: dict[tuple, list[Line]] = {}
    for line in table.lines:
        key = (line.scheme, line.extension, line.sampling, line.run, line.checkpoint, line.tokens_seen)
        panels.setdefault(key, []).append(line)
    depths = sorted({float(line.part) for line in table.lines})
    down = -(-len(panels) // 5)
    across = -(-len(panels) // down)
    wide, high = 0.5 * len(table.columns) + 0.3, 0.3 * len(depths) + 0.75  # inches a panel
    figure = Figure(figsize=(max(wide * across + 1.3, 5.0), high * down + 0.95), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, lines in itertools.zip_longest(grid.flat, panels.values()):
        if lines is None:
            axes.remove()
            continue
        image = _map(axes, lines, table, depths)
    for axes in grid.flat[len(panels) - across : len(panels)]:  # under the last of each column
        axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("depth")
    figure.supxlabel("length (tokens fed)", fontsize=9)
    figure.colorbar(image, ax=figure.axes, shrink=0.8, aspect=30).outline.set_visible(False)
    counts = sorted({count for line in table.lines for cell in line.cells.values() for count in cell.counts})
    asked = " or ".join(f"{count:,}" for count in counts)
    what = f"{table.quantity} by depth and length, {table.protocol}, {asked} {table.unit}s a cell and seed"
    _headline(figure, what, table, all_seeds(table.lines), spread=False)
    return figure


def _map(axes: Axes, lines: list[Line], table: Table, depths: list[float]):
    """One scheme's numbers on shades from dark (none right) to bright (all right), in this order in grey too."""
    cells = {(float(line.part), column): cell for line in lines for column, cell in line.cells.items()}
    shades = np.full((len(depths), len(table.columns)), np.nan)
    for (i, depth), (j, column) in itertools.product(enumerate(depths), enumerate(table.columns)):
        cell = cells.get((depth, column))
        said, colour = "", "#000000"
        if cell and _drawn(cell):
            shades[i, j], said = cell.value, f"{cell.value:.2f}"
            colour = "#ffffff" if cell.value < 0.5 else "#000000"
        elif cell:
            said = textwrap.fill(cell.status, 9)
        if cell and cell.status == "not learned":
            axes.add_patch(
                Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, hatch="////", edgecolor="#999999", linewidth=0)
            )
        box = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.8} if not said[:1].isdecimal() else None
        axes.text(j, i, said, ha="center", va="center", color=colour, fontsize=7 if box is None else 5, bbox=box)
    image = axes.imshow(shades, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(table.columns)), [_ticked(column, table) for column in table.columns], fontsize=7.5)
    axes.set_yticks(range(len(depths)), [f"{depth:g}" for depth in depths], fontsize=7.5)
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    unlearned = " (not learned)" if any("not learned" in cell.status for cell in cells.values()) else ""
    name = lines[0].label.replace(f" {lines[0].part}", "", 1) + unlearned
    axes.set_title(textwrap.fill(name, 6 * len(table.columns) + 4), fontsize=8.5, pad=4)
    return image


def _ticked(column: Column, table: Table) -> str:
    return f"{column.length}\n{column.length / table.train_length:.3g}x"


def _buckets(curve: Curve, total: str = "total") -> pd.DataFrame:
    """Columns x, mean, sd: sums of `total` over the positions of a bucket, divided, then the mean and sd over seeds."""
    points = pd.DataFrame.from_records(curve.points)
    first, last = points["position_first"].astype(float) + 1, points["position_last"].astype(float) + 1
    points = points.assign(bucket=np.floor(PER_OCTAVE * np.log2(first) + 1e-9), first=first, last=last)
    parts = {"first": "min", "last": "max", total: "sum", "count": "sum"}
    sums = points.groupby(["bucket", "seed"]).agg(parts)
    sums = sums.assign(x=np.sqrt(sums["first"] * sums["last"]), loss=sums[total] / sums["count"])
    buckets = sums.groupby("bucket")
    return pd.DataFrame({"x": buckets["x"].mean(), "mean": buckets["loss"].mean(), "sd": buckets["loss"].std()})


# ---- parts of them ---------------------------------------------------------------------------------------


def _panels(n: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(3.9 * n + 2.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)  # no window, whatever MPLBACKEND says
    return figure, list(figure.subplots(1, n, sharey=True, squeeze=False)[0])


def _line(axes: Axes, line: Line, style: Style) -> float:
    """Draws a line's numbers and returns the last one (-inf if there is none)."""
    points = [(c.length, cell.value, cell.sd or 0.0) for c, cell in sorted(line.cells.items()) if _drawn(cell)]
    if not points:
        return -math.inf
    x, y, sd = np.array(points).T
    low = np.minimum(sd, y * 0.999)  # on a logarithmic axis nothing reaches zero
    bars = np.stack([low, sd]) if sd.any() else None
    axes.errorbar(x, y, yerr=bars, capsize=2.5, **style._asdict())
    return float(y[-1])


def _length_axis(axes: Axes, table: Table) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({column.length for column in table.columns})))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}\n{x / table.train_length:.3g}x"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("length (tokens fed)")
    _trained(axes, table.train_length)


def _trained(axes: Axes, length: int) -> None:
    """Marks the train length; its name stands above the panel, where no line can be."""
    axes.axvline(length, color="#777777", linewidth=1.2, linestyle=":", zorder=0)
    where = {"xy": (length, 1), "xycoords": ("data", "axes fraction")}
    offset = {"xytext": (-3, 2), "textcoords": "offset points", "va": "bottom"}
    axes.annotate("trained length", fontsize=7.5, color="#555555", **where, **offset)


def _log_axis(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers at it, as many as are legible."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    decades = math.log10(high / low)
    steps = (1, 2, 3, 5, 7) if decades < 1.2 else (1, 2, 5) if decades < 2 else (1,)
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=(1, 2, 5, 10)) if decades < 0.7 else LogLocator(subs=steps))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.6g}" if y < 1e5 else f"{y:.0e}"))


def _headline(figure: Figure, what: str, of: Table | Curves, seeds: tuple[int, ...], spread: bool = True) -> None:
    over = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean{' ± sd' * spread} over {len(seeds)} seeds"
    text = f"{of.task}, {of.model}, trained on {of.train_length} tokens: {what}, {over}"
    figure.suptitle(textwrap.fill(text, int(11 * figure.get_figwidth())), fontsize=10)


def _legend(axes: Axes, entries: list[Entry]) -> None:
    """Right of the panel, from the highest end of a line to the lowest."""
    entries = sorted(entries, key=lambda entry: (-entry.last, entry.label))
    handles = [Line2D([], [], **entry.style._asdict()) for entry in entries]
    legend = axes.legend(handles, ["" for _ in entries], loc="center left", bbox_to_anchor=(1.01, 0.5))
    for text, entry in zip(legend.get_texts(), entries, strict=True):
        text.set_text(textwrap.fill(entry.label, 34))  # a legend made with a name like _this would drop it
    lines = sum(text.get_text().count("\n") + 1 for text in legend.get_texts())
    axes.figure.set_figheight(max(axes.figure.get_figheight(), 0.8 + 0.18 * lines))  # inches


def _name(line: Line) -> str:
    """The label, with what keeps its line from going on or from being taken seriously."""
    for column, cell in sorted(line.cells.items()):
        if cell.status != "ok":
            return f"{line.label} ({cell.status}{'' if _drawn(cell) else f' at {column.length}'})"
    return line.label


# ---- who looks how ---------------------------------------------------------------------------------------


def _styles(lines: list[Line] | tuple[Curve, ...]) -> dict[str, Style]:
    """{label: style}. A scheme's first line is filled; its variants are hollow and brighter."""
    styles: dict[str, Style] = {}
    variants: dict[str, int] = {}
    taken: set[tuple[str, str]] = set()
    for line in lines:
        if line.label not in styles:
            n = variants[bare(line.scheme)] = variants.get(bare(line.scheme), -1) + 1
            colour, marker = colour_and_marker(line.scheme)
            colour = _brighter(colour, min(0.25 * n, 0.6)) if n else colour
            turned = MARKERS[MARKERS.index(marker) + n :] + MARKERS
            marker = next((m for m in turned if (colour, m) not in taken), marker)
            taken.add((colour, marker))
            styles[line.label] = Style(colour, marker, "white" if n else colour)
    dashed = {line.label for line in lines if isinstance(line, Line) and "not learned" in _name(line)}
    return {k: v._replace(linestyle="--") if k in dashed else v for k, v in styles.items()}


def colour_and_marker(scheme: str) -> tuple[str, str]:
    """Of a scheme, whatever else is in the figure; its settings in brackets do not matter."""
    name = bare(scheme)
    drawn = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
    number = SCHEMES.index(name) if name in SCHEMES else drawn
    # Of 14 markers and 7 colours: every second time round, each colour gets the next marker.
    return COLOURS[number % len(COLOURS)], MARKERS[(number + number // len(MARKERS)) % len(MARKERS)]


def _brighter(colour: str, part: float) -> str:
    return to_hex([c + (1 - c) * part for c in to_rgb(colour)])
