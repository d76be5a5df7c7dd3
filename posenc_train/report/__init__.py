"""From rows to tables and pictures. Knows rows and no torch; sums are divided by counts in `tables` only.

pandas and matplotlib are slow to import, so they are when they are needed.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc_train.report.tables import Report


def of(folder: Path | str, gate: float = 0.95, tolerance: float = 0.05) -> "Report":
    """What the rows of a study, or of one run, say.

    `gate`: the token accuracy at the trained length from which a model counts as having learned its task.
    `tolerance`: within which of the trained length a longer one counts as usable.
    """
    from posenc_train.report import store, tables

    return tables.summary(store.read(folder), gate, tolerance, store.documents(folder))


def verdict(experiment: Mapping[str, Any], folder: Path | str, cells: Sequence[str], command: str = "") -> str:
    """What the rows of these cells of a study say of its experiment, as plain text: ours beside the published table,
    and the claims. Both are written into the folder as well, as published and claims, .md and .csv, the table as .tex
    too, and what was asked for `write_page`. command: the one that does this."""
    from posenc_train.report import claims, latex, published, store

    frame = store.read(folder)
    frame = frame[frame["cell"].isin(cells)]
    beside, verdicts = published.beside(frame, experiment), claims.judge(frame, experiment)
    files = {"published.md": published.markdown(beside), "claims.md": claims.markdown(verdicts)}
    files["claims.csv"] = claims.csv(verdicts)
    if beside.blocks:
        files |= {"published.csv": published.csv(beside), "published.tex": latex.published(beside)}
    asked = {"command": command, "experiment": experiment, "cells": list(cells)}
    files[store.EXPERIMENT] = json.dumps(asked, ensure_ascii=False, indent=1)
    for name, content in files.items():
        store.write_whole(Path(folder) / name, content.encode())
    return f"{published.text(beside)}\n{claims.text(verdicts)}"


def write(report: "Report", folder: Path | str) -> list[Path]:
    """Writes table.csv, table.md and figures (PNG and SVG) into a folder; returns their paths."""
    from posenc_train.report import figures, formats, store

    files = {"table.csv": formats.csv(report).encode(), "table.md": formats.markdown(report).encode()}
    files |= figures.draw(report)
    for name, content in files.items():
        store.write_whole(Path(folder) / name, content)
    return [Path(folder) / name for name in files]


def write_page(report: "Report", folder: Path | str) -> Path:
    """Writes report.html, a page of the whole study that needs nothing else, into its folder; returns its path. The
    verdict in it is that of the experiment that was run last in this folder."""
    from posenc_train.report import page, store

    folder = Path(folder)
    store.write_whole(folder / "report.html", page.render(report, folder, page.asked(folder)).encode())
    return folder / "report.html"


def for_paper(report: "Report", folder: Path | str) -> list[Path]:
    """Writes table.tex, table.parquet and the figures as PDF into a folder; returns their paths."""
    from posenc_train.report import figures, formats, latex, store

    files = {"table.tex": latex.text(report).encode(), "table.parquet": formats.parquet(report)}
    files |= figures.for_paper(report)
    for name, content in files.items():
        store.write_whole(Path(folder) / name, content)
    return [Path(folder) / name for name in files]


def text(report: "Report") -> str:
    """The tables as plain text within the width of the terminal (80 columns where there is none)."""
    from posenc_train.report import formats

    return formats.render(report, shutil.get_terminal_size().columns)
