"""A run folder for one process at a time. `.lock` in it names the host, the process and the time.

On one machine the kernel holds the lock (flock): it goes when its process does, however that ends, and the next one
takes over. Between machines that share a file system flock counts where the file system hands it on (NFS does; Lustre
when mounted with -o flock). Where it does not, the file's time tells: its owner sets it every BEAT seconds, and an
owner on another host that has not for STALE seconds counts as dead. Two hosts that start on one run in the same moment
on such a file system could both have it; let one of them begin first.
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from posenc_train.config import UserError

FILE = ".lock"
BEAT, STALE = 15.0, 120.0  # seconds
_open: set[int] = set()  # files of locks that this process holds
# A child that is forked, such as a loader of data, would keep the lock of a process that has died.
os.register_at_fork(after_in_child=lambda: _let_go())


class Owner(NamedTuple):
    host: str
    process: int
    began: int  # of the process, in ticks since its machine started: numbers of processes are used again
    since: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since}"


class Busy(UserError):
    """Another process is at work on a run."""

    def __init__(self, folder: Path, owner: Owner | None):
        who = f" ({owner})" if owner else ""
        super().__init__(f"{folder}: another process is at work on this run{who}: wait for it, or end it")


def owner(folder: Path) -> Owner | None:
    """Who is at work on a run folder, by what the lock says; None: nobody who is alive."""
    path = folder / FILE
    found = _read(path)
    if found is None:
        return None
    if found.host == socket.gethostname():
        return found if _began(found.process) == found.began else None
    return found if _age(path) < STALE else None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises Busy when another process has the folder: two would overwrite each other's checkpoints and rows."""
    path = folder / FILE
    with open(path, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(folder, _read(path)) from error
        if not _is(file.fileno(), path):  # its folder was set aside after the file was opened
            raise Busy(folder, _read(path))
        before = owner(folder)
        if before is not None and before.host != socket.gethostname():
            raise Busy(folder, before)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        mine = Owner(socket.gethostname(), os.getpid(), _began(os.getpid()), since)
        file.truncate(0)
        file.write(json.dumps(mine._asdict()))
        file.flush()
        _open.add(file.fileno())
        ended = threading.Event()
        threading.Thread(target=_beat, args=(path, ended), daemon=True).start()
        try:
            yield
        finally:
            ended.set()
            _open.discard(file.fileno())
            file.truncate(0)


def _is(number: int, path: Path) -> bool:
    """Whether an open file is the one that is at a path now."""
    return path.exists() and os.path.samestat(os.fstat(number), path.stat())


def _let_go() -> None:
    for number in _open:
        os.close(number)
    _open.clear()


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)


def _read(path: Path) -> Owner | None:
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # none, empty after an orderly end, or being written


def _began(process: int) -> int | None:
    """When a process of this machine began; None if there is none that is alive."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[19])


def _age(path: Path) -> float:
    """Seconds since the file's time was set, by the clock of the file system that it is on."""
    probe = path.with_name(f"{FILE}.{socket.gethostname()}.{os.getpid()}")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime
    except OSError:
        return time.time() - path.stat().st_mtime if path.exists() else STALE
    finally:
        with contextlib.suppress(OSError):  # never made, on a file system that is read-only
            probe.unlink()
