"""Evaluates a run and gives its measurements their coordinates."""

import ast
import hashlib
import resource
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import posenc_train
from posenc_train.build import build_sampling, extend, scale_of
from posenc_train.config import cell_name, extension_label, label, lengths
from posenc_train.evaluation import longrope
from posenc_train.evaluation.evaluate import evaluate, last_targets, protocol_label
from posenc_train.evaluation.rows import Row
from posenc_train.model.transformer import Transformer
from posenc_train.tasks.base import Task


def wanted(cfg: Mapping[str, Any], protocols: tuple[str, ...]) -> set[tuple[str, int, str]]:
    """(extension, length, protocol) of every row that an evaluation of this configuration makes at least once.

    protocols: the names of those that apply to the task.
    """
    return {
        (extension_label(*extension), length, protocol_label(name, settings, cfg["train_length"]))
        for extension in cfg["extension"].items()
        for length in lengths(cfg)
        for name, settings in cfg["protocol"].items()
        if name in protocols
        if name != "same_targets" or last_targets(settings, cfg["train_length"]) <= length
    }


def longest(cfg: Mapping[str, Any]) -> int:
    """The length of the evaluation text's windows, in tokens fed."""
    return cfg["task"]["longest"] or max(8 * cfg["train_length"], *lengths(cfg))


def coordinates(cfg: Mapping[str, Any], task: Task, step: int, checkpoint: str) -> dict[str, Any]:
    """What every row of a run says of where it comes from."""
    return {
        "study": cfg["study"],
        "cell": cell_name(cfg),
        "scheme": label(cfg, "position"),
        "sampling": label(cfg, "sampling"),
        "task": label(cfg, "task"),
        "model": label(cfg, "model"),
        "seed": cfg["seed"],
        "train_length": cfg["train_length"],
        "tokens_seen": step * cfg["optim"]["batch_size"] * cfg["train_length"],
        "checkpoint": checkpoint,
        "code": code_fingerprint(),
        "data": task.fingerprint,
    }


def evaluate_run(
    cfg: Mapping[str, Any],
    task: Task,
    model: Transformer,
    step: int,
    checkpoint: str,
    folder: Path | None = None,
    tell: Callable[[str], None] = print,
) -> Iterator[Row]:
    """The rows of every extension, length and protocol that the configuration asks for; checkpoint is its label.

    The scale of an extension is that of the length, so each length has schemes of its own. folder: keeps what a search
    finds (None: nothing does); tell: gets a line on its progress.
    """
    where, sampling = coordinates(cfg, task, step, checkpoint), build_sampling(cfg)
    for name, settings in cfg["extension"].items():
        for length in lengths(cfg):
            scale = scale_of(settings, length, cfg["train_length"])
            found = longrope.factors(cfg, name, task, model, scale, checkpoint, folder, tell)
            extended = model.under(extend(cfg, name, model.positions, model.dims, scale, **found))
            for m in evaluate(
                extended, task, [length], cfg["protocol"], cfg["train_length"], longest(cfg), sampling=sampling
            ):
                yield Row(**where, extension=extension_label(name, settings), **vars(m))


def cost_rows(cfg: Mapping[str, Any], task: Task, model: Transformer, step: int, seconds: float) -> Iterator[Row]:
    """What the training took: seconds (count: steps), the process's peak memory in bytes, trained parameters."""
    where = coordinates(cfg, task, step, f"last@{step}") | {
        "extension": "none",
        "length": cfg["train_length"],
        "slice": {},
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    parameters = sum(p.numel() for p in model.parameters())
    for metric, total, count, unit in (
        ("seconds", seconds, step, "second"),
        ("bytes", peak, 1, "byte"),
        ("parameters", parameters, 1, "parameter"),
    ):
        yield Row(**where, protocol="training", metric=metric, total=float(total), count=count, unit=unit, eval_hash="")


def code_fingerprint() -> str:
    """16 hex digits of the package's own code, as syntax trees: comments and spacing do not enter."""
    root = Path(posenc_train.__file__).parent
    whole = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0] != "report":
            whole.update(ast.dump(ast.parse(file.read_bytes())).encode())
    return whole.hexdigest()[:16]
