"""Train small models short, evaluate them long, with every position scheme."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__version__ = "0.1.0"


def rows(folder: Path | str) -> pd.DataFrame:
    """The measurements of a study, or of one run, for a notebook: posenc_train.rows("runs/default").

    One line each: its coordinates (the fields of a row; `slice` is JSON text), its sum `total` over `count` targets,
    and `value` = total / count: nats per target of nll and regret, of the others the share that is right, NaN where
    `status` is not ok. Perplexity is exp(value). Raises UserError, in one line, where there are no rows.
    """
    from posenc_train.report import store, tables  # pandas takes a while, and this package is imported by every command

    return tables.divided(store.read(folder))
