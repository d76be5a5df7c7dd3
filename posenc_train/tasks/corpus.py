"""Documents of bytes: found, fingerprinted, kept once as a memory-mapped file, and split in two.

A document is exactly the bytes of its file: CRLF, NUL and invalid UTF-8 stay as they are. What was prepared
is kept in the cache folder of `datasets`, under a name made of everything that shapes it; `datasets` itself,
two seconds to import, is needed the first time only.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.names import digest

VALIDATION = 0.1  # the part of the distinct documents that is never trained on
LARGE = 2**28  # bytes; a corpus from here on shows its progress

# What the standard library's folder holds beside the library.
NOT_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


class File(NamedTuple):
    """A file: its name within the corpus, where it lies, and the SHA-256 of its content as 64 hex digits."""

    name: str
    path: str
    size: int
    digest: str


class Mapped:
    """A column of texts, bytes or ids in Arrow files, mapped into memory. Pickles as the files' names."""

    def __init__(self, paths: Sequence[str], column: str, dtype: str = "uint8"):
        self.paths, self.column, self.dtype = list(paths), column, dtype

    def __reduce__(self):
        return Mapped, (self.paths, self.column, self.dtype)

    @cached_property
    def arrays(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each chunk its items, and int64 [documents + 1] where each document begins among them."""
        import pyarrow

        arrays = []
        for path in self.paths:
            table = pyarrow.ipc.open_stream(pyarrow.memory_map(path)).read_all()
            for chunk in table.column(self.column).chunks:
                wide = chunk.type in (pyarrow.large_binary(), pyarrow.large_string())
                _, offsets, data = chunk.buffers()
                begins = np.frombuffer(offsets, np.int64 if wide else np.int32).astype(np.int64)
                begins = begins[chunk.offset : chunk.offset + len(chunk) + 1] // np.dtype(self.dtype).itemsize
                items = np.frombuffer(data, self.dtype) if data else np.empty(0, self.dtype)
                arrays.append((items, begins))
        return arrays


class Joined(Mapped):
    """The columns of several, one after another."""

    def __init__(self, parts: Sequence[Mapped]):
        self.parts = list(parts)

    def __reduce__(self):
        return Joined, (self.parts,)

    @cached_property
    def arrays(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [array for part in self.parts for array in part.arrays]


class Documents:
    """A sequence of one-dimensional arrays that are not copied: documents, or parts of them, of a
    `Mapped`."""

    def __init__(self, mapped: Mapped, chunk: np.ndarray, first: np.ndarray, lengths: np.ndarray, rows: np.ndarray):
        self._mapped, self._chunk, self._first = mapped, chunk, first
        self.lengths = lengths  # int64 [documents]
        self.rows = rows  # int64 [documents]: which document of the source each one is

    @classmethod
    def whole(cls, mapped: Mapped) -> "Documents":
        arrays = [
            (np.empty(0), np.zeros(1, np.int64)),
            *mapped.arrays,
        ]  # the first for a column without chunks
        first = np.concatenate([begins[:-1] for _, begins in arrays])
        lengths = np.concatenate([np.diff(begins) for _, begins in arrays])
        chunk = np.repeat(np.arange(-1, len(arrays) - 1), [len(begins) - 1 for _, begins in arrays])
        return cls(mapped, chunk, first, lengths, np.arange(len(lengths)))

    @classmethod
    def joined(cls, parts: Sequence["Documents"], rows: Sequence[int]) -> "Documents":
        """The documents of several, one after another; rows: by how much those of each are moved on."""
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0, *(len(part._mapped.arrays) for part in parts)])
        return cls(
            Joined([part._mapped for part in parts]),
            np.concatenate([part._chunk + moved for part, moved in zip(parts, before[:-1], strict=True)]),
            np.concatenate([part._first for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.rows + moved for part, moved in zip(parts, rows, strict=True)]),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        first = self._first[index]
        return self._mapped.arrays[self._chunk[index]][0][first : first + self.lengths[index]]

    def windows(self, indices: np.ndarray, firsts: np.ndarray, size: int) -> np.ndarray:
        """int64 [len(indices), size]: of each of the documents `size` items from its first on."""
        chunks, firsts = self._chunk[indices], self._first[indices] + firsts
        windows = np.empty((len(indices), size), np.int64)
        for chunk in np.unique(chunks):
            here = chunks == chunk
            items = self._mapped.arrays[chunk][0]
            windows[here] = np.lib.stride_tricks.sliding_window_view(items, size)[firsts[here]]
        return windows

    def take(self, keep: np.ndarray) -> "Documents":
        """The documents at the indices `keep`."""
        return Documents(self._mapped, self._chunk[keep], self._first[keep], self.lengths[keep], self.rows[keep])

    def cut(self, at: int) -> tuple["Documents", "Documents"]:
        """Every document in two: its first `at` items, and the rest."""
        head = np.minimum(self.lengths, at)
        return (
            Documents(self._mapped, self._chunk, self._first, head, self.rows),
            Documents(self._mapped, self._chunk, self._first + head, self.lengths - head, self.rows),
        )


# ------------------------------------------------------------------------------------------------- finding


def standard_library() -> list[File]:
    """The source of the running Python's standard library, without its tests."""
    root = sysconfig.get_paths()["stdlib"]
    names = [name for name in walk(root, NOT_LIBRARY) if name.endswith(".py")]
    if not names:
        raise UserError(f"task.path=null: this Python has no library source in {root}; give a text file or folder")
    return manifest(root, names)


def local(path: str) -> list[File]:
    """The files at `path`: one file, or all below a folder but hidden ones, in the order of their names."""
    where = os.path.abspath(os.path.expanduser(path))
    if os.path.isfile(where):
        return manifest(os.path.dirname(where), [os.path.basename(where)])
    if not os.path.isdir(where):
        raise UserError(f"task.path={path}: no such file or folder; give a text file or a folder of text files")
    names = walk(where)
    if not names:
        raise UserError(f"task.path={path}: the folder holds no files; give a text file or a folder of text files")
    return manifest(where, names)


def fingerprint(files: Sequence[File]) -> str:
    """16 hex digits over names and contents; where the files lie does not enter."""
    return digest("".join(f"{file.name}\0{file.digest}\n" for file in files))


def walk(root: str, skip: frozenset[str] = frozenset()) -> list[str]:
    """Sorted names, relative to `root` and with "/", of the ordinary files below it that are not hidden.

    Links are followed, but no folder or file is taken twice and no link leads to a folder above: loops end.
    Pipes and devices, which could block for ever, are passed over.
    """
    top = os.path.realpath(root)
    found, seen, folders = [], {top}, [""]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(os.path.join(root, folder)), key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"task.path={root}: cannot list {folder or root}: {error.strerror}") from error
        for entry in entries:
            name, real = folder + entry.name, os.path.realpath(entry.path)
            if entry.name.startswith(".") or entry.name in skip:
                continue
            if real in seen or f"{top}/".startswith(f"{real.rstrip('/')}/"):
                continue
            if os.path.isdir(entry.path):
                folders.append(f"{name}/")
            elif os.path.isfile(entry.path):
                found.append(name)
            elif entry.is_symlink():
                raise UserError(f"task.path={root}: {name} is a link to nothing; remove it")
            seen.add(real)
    return sorted(found)


def manifest(root: str, names: Sequence[str]) -> list[File]:
    paths = [os.path.join(root, name) for name in names]
    return [File(name, path, *_size_and_digest(path)) for name, path in zip(names, paths, strict=True)]


def _size_and_digest(path: str) -> tuple[int, str]:
    with readable(path) as file:
        whole = hashlib.file_digest(file, "sha256")
        return file.tell(), whole.hexdigest()


@contextlib.contextmanager
def readable(path: str) -> Iterator:
    """The file, open to be read as bytes; what the system refuses is told in a line."""
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"task.path: cannot read {path}: {error.strerror}; make it readable or remove it") from error


# ------------------------------------------------------------------------------------------------- keeping


def cache() -> str:
    """The folder for what was prepared: in that of `datasets`, as its own variables place it."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hugging_face = os.environ.get("HF_HOME") or os.path.join(home, "huggingface")
    folder = os.environ.get("HF_DATASETS_CACHE") or os.path.join(hugging_face, "datasets")
    return os.path.join(os.path.abspath(os.path.expanduser(folder)), "posenc_train")


def prepared(key: str) -> dict | None:
    """What `prepare` returned for the key, if it was called before and all it wrote is still there."""
    folder = os.path.join(cache(), key)
    try:
        with open(os.path.join(folder, "ready.json"), encoding="utf-8") as file:
            ready = json.load(file)
        sizes = ready["sizes"].items()
        whole = all(os.path.getsize(os.path.join(folder, name)) == size for name, size in sizes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return _absolute(ready["result"], folder) if whole else None


def prepare(key: str, build: Callable[[str], dict[str, list[str]]]) -> dict[str, list[str]]:
    """`build(folder)` writes below the folder and returns lists of paths; once for a key, by one process.

    A folder that is not whole (a file is missing, or has another size) is built again.
    """
    import filelock

    folder = os.path.join(cache(), key)
    try:
        if (found := prepared(key)) is None:
            os.makedirs(cache(), exist_ok=True)
            with filelock.FileLock(f"{folder}.lock"):
                if (found := prepared(key)) is None:
                    found = _build(folder, build)
    except OSError as error:
        raise UserError(
            f"cannot keep the prepared data in {cache()}: {error.strerror or error}; "
            "set HF_DATASETS_CACHE to a folder that can be written and has room"
        ) from error
    return found


def _build(folder: str, build: Callable) -> dict[str, list[str]]:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    try:
        found = build(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _write_ready(folder, found)
    return found


def _write_ready(folder: str, result: dict[str, list[str]]) -> None:
    relative = {key: [os.path.relpath(path, folder) for path in paths] for key, paths in result.items()}
    sizes = {os.path.relpath(path, folder): os.path.getsize(path) for paths in result.values() for path in paths}
    path = os.path.join(folder, "ready.json")
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump({"result": relative, "sizes": sizes}, file)
    os.replace(f"{path}.part", path)


def _absolute(result: dict[str, list[str]], folder: str) -> dict[str, list[str]]:
    return {key: [os.path.join(folder, name) for name in names] for key, names in result.items()}


def write(folder: str, generator: Callable, arguments: dict, size: int, rows: int, processes: int = 1) -> list[str]:
    """Arrow files below `folder` with what `generator(**arguments)` yields as {"ids": bytes}.

    large_binary and not a list of integers: the same bytes on disk, written forty times as fast.

    - size: about how many bytes; rows: how many documents may wait in memory
    - processes: as `datasets` has it, each takes a share of every list among the arguments; the order stays
    """
    import datasets

    try:
        with quiet(size):
            table = datasets.Dataset.from_generator(
                generator,
                features=datasets.Features(ids=datasets.Value("large_binary")),
                cache_dir=folder,
                gen_kwargs=arguments,
                num_proc=processes if processes > 1 else None,
                fingerprint="documents",
                writer_batch_size=rows,
            )
    except datasets.exceptions.DatasetGenerationError as error:
        if processes > 1:  # what went wrong does not travel between processes: meet it again in this one
            return write(folder, generator, arguments, size, rows)
        if isinstance(error.__cause__, (UserError, OSError)):
            raise error.__cause__ from None
        raise
    return [file["filename"] for file in table.cache_files]


@contextlib.contextmanager
def quiet(size: int) -> Iterator[None]:
    """No progress bars for what takes a moment, and no messages beside the exceptions that carry them."""
    from datasets.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        logging,
    )

    hide = size < LARGE and not are_progress_bars_disabled()
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if hide:
            enable_progress_bars()


def read(files: Sequence[File]) -> Documents:
    """The files' contents, one document each."""
    largest = max(file.size for file in files)
    rows = min(max(2**26 // max(largest, 1), 1), 1000)  # some 64 MB may wait to be written
    size = sum(file.size for file in files)
    found = prepare(
        f"bytes-{fingerprint(files)}",
        lambda folder: {"ids": write(folder, _contents, {"files": list(files)}, size, rows)},
    )
    return Documents.whole(Mapped(found["ids"], "ids"))


def _contents(files: Sequence[File]) -> Iterator[dict]:
    for file in files:
        with readable(file.path) as opened:
            content = opened.read()
        if hashlib.sha256(content).hexdigest() != file.digest:
            raise UserError(f"task.path: {file.path} changed while it was read; try again")
        yield {"ids": content}


# ----------------------------------------------------------------------------------------------- splitting


def split(documents: Documents, digests: np.ndarray) -> tuple[Documents, Documents]:
    """(training, validation): validation is a tenth of the distinct contents, those that come first by their
    hash.

    digests: uint64 [documents]. Equal documents are on one side, order and names do not matter, and with two
    distinct documents neither side is empty. A corpus of one distinct document is cut inside it: the last
    tenth is validation.
    """
    distinct = np.unique(digests)
    if len(distinct) < 2:
        length = int(documents.lengths[0])
        return documents.cut(_character(documents[0], length - int(length * VALIDATION)))
    held = digests <= distinct[max(1, round(len(distinct) * VALIDATION)) - 1]
    return documents.take(np.flatnonzero(~held)), documents.take(np.flatnonzero(held))


def _character(document: np.ndarray, at: int) -> int:
    """`at`, or up to three bytes earlier, so that no UTF-8 character is cut in two."""
    for place in range(at, max(at - 4, 0), -1):
        if place == len(document) or document[place] & 0xC0 != 0x80:
            return place
    return at
