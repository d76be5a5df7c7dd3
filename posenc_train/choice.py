"""What is fixed before the cells of a study are trained, for every scheme by one rule.

budget=flops, time: instead of equally many steps, every scheme gets the steps that take as many floating point
    operations, or as long, as those of the configuration do without positions (position=nope). Operations are those of
    matrix products and attention in one training step as torch counts them; times are those of steps tried on this
    machine, once: the study remembers them (budget.json), so that its cells stay the same.
tune.lr=[…]: every scheme is trained once with each learning rate, by the least seed, and keeps the one with the least
    validation loss at the trained length: loss on data that is neither trained on nor evaluated. Longer lengths are not
    looked at. These trainings are the study <study>-tune.

Both are told under the tables (notes.json).
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock
from torch.utils.flop_counter import FlopCounterMode

from posenc_train import estimate, launch
from posenc_train.build import build_model, build_sampling, build_task
from posenc_train.checks import longest, show
from posenc_train.config import UserError, label, training_config
from posenc_train.report import store
from posenc_train.study import Cell, cell_of, key_of, unique

BUDGET = "budget.json"
OF_SCHEMES = ("position", "extension", "under")  # what no positions have no use for
UNTUNED = ("protocol", "lengths", "factors", "extension", "study", "task.longest", "optim.lr", "logger")


def foreseen(cfg: Mapping[str, Any], cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """(the trainings that learning rates are chosen by, the cells with what is chosen already): for a plan. Trains
    nothing and, with plan=true, writes nothing."""
    if cfg["budget"] != "tokens":
        cells, _ = budgeted(cells, cfg["budget"], keep=not cfg["plan"])
    if not cfg["tune"]["lr"]:
        return [], list(cells)
    groups = grouped(cells, cfg["tune"]["lr"])
    tried = trainings(groups)
    if all(map(launch.finished, tried)):
        cells = chosen(groups, {})[0] or cells
    return tried, list(cells)


def made(cfg: Mapping[str, Any], cells: Sequence[Cell]) -> tuple[list[Cell], launch.Outcome]:
    """The cells with the steps and learning rates that are theirs, and why others have none."""
    folder, cells, notes, failed = cells[0].folder.parent, list(cells), {}, {}
    launch.must_be_writable(folder)
    if cfg["budget"] != "tokens":
        cells, notes["budget"] = budgeted(cells, cfg["budget"])
    if cfg["tune"]["lr"]:
        cells, notes["learning rates"], failed = tuned(cells, cfg["tune"]["lr"], cfg["jobs"])
    path = folder / store.NOTES
    if notes:
        store.write_whole(path, json.dumps(notes, indent=1, ensure_ascii=False).encode())
    else:
        path.unlink(missing_ok=True)
    return cells, failed


# ---- budgets ---------------------------------------------------------------------------------------------


def budgeted(cells: Sequence[Cell], budget: str, keep: bool = True) -> tuple[list[Cell], str]:
    """The cells with the steps of the budget, and what is to be told of it. keep: what is measured, for later calls."""
    path, found, said = cells[0].folder.parent / BUDGET, [], {}
    with contextlib.ExitStack() as stack:
        if keep:
            launch.must_be_writable(path.parent)
            stack.enter_context(filelock.FileLock(path.with_name(".budget.lock")))  # of two studies one measures
        known = json.loads(path.read_text()) if path.exists() else {}
        for cell in cells:
            plain = cell_of([*(o for o in cell.overrides if not key_of(o).startswith(OF_SCHEMES)), "position=nope"])
            share = measured(plain, budget, known) / measured(cell, budget, known)
            steps = max(1, round(cell.config["optim"]["steps"] * share))
            found.append(cell.having(f"optim.steps={steps}"))
            said[f"{_scheme(cell)} {steps}"] = None
        if keep:
            store.write_whole(path, json.dumps(known, indent=1).encode())
    what = {"flops": "floating point operations", "time": "training time"}[budget]
    return unique(found), f"steps of equal {what}, those of no positions: {', '.join(said)}"


def measured(cell: Cell, budget: str, known: dict[str, float]) -> float:
    """What a training step takes, as it is known or comes to be."""
    key = f"{budget} {hashlib.sha256(estimate.kind_of(cell.config).encode()).hexdigest()[:16]}"
    if key not in known:
        known[key] = {"flops": counted, "time": timed}[budget](cell.config)
    return known[key]


def counted(config: dict[str, Any]) -> float:
    """Floating point operations of a training step of one row, all of attention counted: of fused attention torch does
    not know them on a CPU."""
    config = config | {"model": config["model"] | {"attention": "reference"}}
    task = build_task(config)
    model = build_model(config, task)
    with FlopCounterMode(display=False) as counter:
        estimate.train_step(config, model, task.batch(0, 0, range(1), config["train_length"]), build_sampling(config))
    return float(counter.get_total_flops())


def timed(config: dict[str, Any]) -> float:
    """Seconds of a training step."""
    cost = estimate.tried(config)
    if cost.step is None:
        raise UserError(f"budget=time: a step could not be tried: {cost.how}")
    return cost.step


# ---- learning rates --------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Cells of one scheme, and a training of it with each learning rate."""

    cells: list[Cell]
    trials: dict[float, Cell]


def tuned(cells: Sequence[Cell], rates: Sequence[float], jobs: int | None) -> tuple[list[Cell], str, launch.Outcome]:
    """The cells with the learning rates that are chosen, how these were, and why the others have none."""
    groups = grouped(cells, rates)
    found, said, failed = chosen(groups, launch.run(trainings(groups), jobs))
    for cell in found:
        for group in groups:
            taken_over(group.trials[cell.config["optim"]["lr"]], cell)
    seed = min(cell.config["seed"] for cell in cells)
    rule = f"the one with the least validation loss at the trained length, seed {seed}, in nats a target"
    return found, f"learning rates, {rule}: {'; '.join(said)}", failed


def grouped(cells: Sequence[Cell], rates: Sequence[float]) -> list[Group]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_alike(cell), []).append(cell)
    first = {name: min(group, key=lambda cell: cell.config["seed"]) for name, group in groups.items()}
    return [Group(group, {rate: trial(first[name], rate) for rate in rates}) for name, group in groups.items()]


def trainings(groups: Sequence[Group]) -> list[Cell]:
    return unique(cell for group in groups for cell in group.trials.values())


def chosen(groups: Sequence[Group], failed: launch.Outcome) -> tuple[list[Cell], list[str], launch.Outcome]:
    """(cells with their learning rates, in words which these are and why, why other cells have none). failed: of the
    trainings. One that failed leaves its scheme without a learning rate: the rest would be another choice."""
    found, said, without = [], {}, {}
    for group in groups:
        if lost := [f"{cell.folder}: {failed[cell.folder]}" for cell in group.trials.values() if cell.folder in failed]:
            without |= {cell.folder: f"no learning rate, since {'; '.join(lost)}" for cell in group.cells}
            continue
        losses = {rate: validation_loss(cell.folder) for rate, cell in group.trials.items()}
        best = min(losses, key=lambda rate: (losses[rate], rate))
        if losses[best] == float("inf"):
            why = f"tune.lr={show(list(losses))}: the loss is finite with none; try lower ones"
            without |= {cell.folder: why for cell in group.cells}
            continue
        found += [cell.having(f"optim.lr={best!r}") for cell in group.cells]
        of = ", ".join(f"{losses[rate]:.4f} at {rate:g}" for rate in sorted(losses))
        said[f"{_scheme(group.cells[0])} {best:g} ({of})"] = None
    return unique(found), list(said), without


def taken_over(trained: Cell, cell: Cell) -> None:
    """The winner is a cell of the study too: it need not be trained again to be evaluated there."""
    if cell.folder.name == trained.folder.name and not cell.folder.exists():
        new = cell.folder.with_name(f".{cell.folder.name}.{os.getpid()}")
        new.mkdir(parents=True, exist_ok=True)
        for file in ("last.ckpt", "metrics.jsonl"):
            shutil.copy2(trained.folder / file, new)
        try:
            new.rename(cell.folder)
        except OSError:  # another study has just done the same
            shutil.rmtree(new)


def trial(cell: Cell, rate: float) -> Cell:
    config = cell.config
    kept = [o for o in cell.overrides if not key_of(o).startswith(UNTUNED)]
    length, whole = config["train_length"], longest(config)
    more = [f"study={config['study']}-tune", f"optim.lr={rate!r}", "protocol=[validation]", "logger=none"]
    return cell_of([*kept, *more, f"lengths=[{length}]", f"task.longest={whole}"])


def validation_loss(folder: Path) -> float:
    """Nats a target; infinite where it is not finite."""
    rows = [row for row in store.load(folder / "rows.jsonl") if row.protocol == "validation"]
    return rows[-1].total / rows[-1].count if rows and rows[-1].status == "ok" else float("inf")


def _alike(cell: Cell) -> str:
    """What cells of one scheme have in common: all but the seed and the learning rate."""
    config = training_config(cell.config)
    optim = {key: value for key, value in config["optim"].items() if key != "lr"}
    return json.dumps({key: value for key, value in config.items() if key != "seed"} | {"optim": optim}, sort_keys=True)


def _scheme(cell: Cell) -> str:
    return f"{label(cell.config, 'position')} on {cell.config['names']['task']} of {cell.config['train_length']}"
