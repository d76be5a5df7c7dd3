"""Runs the cells of a study: in processes of its own on this machine, or through a launcher of Hydra's.

Whoever runs a cell holds the lock of its folder. What another study, or another machine, is at work on is left to it
and waited for; where its owner dies, the cell is taken over. What is done, running and left is read from the run
folders, so that one line tells it whoever is at work.
"""

import contextlib
import functools
import json
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from typing import Any

from tqdm import tqdm

from posenc_train import runs
from posenc_train.config import Unmeasured, UserError, check, composer, hydra_line, plain, run_folder
from posenc_train.lock import Busy, owner
from posenc_train.study import Cell

SMALL = 128  # up to this width one thread a cell is faster than all threads for one cell (measured on two cores)
BUSY = "another process is at work on it"
BUSY_CODE = 75  # how a cell's process ends then
Outcome = dict[Path, str]  # run folder -> "" | BUSY | why it failed


def run(cells: Sequence[Cell], jobs: int | None) -> Outcome:
    """Trains and evaluates the cells that are not finished; returns the reason of each that failed.

    Interrupted, the same call goes on from there: SIGINT (Ctrl-C) and SIGTERM are handed on to the cells, which leave a
    checkpoint.
    """
    if not cells:
        return {}
    for study in {cell.folder.parent for cell in cells}:
        must_be_writable(study)
    left, failed = [cell for cell in cells if not finished(cell)], {}
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, interrupted)
    if not left:
        return {}
    work = launcher() or functools.partial(side_by_side, jobs=jobs)
    with Progress(cells, left) as progress:
        while left:
            free, outcome = [cell for cell in left if owner(cell.folder) is None], {}
            if free:
                outcome = work(free)
                failed |= {folder: why for folder, why in outcome.items() if why not in ("", BUSY)}
                left = [cell for cell in left if outcome.get(cell.folder, BUSY) == BUSY]
            if set(outcome.values()) <= {BUSY}:
                time.sleep(1)
            left = [cell for cell in left if not finished(cell)]
            progress.ended(left, failed)
    return failed


def interrupted(number: int, frame: Any) -> None:
    for each in (signal.SIGTERM, signal.SIGINT):  # a second one does not wait for the cells: they end by themselves
        signal.signal(each, lambda number, frame: os._exit(128 + number))
    print("\ninterrupted: the same command continues", file=sys.stderr, flush=True)
    sys.exit(128 + number)


def must_be_writable(study: Path) -> None:
    """Makes the folder of a study. Raises UserError where that, or a file in it, cannot be made."""
    try:
        study.mkdir(parents=True, exist_ok=True)
        why = "" if os.access(study, os.W_OK | os.X_OK) else "no permission, or a file system that is read-only"
    except OSError as error:
        why = error.strerror
    if why:
        raise UserError(f"{study}: cannot be written ({why}): choose another study=, or work in another folder")


def finished(cell: Cell) -> bool:
    """Whether there is nothing to do, as far as that is known without the data."""
    label = f"last@{cell.config['optim']['steps']}"
    return not cell.config.get("rerun") and runs.finished(cell.config, cell.folder, label)


class Progress:
    """One line on stderr about all cells: done, running, left, time left."""

    def __init__(self, cells: Sequence[Cell], left: Sequence[Cell]):
        self.cells, self.began = cells, time.time()
        self.over = threading.Event()
        self.ended(left, {})

    def ended(self, left: Sequence[Cell], failed: Outcome) -> None:
        self.failed = len(failed)
        self.done = {cell.folder for cell in self.cells} - {cell.folder for cell in left} - set(failed)

    def __enter__(self) -> "Progress":
        self.bar = tqdm(
            total=sum(cell.tokens for cell in self.cells),
            initial=self.trained(),  # of an earlier call: says nothing about the speed
            bar_format="{desc} |{bar:10}| {percentage:3.0f}% {remaining} left",
            smoothing=0,  # the mean speed so far
            mininterval=0.5 if sys.stderr.isatty() else 30,
        )
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.over.set()
        self.thread.join()
        self.tell()
        self.bar.close()

    def follow(self) -> None:
        while not self.over.wait(0.5):
            self.tell()

    def tell(self) -> None:
        done = [cell for cell in self.cells if cell.folder in self.done or self.new(cell.folder / runs.RECORD)]
        others = [cell for cell in self.cells if cell not in done]
        running = [cell for cell in others if owner(cell.folder)]
        said = [f"{len(done)} of {len(self.cells)} done"]
        if running:
            said.append(f"{len(running)} running ({', '.join(cell.name for cell in running[:4])})")
        if self.failed:
            said.append(f"{self.failed} failed")
        if (waiting := len(others) - len(running) - self.failed) > 0:
            said.append(f"{waiting} left")
        self.bar.set_description_str(", ".join(said), False)
        self.bar.update(self.trained() - self.bar.n)

    def new(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime >= self.began
        except OSError:
            return False

    def trained(self) -> int:
        return sum(tokens_done(cell) for cell in self.cells)


def tokens_done(cell: Cell) -> int:
    return last_line(cell.folder / "metrics.jsonl").get("tokens", 0)


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl; nothing where there is none yet."""
    try:
        lines = path.read_text(encoding="utf-8").rsplit("\n", 2)
        return json.loads(lines[-2]) if len(lines) > 1 else {}
    except (OSError, ValueError):
        return {}


# ---- on this machine -------------------------------------------------------------------------------------


def side_by_side(cells: Sequence[Cell], jobs: int | None) -> Outcome:
    """`jobs` at a time, each in a process of its own."""
    jobs = min(jobs or at_once(cells), len(cells))
    waiting, running, outcome = list(cells), {}, {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                if owner(cell.folder):
                    outcome[cell.folder] = BUSY
                else:
                    running[start(cell, alone=jobs == 1)] = cell
            wait([process.sentinel for process in running], timeout=0.5)
            for process in [process for process in running if process.exitcode is not None]:
                cell = running.pop(process)
                outcome[cell.folder] = reason(cell.folder, process.exitcode)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()
    return outcome


def at_once(cells: Sequence[Cell]) -> int:
    small = all(cell.config["model"]["width"] <= SMALL for cell in cells)
    return len(os.sched_getaffinity(0)) if small else 1


def start(cell: Cell, alone: bool) -> Process:
    """A process of its own that does what scripts/train.py does with the cell's configuration."""
    config = sharing(cell.config, alone)
    process = server().Process(target=child, args=(config, cell.folder, script()))
    process.start()
    return process


def sharing(config: dict[str, Any], alone: bool) -> dict[str, Any]:
    """One thread for a cell that does not have the machine to itself, where nothing else was asked for."""
    return config if alone else config | {"trainer": config["trainer"] | {"threads": config["trainer"]["threads"] or 1}}


def server() -> multiprocessing.context.ForkServerContext:
    """What processes are forked from. It has imported everything once: that takes longer than a small cell. Ctrl-C does
    not reach it, nor what is forked from it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["posenc_train.training.fit", "posenc_train.estimate", "posenc_train.report.figures", "datasets", "wandb"]
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which it keeps
    forkserver.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def script() -> Path:
    """scripts/train.py beside the running script."""
    return Path(sys.argv[0]).resolve().with_name("train.py")


def child(config: dict[str, Any], folder: Path, script: Path) -> None:
    tied()
    sys.exit(trained(config, folder, script, alone=True))


def tied() -> None:
    """Ties a process to the one that started it, which Ctrl-C reaches alone and which ends the others."""
    os.setsid()
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """A cell without its study would keep the run folder from the next one."""
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGTERM)


def trained(config: dict[str, Any], folder: Path, script: Path, alone: bool = False) -> int:
    """scripts/train.py in this process; what it says goes to a file beside the run folder until it has succeeded.
    Returns an exit code. alone: nothing else is done in this process, and what libraries say goes to the file too."""
    output = said(folder)
    output.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(output, "a", encoding="utf-8"))  # of two that meet here both can be read
        if alone:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        else:
            stack.enter_context(contextlib.redirect_stdout(file))
            stack.enter_context(contextlib.redirect_stderr(file))
        try:
            runpy.run_path(str(script))["main"].__wrapped__(config)
        except Unmeasured:  # the study tells, of all cells together
            pass
        except Busy:
            return BUSY_CODE
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Exception:
            traceback.print_exc()
            return 1
    output.unlink(missing_ok=True)
    return 0


def said(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.out")


def reason(folder: Path, code: int) -> str:
    """The last line that a failed cell said, or the signal that killed it; all that it said stays in the file."""
    if code in (0, BUSY_CODE):
        return BUSY if code else ""
    path = said(folder)
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else []
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    if code < 0:
        last = f"killed by {signal.Signals(-code).name}" + ", as when memory runs out" * (code == -signal.SIGKILL)
    return f"{last} (exit code {code}; all it said: {path})"


# ---- through a launcher of Hydra's -----------------------------------------------------------------------


def launcher() -> Callable[[Sequence[Cell]], Outcome] | None:
    """The one that the command line names (hydra/launcher=…); None: none."""
    named = [text for text in hydra_line() if text.startswith("hydra/launcher=")]
    return functools.partial(launched, own=hydra_line()) if named else None


def launched(cells: Sequence[Cell], own: Sequence[str]) -> Outcome:
    """own: overrides of Hydra's settings, the launcher among them."""
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext

    folder = (cells[0].folder.parent / ".jobs").resolve()  # where all machines see it: submitit writes its logs there
    with (
        whole_environment(),
        composer("train", [*own, f"hydra.sweep.dir={folder}", "hydra.mode=MULTIRUN"]) as (loader, config),
    ):
        context = HydraContext(config_loader=loader, callbacks=_callbacks(config))
        task = functools.partial(job, Path.cwd(), script())
        hydra = Plugins.instance().instantiate_launcher(context, task, config)
        try:
            returned = hydra.launch([cell.overrides for cell in cells], initial_job_idx=0)
        except Exception as error:  # a worker was killed: of the others the launcher tells nothing any more
            return {cell.folder: "" if finished(cell) else _told(error) for cell in cells}
    return {cell.folder: _outcome(each) for cell, each in zip(cells, returned, strict=True)}


def job(root: Path, script: Path, cfg: Any) -> str:
    """One cell, on whatever machine the launcher brings it to. Returns its outcome."""
    os.chdir(root)
    config = plain(cfg)
    check(config)
    folder = run_folder(config)
    return reason(folder, trained(config, folder, script))


def _outcome(returned: Any) -> str:
    try:
        return returned.return_value
    except Exception as error:  # what Hydra caught in the job, or lost it by
        return _told(error)


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _callbacks(config: Any) -> Any:
    from hydra._internal.callbacks import Callbacks

    return Callbacks(config)


@contextlib.contextmanager
def whole_environment() -> Iterator[None]:
    """Processes that a launcher starts find this package where this one did."""
    package = str(Path(__file__).resolve().parent.parent)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *([before] if before else [])])
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
