"""A run folder, runs/<study>/<cell>/: config.yaml, last.ckpt, rows.jsonl, metrics.jsonl, train.log."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from posenc_train.build import class_of
from posenc_train.config import UserError, check, training_config
from posenc_train.evaluation.run import wanted
from posenc_train.report import store

log = logging.getLogger("posenc_train")


def prepare(trainer: Mapping[str, Any]) -> None:
    """Settings of the process, before anything is computed."""
    if trainer["threads"] is not None:
        torch.set_num_threads(trainer["threads"])
    # Weights of far keys under a bias underflow into denormal numbers, on which a CPU is many times slower
    # (ALiBi at 1,024 tokens: twice the time). Before the first parallel section: other threads inherit it.
    torch.set_flush_denormal(True)


def finished(cfg: Mapping[str, Any], folder: Path) -> bool:
    """Whether the run was trained to its last step and every measurement asked for is there."""
    if not (folder / "last.ckpt").exists():
        return False
    tokens = cfg["optim"]["steps"] * cfg["optim"]["batch_size"] * cfg["train_length"]
    rows = store.load(folder / "rows.jsonl")
    have = {(row.extension, row.length, row.protocol) for row in rows if row.tokens_seen == tokens}
    return wanted(cfg, class_of(cfg["task"]["_target_"], "task").protocols) <= have


@contextlib.contextmanager
def opened(cfg: Mapping[str, Any], folder: Path) -> Iterator[None]:
    """The folder with its configuration in it; what is logged inside goes to train.log and to the terminal.

    Raises UserError when the folder holds another configuration or cannot be written.
    """
    path = folder / "config.yaml"
    if path.exists() and training_config(load_config(folder)) != training_config(cfg):
        raise UserError(f"{folder}: holds a run of another configuration: choose another study= or remove the folder")
    try:
        store.write_whole(path, yaml.safe_dump(dict(cfg), sort_keys=False).encode())
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}): choose another folder or study=") from error
    handlers = [logging.FileHandler(folder / "train.log", encoding="utf-8"), logging.StreamHandler(sys.stdout)]
    handlers[0].setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    log.setLevel(logging.INFO)
    log.propagate = False
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    except BaseException as error:
        log.handlers[0].handle(log.makeRecord(log.name, logging.ERROR, "", 0, f"ended by {error!r}", (), None))
        raise
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


def reopened(cfg: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The folder of a trained run, and its configuration with what an evaluation asks for in its place."""
    folder = Path(cfg["run"])
    config = load_config(folder)
    for key in ("factors", "lengths"):
        if cfg[key] is not None:
            config[key] = cfg[key]
    if cfg["factors"] is not None and cfg["lengths"] is None:
        config["lengths"] = None
    config |= {"extension": cfg["extension"], "protocol": cfg["protocol"]}
    config["trainer"] = config["trainer"] | cfg["trainer"]
    check(config)
    return folder, config


def load_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run folder. Raises UserError if there is none."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"run={folder}: no readable config.yaml in it: name the folder of a run, runs/<study>/<cell>") from error
    if not isinstance(config, dict):
        raise UserError(f"run={folder}: config.yaml is not the configuration of a run")
    return config


def describe(facts: Mapping[str, Any]) -> str:
    """Facts as one readable line of JSON."""
    return json.dumps(facts, ensure_ascii=False)
