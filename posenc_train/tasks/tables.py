"""Documents from tables: JSON and parquet files, and data sets of the Hugging Face Hub. A row is a document.

Through `load_dataset`, which writes them as Arrow files; their column of texts is mapped as it lies there.
"""

import contextlib
import functools
import hashlib
import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks import corpus
from posenc_train.tasks.corpus import Documents, File, Mapped, fingerprint, prepare, prepared, quiet, split
from posenc_train.tasks.names import digest

log = logging.getLogger(__name__)
READERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
PARTS = ("train", "validation")
WAIT = 3.0  # seconds for the Hub to answer; a person without network waits no longer


class Source(NamedTuple):
    """A data set on the Hub: `subset` and `files` narrow it down, `revision` is a commit or a branch."""

    hub: str
    subset: str | None = None
    files: str | None = None
    revision: str | None = None


def reader(file: File) -> str | None:
    """What `datasets` calls the kind of table that the file is, by its name; None for text."""
    return READERS.get(os.path.splitext(file.name)[1].lower())


def read(path: str, files: Sequence[File], field: str) -> tuple[Documents, Documents]:
    """(training, validation) of the rows of local tables, all of one kind."""
    kinds = {reader(file) for file in files}
    if len(kinds) > 1:
        raise UserError(f"task.path={path}: holds JSON and parquet; give a folder with one of them")
    kind = kinds.pop()
    files = [file for file in files if file.size]  # no rows, but `datasets` cannot load an empty file
    if not files:
        raise UserError(f"task.path={path}: its files are empty; give one with rows")
    key = f"table-{digest(fingerprint(files), field)}"

    def build(folder: str) -> dict[str, list[str]]:
        import datasets

        paths = [file.path for file in files]
        try:
            with quiet(sum(file.size for file in files)):
                table = datasets.load_dataset(kind, data_files=paths, split="train", cache_dir=folder)
        except Exception as error:
            raise UserError(f"task.path={path}: not readable as {kind}: {_reason(error)}; repair it") from error
        return {"train": _texts(table, field, f"task.path={path}")}

    documents = Documents.whole(Mapped(prepare(key, build)["train"], field))
    return split(documents, digests(documents, key))


def hub(source: Source, field: str) -> tuple[Documents, Documents, str]:
    """(training, validation, commit) of a data set. Its own validation split where it has one, else a tenth.

    Raises UserError if the Hub does not answer within WAIT and the data set has not been prepared before.
    """
    commit = _commit(source, field)
    key = _key(source, field, commit)

    def build(folder: str) -> dict[str, list[str]]:
        import datasets

        try:
            with quiet(corpus.LARGE):
                tables = datasets.load_dataset(
                    source.hub, name=source.subset, data_files=source.files, revision=commit, cache_dir=folder
                )
        except Exception as error:
            raise UserError(f"task.hub={source.hub}: {_reason(error)}{_remedy(error)}") from error
        if "train" not in tables:
            raise UserError(f"task.hub={source.hub}: has no split train, but {', '.join(tables)}; take another")
        where = f"task.hub={source.hub}"
        return {name: _texts(tables[name], field, where) for name in PARTS if name in tables}

    found = prepare(key, build)
    _remember(source, commit)
    parts = [Documents.whole(Mapped(found[name], field)) for name in PARTS if name in found]
    if len(parts) == 1:
        parts = split(parts[0], digests(parts[0], key))
    return *parts, commit


def ask(task: Mapping) -> None:
    """Raises UserError where the task's settings name a data set of the Hub that cannot be had.

    Imports no torch: a script asks before it builds anything, and a person without network knows in seconds.
    """
    if task.get("hub"):
        _commit(Source(*(task.get(key) for key in Source._fields)), task.get("field") or "text")


def digests(documents: Documents, key: str) -> np.ndarray:
    """uint64 [documents]: the first 64 bits of each document's SHA-256. Kept beside what `key` names."""

    def build(folder: str) -> dict[str, list[str]]:
        first = [hashlib.sha256(document).digest()[:8] for document in documents]
        path = os.path.join(folder, "digests.npy")
        np.save(path, np.frombuffer(b"".join(first), ">u8").astype(np.uint64))
        return {"digests": [path]}

    return np.load(prepare(f"{key}-digests", build)["digests"][0])


def _texts(table, field: str, where: str) -> list[str]:
    """The Arrow files of a loaded table, having looked that `field` is a column of texts."""
    import pyarrow

    if field not in table.column_names:
        raise UserError(f"task.field={field}: no such column in {where}; it has {', '.join(table.column_names)}")
    kind = table.data.column(field).type
    if kind not in (pyarrow.string(), pyarrow.large_string()):
        raise UserError(f"task.field={field}: must be a column of texts; in {where} it is {kind}")
    return [file["filename"] for file in table.cache_files]


def _key(source: Source, field: str, commit: str) -> str:
    return f"hub-{digest(source.hub, str(source.subset), str(source.files), commit, field)}"


def _commit(source: Source, field: str) -> str:
    """The commit that the revision stands for.

    A full commit whose texts are prepared needs no network; without network, a branch stands for what it
    stood for when it was last looked up, if that is prepared.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source.hub):
        raise UserError(f"task.hub={source.hub}: must be namespace/name, as in task.hub=Salesforce/wikitext")
    full = bool(re.fullmatch(r"[0-9a-f]{40}", source.revision or ""))
    if full and prepared(_key(source, field, source.revision)):
        return source.revision
    try:
        return _look_up(source)
    except ConnectionError as error:
        known = None if full else _remembered(source)
        if known and prepared(_key(source, field, known)):
            log.warning("task.hub=%s: the Hub cannot be reached; using commit %s, prepared before", source.hub, known)
            return known
        raise UserError(
            f"task.hub={source.hub}: the Hub cannot be reached ({error}) and nothing is prepared here; "
            "task=text needs no network (Python's standard library), task.path=… takes your own files"
        ) from error


@functools.cache
def _look_up(source: Source) -> str:
    """Asks the Hub, in a thread of its own: no timeout that can be set bounds resolving a host name."""
    answer: list = []

    def ask() -> None:
        try:
            from huggingface_hub import HfApi

            answer.append(HfApi().dataset_info(source.hub, revision=source.revision, timeout=WAIT - 1).sha)
        except Exception as error:
            answer.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(WAIT)
    if not answer:
        raise ConnectionError(f"no answer in {WAIT:.0f} s")
    if not isinstance(answer[0], Exception):
        return answer[0]
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(answer[0], RevisionNotFoundError):
        raise UserError(f"task.revision={source.revision}: {source.hub} has none of that name") from answer[0]
    if isinstance(answer[0], RepositoryNotFoundError):
        raise UserError(
            f"task.hub={source.hub}: the Hub shows you no such data set; check the name, or run hf auth login"
        ) from answer[0]
    raise ConnectionError(_reason(answer[0])) from answer[0]


def _note(source: Source) -> str:
    return os.path.join(corpus.cache(), f"commit-{digest(source.hub, str(source.revision))}")


def _remember(source: Source, commit: str) -> None:
    part = f"{_note(source)}.{os.getpid()}"
    with contextlib.suppress(OSError):  # a cache that can only be read serves all the same
        with open(part, "w") as file:
            file.write(commit)
        os.replace(part, _note(source))


def _remembered(source: Source) -> str | None:
    try:
        with open(_note(source)) as file:
            return file.read()
    except OSError:
        return None


def _reason(error: BaseException) -> str:
    """The innermost reason, in a line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]


def _remedy(error: Exception) -> str:
    text = _reason(error)
    if "scripts are no longer supported" in text:
        return "; give a data set whose files are parquet, as task=wikitext103, pg19 and fineweb_edu do"
    if "Config name is missing" in text or "BuilderConfig" in text:
        return "; choose it by task.subset=…"
    return ""
