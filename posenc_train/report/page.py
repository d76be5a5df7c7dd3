"""A study as one HTML page that needs nothing else: no network, no server, any browser of these years.

The same rows give the same bytes. Tables are plain HTML; what is drawn stands as JSON in the page, and assets/page.js
draws it with Chart.js (assets/chart.umd.min.js, MIT). A content security policy forbids it to load anything.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from posenc_train import experiments
from posenc_train.checks import show
from posenc_train.config import UserError, flat
from posenc_train.report import again, claims, formats, panels, published, store, tables
from posenc_train.report.claims import Verdict
from posenc_train.report.tables import Line, Report, Table, short

ASSETS = Path(__file__).with_name("assets")
COSTS = {**formats.COSTS, "bytes": "peak memory"}
CLASSES = {claims.HOLDS: "holds", claims.FAILS: "fails", claims.OPEN: "open"}
SIGNS = {claims.HOLDS: "✓", claims.FAILS: "✗", claims.OPEN: "?"}


def render(report: Report, folder: Path, asked: Mapping[str, Any] | None) -> str:
    """The page of a study's report. asked: what its folder tells of its experiment (`report.verdict` writes it): the
    experiment, its cells and the command; None where none was run."""
    frame = store.read(folder)
    configs = _configs(folder, frame)
    sections = _sections(report, folder, frame)
    data = {
        "styles": panels.styles(report),
        "charts": [chart for section in sections for _, chart in section["charts"]],
        "runs": _runs(configs),
    }
    environment = Environment(loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    return environment.get_template("page.html").render(
        title=", ".join(report.studies),
        facts=_facts(frame),
        notes=report.notes,
        judged=_judged(report, frame, asked),
        sections=sections,
        data=_finite(data),
        runs=list(configs),
        fingerprints=_fingerprints(frame),
        commands=_commands(report, configs, asked),
        chart=_asset("chart.umd.min.js").rpartition("//# sourceMappingURL")[0],
        script=_asset("page.js"),
        style=_asset("page.css"),
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _finite(value: Any) -> Any:
    """Numbers to seven digits, and null for what JSON has no number for."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _facts(frame: pd.DataFrame) -> list[str]:
    def count(name: str, words: str) -> str:
        n = frame[name].nunique()
        return f"{n} {words}{'s' * (n != 1)}"

    names = [", ".join(dict.fromkeys(frame[name])) for name in ("task", "model")]
    lengths = ", ".join(f"{n:,}" for n in sorted(frame["train_length"].unique()))
    return [
        count("cell", "run"),
        count("scheme", "scheme"),
        count("seed", "seed"),
        *names,
        f"trained on {lengths} tokens",
    ]


# ---- the verdict -----------------------------------------------------------------------------------------


def _judged(report: Report, frame: pd.DataFrame, asked: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if asked is None:
        return None
    gate = report.tables[0].gate if report.tables else 0.95
    frame = frame[frame["cell"].isin(asked["cells"])]
    verdicts = claims.judge(frame, asked["experiment"], gate)
    beside = published.beside(frame, asked["experiment"], gate)
    return {
        "title": beside.title,
        "source": beside.source,
        "facts": list(published._facts(beside)),
        "heading": claims._heading(verdicts),
        "footnote": claims._footnote(verdicts),
        "claims": [_claim(verdict) for verdict in verdicts],
        "blocks": [_block(block) for block in beside.blocks],
        "legend": published._legend(beside),
    }


def _claim(verdict: Verdict) -> dict[str, Any]:
    effect, claimed, seeds, p, holm = claims._numbers(verdict)
    return {
        "mark": claims._mark(verdict), "kind": CLASSES[verdict.verdict], "sign": SIGNS[verdict.verdict],
        "say": verdict.claim.say, "sides": claims._sides(verdict.claim), "effect": effect, "claimed": claimed,
        "seeds": seeds, "p": p, "holm": holm, "reason": verdict.reason, "scale": _scale(verdict),
    }  # fmt: skip


def _scale(verdict: Verdict) -> dict[str, Any] | None:
    """Where effect, interval, zero and what is claimed lie on a line, in per cent of its width."""
    if verdict.interval is None:
        return None
    mean, low, high, _ = verdict.interval
    m, bound = verdict.claim.margin, verdict.claim.bound
    margins = [-m, m] if bound == "within" else [m]
    known = [value for value in (mean, low, high, *margins, 0.0) if value is not None]
    room = (max(known) - min(known) or 1.0) * 0.12
    first, width = min(known) - room, max(known) - min(known) + 2 * room

    def at(value: float) -> float:
        return round(100 * (value - first) / width, 2)

    left, right = {"within": (at(-m), at(m)), "above": (at(m), 100.0), "below": (0.0, at(m))}[bound]
    ends = None if low is None else (at(low), round(max(at(high) - at(low), 0.5), 2))
    near = any(abs(at(0.0) - at(value)) < 9 for value in margins)  # two numbers would stand on one another
    told = [
        (at(value), "" if value == 0 and near and 0.0 not in margins else f"{value:g}") for value in {0.0, *margins}
    ]
    return {"mean": at(mean), "ends": ends, "claimed": (left, round(right - left, 2)), "ticks": told}


def _block(block: published.Block) -> dict[str, Any]:
    orders = [" ".join(line.strip() for line in said) for said in published._orders(block)]
    lines = [row for line in block.lines for row in published._rows(block, line, block.columns)]
    return {"title": block.title, "columns": block.columns, "lines": lines, "orders": orders}


# ---- figures and tables ----------------------------------------------------------------------------------


def _sections(report: Report, folder: Path, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One for each task, model and train length, in the order of the tables. A chart stands in it by its number."""
    folders = {tables._hash(run.name): run for run in store.runs(folder)}
    charts = [*panels.against_length(report), *panels.by_position(report), *panels.biases(report, folders)]
    maps, shown = list(panels.depths(report)), list(formats.shown(report))
    groups = dict.fromkeys([*map(panels.group, shown), *(of for of, _ in charts)])
    numbered = sorted(enumerate(charts), key=lambda one: list(groups).index(one[1][0]))
    numbered = [(place, of, chart) for place, (_, (of, chart)) in enumerate(numbered)]
    return [
        {
            "name": f"{task}, {model}, trained on {length:,} tokens",
            "short": task if sum(t == task for t, _, _ in groups) == 1 else f"{task}, {model}, {length:,}",
            "charts": [(place, chart) for place, of, chart in numbered if of == (task, model, length)],
            "maps": [found for of, found in maps if of == (task, model, length)],
            "tables": [_table(t, report.tolerance) for t in shown if panels.group(t) == (task, model, length)],
        }
        for task, model, length in groups
    ]  # fmt: skip


def _table(table: Table, tolerance: float) -> dict[str, Any]:
    """A cell is (words, the number that it is sorted by, class)."""
    title, under = formats.title(table, tolerance)
    own = _costs(table)
    return {
        "title": title.partition(": ")[2] or title,
        "under": under,
        "head": ["scheme", *(tables.heading(table, column) for column in table.columns), *own.values()],
        "lines": [_cells(table, line, own) for line in table.lines],
        "notes": table.notes,
    }


def _costs(table: Table) -> dict[str, str]:
    costs = {name: words for name, words in COSTS.items() if any(name in line.costs for line in table.lines)}
    return costs if formats._costs(table) else {}


def _cells(table: Table, line: Line, costs: Mapping[str, str]) -> list[tuple[str, float | None, str]]:
    cells: list[tuple[str, float | None, str]] = [(line.label, None, "name")]
    for column, words in zip(table.columns, formats._texts(table, line), strict=True):
        cell = line.cells.get(column)
        good = cell is not None and cell.status == "ok"
        cells.append((words, cell.value if good else None, "" if good else "none"))
    for name in costs:
        value = line.costs.get(name)
        words = "–" if value is None else short(value) + "B" * (name == "bytes")
        cells.append((words, value, "cost"))
    return cells


# ---- configurations, fingerprints, commands --------------------------------------------------------------


def _configs(folder: Path, frame: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """The configuration of every run with rows that has one, by its folder's name."""
    configs = {}
    for run in store.runs(folder):
        if (run / store.CONFIG).is_file() and run.name in set(frame["cell"]):
            configs[run.name] = store.settings(run / store.CONFIG)
    return configs


def _runs(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What all have in common, once, and of each run the rest; values as one would type them."""
    told = {name: {key: show(value) for key, value in flat(config).items()} for name, config in configs.items()}
    first = next(iter(told.values()), {})
    common = {key: value for key, value in first.items() if all(own.get(key) == value for own in told.values())}
    rest = [{key: value for key, value in own.items() if key not in common} for own in told.values()]
    return {"common": common, "names": list(told), "own": rest}


def _fingerprints(frame: pd.DataFrame) -> list[dict[str, str]]:
    def told(of: pd.DataFrame, name: str) -> str:
        return " ".join(dict.fromkeys(value for value in of[name] if value))

    return [
        {"run": str(cell), **{name: told(of, name) for name in ("checkpoint", "code", "data", "eval_hash")}}
        for cell, of in frame.groupby("cell", sort=True)
    ]


def _commands(report: Report, configs: Mapping[str, Any], asked: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Under what they do: the study's own command, those of its runs, and that of this page."""
    whole = [config for config in configs.values() if _whole(config)]
    said = {"the whole study": [asked["command"]] if asked and asked["command"] else []}
    said["its runs one by one"] = again.commands(whole)
    said["this page"] = [f"python scripts/compare.py study={again._value(study)}" for study in report.studies]
    return {what: lines for what, lines in said.items() if lines}


def _whole(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is one of scripts/train.py; a model of transformers has another kind."""
    return {"names", "logger", "protocol", "extension", "seed"} <= config.keys() and "path" not in config["model"]


def asked(folder: Path) -> dict[str, Any] | None:
    """What `report.verdict` wrote into the study's folder. Raises UserError if that is damaged."""
    path = folder / store.EXPERIMENT
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        experiment, cells, command = found["experiment"], [*found["cells"]], found["command"]
        if missing := {"title", "matched", "not_matched"} - experiment.keys():
            raise LookupError(missing)
        experiments.check(experiment, path.name)
        return {"experiment": experiment, "cells": cells, "command": command}
    except (UserError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is damaged: remove it, and run the experiment again") from error
