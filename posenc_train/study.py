"""A study: the cells of an experiment's grid, each trained by a process of its own."""

import json
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from posenc_train.config import Unmeasured, UserError, check, command_line, compose, expand, run_folder

OWN = ("experiment", "jobs")  # keys of the study itself; every other override is the cells'
SMALL = 128  # up to this width one thread a cell is faster than all threads for one cell (measured on two cores)


class Cell(NamedTuple):
    overrides: list[str]
    config: dict[str, Any]

    @property
    def folder(self) -> Path:
        return run_folder(self.config)

    @property
    def tokens(self) -> int:
        """What the training will see; the measure of work."""
        return self.config["optim"]["steps"] * self.config["optim"]["batch_size"] * self.config["train_length"]

    def tokens_done(self) -> int:
        return last_line(self.folder / "metrics.jsonl").get("tokens", 0)


def plan(cfg: Mapping[str, Any]) -> list[Cell]:
    """The cells of cfg.experiment.grid under the command line's own overrides, largest first, each checked.

    Largest first, so that the last ones to end are short. Raises UserError for the first that cannot be.
    """
    lines = cfg["experiment"]["grid"]
    cells = _cells(overrides for line in lines for overrides in expand(line, _extra()))
    if not cells:
        raise UserError("experiment.grid=[]: must hold at least one line of overrides")
    return cells


def second_act(cfg: Mapping[str, Any], finished: Sequence[Cell]) -> list[Cell]:
    """The cells of cfg.experiment.then: each line once for every finished cell, from whose weights it starts (init=),
    and whose overrides hold where the line says nothing else. A line `position=rope -> position=nope` follows only
    the cells that have the overrides before the arrow."""
    acts = []
    for cell in finished:
        for line in cfg["experiment"]["then"] or ():
            after, _, words = line.rpartition("->")
            for overrides in expand(words, _extra()) if set(after.split()) <= set(cell.overrides) else ():
                said = {_key(override) for override in overrides}
                kept = [o for o in cell.overrides if not {_key(o), _key(o).partition(".")[0]} & said]
                acts.append([*kept, *overrides, f"init={cell.folder}"])
    return _cells(acts)


def _extra() -> list[str]:
    """What the command line says to the cells."""
    return [override for override in command_line() if _key(override).partition(".")[0] not in OWN]


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _cells(jobs: Iterable[list[str]]) -> list[Cell]:
    cells = {}
    for overrides in jobs:
        config = compose("train", overrides)
        check(config)
        cells[run_folder(config)] = Cell(overrides, config)
    return sorted(cells.values(), key=lambda cell: -cell.tokens)


def run(cells: Sequence[Cell], jobs: int | None) -> dict[Path, str]:
    """Trains and evaluates the cells, `jobs` at a time; returns the reason of each that failed.

    A cell that was finished before costs nothing. Interrupted, the same call goes on from there: SIGINT (Ctrl-C) and
    SIGTERM are handed on to the cells, which leave a checkpoint.
    """
    jobs = min(jobs or side_by_side(cells), len(cells))
    waiting, running, failed, done = list(cells), {}, {}, 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    print(f"{len(cells)} cells, {jobs} at a time, into {cells[0].folder.parent}", file=sys.stderr)
    bar = tqdm(
        total=sum(cell.tokens for cell in cells),
        initial=sum(cell.tokens_done() for cell in cells),  # of an earlier call: says nothing about the speed
        bar_format="{desc} |{bar:10}| {percentage:3.0f}% {remaining} left",
        smoothing=0,  # the mean speed so far
        mininterval=0.5 if sys.stderr.isatty() else 30,
    )
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running[start(cell, alone=jobs == 1)] = cell
            wait([process.sentinel for process in running], timeout=0.5)
            for process in [process for process in running if process.exitcode is not None]:
                cell = running.pop(process)
                done += 1
                if process.exitcode:
                    failed[cell.folder] = reason(cell, process.exitcode)
            names = ["{position}-{task}".format(**cell.config["names"]) for cell in running.values()]
            bar.set_description_str(
                "; ".join([f"{done} of {len(cells)} done", ", ".join(names)][: 1 + bool(names)]), False
            )
            bar.update(sum(cell.tokens_done() for cell in cells) - bar.n)
    finally:
        bar.close()
        for process in running:
            process.terminate()
            process.join()
    return failed


def side_by_side(cells: Sequence[Cell]) -> int:
    small = all(cell.config["model"]["width"] <= SMALL for cell in cells)
    return len(os.sched_getaffinity(0)) if small else 1


def start(cell: Cell, alone: bool) -> Process:
    """A process of its own that does what scripts/train.py does with the cell's configuration.

    It is forked from a server that has imported everything once: imports take longer than a small cell's evaluation.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["posenc_train.training.fit", "posenc_train.report.figures", "datasets", "wandb"])
    config = dict(cell.config)
    if not alone:
        config["trainer"] = config["trainer"] | {"threads": 1}
    process = context.Process(target=train, args=(config, cell.folder))
    process.start()
    return process


def train(config: dict[str, Any], folder: Path) -> None:
    """scripts/train.py in this process; what it says goes to a file beside the run folder until it has succeeded."""
    os.setsid()  # Ctrl-C reaches the study, which ends its cells one by one
    threading.Thread(target=end_with_parent, daemon=True).start()
    script = Path(sys.argv[0]).resolve().with_name("train.py")
    output = said(folder)
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        runpy.run_path(str(script))["main"].__wrapped__(config)
    except Unmeasured:  # the study tells, of all cells together
        pass
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    output.unlink()


def end_with_parent() -> None:
    """A cell without its study would keep the run folder from the next one."""
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGTERM)


def said(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.out")


def reason(cell: Cell, code: int) -> str:
    """The last line that a failed cell said; all of it stays in the file."""
    path = said(cell.folder)
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return f"{last} (exit code {code}; all it said: {path})"


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl; nothing where there is none yet."""
    try:
        lines = path.read_text(encoding="utf-8").rsplit("\n", 2)
        return json.loads(lines[-2]) if len(lines) > 1 else {}
    except (OSError, ValueError):
        return {}


def tell(failed: Mapping[Path, str]) -> None:
    """Ends the program with what failed, if anything."""
    if failed:
        lines = "; ".join(f"{folder}: {why}" for folder, why in failed.items())
        raise UserError(f"{len(failed)} cells failed: {lines}")
