"""A run folder, runs/<study>/<cell>/: config.yaml, last.ckpt, rows.jsonl, metrics.jsonl, train.log, cell.json.

cell.json is written when a run is finished: the fingerprints of the code and the data that it was trained by, what was
evaluated, and how long that took. With rerun=changed a run of other code or data is trained again; until that is
finished it is kept as runs/<study>/.before/<cell>.
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from posenc_train import fingerprint
from posenc_train.build import class_of
from posenc_train.config import (
    Unmeasured,
    UserError,
    check,
    extension_label,
    label,
    longest,
    steps_along,
    training_config,
)
from posenc_train.evaluation.rows import ALONG, FAULTS, Row
from posenc_train.evaluation.run import wanted
from posenc_train.lock import locked
from posenc_train.report import store
from posenc_train.training.checkpoint import Saved, read

log = logging.getLogger("posenc_train")
RANK = int(os.environ.get("LOCAL_RANK", 0))  # of this process among the trainer's devices; rank 0 alone writes
RECORD = "cell.json"
CLASSES = ("position", "sampling", "task")  # groups of a configuration that name a class


def prepare(trainer: Mapping[str, Any]) -> None:
    """Settings of the process, before anything is computed."""
    if trainer["threads"] is not None:
        torch.set_num_threads(trainer["threads"])
    # Weights of far keys under a bias underflow into denormal numbers, on which a CPU is many times slower
    # (ALiBi at 1,024 tokens: twice the time). Before the first parallel section: other threads inherit it.
    torch.set_flush_denormal(True)


def finished(cfg: Mapping[str, Any], folder: Path, checkpoint: str) -> bool:
    """Whether every measurement that is asked for is there, of the checkpoint with this label, and the report too.

    Also the settings of the task that only evaluation reads (its seed, its windows) must be those of last time; how
    many draws of positions an evaluation took, its rows tell. What was out of memory counts as not there. With rerun
    in the configuration, all must be of the code that there is now.
    """
    if not all((folder / file).exists() for file in ("last.ckpt", "config.yaml", "rows.jsonl", "table.csv")):
        return False
    data = record(folder).get("evaluations", {}).get(_evaluation(cfg), ())
    have = {place[:3] for place in done(cfg, folder, checkpoint) if place[3] in data}
    return _wanted(cfg) <= have and not steps_to_measure(cfg, folder)


def evaluated(cfg: Mapping[str, Any], folder: Path, checkpoint: str) -> bool:
    return _wanted(cfg) <= {place[:3] for place in done(cfg, folder, checkpoint)}


def done(cfg: Mapping[str, Any], folder: Path, checkpoint: str) -> set[tuple[str, int, str, str]]:
    """(extension, length, protocol, eval_hash) of what a checkpoint was measured at; with rerun, by the code of now."""
    rows = [row for row in asked_for(cfg, folder, checkpoint) if row.status != "out of memory"]
    if cfg.get("rerun"):
        code = training_code(cfg)
        names = {extension_label(*each): each[0] for each in cfg["extension"].items()}
        now = {told: fingerprint.evaluated(cfg, name, code) for told, name in {"none": "none", **names}.items()}
        rows = [row for row in rows if row.code == now[row.extension]]
    return {(*_place(row), row.eval_hash) for row in rows}


def kept(folder: Path, rows: Iterable[Row], documents: list) -> tuple[list[Row], int]:
    """The rows, and how many of them are new, once they are in the folder: also those that were made before an error or
    an interruption, which goes on from here. documents: as of `store.append`, filled while the rows are made."""
    made, added = [], 0
    try:
        for row in rows:
            made.append(row)
    finally:
        added = store.append(folder / "rows.jsonl", made, documents)
    return made, added


def texts(folder: Path) -> set[str]:
    """The eval_hash of all texts that a loss of this run was measured on."""
    return {row.eval_hash for row in store.load(folder / "rows.jsonl") if row.metric == "nll" and row.eval_hash}


def training_code(cfg: Mapping[str, Any]) -> str:
    """The fingerprint of the code that would train this configuration now, and of that of the run it starts from."""
    return fingerprint.trained(cfg, record(Path(cfg["init"]).expanduser()).get("code", "") if cfg["init"] else "")


def record(folder: Path) -> dict[str, Any]:
    """What cell.json says; {} where a run is not finished."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def remember(cfg: Mapping[str, Any], folder: Path, saved: Saved, data: Iterable[str], seconds: float) -> None:
    """Writes cell.json, last of all, of a run whose training has ended. data: the eval_hash of all that was evaluated.
    seconds: what that took, 0 where next to nothing was left to do."""
    if saved.step < cfg["optim"]["steps"]:
        return  # what was kept aside is still needed
    before = record(folder)
    evaluations = before.get("evaluations", {})
    evaluations[_evaluation(cfg)] = sorted({*evaluations.get(_evaluation(cfg), ()), *data})
    told = {"code": saved.code, "data": saved.data, "trained": saved.seconds}
    told["evaluated"] = max(seconds, before.get("evaluated", 0.0))
    store.write_whole(folder / RECORD, json.dumps(told | {"evaluations": evaluations}, indent=1).encode())
    shutil.rmtree(_before(folder), ignore_errors=True)


def _evaluation(cfg: Mapping[str, Any]) -> str:
    """The settings that decide what is evaluated."""
    return json.dumps([cfg["task"], longest(cfg)], sort_keys=True)


def changed(cfg: Mapping[str, Any], folder: Path, data: str) -> bool:
    """Whether what was trained here, as far as it came, is by other code than there is now, or on other data."""
    try:
        saved = read(folder / "last.ckpt")
    except UserError:
        return False  # nothing to compare with
    return (saved.code, saved.data) != (training_code(cfg), data)


def _before(folder: Path) -> Path:
    return folder.with_name(".before") / folder.name


def _set_aside(folder: Path) -> None:
    """An unfinished run that is to be trained again for the second time makes room; a finished one is kept, the newest
    of several."""
    if record(folder):
        shutil.rmtree(_before(folder), ignore_errors=True)
    if _before(folder).exists():
        shutil.rmtree(folder)
    else:
        _before(folder).parent.mkdir(exist_ok=True)
        folder.rename(_before(folder))


def steps_to_measure(cfg: Mapping[str, Any], folder: Path) -> list[int]:
    """The steps along the training whose measurements are asked for and not there."""
    have = {step: set(map(_place, asked_for(cfg, folder, f"{ALONG}{step}"))) for step in steps_along(cfg)}
    return [step for step, places in have.items() if not _wanted(cfg) <= places]


def measurements(cfg: Mapping[str, Any], folder: Path) -> list[Row]:
    """The rows that a training of this configuration asks for, as far as they are there: at its end and along it."""
    labels = [f"last@{cfg['optim']['steps']}", *(f"{ALONG}{step}" for step in steps_along(cfg))]
    return [row for checkpoint in labels for row in asked_for(cfg, folder, checkpoint)]


def asked_for(cfg: Mapping[str, Any], folder: Path, checkpoint: str) -> list[Row]:
    """The rows of a checkpoint that this configuration asks for, as far as they are there."""
    ours = (checkpoint, label(cfg, "sampling"))
    rows = [row for row in store.load(folder / "rows.jsonl") if (row.checkpoint, row.sampling) == ours]
    return [row for row in rows if _place(row) in _wanted(cfg)]


def _wanted(cfg: Mapping[str, Any]) -> set[tuple[str, int, str]]:
    return wanted(cfg, class_of(cfg["task"]["_target_"], "task").protocols)


def _place(row: Row) -> tuple[str, int, str]:
    return row.extension, row.length, row.protocol


def complain(rows: Iterable[Row]) -> None:
    """Raises Unmeasured, which names the cells that have no number although there should be one."""
    faults: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.status in FAULTS:
            faults.setdefault((row.cell, row.status), []).append(row)
    if faults:
        told = [f"{cell}: {status} {_where(some)}" for (cell, status), some in faults.items()]
        raise Unmeasured(f"{'; '.join(told)}; all else is measured and written")


def _where(rows: list[Row]) -> str:
    """at 512, 1024 tokens (nonoverlapping, sliding(stride=64))"""
    lengths, protocols = (dict.fromkeys(str(getattr(row, key)) for row in rows) for key in ("length", "protocol"))
    return f"at {', '.join(lengths)} tokens ({', '.join(protocols)})"


@contextlib.contextmanager
def opened(cfg: Mapping[str, Any], folder: Path, data: str) -> Iterator[str]:
    """The folder with its configuration in it, for a training on the data with this fingerprint. Yields the W&B mode of
    this process.

    With rerun a training by other code or on other data is set aside before. What is logged inside goes to train.log
    and to the terminal; SIGTERM and SIGINT end it by SystemExit of 143 or 130.
    Raises UserError when the folder holds another configuration or cannot be written.
    """
    if RANK:
        yield "none"
        return
    path = folder / "config.yaml"
    if path.exists() and not same_training(load_config(folder), cfg):
        raise UserError(f"{folder}: holds a run of another configuration: choose another study= or remove the folder")
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if cfg.get("rerun") and changed(cfg, folder, data):
                with locked(folder):
                    if changed(cfg, folder, data):  # still: another process may have begun anew meanwhile
                        _set_aside(folder)
                folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder))
            store.write_whole(path, yaml.safe_dump({**cfg, "rerun": None}, sort_keys=False).encode())
            stack.enter_context(logged(folder / "train.log"))
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror}): choose another study=") from error
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, lambda number, frame: sys.exit(128 + number))
            stack.callback(signal.signal, number, before)
        yield cfg["logger"]["mode"]


def same_training(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    try:
        return training_config(dict(theirs)) == training_config(dict(ours))
    except (LookupError, TypeError, AttributeError):  # half a file, or something else
        return False


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """What the program logs goes to a file and to the terminal; an exception's name to the file as well."""
    file, terminal = logging.FileHandler(path, encoding="utf-8"), logging.StreamHandler(sys.stdout)
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [file, terminal]
    try:
        yield
    except BaseException as error:
        why = "a signal" if isinstance(error, SystemExit) else repr(error)
        file.handle(log.makeRecord(log.name, logging.ERROR, "", 0, f"ended by {why}", (), None))
        raise
    finally:
        log.handlers = []
        file.close()


def reopened(cfg: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The folder of a trained run, and its configuration with what an evaluation asks for in its place.

    A run folder may be a stranger's. Raises UserError when its configuration names a class outside this package,
    which would be executed, and the caller did not say trust=true; and when a file of it lies elsewhere.
    """
    folder = Path(cfg["run"])
    for file in ("config.yaml", "last.ckpt", "rows.jsonl", "longrope.json"):
        if not (folder / file).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"run={folder}: {file} is a link that leads out of the folder: copy what it points to")
    config = load_config(folder)
    if "path" in (config.get("model") or {}):
        raise UserError(f"run={folder}: holds rows of a model of transformers: write model=hf model.path=<folder>")
    check(config)  # before anything in it is believed
    for key in ("factors", "lengths"):
        if cfg[key] is not None:
            config[key] = cfg[key]
    if cfg["factors"] is not None and cfg["lengths"] is None:
        config["lengths"] = None
    config |= {"extension": cfg["extension"], "protocol": cfg["protocol"]}
    config["trainer"] = config["trainer"] | cfg["trainer"]
    check(config)
    for group in CLASSES:
        target = config[group]["_target_"]
        if not cfg["trust"] and not (target.startswith("posenc_train.") and own(target, group)):
            raise UserError(
                f"run={folder}: its {group} is the class {target}, which is not of this package: "
                "trust=true executes it, if you know who wrote it"
            )
    return folder, config


def own(target: str, group: str) -> bool:
    """Whether a dotted path into this package ends at a class that this package defines (it might import others)."""
    cls = class_of(target, group)
    return isinstance(cls, type) and cls.__module__.startswith("posenc_train.")


def load_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run folder. Raises UserError if there is none."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"run={folder}: no readable config.yaml in it: name the folder of a run, runs/<study>/<cell>"
        ) from error
    if not isinstance(config, dict):
        raise UserError(f"run={folder}: config.yaml is not the configuration of a run")
    return config


def describe(facts: Mapping[str, Any]) -> str:
    """Facts as lines of `name: value`, within 80 columns where words allow."""
    lines = []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in value.items())
        lines.append(
            textwrap.fill(f"{key}: {value}", 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        )
    return "\n".join(lines)
