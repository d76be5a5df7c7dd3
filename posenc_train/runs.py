"""A run folder, runs/<study>/<cell>/: config.yaml, last.ckpt, rows.jsonl, metrics.jsonl, train.log."""

import contextlib
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from posenc_train.build import class_of
from posenc_train.config import Unmeasured, UserError, check, label, steps_along, training_config
from posenc_train.evaluation.rows import ALONG, FAULTS, Row
from posenc_train.evaluation.run import wanted
from posenc_train.report import store

log = logging.getLogger("posenc_train")
RANK = int(os.environ.get("LOCAL_RANK", 0))  # of this process among the trainer's devices; rank 0 alone writes
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
    many draws of positions an evaluation took, its rows tell. What was out of memory counts as not there.
    """
    if not all((folder / file).exists() for file in ("last.ckpt", "config.yaml", "rows.jsonl", "table.csv")):
        return False
    if load_config(folder).get("task") != cfg["task"]:
        return False
    return evaluated(cfg, folder, checkpoint) and not steps_to_measure(cfg, folder)


def evaluated(cfg: Mapping[str, Any], folder: Path, checkpoint: str) -> bool:
    rows = asked_for(cfg, folder, checkpoint)
    have = {_place(row) for row in rows} - {_place(row) for row in rows if row.status == "out of memory"}
    return _wanted(cfg) <= have


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
def locked(folder: Path) -> Iterator[None]:
    """The run folder for this process alone; the lock goes when the process does, however it ends.

    Raises UserError when another process has it: two of them would overwrite each other's checkpoints and rows.
    """
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"{folder}: another process is at work on this run: wait for it, or end it") from error
        yield


@contextlib.contextmanager
def opened(cfg: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The folder with its configuration in it, for a training. Yields the W&B mode of this process.

    What is logged inside goes to train.log and to the terminal; SIGTERM and SIGINT end it by SystemExit of 143 or 130.
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
            stack.enter_context(locked(folder))
            store.write_whole(path, yaml.safe_dump(dict(cfg), sort_keys=False).encode())
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


def describe(facts: Mapping[str, Any], within: str = "") -> str:
    """Facts as lines of `name: value`, those of a part indented below it."""
    lines = []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            numbers = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in value.items())
            lines.append(f"{within}{key}: {numbers}")
        else:
            lines.append(f"{within}{key}: {value}")
    return "\n".join(lines)
