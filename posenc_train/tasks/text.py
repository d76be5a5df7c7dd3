"""Language modelling, by default of bytes: what comes next, in documents of any length.

    fed      d e f _ m a i n        with bos:   ▮ e f _ m a i n
    target   e f _ m a i n (                    e f _ m a i n (

A window of `length` tokens fed takes length + 1 of one document; none crosses into another document, unless several
are packed into it (packing.py), whose positions and attention begin anew at every document (reset) or never (joined):

    fed      d e f _ a : i f _ x    fed, with bos   ▮ e f _ a : ▮ f _ x
    target   e f _ a : _ f _ x =    position, reset 0 1 2 3 4 5 0 1 2 3
"""

import itertools
import os
import platform
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from posenc_train.config import UserError
from posenc_train.tasks import corpus, tables, tokens
from posenc_train.tasks.base import IGNORE, NEXT_TOKEN, Batch, Layout, Task, generator
from posenc_train.tasks.corpora import Corpus, Texts, joined
from posenc_train.tasks.corpus import Documents
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.names import digest
from posenc_train.tasks.packing import Packs, asked, within


class Text(Task):
    """Language modelling on texts, byte by byte, by default Python's own standard library.

    - path: a text file, a folder (each file a document), or JSON or parquet (each row's `field` a document); or a
      list of several corpora. Each has evaluation windows of its own, and rows of its own beside those of all
    - weights: of the corpora in training, in their order; null: by their number of places for a window
    - hub: namespace/name of a data set on the Hugging Face Hub; subset, files, revision: which part and state
    - tokenizer: a tokenizer.json (tokens.py says which); bpe: size of a vocabulary learned from the training documents
    - processes: how many encode; it changes no id
    - bos: feed the mark `vocab` in place of the first id of every window, and of every document packed into it, in
      training and evaluation alike; never a target, counted by the length
    - packed: reset or joined: windows hold several whole documents, in training and evaluation alike
    - contiguous: row r of a training step goes on where row r of the step before ended, from document to document;
      nothing is asked where a document ends
    - windows: number of evaluation windows, of each corpus; longest: their length, for whoever evaluates
    """

    protocols = (*NEXT_TOKEN, "recurrence")
    shortest = 1

    def __init__(
        self,
        path: str | Sequence[str] | None = None,
        field: str | None = None,
        hub: str | None = None,
        subset: str | None = None,
        files: str | None = None,
        revision: str | None = None,
        tokenizer: str | None = None,
        bpe: int | None = None,
        processes: int = 1,
        weights: Sequence[float] | None = None,
        bos: bool = False,
        packed: str | None = None,
        contiguous: bool = False,
        windows: int = 64,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        if (path and hub) or (tokenizer and bpe):
            raise UserError("task.path and task.hub, task.tokenizer and task.bpe: give one of the two, not both")
        if (subset or files or revision) and not hub:
            raise UserError("task.subset, task.files, task.revision: say which part of task.hub=…; give that too")
        if weights and not (isinstance(path, Sequence) and len(path) == len(weights)):
            raise UserError(f"task.weights={list(weights)}: must be one for each corpus of the list task.path=[…]")
        if packed and contiguous:
            raise UserError("task.contiguous=true: must be false with task.packed, which ends no document in a window")
        if hub:
            texts, several = _hub(tables.Source(hub, subset, files, revision), field or "text"), [hub]
            corpora = [Corpus(hub, range(len(texts.train)), range(len(texts.validation)))]
        else:
            several = [path] if path is None or isinstance(path, str) else list(path)
            texts, corpora = joined([_local(part, field) for part in several], several)
        self.corpora, self.weights = corpora, weights
        self.train, self.validation, self.fingerprint, self.facts = texts[:4]
        self.unit, spellings = "byte", [bytes([byte]) for byte in range(256)]
        self.symbols = [repr(spelling)[2:-1] for spelling in spellings]
        if tokenizer or bpe:
            spellings = self._encode(tokenizer, bpe, processes, texts.names)
        self.bytes_per_id = np.array([len(spelling) for spelling in spellings])  # int64
        self._words = _words(spellings)
        self.vocab, self.marks = len(spellings), int(bos)
        self.symbols = [*self.symbols, *("▮" * self.marks)]
        self.begin = self.vocab if bos else None  # fed in place of a window's first id
        self.packed, self.contiguous = packed, contiguous
        self.count, self.longest, self.eval_seed = windows, longest, eval_seed
        self._places: dict[int, list[np.ndarray]] = {}
        self._packs: dict[tuple[str, int], list[Packs]] = {}

    def _encode(self, path: str | None, size: int | None, processes: int, names: Sequence[str] | None) -> list[bytes]:
        """From bytes to tokens; what each of them spells."""
        key = self.fingerprint
        make = tokens.Vocabulary
        vocabulary = make.load(path) if path else make.train(self.train, size, key, names)
        self.train = tokens.encode(self.train, vocabulary, f"{key} train", names, processes)
        self.validation = tokens.encode(self.validation, vocabulary, f"{key} validation", names, processes)
        self.unit, self.symbols = "token", vocabulary.symbols
        self.fingerprint = digest(key, vocabulary.fingerprint)
        self.facts = {**self.facts, "tokenizer": vocabulary.fingerprint, "vocab": len(vocabulary.lengths)}
        return vocabulary.spellings

    def batch(self, seed: int, step: int, rows: range, length: int) -> Batch:
        """Windows of training documents, uniform over all places where one fits, or over all packs; where weights are
        given, within each corpus."""
        if self.contiguous:
            return self._continued(seed, step, rows, length)
        # Drawn from the first row on, so that a row does not depend on which other rows are asked for.
        drawn = generator(seed, "train", step).random(rows.stop)[rows.start :]
        if self.packed:
            return self._packed(seed, step, rows, length, drawn)
        which, spots = self._spots(seed, step, rows, drawn, [ends[-1] for ends in self._ends(length)])
        documents, firsts = np.empty((2, len(spots)), np.int64)
        for number in np.unique(which):
            here, ends = which == number, self._ends(length)[number]
            inside = np.searchsorted(ends, spots[here], side="right")
            documents[here] = self.corpora[number].train[0] + inside
            firsts[here] = self.train.lengths[documents[here]] - length - (ends[inside] - spots[here])
        ids = torch.from_numpy(_cut(self.train, documents, firsts, length + 1).astype(np.int64))
        inputs = ids[:, :-1].clone()
        if self.begin is not None:
            inputs[:, 0] = self.begin
        return Batch(inputs, ids[:, 1:].contiguous())

    def _spots(
        self, seed: int, step: int, rows: range, drawn: np.ndarray, counts: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which corpus each row is from, and which of its `counts` places; drawn: a number in [0, 1) for each row."""
        if self.weights is None:
            spots, ends = (drawn * sum(counts)).astype(np.int64), np.cumsum(counts)
            which = np.searchsorted(ends, spots, side="right")
            return which, spots - (ends - counts)[which]
        shares = np.cumsum(self.weights) / np.sum(self.weights)
        chosen = generator(seed, "corpus", step).random(rows.stop)[rows.start :]
        which = np.minimum(np.searchsorted(shares, chosen, side="right"), len(counts) - 1)
        return which, (drawn * np.array(counts)[which]).astype(np.int64)

    def _packed(self, seed: int, step: int, rows: range, length: int, drawn: np.ndarray) -> Batch:
        """Documents one after another. Nothing is asked where one ends and at padding, which comes last."""
        packs = self._packs_of("train", length)
        which, spots = self._spots(seed, step, rows, drawn, [len(of_corpus) for of_corpus in packs])
        ids, doc = np.empty((2, len(spots), length + 1), np.int64)
        for number in np.unique(which):
            here = which == number
            order = Draw(seed, "order", step, np.arange(rows.start, rows.stop)[here])
            ids[here], doc[here] = packs[number].rows(spots[here], order)
        return self._fed(ids, doc)

    def _fed(self, ids: np.ndarray, doc: np.ndarray) -> Batch:
        """ids and documents [b, n + 1] as they are fed."""
        inputs, targets = ids[:, :-1].copy(), np.where(asked(doc), ids[:, 1:], IGNORE)
        doc = doc[:, :-1]
        pos = within(doc)
        if self.begin is not None:
            inputs[(pos == 0) & (doc >= 0)] = self.begin
        inputs, targets, doc, pos = map(torch.from_numpy, (inputs, targets, doc.copy(), pos))
        return Batch(inputs, targets, doc, pos) if self.packed == "reset" else Batch(inputs, targets)

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
        """Evaluation text [N, longest + 1]: windows inside validation documents, none overlapping another; or packs of
        them. Which windows is fixed by (data, longest, eval_seed). Ids as they stand in the text, before any BOS."""
        if self.packed:
            return self._evaluation_packs(longest)[0]
        return _cut(self.validation, *self.places(longest), longest + 1)

    def layout(self, longest: int) -> Layout | None:
        if not self.packed:
            return None
        _, doc = self._evaluation_packs(longest)
        return Layout(doc if self.packed == "reset" else np.minimum(doc, 0), asked(doc))

    def documents(self, longest: int) -> np.ndarray | None:
        return None if self.packed else self.places(longest)[0]

    def held_out(self, length: int, longest: int) -> Batch:
        """The windows beside those of evaluation: the next `count` of the same drawing, each cut from its end."""
        if self.packed:
            ids, doc = self._evaluation_packs(longest, 1)
        else:
            ids = _cut(self.validation, *self.places(longest, 1), longest + 1)
            doc = np.zeros(ids.shape, np.int64)
        if not len(ids):
            raise UserError(
                f"task.windows={self.count}: must leave windows of {longest} {self.unit}s to choose by, and "
                "there are no more; ask for fewer, or give longer documents by task.path=…"
            )
        places = np.arange(longest % length, longest, length)[:, None] + np.arange(length + 1)
        ids, doc = (part[:, places].reshape(-1, length + 1).astype(np.int64) for part in (ids, doc))
        return self._fed(ids, doc)

    def window_slices(self, longest: int) -> Mapping[str, np.ndarray]:
        """{"corpus": the name of each window's corpus}, where there are several."""
        if len(self.corpora) == 1:
            return {}
        return {"corpus": np.repeat([own.name for own in self.corpora], self._counts(longest))}

    def _counts(self, longest: int) -> list[int]:
        """The number of windows of each corpus."""
        if self.packed:
            return [min(self.count, len(packs)) for packs in self._packs_of("validation", longest)]
        ends = [own.validation.stop for own in self.corpora]
        return np.bincount(np.searchsorted(ends, self.places(longest)[0], side="right")).tolist()

    def places(self, longest: int, part: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Where the windows stand, int64 [N]: the validation document of each, its first id's place there.

        A place is any multiple of longest + 1 in any document; `count` of them are drawn from each corpus, or all
        where there are fewer, and come in the order of the text. part: 1 for the next `count` that are drawn.
        """
        documents, firsts = [], []
        for own in self.corpora:
            slots = _part(self.validation.lengths, own.validation) // (longest + 1)
            ends = np.cumsum(slots)
            if not len(ends) or not ends[-1]:
                raise self._nothing_fits(longest, "validation", own)
            chosen = self._chosen(int(ends[-1]), part)
            found = np.searchsorted(ends, chosen, side="right")
            documents.append(own.validation.start + found)
            firsts.append((chosen - (ends - slots)[found]) * (longest + 1))
        return np.concatenate(documents), np.concatenate(firsts)

    def _chosen(self, total: int, part: int = 0) -> np.ndarray:
        """`count` of so many evaluation windows, in order; part: 1 for the next `count`."""
        order = np.argsort(generator(self.eval_seed, "windows", 0).random(total), kind="stable")
        return np.sort(order[part * self.count : (part + 1) * self.count])

    def _evaluation_packs(self, longest: int, part: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """ids and documents [N, longest + 1] of packed windows. Padding comes first: the last targets are text."""
        ids, docs = [], []
        for packs in self._packs_of("validation", longest):
            chosen = self._chosen(len(packs), part)
            id_, doc = packs.rows(chosen, Draw(self.eval_seed, "order", 0, chosen), padded_first=True)
            ids.append(id_)
            docs.append(doc)
        return np.concatenate(ids), np.concatenate(docs)

    def words(self, ids: np.ndarray) -> np.ndarray:
        """How many words begin within each of the ids [..., n], of which every row is a text.

        A word is a run of bytes that are no ASCII white space, as long as can be; a row may begin within one, which
        then counts there. Bytes and tokens of a text have the same words.
        """
        inside, opens, closes = self._words
        begins = opens[ids]
        begins[..., 1:] &= closes[ids[..., :-1]]
        return inside[ids] + begins

    def report(self, length: int, longest: int) -> dict:
        """How much of the data is used at a training length and a longest evaluation length, for the log.

        Raises UserError when no document of a corpus holds one training window or one evaluation window.
        """
        counts = self._counts(longest)
        found = {**self.facts, "fingerprint": self.fingerprint}
        for own, windows in zip(self.corpora, counts, strict=True):
            of = "" if len(self.corpora) == 1 else f" of {own.name}"
            found[f"train{of}"] = self._used("train", length, own)
            found[f"validation{of}"] = {**self._used("validation", longest, own), "windows": windows}
        if self.weights:
            shares = zip(self.corpora, self.weights, strict=True)
            found["weights"] = ", ".join(f"{own.name} {weight:g}" for own, weight in shares)
        return found

    def _used(self, part: str, length: int, own: Corpus) -> dict:
        """What of a corpus can be in a window, and what cannot: documents shorter than one, or, packed, of fewer than
        two items; of the others every item can."""
        lengths = _part(getattr(self, part).lengths, getattr(own, part))
        if not self.packed and part == "train":
            self._ends(length)
        fits = lengths >= (2 if self.packed else length + 1)
        used = {
            "documents": len(lengths),
            f"{self.unit}s": int(lengths.sum()),
            "documents_dropped": int((~fits).sum()),
            f"{self.unit}s_dropped": int(lengths[~fits].sum()),
        }
        if self.packed:
            packs = self._packs_of(part, length)[self.corpora.index(own)]
            used |= {"packs": len(packs), "places_of_padding": packs.padding()}
        return used

    def _ends(self, length: int) -> list[np.ndarray]:
        """For each corpus the running number of places for a window over its training documents; the last is their
        number."""
        if length not in self._places:
            places = []
            for own in self.corpora:
                ends = np.cumsum(np.maximum(_part(self.train.lengths, own.train) - length, 0))
                if not len(ends) or not ends[-1]:
                    raise self._nothing_fits(length, "training", own)
                places.append(ends)
            self._places[length] = places
        return self._places[length]

    def _packs_of(self, part: str, length: int) -> list[Packs]:
        """The packs of each corpus; part: train or validation."""
        if (part, length) not in self._packs:
            packs = []
            for own in self.corpora:
                chosen = getattr(own, part)
                packs.append(Packs(getattr(self, part).take(np.arange(chosen.start, chosen.stop)), length))
                if not len(packs[-1]):
                    raise self._nothing_fits(1, "training" if part == "train" else part, own)
            self._packs[part, length] = packs
        return self._packs[part, length]

    def _nothing_fits(self, length: int, part: str, own: Corpus) -> UserError:
        documents, chosen = (self.train, own.train) if part == "training" else (self.validation, own.validation)
        longest = int(max(_part(documents.lengths, chosen), default=0))
        key = "longest evaluation length" if part == "validation" else "train_length"
        remedy = f"ask for at most {longest - 1}, or give" if longest > 1 else "give"
        return UserError(
            f"{key} {length}: takes {length + 1} {self.unit}s of a document; the longest {part} document of "
            f"{own.name} has {longest}; {remedy} longer documents by task.path=…"
        )


def _part(values: np.ndarray, which: range) -> np.ndarray:
    return values[which.start : which.stop]


def _words(spellings: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every id: how many words begin within it, whether one can begin at its first byte, and after its last."""
    space = [[byte in b" \t\n\v\f\r" for byte in spelling] for spelling in spellings]
    inside = [sum(before and not after for before, after in itertools.pairwise(of_id)) for of_id in space]
    opens = [bool(of_id) and not of_id[0] for of_id in space]
    return np.array(inside), np.array(opens), np.array([bool(of_id) and of_id[-1] for of_id in space])


def _cut(documents: Documents, indices: np.ndarray, firsts: np.ndarray, size: int) -> np.ndarray:
    """[len(indices), size]: from each of the documents `size` ids on from its first."""
    places = zip(indices.tolist(), firsts.tolist(), strict=True)
    rows = [documents[index][first : first + size] for index, first in places]
    return np.stack(rows) if rows else np.empty((0, size), np.int64)


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
