"""From rows to tables and pictures. Knows rows and no torch; sums are divided by counts in `tables` only."""

from pathlib import Path


def write(folder: Path | str, gate: float = 0.95) -> list[Path]:
    """Writes a study's table.csv, table.md and figures (PNG and SVG) into its folder; returns their paths.

    `gate`: the token accuracy at the trained length from which a model counts as having learned its task.
    """
    from posenc_train.report import (
        figures,
        formats,
        store,
        tables,
    )  # pandas and matplotlib are slow to import

    report = tables.summary(store.read(folder), gate)
    files = {"table.csv": formats.csv(report).encode(), "table.md": formats.markdown(report).encode()}
    files |= figures.draw(report)
    for name, content in files.items():
        store.write_whole(Path(folder) / name, content)
    return [Path(folder) / name for name in files]


def text(folder: Path | str, gate: float = 0.95, width: int = 80) -> str:
    """A study's or a run's tables as plain text."""
    from posenc_train.report import store, tables

    return tables.render(tables.summary(store.read(folder), gate), width)
