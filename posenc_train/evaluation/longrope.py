"""The evolutionary search of LongRoPE (Ding et al. 2024, arXiv 2402.13753, section 3.2) for the factors of the pairs.

A candidate is one factor per pair, the fastest first, each at least 1 and none below the one before it. Scored by its
loss at the target length on training text: evaluation windows stay unseen. As in the paper it starts from PI, NTK and
YaRN, and mutates and crosses the best. It is smaller than the paper's search (64 candidates and 40 rounds there;
unverified, like the constants below), and an offspring that decreases somewhere is sorted where the paper draws again.
The positions it feeds are consecutive, whatever the run's sampling.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posenc_train.build import extend
from posenc_train.config import UserError, extension_label
from posenc_train.evaluation.evaluate import TOKENS, token_losses
from posenc_train.model.transformer import Transformer
from posenc_train.positions.extensions import ntk, yarn
from posenc_train.positions.extensions.rotary import pairs, ropes
from posenc_train.tasks.base import IGNORE, Batch, Task, generator

Candidate = tuple[float, ...]
RECORD = "longrope.json"  # in the run folder
CHANGE = 0.3  # of the factors of a candidate, those that a mutation changes


def factors(
    cfg: Mapping[str, Any],
    name: str,
    task: Task,
    model: Transformer,
    scale: float,
    checkpoint: str,
    folder: Path | None,
    tell: Callable[[str], None],
) -> dict[str, list[float]]:
    """{"factors": […]} for an extension that searches at a scale above 1, else {}. The target length is the scale times
    the trained length. What was found before, for the same weights, length and settings, is read from the folder."""
    settings = cfg["extension"][name]
    if name != "longrope" or (settings["factors"] == "search" and scale == 1):
        return {}
    file = None if folder is None else folder / RECORD
    label, known = extension_label(name, settings), {} if file is None else _read(file)
    if settings["factors"] != "search":
        if known.get(label) != (given := {"factors": settings["factors"]}):
            _write(file, known | {label: given})
        return {}
    length = round(scale * cfg["train_length"])
    key = f"{label} {checkpoint} length {length}"
    count = _pairs(model)
    if key not in known:
        tell(f"{label}: searching {count} factors for {length} tokens")
        known |= {key: _searched(cfg, name, task, model, scale, length, count, tell)}
        _write(file, known)
    return {"factors": _usable(known[key], count, file)}


def _searched(cfg, name: str, task: Task, model: Transformer, scale: float, length: int, count: int, tell) -> dict:
    settings = cfg["extension"][name]
    batch = _text(task, cfg, length, max(1, settings["tokens"] // length))
    losses: dict[Candidate, float] = {}

    def loss(candidate: Candidate) -> float:
        if candidate not in losses:
            schemes = extend(cfg, name, model.positions, model.dims, scale, factors=list(candidate))
            losses[candidate] = mean_loss(model.under(schemes), batch)
        return losses[candidate]

    starts = _starts(model, scale, count)
    random = generator(cfg["seed"], "longrope", length)
    was_training = model.training
    model.eval()
    try:
        best = search(loss, list(starts.values()), 1.25 * scale, settings["population"], settings["generations"],
                      random, tell)  # fmt: skip
    finally:
        model.train(was_training)
    return {
        "factors": list(best),
        "loss": _finite(losses[best]),
        "starts": {start: _finite(losses[candidate]) for start, candidate in starts.items()},
        "candidates": len(losses),
        "tokens": batch.inputs.numel(),
        "scale": scale,
    }


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def search(
    loss: Callable[[Candidate], float],
    starts: Sequence[Candidate],
    most: float,
    population: int,
    generations: int,
    random: np.random.Generator,
    tell: Callable[[str], None] = lambda line: None,
) -> Candidate:
    """The candidate of the least loss among the starts, their mutations, and `generations` of offspring of the better
    half. most: the largest factor. The best are kept, so that no generation is worse than the one before."""
    crowd = [*starts, *(mutated(starts[i % len(starts)], most, random) for i in range(population - len(starts)))]
    parents: list[Candidate] = []
    for generation in range(generations + 1):
        parents = sorted(dict.fromkeys([*parents, *crowd]), key=loss)[: max(2, population // 2)]
        tell(f"  generation {generation} of {generations}: {loss(parents[0]):.4f} nats a token of training text")
        half = [mutated(parents[i % len(parents)], most, random) for i in range(population // 2)]
        crowd = [*half, *(crossed(parents, random) for _ in range(population - len(half)))]
    return parents[0]


def mutated(candidate: Candidate, most: float, random: np.random.Generator) -> Candidate:
    """Some of the factors, each a fifth larger or smaller as a rule, at least 1 and at most `most`."""
    chosen = random.random(len(candidate)) < CHANGE
    changed = np.array(candidate) * np.exp(np.where(chosen, random.normal(0, 0.2, len(candidate)), 0))
    return _candidate(changed.clip(1, max(most, 1)))


def crossed(parents: Sequence[Candidate], random: np.random.Generator) -> Candidate:
    """Each factor from one of two parents."""
    one, other = (parents[i] for i in random.choice(len(parents), 2, replace=len(parents) < 2))
    return _candidate(np.where(random.random(len(one)) < 0.5, one, other))


def _candidate(values: np.ndarray) -> Candidate:
    return tuple(float(value) for value in np.sort(values).round(2))  # steps of 0.01


def _starts(model: Transformer, scale: float, count: int) -> dict[str, Candidate]:
    base = next(rope.base for scheme in model.positions for rope in ropes(scheme))
    starts = {"pi": torch.full((count,), scale)}
    if count > 1:
        starts["ntk"] = 1 / ntk.ratio(count, scale)
    starts["yarn"] = 1 / yarn.ratio(count, base, model.dims.train_length, scale)
    return {name: tuple(max(1.0, float(factor)) for factor in values) for name, values in starts.items()}


def _pairs(model: Transformer) -> int:
    counts = {pairs(rope) for scheme in model.positions for rope in ropes(scheme)}
    if len(counts) != 1:
        several = " and ".join(map(str, sorted(counts)))
        raise UserError(
            f"extension.longrope.factors=search: the position's parts have {several} pairs of rotated dimensions, and "
            "there is one list of factors for all; make them equal or choose another extension"
        )
    return counts.pop()


def _text(task: Task, cfg: Mapping[str, Any], length: int, rows: int) -> Batch:
    """Training text of the step after the last one."""
    try:
        return task.batch(cfg["seed"], cfg["optim"]["steps"], range(rows), length)
    except UserError as error:
        raise UserError(
            f"extension.longrope.factors=search: takes training text of {length} tokens ({error})"
        ) from error


def mean_loss(model: Transformer, batch: Batch) -> float:
    """Mean loss in nats over the targets; infinite where it is not a number."""
    device, total, rows = next(model.parameters()).device, 0.0, max(1, TOKENS // batch.inputs.shape[1])
    for first in range(0, len(batch.inputs), rows):
        part = Batch(*(None if x is None else x[first : first + rows].to(device) for x in batch))
        losses = token_losses(model, part.inputs, part.targets.clamp(min=0), part.pos, part.doc)
        total += float(losses[(part.targets != IGNORE).cpu()].sum())
    return total / int((batch.targets != IGNORE).sum()) if math.isfinite(total) else math.inf


def _read(file: Path) -> dict[str, Any]:
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict):
        raise UserError(f"{file}: is no record of a search: remove it, and the search is made again")
    return known


def _write(file: Path | None, known: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    if file is not None:
        beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
        beside.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        os.replace(beside, file)


def _usable(found: Any, count: int, file: Path | None) -> list[float]:
    values = found.get("factors") if isinstance(found, dict) else None
    numbers = isinstance(values, list) and len(values) == count and all(type(v) in (int, float) for v in values)
    if not numbers or not all(1 <= v < 1e300 for v in values) or sorted(values) != values:
        raise UserError(
            f"{file}: is no record of a search for {count} factors: remove it, and the search is made again"
        )
    return values
