"""Needles in real text: what the tasks of this kind share. `needle` is the plainest of them.

A needle is a few symbols between two marks, ‹AB123›; the question, behind the text, is a mark and a key, ⁇AB. The three
marks are ids that no text has, so a needle is where its ‹ is and nowhere else. Letters, digits and text are one
vocabulary, and what the needles say is drawn without looking at the text.

The text is a passage of one document, of the training documents in training and of the validation documents in
evaluation. A *slot* is a place for needles: slot s is behind the first s tokens of the passage, the last is before the
question. Sequences are as long as the length asks for, in training as in evaluation, to the token.
"""

import inspect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from posenc_train.config import UserError
from posenc_train.tasks.asked import Asked
from posenc_train.tasks.corpus import Documents
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.names import digest
from posenc_train.tasks.text import Text

MARKS = "‹›⁇"
LETTERS, DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"  # capitals, which are rare in text as digits are
DEPTHS = [0.0, 0.25, 0.5, 0.75, 1.0]


class Haystack(Asked):
    """Where the text comes from: path, field, hub, subset, files, revision, tokenizer, bpe, processes, as task=text.

    A subclass says how many tokens of a sequence are no text (`overhead`) and takes these settings as **source.
    """

    marks = 3  # ‹ › ⁇
    overhead: int  # tokens of a sequence that are no text, at most
    alphabet = len(LETTERS)  # how many of them are used
    depth: list[float] = []  # of the needle that is asked for, in evaluation

    def __init_subclass__(cls):
        """The settings of a subclass are its own and those here, for whoever asks for its signature."""
        own = [p for p in inspect.signature(cls.__init__).parameters.values() if p.kind != p.VAR_KEYWORD][1:]
        names = {parameter.name for parameter in own}
        shared = [p for p in inspect.signature(Haystack.__init__).parameters.values() if p.name not in {"self", *names}]
        cls.__signature__ = inspect.Signature([*own, *shared])

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
        examples: int = 200,
        longest: int | None = None,
        eval_seed: int = 0,
    ):
        super().__init__(examples, longest, eval_seed)
        source = {"path": path, "field": field, "hub": hub, "subset": subset, "files": files, "revision": revision}
        self.text = Text(**source, tokenizer=tokenizer, bpe=bpe, processes=processes)
        self.vocab = self.text.vocab
        self.opening, self.closing, self.question = range(self.vocab, self.vocab + self.marks)
        self.filler = self.closing
        self.symbols = [*self.text.symbols, *MARKS]
        self.letters, self.digits = self._ids(LETTERS), self._ids(DIGITS)
        self.fingerprint = digest(self.name, self.text.fingerprint, *map(str, self.told()))
        self._places: dict[tuple[str, int], Places] = {}

    def told(self) -> tuple:
        """The settings that shape a training sequence, beside the text."""
        raise NotImplementedError

    @property
    def least(self) -> int:
        return self.overhead + 1  # one token of text makes two slots

    def tokens(self, size: int) -> int:
        return size

    def sizes(self, draw: Draw, length: int) -> Int[np.ndarray, "b"]:
        return np.full(len(draw.rows), self.size(length))

    def asked(self, size: int) -> np.ndarray:
        """The last tokens, as many as `answer` says."""
        return np.arange(size) >= size - self.answer

    def report(self, length: int, longest: int) -> dict:
        """With the depths that are achieved: slot / tokens of text."""
        achieved = {}
        for size in sorted({length, longest}) if self.depth else ():
            room = size - self.overhead
            achieved[f"depths at {size}"] = ", ".join(f"{d:g} is {slot_of(d, room)}/{room}" for d in self.depth)
        return {**self.text.facts, "fingerprint": self.fingerprint, **achieved}

    def _ids(self, letters: str) -> Int[np.ndarray, "n"]:
        id_of = {symbol: id for id, symbol in enumerate(self.text.symbols)}
        if missing := [letter for letter in letters if letter not in id_of]:
            raise UserError(
                f"task={self.name}: needs a token for every capital letter and every digit; that of task.tokenizer "
                f"has none for {' '.join(missing)}: take another, or leave the task at bytes"
            )
        return np.array([id_of[letter] for letter in letters])

    def mark_by_unused_ids(self) -> None:
        """Marks with the greatest ids of the vocabulary that are in no document and no needle, in place of ids behind
        it, which a model from elsewhere may not have. Raises UserError where there are fewer than the marks."""
        used = np.zeros(self.vocab, bool)
        used[self.letters] = used[self.digits] = True
        for document in itertools.chain(self.text.train, self.text.validation):
            used[document] = True
        unused = np.flatnonzero(~used)[-self.marks :].tolist()
        if len(unused) < self.marks:
            raise UserError(
                f"task={self.name}: needs {self.marks} ids of the tokenizer that are in no document of "
                f"{self.text.facts['source']}, which has all but {len(unused)}; give less text by task.path=…"
            )
        self.opening, self.closing, self.question = unused
        self.filler, self.marks, self.symbols = self.closing, 0, self.text.symbols

    # ---- parts of a sequence ----------------------------------------------------------------------------

    def passages(self, split: str, at: Float[np.ndarray, "b"], size: int) -> Int[np.ndarray, "b size"]:
        """Text of `size` tokens, each place where it fits as likely as another; at: in [0, 1), which place."""
        documents, ends = self.places(split, size)
        spots = (at * ends[-1]).astype(np.int64)
        index = np.searchsorted(ends, spots, side="right")
        return documents.windows(index, documents.lengths[index] - size + 1 - (ends[index] - spots), size)

    def places(self, split: str, size: int) -> "Places":
        if (split, size) not in self._places:
            documents = self.text.train if split == "training" else self.text.validation
            ends = np.cumsum(np.maximum(documents.lengths - size + 1, 0))
            if not len(ends) or not ends[-1]:
                raise UserError(
                    f"task={self.name}: {size} tokens of a document are its text at length {size + self.overhead}; the "
                    f"longest {'training' if split == 'training' else 'validation'} document of "
                    f"{self.text.facts['source']} has {max(documents.lengths, default=0)}; ask for shorter "
                    "lengths, or give longer documents by task.path=…"
                )
            self._places[split, size] = Places(documents, ends)
        return self._places[split, size]

    def enough(self, keys: int, numbers: int, digits: int) -> None:
        """Raises UserError where there are not so many different keys, or numbers of so many digits."""
        if keys > self.alphabet:
            raise UserError(
                f"task.letters={self.alphabet}: must be at least {keys}, as many as there are keys in a text; raise it "
                "(26 at most), or ask for fewer"
            )
        if numbers > 10**digits:
            told = f"gives {10**digits} numbers, and {numbers} different ones are needed"
            raise UserError(f"task.digits={digits}: {told}; raise it")

    def drawn_keys(self, draw: Draw, count: int) -> Int[np.ndarray, "b {count} 2"]:
        """Pairs of letters, no two of a text with the same letter in the same place."""
        return self.letters[np.stack([few(draw, count, self.alphabet) for _ in range(2)], axis=-1)]

    def drawn_numbers(self, draw: Draw, count: int, digits: int) -> Int[np.ndarray, "b {count} {digits}"]:
        """Different numbers of so many digits, zeros in front among them."""
        numbers = few(draw, count, 10**digits)[..., None] // 10 ** np.arange(digits)[::-1]
        return self.digits[numbers % 10]

    def needle(self, *parts: Int[np.ndarray, "b n _"]) -> Int[np.ndarray, "b n w"]:
        """The parts, one behind another, between the two marks."""
        mark = np.ones((*parts[0].shape[:2], 1), np.int64)
        return np.concatenate([mark * self.opening, *parts, mark * self.closing], axis=-1)

    def ask(self, key: Int[np.ndarray, "b k"]) -> Int[np.ndarray, "b 1+k"]:
        return np.concatenate([np.full((len(key), 1), self.question), key], axis=1)


class Places(NamedTuple):
    """Of a passage: the documents, and the running number of places in them; the last is their number."""

    documents: Documents
    ends: Int[np.ndarray, "n"]


def few(draw: Draw, count: int, high: int) -> Int[np.ndarray, "b {count}"]:
    """`count` different numbers out of 0 … high - 1 in random order, in time count² and not high."""
    found = np.empty((len(draw.rows), 0), np.int64)
    for taken in range(count):
        number = draw.integers(high - taken, 1)
        for earlier in np.sort(found, axis=1).T:  # counts on past those that are taken
            number += number >= earlier[:, None]
        found = np.concatenate([found, number], axis=1)
    return found


def placed(draw: Draw, depths: Sequence[float], room: int) -> tuple[np.ndarray, np.ndarray]:
    """(depth, slot) [b] for a needle in `room` tokens of text: in training any slot, else the depths in turn.

    The achieved depth is slot / room, within half a slot of what was asked.
    """
    if draw.split == "training":
        depth = draw.integers(room + 1) / room
    else:
        depth = np.array(depths, float)[draw.rows % len(depths)]
    return depth, slot_of(depth, room)


def slot_of(depth: float | Float[np.ndarray, "b"], room: int) -> Int[np.ndarray, "*b"]:
    """The slot nearest to a depth."""
    return np.floor(np.asarray(depth) * room + 0.5).astype(np.int64)


def bury(
    text: Int[np.ndarray, "b f"], needles: Sequence[Int[np.ndarray, "b n _"]], slots: Sequence[Int[np.ndarray, "b n"]]
) -> Int[np.ndarray, "b m"]:
    """The text with all needles whole at their slots; of several at one slot, the first given is first."""
    rows = len(text)
    tokens = np.concatenate([needle.reshape(rows, -1) for needle in needles], axis=1)
    behind = np.concatenate(
        [np.repeat(slot, needle.shape[2], axis=1) for needle, slot in zip(needles, slots, strict=True)], axis=1
    )
    order = np.argsort(behind, axis=1, kind="stable")  # a needle's tokens stay together: they are given together
    places = np.take_along_axis(behind, order, axis=1) + np.arange(tokens.shape[1])
    ids = np.empty((rows, text.shape[1] + tokens.shape[1]), np.int64)
    free = np.ones(ids.shape, bool)
    np.put_along_axis(free, places, False, axis=1)
    np.put_along_axis(ids, places, np.take_along_axis(tokens, order, axis=1), axis=1)
    ids[free] = text.reshape(-1)
    return ids
