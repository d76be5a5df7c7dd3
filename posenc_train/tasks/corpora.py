"""Several corpora as one."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.corpus import Documents
from posenc_train.tasks.names import digest


class Texts(NamedTuple):
    """Documents of bytes; 16 hex digits that name them; facts for the log; what their rows are called."""

    train: Documents
    validation: Documents
    fingerprint: str
    facts: dict
    names: list[str] | None


class Corpus(NamedTuple):
    """Which of the documents are one corpus's."""

    name: str
    train: range
    validation: range


def joined(texts: list[Texts], paths: Sequence[str | None]) -> tuple[Texts, list[Corpus]]:
    """Several corpora as one, and which of its documents are whose. What is a validation document of one of them is
    left out of the training documents of all."""
    if len(texts) == 1:
        only = texts[0]
        return only, [Corpus(only.facts["source"], range(len(only.train)), range(len(only.validation)))]
    names = [str(text.facts["source"]) for text in texts]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise UserError(f"task.path=[{','.join(names)}]: names a corpus twice; give each once, and task.weights=[…]")
    held = [_digests(text.validation) | _digests(_cut_in_two(text)) for text in texts]
    trains, left_out = [], []
    for number, text in enumerate(texts):
        others = set().union(*(of_text for other, of_text in enumerate(held) if other != number))
        keep = [i for i, document in enumerate(text.train) if hashlib.sha256(document).digest() not in others]
        left_out.append(len(text.train) - len(keep))
        trains.append(text.train.take(np.array(keep, np.int64)))
    sizes = [1 + max([*text.train.rows.tolist(), *text.validation.rows.tolist()]) for text in texts]
    moved = np.cumsum([0, *sizes])[:-1].tolist()
    corpora = []
    first = begin = 0
    for name, train, text in zip(names, trains, texts, strict=True):
        last, end = first + len(train), begin + len(text.validation)
        corpora.append(Corpus(name, range(first, last), range(begin, end)))
        first, begin = last, end
    rows = None
    if not any(text.names is None for text in texts):
        rows = [f"{name}/{row}" for name, text in zip(names, texts, strict=True) for row in text.names]
    facts = {"source": ", ".join(names), "training_documents_left_out": sum(left_out)}
    whole = Texts(
        Documents.joined(trains, moved),
        Documents.joined([text.validation for text in texts], moved),
        digest(*(text.fingerprint for text in texts)),
        facts,
        rows,
    )
    return whole, corpora


def _digests(documents: Iterable[np.ndarray]) -> set[bytes]:
    return {hashlib.sha256(document).digest() for document in documents}


def _cut_in_two(text: Texts) -> Iterator[np.ndarray]:
    """The whole of a document that a corpus of one distinct document is split within."""
    inside = {int(row): i for i, row in enumerate(text.train.rows)}
    for i, row in enumerate(text.validation.rows.tolist()):
        if row in inside:
            yield np.concatenate([text.train[inside[row]], text.validation[i]])
