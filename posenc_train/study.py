"""A study: the cells of an experiment's grid, each trained by a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from posenc_train.config import UserError, check, command_line, compose, expand, run_folder

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
    extra = [o for o in command_line() if o.lstrip("+~").partition("=")[0].split(".")[0] not in OWN]
    cells = {}
    for line in cfg["experiment"]["grid"]:
        for overrides in expand(line, extra):
            config = compose("train", overrides)
            check(config)
            cells[run_folder(config)] = Cell(overrides, config)
    if not cells:
        raise UserError("experiment.grid=[]: must hold at least one line of overrides")
    return sorted(cells.values(), key=lambda cell: -cell.tokens)


def run(cells: Sequence[Cell], jobs: int | None) -> dict[Cell, str]:
    """Trains and evaluates the cells, `jobs` at a time; returns the reason of each that failed.

    A cell that was finished before costs a second. Interrupting ends all of them, and the same call goes on from there.
    """
    jobs = min(jobs or side_by_side(cells), len(cells))
    threads = ["trainer.threads=1"] if jobs > 1 else []
    waiting, running, failed, done = list(cells), {}, {}, 0
    bar = tqdm(
        total=sum(cell.tokens for cell in cells),
        bar_format="{desc} |{bar}| {percentage:.0f}%, {elapsed} gone, {remaining} left",
        smoothing=0,
        mininterval=0.5 if sys.stderr.isatty() else 30,
        dynamic_ncols=True,
    )
    try:
        with bar:
            while waiting or running:
                while waiting and len(running) < jobs:
                    cell = waiting.pop(0)
                    running[start(cell, threads)] = cell
                time.sleep(0.2)
                for process in [p for p in running if p.poll() is not None]:
                    cell = running.pop(process)
                    done += 1
                    if process.returncode:
                        failed[cell.folder] = reason(process)
                names = ", ".join(cell.folder.name.rpartition("-L")[0] for cell in running.values())
                bar.set_description_str(f"{done} of {len(cells)} done; {names}", refresh=False)
                bar.n = sum(c.tokens_done() for c in running.values()) + sum(
                    c.tokens for c in cells if c not in waiting and c not in running.values()
                )
                bar.update(0)
    finally:
        for process in running:
            process.terminate()
            process.wait()
    return failed


def side_by_side(cells: Sequence[Cell]) -> int:
    small = all(cell.config["model"]["width"] <= SMALL for cell in cells)
    return len(os.sched_getaffinity(0)) if small else 1


def start(cell: Cell, threads: Sequence[str]) -> subprocess.Popen:
    script = Path(sys.argv[0]).resolve().with_name("train.py")
    output = tempfile.TemporaryFile(mode="w+")
    process = subprocess.Popen(
        [sys.executable, str(script), *cell.overrides, *threads], stdout=output, stderr=subprocess.STDOUT
    )
    process.output = output
    return process


def reason(process: subprocess.Popen) -> str:
    """The last line that a failed cell said."""
    process.output.seek(0)
    lines = [line.strip() for line in process.output if line.strip()]
    return lines[-1] if lines else f"exit code {process.returncode}"


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
