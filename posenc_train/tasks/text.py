"""Language modelling, by default of bytes: what comes next, in documents of any length.

    fed      d e f _ m a i n        with bos:   ▮ e f _ m a i n
    target   e f _ m a i n (                    e f _ m a i n (

A window of `length` tokens fed takes length + 1 of one document; none crosses into another document.
"""

import os
import platform
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from posenc_train.config import UserError
from posenc_train.tasks import corpus, tables, tokens
from posenc_train.tasks.base import IGNORE, Batch, Task, generator
from posenc_train.tasks.corpus import Documents
from posenc_train.tasks.names import digest


class Texts(NamedTuple):
    """Documents of bytes; 16 hex digits that name them; facts for the log; what their rows are called."""

    train: Documents
    validation: Documents
    fingerprint: str
    facts: dict
    names: list[str] | None


class Text(Task):
    """Language modelling on texts, byte by byte, by default Python's own standard library.

    - path: a text file, a folder (each file a document), or JSON or parquet (each row's `field` a document)
    - hub: namespace/name of a data set on the Hugging Face Hub; subset, files, revision: which part and state
    - tokenizer: a byte-level tokenizer.json; bpe: size of a vocabulary learned from the training documents
    - processes: how many encode; it changes no id
    - bos: feed the mark `vocab` in place of a window's first id, in training and evaluation alike; never
      a target, counted by the length
    - contiguous: row r of a training step goes on where row r of the step before ended, from document to document;
      nothing is asked where a document ends
    - windows: number of evaluation windows; longest: their length, for whoever evaluates
    """

    protocols = ("nonoverlapping", "same_targets", "per_position")
    shortest = 1

    def __init__(
        self,
        path: str | None = None,
        field: str | None = None,
        hub: str | None = None,
        subset: str | None = None,
        files: str | None = None,
        revision: str | None = None,
        tokenizer: str | None = None,
        bpe: int | None = None,
        processes: int = 1,
        bos: bool = False,
        contiguous: bool = False,
        windows: int = 64,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        if (path and hub) or (tokenizer and bpe):
            raise UserError("task.path and task.hub, task.tokenizer and task.bpe: give one of the two, not both")
        if (subset or files or revision) and not hub:
            raise UserError("task.subset, task.files, task.revision: say which part of task.hub=…; give that too")
        source = tables.Source(hub, subset, files, revision) if hub else None
        texts = _hub(source, field or "text") if source else _local(path, field)
        self.train, self.validation, self.fingerprint, self.facts = texts[:4]
        self.unit, self.bytes_per_id = "byte", np.ones(256, np.int64)
        if tokenizer or bpe:
            self._encode(tokenizer, bpe, processes, texts.names)
        self.vocab, self.marks = len(self.bytes_per_id), int(bos)
        self.begin = self.vocab if bos else None  # fed in place of a window's first id
        self.contiguous, self.count, self.longest, self.eval_seed = contiguous, windows, longest, eval_seed
        self._places: dict[int, np.ndarray] = {}

    def _encode(self, path: str | None, size: int | None, processes: int, names: Sequence[str] | None) -> None:
        """From bytes to tokens."""
        key = self.fingerprint
        make = tokens.Vocabulary
        vocabulary = make.load(path) if path else make.train(self.train, size, key, names)
        self.train = tokens.encode(self.train, vocabulary, f"{key} train", names, processes)
        self.validation = tokens.encode(self.validation, vocabulary, f"{key} validation", names, processes)
        self.unit, self.bytes_per_id = "token", vocabulary.lengths
        self.fingerprint = digest(key, vocabulary.fingerprint)
        self.facts = {**self.facts, "tokenizer": vocabulary.fingerprint, "vocab": len(vocabulary.lengths)}

    def batch(self, seed: int, step: int, rows: range, length: int) -> Batch:
        """Windows of training documents, uniform over all places where one fits: documents by length."""
        if self.contiguous:
            return self._continued(seed, step, rows, length)
        ends = self._ends(length)
        # Drawn from the first row on, so that a row does not depend on which other rows are asked for.
        drawn = generator(seed, "train", step).random(rows.stop)[rows.start :]
        spots = (drawn * ends[-1]).astype(np.int64)
        documents = np.searchsorted(ends, spots, side="right")
        firsts = self.train.lengths[documents] - length - (ends[documents] - spots)
        ids = torch.from_numpy(_cut(self.train, documents, firsts, length + 1).astype(np.int64))
        inputs = ids[:, :-1].clone()
        if self.begin is not None:
            inputs[:, 0] = self.begin
        return Batch(inputs, ids[:, 1:].contiguous())

    def _continued(self, seed: int, step: int, rows: range, length: int) -> Batch:
        """Every row reads all training documents in their order, again and again, from a place of its own."""
        ends = np.cumsum(self.train.lengths)
        firsts = (generator(seed, "streams", 0).random(rows.stop)[rows.start :] * ends[-1]).astype(np.int64)
        ids, docs = [], []
        for first in firsts + step * length:
            id_, doc = self._stream(int(first), length + 1, ends)
            ids.append(id_)
            docs.append(doc)
        ids, docs = (torch.from_numpy(np.stack(x)) for x in (ids, docs))
        targets = ids[:, 1:].masked_fill(docs[:, 1:] != docs[:, :-1], IGNORE)
        return Batch(ids[:, :-1].contiguous(), targets, docs[:, :-1].contiguous())

    def _stream(self, first: int, size: int, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`size` ids from place `first` of the endless text, and the number of the document of each."""
        ids, docs = [], []
        while size:
            lap, place = divmod(first, int(ends[-1]))
            index = int(np.searchsorted(ends, place, side="right"))
            begin = place - int(ends[index] - self.train.lengths[index])
            part = self.train[index][begin : begin + size].astype(np.int64)
            ids.append(part)
            docs.append(np.full(len(part), lap * len(ends) + index))
            first, size = first + len(part), size - len(part)
        return np.concatenate(ids), np.concatenate(docs)

    def windows(self, longest: int) -> np.ndarray:
        """Evaluation text [N, longest + 1]: windows inside validation documents, none overlapping another.

        Ids as they stand in the text, before any BOS. Which windows is fixed by (data, longest, eval_seed).
        """
        return _cut(self.validation, *self.places(longest), longest + 1)

    def places(self, longest: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the windows stand, int64 [N]: the validation document of each, its first id's place there.

        A place is any multiple of longest + 1 in any document; `count` of them are drawn, or all where there
        are fewer, and come in the order of the text.
        """
        slots = self.validation.lengths // (longest + 1)
        ends = np.cumsum(slots)
        if not len(ends) or not ends[-1]:
            raise self._nothing_fits(longest, self.validation, "validation")
        order = np.argsort(generator(self.eval_seed, "windows", 0).random(ends[-1]), kind="stable")
        chosen = np.sort(order[: self.count])
        documents = np.searchsorted(ends, chosen, side="right")
        return documents, (chosen - (ends - slots)[documents]) * (longest + 1)

    def report(self, length: int, longest: int) -> dict:
        """How much of the data is used at a training length and a longest evaluation length, for the log.

        Raises UserError when no document holds one training window or one evaluation window.
        """
        self._ends(length)
        documents, _ = self.places(longest)
        return {
            **self.facts,
            "fingerprint": self.fingerprint,
            "train": _used(self.train, length + 1, self.unit),
            "validation": {
                **_used(self.validation, longest + 1, self.unit),
                "windows": len(documents),
            },
        }

    def _ends(self, length: int) -> np.ndarray:
        """The running number of places for a window over the training documents; the last is their number."""
        if length not in self._places:
            ends = np.cumsum(np.maximum(self.train.lengths - length, 0))
            if not len(ends) or not ends[-1]:
                raise self._nothing_fits(length, self.train, "training")
            self._places[length] = ends
        return self._places[length]

    def _nothing_fits(self, length: int, documents: Documents, part: str) -> UserError:
        longest = int(max(documents.lengths, default=0))
        key = "longest evaluation length" if part == "validation" else "train_length"
        remedy = f"ask for at most {longest - 1}, or give" if longest > 1 else "give"
        return UserError(
            f"{key} {length}: takes {length + 1} {self.unit}s of a document; the longest {part} document of "
            f"{self.facts['source']} has {longest}; {remedy} longer documents by task.path=…"
        )


def _cut(documents: Documents, indices: np.ndarray, firsts: np.ndarray, size: int) -> np.ndarray:
    """[len(indices), size]: from each of the documents `size` ids on from its first."""
    places = zip(indices.tolist(), firsts.tolist(), strict=True)
    rows = [documents[index][first : first + size] for index, first in places]
    return np.stack(rows) if rows else np.empty((0, size), np.int64)


def _used(documents: Documents, window: int, unit: str) -> dict:
    """Documents shorter than a window are dropped; of the others every item can be in one."""
    fits = documents.lengths >= window
    lengths = documents.lengths
    return {
        "documents": len(documents),
        f"{unit}s": int(lengths.sum()),
        "documents_dropped": int((~fits).sum()),
        f"{unit}s_dropped": int(lengths[~fits].sum()),
    }


def _local(path: str | None, field: str | None) -> Texts:
    files = corpus.standard_library() if path is None else corpus.local(path)
    name = corpus.fingerprint(files)
    own = f"Python {platform.python_version()}'s standard library"
    facts = {"source": os.path.basename(os.path.abspath(path)) if path else own, "files": len(files)}
    if all(tables.reader(file) for file in files):
        field = field or "text"
        parts = tables.read(path, files, field)
        return Texts(*parts, digest(name, field), {**facts, "field": field}, None)
    if field:
        raise UserError(f"task.field={field}: for JSON and parquet; task.path={path or 'null'} is not only of these")
    if tabled := [file.name for file in files if file.name.endswith((".jsonl", ".parquet"))]:
        raise UserError(f"task.path={path}: {tabled[0]} is a table, other files are not; give a folder of one kind")
    digests = np.array([int(file.digest[:16], 16) for file in files], np.uint64)
    return Texts(*corpus.split(corpus.read(files), digests), name, facts, [file.name for file in files])


def _hub(source: tables.Source, field: str) -> Texts:
    train, validation, commit = tables.hub(source, field)
    asked = {key: value for key, value in source._asdict().items() if value is not None}
    facts = {"source": source.hub, **asked, "field": field, "commit": commit}
    name = digest(source.hub, str(source.subset), str(source.files), commit, field)
    return Texts(train, validation, name, facts, None)
