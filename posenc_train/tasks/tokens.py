"""Documents of bytes as documents of token ids: by a tokenizer.json, or by BPE learned here.

Only tokenizers of which an id stands for the same bytes wherever it is, so that bits per byte can be had from losses
per token: byte-level ones (GPT-2, Llama 3, Qwen), and those that write a space as ▁ (SentencePiece: Llama 2, Mistral,
Gemma). This is verified on every document: the bytes of its ids are its own. Nothing is truncated, padded or added,
whatever the file says, and no space is put in front of a text.
"""

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from posenc_train.config import UserError
from posenc_train.tasks.corpus import LARGE, Documents, Mapped, prepare, write
from posenc_train.tasks.names import digest

PIECE = 2**16  # characters; longer documents are encoded in pieces …
GROUP = 2**21  # … of which so many characters at once, at 120 bytes of memory each
SPACE, BYTE = "▁", re.compile("<0x([0-9A-F]{2})>")
PLACE = re.compile(r"(?<=\S) (?=[^\W\d_])")


class Vocabulary:
    """A tokenizer: `text` is its tokenizer.json; of each id, `spellings` are its bytes, `lengths` [vocab] how many, and
    `symbols` how the file writes it."""

    def __init__(self, text: str, where: str):
        import tokenizers

        try:
            content = json.loads(text)
            content |= {part: _adding_nothing(content.get(part)) for part in ("normalizer", "pre_tokenizer")}
            self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # the library raises no class of its own
            raise UserError(f"{where}: not a tokenizer.json: {error}; see the `tokenizers` library") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.text, self.where = text, where
        self.spellings = _spellings(self.tokenizer, content, where)
        self.lengths = np.array([len(spelling) for spelling in self.spellings])  # int64
        self.piece = PIECE if _parts_words(self.tokenizer) else sys.maxsize
        self.dtype = "uint16" if len(self.lengths) <= 2**16 else "uint32"
        self.fingerprint = digest(text)
        self.symbols = [self.tokenizer.id_to_token(id) for id in range(len(self.lengths))]

    @classmethod
    def load(cls, path: str) -> "Vocabulary":
        where = f"task.tokenizer={path}"
        try:
            with open(os.path.expanduser(path), encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{where}: cannot be read: {reason}; give the path of a tokenizer.json") from error
        return cls(text, where)

    @classmethod
    def train(cls, documents: Documents, size: int, key: str, names: Sequence[str] | None) -> "Vocabulary":
        """Byte-level BPE of `size` ids, 256 bytes among them, learned from the documents that `key` names."""
        where = f"task.bpe={size}"

        def build(folder: str) -> dict[str, list[str]]:
            path = os.path.join(folder, "tokenizer.json")
            texts = (text for document in _texts(documents, names, where) for text in pieces(document, PIECE))
            _bpe(texts, size, where).save(path)
            return {"tokenizer": [path]}

        path = prepare(f"bpe-{digest(key, size)}", build)["tokenizer"][0]
        with open(path, encoding="utf-8") as file:
            return cls(file.read(), where)


def encode(
    documents: Documents,
    vocabulary: Vocabulary,
    key: str,
    names: Sequence[str] | None = None,
    processes: int = 1,
) -> Documents:
    """The documents, which `key` names, as ids; `names` is what a row of them is called in a message.

    Kept once for (key, vocabulary). The ids do not depend on the number of processes: a document is encoded
    by itself.
    """
    edges = np.linspace(0, len(documents), min(processes, max(len(documents), 1)) + 1).astype(int).tolist()
    arguments = {
        "parts": list(itertools.pairwise(edges)),  # the one list: each process takes its share of it
        "documents": documents,
        "text": vocabulary.text,
        "where": vocabulary.where,
        "names": None if names is None else tuple(names),
    }
    size = min(int(documents.lengths.sum()) * 16, LARGE)  # encoding is slower: shows its progress sooner
    found = prepare(
        f"ids-{digest(key, vocabulary.fingerprint)}",
        lambda folder: {"ids": write(folder, _ids, arguments, size, 100, len(edges) - 1)},
    )
    rows = Documents.whole(Mapped(found["ids"], "ids", vocabulary.dtype))
    rows.rows = documents.rows
    return rows


def _ids(parts: list, documents: Documents, text: str, where: str, names: tuple | None) -> Iterator[dict]:
    vocabulary = Vocabulary(text, where)
    for first, last in parts:
        part = documents.take(np.arange(first, last))
        for index, ids in enumerate(_encode(vocabulary, _texts(part, names, where))):
            if b"".join([vocabulary.spellings[id] for id in ids.tolist()]) != part[index].tobytes():
                raise UserError(
                    f"{where}: changes the text: the ids of {_name(part, index, names)} stand for other bytes than its "
                    "own; give a tokenizer that keeps every character, or task.bpe=…"
                )
            yield {"ids": ids.tobytes()}


def _encode(vocabulary: Vocabulary, texts: Iterable[str]) -> Iterator[np.ndarray]:
    """The ids of each text."""
    begun: list[np.ndarray] = []
    for group in _groups(texts, vocabulary.piece):
        encodings = vocabulary.tokenizer.encode_batch_fast([p for p, _ in group], add_special_tokens=False)
        for encoding, (_, last) in zip(encodings, group, strict=True):
            begun.append(np.array(encoding.ids, vocabulary.dtype))
            if last:
                yield np.concatenate(begun)
                begun = []


def _groups(texts: Iterable[str], size: int) -> Iterator[list[tuple[str, bool]]]:
    """The texts' pieces, and for each whether it is the last of its text, some GROUP characters together."""
    group, length = [], 0
    for text in texts:
        parts = list(pieces(text, size))
        for number, part in enumerate(parts, start=1):
            group.append((part, number == len(parts)))
            length += len(part)
            if length >= GROUP:
                yield group
                group, length = [], 0
    yield group


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of at least `size` characters; each but the first begins with a space and a letter.

    Before them is no space. There every pattern in use for byte-level tokenizers (GPT-2's, cl100k's and those
    made from them) begins a word, and none looks back beyond it, so that the ids of the pieces are the ids of
    the whole.
    """
    first = 0
    places = PLACE.finditer(text, size)
    while place := next((p for p in places if p.start() >= first + size and text[p.end()].isalpha()), None):
        yield text[first : place.start()]
        first = place.start()
    yield text[first:]


def _texts(documents: Documents, names: Sequence[str] | None, where: str) -> Iterator[str]:
    for index, document in enumerate(documents):
        try:
            yield document.tobytes().decode()
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}: needs UTF-8, and {_name(documents, index, names)} is not at byte {error.start}; "
                "convert or remove it, or leave the task at bytes"
            ) from error


def _name(documents: Documents, index: int, names: Sequence[str] | None) -> str:
    row = int(documents.rows[index])
    return f"row {row}" if names is None else names[row]


def _bpe(texts: Iterator[str], size: int, where: str):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if (got := tokenizer.get_vocab_size()) != size:
        raise UserError(f"{where}: this corpus gives {got} ids; ask for {got} (256 are the bytes), or give more text")
    return tokenizer


def _adding_nothing(part: Any) -> Any:
    """A part of a tokenizer.json that puts no space in front of a text."""
    if isinstance(part, list):
        return [_adding_nothing(value) for value in part]
    if not isinstance(part, dict):
        return part
    off = {"add_prefix_space": False, "prepend_scheme": "never"}
    if part.get("type") == "Prepend":
        off["prepend"] = ""
    return {key: off[key] if key in off else _adding_nothing(value) for key, value in part.items()}


def _spellings(tokenizer, content: dict, where: str) -> list[bytes]:
    """Of each id. An added token is written as it is."""
    added = {token["content"] for token in content.get("added_tokens", [])}
    vocabulary, decoder = tokenizer.get_vocab(), content.get("decoder")
    if _holds(decoder, "ByteLevel"):
        byte_of = _alphabet()
        known = all(byte_of.keys() >= set(token) for token in vocabulary.keys() - added)
    else:
        byte_of, known = None, SPACE in json.dumps(decoder, ensure_ascii=False)
    if not known:
        raise UserError(
            f"{where}: neither byte-level nor with ▁ for a space, so bits per byte cannot be had; give another "
            "tokenizer, or task.bpe=…"
        )
    spellings = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, id in vocabulary.items():
        if token in added:
            spellings[id] = token.encode()
        elif byte_of:
            spellings[id] = bytes(byte_of[character] for character in token)
        elif single := content["model"].get("byte_fallback") and BYTE.fullmatch(token):
            spellings[id] = bytes([int(single[1], 16)])
        else:
            spellings[id] = token.replace(SPACE, " ").encode()
    return spellings


def _alphabet() -> dict[str, int]:
    """The byte of each character of byte-level tokens: printable ones are themselves, others come from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _parts_words(tokenizer) -> bool:
    """Whether a word begins with the space before it, as `pieces` needs."""
    before = tokenizer.pre_tokenizer
    return before is not None and [place for _, place in before.pre_tokenize_str("a b")] == [(0, 1), (1, 3)]


def _holds(part: object, kind: str) -> bool:
    """Whether a part of a tokenizer.json is of a kind, or a sequence with one that is."""
    if isinstance(part, dict):
        return part.get("type") == kind or any(_holds(value, kind) for value in part.values())
    return isinstance(part, list) and any(_holds(value, kind) for value in part)
