"""The segments of one W&B run: what each attempt at one training has left under runs/wandb.

An attempt writes `<offline-run|run>-<date>_<time>-<id>/run-<id>.wandb`, a log of blocks of 32 KiB (LevelDB's
log format) with protobuf records in them. A later attempt reads from it how far the earlier ones came.

A killed attempt may leave half a record at the end. `wandb sync` sends what is whole, calls the file
incomplete, and sends all of it again whenever it is asked again; so half a record is cut off once the next
attempt begins.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768  # bytes
FILE_HEADER = 7  # bytes: ":W&B", a magic number, a version
CHUNK = struct.Struct("<IHB")  # CRC-32 of type and content, length of the content, type
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def segments(folder: Path, id: str) -> list[Path]:
    """The log files of the run `id`, oldest first."""
    found = folder.glob(f"*run-*-{id}/run-{id}.wandb")
    return sorted(found, key=lambda path: path.parent.name.partition("run-")[2])  # date and time


def settle(path: Path) -> int:
    """The last W&B step in a log that no process writes any more, −1 if there is none.

    Half a record at its end is cut off; a log with nothing in it, of which `wandb sync` complains for ever,
    is removed.
    """
    last, whole = -1, 0
    for record, end in records(path):
        whole = end
        if record.WhichOneof("record_type") == "history":
            last = max(last, record.history.step.num)
    size = path.stat().st_size
    if size <= FILE_HEADER:
        path.unlink()
    elif 0 < whole < size:
        with open(path, "r+b") as file:
            file.truncate(whole)
    return last


def ended(path: Path) -> bool:
    """Whether the log says how the run ended, which is the last thing that is written."""
    return any(record.WhichOneof("record_type") == "exit" for record, _ in records(path))


def records(path: Path) -> Iterator[tuple[Any, int]]:
    """(record, offset of its end) of every whole record, up to the first that is cut short or damaged."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, start, content = path.read_bytes(), FILE_HEADER, b""
    while start + CHUNK.size <= len(data):
        left = BLOCK - start % BLOCK
        if left < CHUNK.size:  # no chunk begins in the last bytes of a block
            start += left
            continue
        checksum, length, kind = CHUNK.unpack_from(data, start)
        end = start + CHUNK.size + length
        chunk = data[start + CHUNK.size : end]
        if len(chunk) < length or zlib.crc32(chunk, zlib.crc32(bytes([kind]))) != checksum:
            return
        content = chunk if kind in (FULL, FIRST) else content + chunk
        if kind in (FULL, LAST):
            yield Record.FromString(content), end
        start = end
