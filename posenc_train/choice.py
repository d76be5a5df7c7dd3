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

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
from torch.utils.flop_counter import FlopCounterMode

from posenc_train import estimate, launch
from posenc_train.build import build_model, build_sampling, build_task
from posenc_train.checks import longest
from posenc_train.config import UserError, label, training_config
from posenc_train.report import store
from posenc_train.study import Cell, cell_of, tell, unique

UNTUNED = ("protocol", "lengths", "factors", "extension", "study", "task.longest", "optim.lr", "logger")


def made(cfg: Mapping[str, Any], cells: Sequence[Cell]) -> list[Cell]:
    """The cells with the steps and learning rates that are theirs."""
    cells, notes = list(cells), {}
    if cfg["budget"] != "tokens":
        cells, notes["budget"] = budgeted(cells, cfg["budget"])
    if cfg["tune"]["lr"]:
        cells, notes["learning rates"] = tuned(cells, cfg["tune"]["lr"], cfg["jobs"])
    path = cells[0].folder.parent / store.NOTES
    if notes:
        store.write_whole(path, json.dumps(notes, indent=1, ensure_ascii=False).encode())
    else:
        path.unlink(missing_ok=True)
    return cells


# ---- budgets ---------------------------------------------------------------------------------------------


def budgeted(cells: Sequence[Cell], budget: str) -> tuple[list[Cell], str]:
    folder = cells[0].folder.parent
    folder.mkdir(parents=True, exist_ok=True)
    found, said = [], {}
    with filelock.FileLock(folder / ".budget.lock"):  # the second of two studies takes what the first measured
        for cell in cells:
            plain = cell_of(
                [o for o in cell.overrides if not o.lstrip("+~").startswith("position")] + ["position=nope"]
            )
            share = measured(plain, budget, folder) / measured(cell, budget, folder)
            steps = max(1, round(cell.config["optim"]["steps"] * share))
            found.append(cell.having(f"optim.steps={steps}"))
            said[f"{_scheme(cell)} {steps}"] = None
    what = {"flops": "floating point operations", "time": "training time"}[budget]
    return unique(found), f"steps of equal {what}, those of no positions: {', '.join(said)}"


def measured(cell: Cell, budget: str, folder: Path) -> float:
    """What a training step takes, as the study remembers it."""
    path = folder / "budget.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    key = f"{budget} {hashlib.sha256(estimate.kind_of(cell.config).encode()).hexdigest()[:16]}"
    if key not in known:
        known[key] = {"flops": counted, "time": timed}[budget](cell.config)
        store.write_whole(path, json.dumps(known, indent=1).encode())
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


def tuned(cells: Sequence[Cell], rates: Sequence[float], jobs: int | None) -> tuple[list[Cell], str]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_alike(cell), []).append(cell)
    trials = {
        name: {rate: trial(min(group, key=lambda cell: cell.config["seed"]), rate) for rate in rates}
        for name, group in groups.items()
    }
    tell(launch.run(unique(cell for of_group in trials.values() for cell in of_group.values()), jobs))
    found, said = [], {}
    for name, group in groups.items():
        losses = {rate: validation_loss(cell.folder) for rate, cell in trials[name].items()}
        best = min(losses, key=lambda rate: (losses[rate], rate))
        if losses[best] == float("inf"):
            raise UserError(f"tune.lr={list(rates)}: {_scheme(group[0])} has a finite loss with none; try lower ones")
        found += [cell.having(f"optim.lr={best!r}") for cell in group]
        taken_over(trials[name][best], found)
        of = ", ".join(f"{losses[rate]:.4f} at {rate:g}" for rate in sorted(losses))
        said[f"{_scheme(group[0])} {best:g} ({of})"] = None
    seed = min(cell.config["seed"] for cell in cells)
    rule = f"the one with the least validation loss at the trained length, seed {seed}, in nats a target"
    return unique(found), f"learning rates, {rule}: {'; '.join(said)}"


def taken_over(winner: Cell, cells: Sequence[Cell]) -> None:
    """The winner is a cell of the study too: it need not be trained again to be evaluated there."""
    for cell in cells:
        if cell.folder.name == winner.folder.name and not cell.folder.exists():
            new = cell.folder.with_name(f".{cell.folder.name}.{os.getpid()}")
            new.mkdir(parents=True)
            for file in ("last.ckpt", "metrics.jsonl"):
                shutil.copy2(winner.folder / file, new)
            new.rename(cell.folder)


def trial(cell: Cell, rate: float) -> Cell:
    config = cell.config
    kept = [o for o in cell.overrides if not o.lstrip("+~").startswith(UNTUNED)]
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
