"""Running the entry points inside a test's own process, which has torch imported already."""

import multiprocessing
import os
import runpy
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from posenc_train.config import check, compose

ROOT = Path(__file__).resolve().parent.parent
NANO = [
    "model=nano",
    "train_length=16",
    "optim.steps=12",
    "optim.batch_size=4",
    "task.windows=4",
    "trainer.log_every=4",
]


def run(script: str, *overrides: str) -> dict:
    """Does what `python scripts/<script>.py <overrides>` does, in the current folder; returns the configuration."""
    config = compose(script, list(overrides))
    check(config)
    runpy.run_path(str(ROOT / "scripts" / f"{script}.py"))["main"].__wrapped__(config)
    return config


def start(script: str, *overrides: str) -> BaseProcess:
    """`run` in a process of its own, in the current folder, forked from a server that has imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["posenc_train.training.fit", "posenc_train.report.figures", "posenc_train.tasks.text"]
    )
    process = context.Process(target=_run_quietly, args=(script, *overrides))
    process.start()
    return process


def _run_quietly(script: str, *overrides: str) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked in a server that a study's test has started
    with open("out.txt", "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    run(script, *overrides)


def interruptible() -> None:
    """For Popen's preexec_fn: a test run in the background hands on that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(process: BaseProcess, true: Callable[[], bool]) -> bool:
    """Waits until something is true; False if the process ended before it was."""
    while not true():
        process.join(timeout=0.005)
        if process.exitcode is not None:
            return true()
    return True


def lines(path: Path) -> int:
    """How many whole lines a file has; 0 without a file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
