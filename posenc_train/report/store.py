"""Rows on disk: `runs/<study>/<cell>/rows.jsonl`, one JSON object a line, and beside them documents.parquet, sums of
nll by document; those of one row add up to its total (math.fsum).

A file here appears whole or not at all: it is written beside its place and then moved there.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from posenc_train.config import UserError, training_config
from posenc_train.evaluation.rows import FIELDS, Row

ROWS, CONFIG, NOTES, DOCUMENTS = "rows.jsonl", "config.yaml", "notes.json", "documents.parquet"
BIASES = "biases.json"  # in a run folder: posenc_train/evaluation/biases.py
EXPERIMENT = "experiment.json"  # in a study's folder: what was run last, and how
SCORED = (  # the coordinates by which documents.parquet names a row
    "cell", "protocol", "length", "extension", "sampling", "checkpoint", "unit", "eval_hash", "code",
)  # fmt: skip
SUMS = (*SCORED, "document", "total", "count")
NO_STUDIES = ("wandb",)  # W&B's own folder stands beside the studies


def studies(root: Path | str = "runs") -> list[str]:
    """The studies below `root` that hold at least one run, sorted."""
    folders = Path(root).iterdir() if Path(root).is_dir() else ()
    return sorted(folder.name for folder in folders if folder.name not in NO_STUDIES and runs(folder))


def runs(study: Path | str) -> list[Path]:
    """The run folders of a study, finished or not, sorted by name. A run folder is its own and only run."""
    study = Path(study)
    if _is_run(study):
        return [study]
    return sorted(folder for folder in study.iterdir() if _is_run(folder)) if study.is_dir() else []


def unfinished(study: Path | str) -> list[str]:
    """The names of the runs that have no rows yet: they would be missing from a table without a word."""
    return [run.name for run in runs(study) if not (run / ROWS).is_file()]


def _is_run(folder: Path) -> bool:
    return folder.is_dir() and ((folder / ROWS).is_file() or (folder / CONFIG).is_file())


def load(path: Path | str) -> list[Row]:
    """The rows of one file, in order; none if there is no file. Raises UserError naming file and line."""
    path = Path(path)
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), start=1):
        try:
            rows.append(Row.parse(line.decode()))
        except ValueError as error:  # also json's and Unicode's own
            raise UserError(
                f"{path} line {number}: not a row ({' '.join(str(error).split())}): "
                f"remove that line and evaluate the run again"
            ) from error
    return rows


def append(path: Path | str, rows: Iterable[Row], documents: Sequence[tuple[Row, Any]] = ()) -> int:
    """Adds the rows whose key the file does not have, all of them or, if anything fails, none. What was out of memory
    gives way where the same evaluation now has something else to say.

    documents: for some of the rows their sums by document, arrays `document`, `total`, `count`, which take the place of
    earlier ones. They are written first: whatever has its rows has them too.

    Returns how many were added. Raises UserError if a line of the file is damaged; the file stays as it is.
    """
    old, new = load(path), list(rows)
    better = {_place(row) for row in new if row.status != "out of memory"}
    kept = [row for row in old if row.status != "out of memory" or _place(row) not in better]
    keys = {row.key() for row in kept}
    added = []
    for row in new:
        if row.key() not in keys:
            keys.add(row.key())
            added.append(row)
    if documents:
        _keep(Path(path).with_name(DOCUMENTS), documents)
    if added:
        write_whole(path, "".join(row.json() + "\n" for row in [*kept, *added]).encode())
    return len(added)


def _keep(path: Path, found: Sequence[tuple[Row, Any]]) -> None:
    frames = [_sums(path)] if path.is_file() else []
    frames += [pd.DataFrame({name: getattr(row, name) for name in SCORED} | sums._asdict()) for row, sums in found]
    frame = pd.concat(frames, ignore_index=True)
    out = BytesIO()
    frame.drop_duplicates([*SCORED, "document"], keep="last").to_parquet(out, index=False, compression="zstd")
    write_whole(path, out.getvalue())


def documents(folder: Path | str) -> pd.DataFrame:
    """The sums of nll by document of a study, or of one run: the columns SUMS, no line where none were kept.
    `document` is a number, the same for all that was scored on the same text, and `total` is in nats. Raises UserError,
    which names a file that holds something else."""
    frames = [_sums(run / DOCUMENTS) for run in runs(folder) if (run / DOCUMENTS).is_file()]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=SUMS)


def _sums(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)[list(SUMS)].astype({"document": "int64", "total": "float64", "count": "int64"})
    except (ValueError, KeyError, TypeError, OSError) as error:  # also pyarrow's own
        raise UserError(f"{path}: not the sums by document of a run: remove it, and tables go without them") from error


def _place(row: Row) -> tuple:
    """What was evaluated; a row without a number does not say into which parts the others would have been divided."""
    return row.cell, row.checkpoint, row.extension, row.sampling, row.length, row.protocol


def write_whole(path: Path | str, content: bytes) -> None:
    """Writes a file that a reader sees complete or not at all, whenever this process dies."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read(folder: Path | str) -> pd.DataFrame:
    """All rows of a study folder, or of one run folder, in the order they were written.

    Columns: the fields of a row, where `slice` is its JSON text, and beside them `size`, `position_first`,
    `position_last` (missing where the slice does not name them), `init`, the cell that its weights are from ("" for
    fresh ones), and `recipe`, which is equal for runs that differ in their seed only, and in that of the run that they
    start from. `frame.attrs["unfinished"]` names the runs without rows.
    Raises UserError if there is nothing, naming the studies there are.
    """
    folder = Path(folder)
    records = []
    for run in runs(folder):
        rows = load(run / ROWS)
        config = _config(run) if rows else None
        name = recipe(config, folder) if config else None
        records += [_record(row, name, config) for row in rows]
    if not records:
        raise UserError(_nothing(folder))
    frame = pd.DataFrame.from_records(records)
    for name in ("size", "position_first", "position_last"):
        frame[name] = frame[name].astype("Int64")
    frame["total"] = frame["total"].astype("float64")
    frame.attrs["unfinished"] = unfinished(folder)
    frame.attrs["notes"] = _notes(folder / NOTES)
    return frame


def _notes(path: Path) -> list[str]:
    """How learning rates and budgets were chosen."""
    try:
        return list(json.loads(path.read_text(encoding="utf-8")).values()) if path.is_file() else []
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: is damaged: remove it, and run the experiment again") from error


def _record(row: Row, recipe: str | None, config: dict | None) -> dict:
    record = {name: getattr(row, name) for name in FIELDS}
    first, last = row.slice.get("position", (None, None))
    return record | {
        "slice": json.dumps(row.slice, sort_keys=True),
        "size": row.slice.get("size"),
        "position_first": first,
        "position_last": last,
        "init": Path((config or {}).get("init") or "").name,
        "recipe": recipe or re.sub(r"-s\d+-", "-", row.cell),
    }


def settings(path: Path) -> dict[str, Any]:
    """What a config.yaml holds, by libyaml: in Python alone 40 of them take seconds."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def _config(run: Path) -> dict | None:
    """The training configuration; None where a run has no config.yaml."""
    path = run / CONFIG
    if not path.is_file():
        return None
    try:
        return training_config(settings(path))
    except (yaml.YAMLError, UnicodeDecodeError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not the configuration of a run: restore it or remove its folder") from error


def recipe(config: dict, study: Path) -> str:
    """8 hex digits of the training configuration without its seed; what it starts from is such a recipe too."""
    start = Path(config["init"]).expanduser() if config.get("init") else None
    if start is not None:
        beside = study / start.name  # of the same study, wherever that has been copied to
        before = _config(beside if (beside / CONFIG).is_file() else start)
        start = recipe(before, study) if before else start.name
    text = json.dumps({key: value for key, value in config.items() if key != "seed"} | {"init": start}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _nothing(folder: Path) -> str:
    waiting = unfinished(folder)
    if waiting:
        return f"study={folder.name}: none of its {len(waiting)} runs has rows yet: let a run finish first"
    there = [name for name in studies(folder.parent) if name != folder.name]
    known = f"studies in {folder.parent}: {', '.join(there)}" if there else f"{folder.parent} holds no study yet"
    return f"study={folder.name}: no runs in {folder}; {known}; scripts/train.py study={folder.name} makes one"
