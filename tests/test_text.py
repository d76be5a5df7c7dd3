"""Language modelling: what a batch and an evaluation window are made of, bytes or tokens, from any source."""

import hashlib
import io
import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from posenc_train.config import CONF, UserError, compose
from posenc_train.evaluation.evaluate import evaluate
from posenc_train.model.transformer import Transformer
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims
from posenc_train.tasks import tables, tokens
from posenc_train.tasks.packing import Packs
from posenc_train.tasks.text import Text


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder))
    return folder


def put(folder: Path, contents: list[bytes]) -> str:
    folder.mkdir(exist_ok=True)
    for index, content in enumerate(contents):
        (folder / f"{index:04}.txt").write_bytes(content)
    return str(folder)


def whole(task: Text) -> list[bytes]:
    return [document.tobytes() for part in (task.train, task.validation) for document in part]


# 25 documents of random bytes, of 0 to 60: any six bytes of them tell where they stand.
LENGTHS = [0, 1, 5, 6, 7, 8, 60, 60, 33, 20, 20, 45, 12, 3, 59, 58, 57, 56, 7, 7, 30, 31, 32, 40, 50]
RANDOM = [np.random.default_rng(i).integers(0, 256, n, np.uint8).tobytes() for i, n in enumerate(LENGTHS)]


@pytest.fixture
def small(tmp_path) -> Text:
    return Text(path=put(tmp_path / "small", RANDOM), windows=7)


# ---------------------------------------------------------------------------------------- batches


def test_windows_of_a_batch_are_uniform_over_all_places_where_one_fits(small):
    """Counted out: every start inside a training document, none across two, each as often as any other."""
    length = 6
    places = {
        document.tobytes()[start : start + length + 1]
        for document in small.train
        for start in range(len(document) - length)
    }
    batches = [small.batch(0, step, range(200), length) for step in range(100)]
    rows = [bytes([int(i[0]), *t]) for b in batches for i, t in zip(b.inputs, b.targets.tolist(), strict=True)]
    counts = Counter(rows)
    assert set(counts) == places
    expected = len(rows) / len(places)
    chi_square = sum((counts[place] - expected) ** 2 / expected for place in places)
    free = len(places) - 1
    assert abs(chi_square - free) < 5 * (2 * free) ** 0.5


def test_what_is_fed_is_followed_by_its_targets_and_has_the_length_asked_for(small):
    for length in (1, 5, 40):
        batch = small.batch(0, 0, range(9), length)
        assert batch.inputs.shape == batch.targets.shape == (9, length)
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
        assert batch.inputs.is_contiguous() and batch.targets.is_contiguous()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), step=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 24), max_size=5))
def test_field_bug_39_a_row_depends_on_seed_step_and_row_only(shared, seed, step, cuts):
    """Not on how the batch is divided among workers and devices, nor on what was asked for before."""
    one, other = shared
    together = one.batch(seed, step, range(24), 9)
    edges = sorted({0, 24, *cuts})
    parts = [other.batch(seed, step, range(a, b), 9) for a, b in reversed(list(itertools.pairwise(edges)))]
    assert torch.equal(torch.cat([part.inputs for part in reversed(parts)]), together.inputs)
    assert torch.equal(torch.cat([part.targets for part in reversed(parts)]), together.targets)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> tuple[Text, Text]:
    """The same task twice, as two processes would build it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        folder = put(tmp_path_factory.mktemp("texts"), RANDOM)
        return Text(path=folder), Text(path=folder)


def test_field_bug_39_steps_seeds_and_rows_do_not_repeat(tmp_path):
    task = Text(path=put(tmp_path / "texts", [np.random.default_rng(0).bytes(200_000)]))
    draws = [task.batch(seed, step, range(16), 30).inputs for seed in range(3) for step in range(20)]
    # By chance, 960 rows from 180,000 places have 2.6 pairs alike; one repeated step would make 16.
    assert len({row.tobytes() for draw in draws for row in draw.numpy()}) > 960 - 12


def test_field_bug_27_bos_takes_the_first_place_of_every_window_and_is_no_target(tmp_path):
    folder = put(tmp_path / "texts", RANDOM)
    plain, marked = Text(path=folder), Text(path=folder, bos=True)
    assert (plain.vocab, plain.marks, plain.begin) == (256, 0, None)
    assert (marked.vocab, marked.marks, marked.begin) == (256, 1, 256)
    without, with_bos = plain.batch(3, 4, range(20), 11), marked.batch(3, 4, range(20), 11)
    assert with_bos.inputs[:, 0].tolist() == [256] * 20
    assert torch.equal(with_bos.inputs[:, 1:], without.inputs[:, 1:])
    assert torch.equal(with_bos.targets, without.targets) and int(with_bos.targets.max()) < 256
    assert np.array_equal(plain.windows(20), marked.windows(20))


# ------------------------------------------------------------------------------ evaluation windows


@settings(max_examples=60, deadline=None)
@given(longest=st.integers(1, 60), count=st.integers(1, 30), eval_seed=st.integers(0, 9))
def test_evaluation_windows_lie_inside_documents_and_never_overlap(shared, longest, count, eval_seed):
    task = shared[0]
    task.count, task.eval_seed = count, eval_seed
    slots = sum(len(document) // (longest + 1) for document in task.validation)
    if not slots:
        with pytest.raises(UserError, match=f"longest evaluation length {longest}: takes {longest + 1} bytes"):
            task.windows(longest)
        return
    windows, (documents, firsts) = task.windows(longest), task.places(longest)
    assert windows.shape == (min(count, slots), longest + 1) and windows.dtype == np.uint8
    taken = []
    for window, document, first in zip(windows, documents.tolist(), firsts.tolist(), strict=True):
        assert window.tobytes() == task.validation[document].tobytes()[first : first + longest + 1]
        taken += [(document, place) for place in range(first, first + longest + 1)]
    assert len(set(taken)) == len(taken)
    assert taken == sorted(taken)


def test_field_bug_44_evaluation_windows_are_fixed_by_data_length_and_evaluation_seed(tmp_path):
    folder = put(tmp_path / "texts", [bytes([i]) * 4000 for i in range(40)])
    task, again, other = Text(path=folder), Text(path=folder), Text(path=folder, eval_seed=1)
    before = task.windows(99)
    task.batch(5, 5, range(8), 99)
    torch.manual_seed(1)
    np.random.seed(1)
    assert np.array_equal(before, task.windows(99)) and np.array_equal(before, again.windows(99))
    places = [set(zip(*(part.tolist() for part in t.places(99)), strict=True)) for t in (task, other)]
    assert len(places[0]) == len(places[1]) == 64 and places[0] != places[1]
    assert {document for document, _ in places[0]} == {
        0,
        1,
        2,
        3,
    }  # 64 of 160 places: no document is left out


def test_field_bug_29_a_length_beyond_every_document_is_refused_not_shortened(small):
    longest = {"train": max(small.train.lengths), "validation": max(small.validation.lengths)}
    most = int(longest["train"]) - 1
    assert small.batch(0, 0, range(2), most).inputs.shape == (2, most)
    with pytest.raises(UserError) as error:
        small.batch(0, 0, range(2), most + 1)
    expected = f"train_length {most + 1}: takes {most + 2} bytes of a document; the longest training document"
    assert str(error.value).startswith(expected) and f"ask for at most {most}" in str(error.value)
    with pytest.raises(UserError, match=f"longest evaluation length {longest['validation']}: "):
        small.windows(int(longest["validation"]))


# --------------------------------------------------------------------------------- several corpora


@pytest.fixture
def two(tmp_path) -> list[str]:
    """A folder of lower-case documents and one of upper-case ones, larger."""
    letters = [np.random.default_rng(i).integers(97, 123, 40 + i, np.uint8) for i in range(60)]
    return [
        put(tmp_path / "low", [x.tobytes() for x in letters[:20]]),
        put(tmp_path / "high", [x.tobytes().upper() for x in letters[20:]]),
    ]


def test_every_corpus_has_the_evaluation_windows_that_it_has_alone(two):
    task, alone = Text(path=two, windows=7), [Text(path=path, windows=7) for path in two]
    assert np.array_equal(task.windows(12), np.concatenate([one.windows(12) for one in alone]))
    names = task.window_slices(12)["corpus"]
    assert names.tolist() == ["low"] * len(alone[0].windows(12)) + ["high"] * len(alone[1].windows(12))
    assert alone[0].window_slices(12) == {}
    packed, apart = (Text(path=path, windows=3, packed="reset") for path in (two, two[1]))
    assert np.array_equal(packed.windows(90)[-3:], apart.windows(90))
    assert packed.window_slices(90)["corpus"].tolist() == ["low"] * (len(packed.windows(90)) - 3) + ["high"] * 3


def test_the_rows_of_each_corpus_stand_beside_those_of_all(two):
    torch.manual_seed(0)
    dims = Dims(width=16, heads=2, head_width=8, layers=1, train_length=8)
    model, protocols = Transformer(dims, 256, 0, [Alibi(dims)]), {"nonoverlapping": {}, "same_targets": {"k": 4}}

    def rows(path):
        found = evaluate(model, Text(path=path, windows=5), [8, 16], protocols, 8, 16)
        return {(r.length, r.protocol, r.unit, str(r.slice)): (r.total, r.count) for r in found}

    both, alone = rows(two), {"low": rows(two[0]), "high": rows(two[1])}
    for (length, protocol, unit, _), (total, count) in alone["low"].items():
        other = alone["high"][length, protocol, unit, "{}"]
        assert both[length, protocol, unit, "{}"] == (pytest.approx(total + other[0]), count + other[1])
        for name, of in alone.items():
            key = (length, protocol, unit, str({"corpus": name}))
            assert both[key] == pytest.approx(of[length, protocol, unit, "{}"])


@pytest.mark.parametrize("packed", [None, "reset"])
@pytest.mark.parametrize("weights", [None, [3, 1]])
def test_training_draws_from_the_corpora_by_their_weights_or_by_their_sizes(two, weights, packed):
    task = Text(path=two, weights=weights, packed=packed)
    sizes = [sum(max(len(d) - 12, 0) for d in Text(path=path).train) for path in two]
    if packed:
        sizes = [len(Packs(Text(path=path).train, 12)) for path in two]
    shares = np.array(weights or sizes) / sum(weights or sizes)
    first = np.concatenate([task.batch(0, step, range(100), 12).inputs[:, 0].numpy() for step in range(20)])
    low = (first >= 97).mean()
    assert abs(low - shares[0]) < 4 * (shares[0] * shares[1] / 2000) ** 0.5
    assert np.array_equal(task.batch(5, 6, range(7, 20), 12).inputs, task.batch(5, 6, range(20), 12).inputs[7:])


def test_within_a_corpus_every_place_is_as_likely_as_another(two):
    task = Text(path=two, weights=[1, 1])
    seen = [task.batch(0, step, range(200), 30).inputs.numpy() for step in range(30)]
    counts = Counter(row.tobytes() for rows in seen for row in rows if row[0] < 97)
    places = sum(max(len(document) - 30, 0) for document in Text(path=two[1]).train)
    expected = sum(counts.values()) / places
    unseen = (places - len(counts)) * expected
    assert abs(sum((n - expected) ** 2 / expected for n in counts.values()) + unseen - places) < 5 * (2 * places) ** 0.5


def test_the_fingerprint_covers_all_corpora_in_their_order(two, tmp_path):
    other = put(tmp_path / "other", [b"something else entirely"] * 3)
    names = [Text(path=path).fingerprint for path in (two, two[::-1], [two[0], other], two[0], two[1])]
    assert len(set(names)) == 5 and Text(path=two).fingerprint == names[0]
    assert Text(path=[two[0]]).fingerprint == names[3]


def test_what_one_corpus_holds_for_validation_no_other_trains_on(tmp_path):
    """Two folders of mostly the same documents, and a document of its own that is one of them: it is cut in two."""
    texts = [np.random.default_rng(i).integers(97, 123, 90, np.uint8).tobytes() for i in range(40)]
    paths = [put(tmp_path / "a", texts[:30]), put(tmp_path / "b", texts[5:]), str(tmp_path / "a" / "0003.txt")]
    task = Text(path=paths)
    held = [document.tobytes() for document in task.validation]
    trained = [document.tobytes() for document in task.train]
    assert len(held) == 3 + round(3.5) + 1 and len(trained) > 50
    assert not set(held[:-1]) & set(trained)  # a b c d e f from the validation of one …
    assert texts[3] not in trained and texts[3][:81] in trained  # … and the whole of what is cut
    left_out = task.facts["training_documents_left_out"]
    assert left_out == sum(len(Text(path=path).train) for path in paths) - len(trained) > 0
    described = task.report(16, 8)
    assert described["train of a"]["documents"] + described["train of b"]["documents"] == len(trained) - 1


def test_tokens_of_several_corpora_are_those_of_each(two, tmp_path):
    path = tokenizer_file(tmp_path / "tokenizer.json")
    together, alone = Text(path=two, tokenizer=path), [Text(path=one, tokenizer=path) for one in two]
    for part in "train", "validation":
        ids = [ids.tolist() for task in alone for ids in getattr(task, part)]
        assert [ids.tolist() for ids in getattr(together, part)] == ids
    learned = Text(path=two, bpe=270)
    assert {len(learned.train), len(together.train)} == {sum(len(task.train) for task in alone)}


def test_tables_and_texts_are_corpora_together(two, tmp_path):
    table = write_table(tmp_path / "rows", "jsonl", [f"row {i} " * 20 for i in range(20)])
    task = Text(path=[table, two[0]], windows=2)
    assert task.window_slices(30)["corpus"].tolist() == ["data.jsonl"] * 2 + ["low"] * 2
    assert sorted(whole(task)) == sorted(whole(Text(path=table)) + whole(Text(path=two[0])))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": [1, 2]}, r"task.weights=\[1, 2\]: must be one for each corpus"),
        ({"path": ["low", "high"], "weights": [1]}, r"task.weights=\[1\]: must be one for each corpus"),
        ({"path": ["low", "low"]}, r"task.path=\[.*low,.*low\]: names a corpus twice"),
        ({"packed": "reset", "contiguous": True}, r"task.contiguous=true: must be false with task.packed"),
    ],
)
def test_settings_of_corpora_that_cannot_be_are_refused(two, monkeypatch, settings, message):
    monkeypatch.chdir(Path(two[0]).parent)
    with pytest.raises(UserError, match=message):
        Text(**settings)


def test_a_corpus_without_a_place_for_a_window_is_named(two, tmp_path):
    task = Text(path=[two[0], put(tmp_path / "short", [bytes([i]) * 9 for i in range(20)])])
    with pytest.raises(UserError, match="train_length 12: takes 13 bytes of a document; .* of short has 9"):
        task.batch(0, 0, range(2), 12)
    with pytest.raises(UserError, match="longest evaluation length 12: .* of short has 9"):
        task.report(8, 12)


# ------------------------------------------------------------------------------------------ words


@settings(max_examples=100, deadline=None)
@given(text=st.text("ab é.\n\t\u3000", max_size=60))
def test_words_are_what_split_makes_of_the_bytes(shared, text):
    ids = np.frombuffer(text.encode(), np.uint8)
    words = shared[0].words(ids[None])
    assert int(words.sum()) == len(text.encode().split())
    begins = [m.start() for m in re.finditer(rb"(?<![^ \t\n\v\f\r])[^ \t\n\v\f\r]", text.encode())]
    assert np.flatnonzero(words[0]).tolist() == begins


def test_bytes_and_tokens_of_a_text_have_the_same_words(tmp_path):
    folder, path = put(tmp_path / "texts", DOCUMENTS), tokenizer_file(tmp_path / "tokenizer.json", 320)
    of_bytes, of_tokens = Text(path=folder), Text(path=folder, tokenizer=path)
    for document, ids in zip(of_bytes.train, of_tokens.train, strict=True):
        assert of_bytes.words(document[None]).sum() == of_tokens.words(ids[None]).sum() == len(bytes(document).split())
    spelt = tokens.Vocabulary.load(path).spellings
    assert b"".join(spelt[id] for id in of_tokens.train[3]) == bytes(of_bytes.train[3])


# ------------------------------------------------------------------------------------------- report


def test_field_bug_72_nothing_is_dropped_without_being_counted(tmp_path):
    """1,000 documents of 37 bytes: all of them used where a window fits, an error where none does."""
    task = Text(path=put(tmp_path / "texts", [f"{i:037}".encode() for i in range(1000)]))
    report = task.report(36, 18)
    assert report["train"] == {"documents": 900, "bytes": 33_300, "documents_dropped": 0, "bytes_dropped": 0}
    assert report["validation"]["bytes"] == 3_700 and report["validation"]["windows"] == 64
    with pytest.raises(UserError, match="train_length 37: takes 38 bytes"):
        task.report(37, 36)
    with pytest.raises(UserError, match="train_length 128: takes 129 bytes"):
        task.batch(0, 0, range(1), 128)


@pytest.mark.parametrize("window", [1, 7, 33, 50])
def test_report_counts_used_and_dropped(small, window):
    report = small.report(window - 1, window - 1)
    for name, documents in ("train", small.train), ("validation", small.validation):
        short = [len(document) for document in documents if len(document) < window]
        assert report[name]["documents_dropped"] == len(short)
        assert report[name]["bytes_dropped"] == sum(short)
    assert report["train"]["bytes"] + report["validation"]["bytes"] == sum(LENGTHS)
    slots = sum(len(document) // window for document in small.validation)
    assert report["validation"]["windows"] == min(7, slots)
    assert report["fingerprint"] == small.fingerprint and report["source"] == "small"


def test_default_corpus_serves_long_windows():
    task = Text()
    assert task.windows(2048).shape == (64, 2049)
    assert task.report(128, 1024)["source"].startswith("Python 3.")


@pytest.mark.parametrize(
    "settings",
    [
        {"path": "a", "hub": "b/c"},
        {"tokenizer": "a", "bpe": 300},
        {"subset": "a"},
        {"files": "*"},
        {"revision": "a"},
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings):
    with pytest.raises(UserError, match=r"^task\..*; give|, not both"):
        Text(**settings)


# ------------------------------------------------------------------------------------ JSON and parquet

ROWS = ["first\r\nrow", "nul \0 byte", "é𝄞", "", *(f"row {i}" for i in range(16))]


def write_table(folder: Path, kind: str, rows: list, field: str = "text") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / f"data.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({field: rows, "n": range(len(rows))}), path)
    elif kind == "json":
        path.write_text(json.dumps([{field: row, "n": i} for i, row in enumerate(rows)]))
    else:
        path.write_text("".join(json.dumps({field: row, "n": i}) + "\n" for i, row in enumerate(rows)))
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_rows_of_a_table_are_documents_byte_for_byte(tmp_path, kind):
    path = write_table(tmp_path / "data", kind, ROWS)
    task = Text(path=path)
    assert sorted(whole(task)) == sorted(row.encode() for row in ROWS)
    assert len(task.validation) == 2 and task.facts["field"] == "text"
    assert whole(Text(path=str(tmp_path / "data"))) == whole(task)
    named = Text(path=write_table(tmp_path / "named", kind, ROWS, "body"), field="body")
    assert whole(named) == whole(task) and named.fingerprint != task.fingerprint


def test_tables_changed_in_place_are_read_again_and_rows_without_text_are_counted(tmp_path):
    path = write_table(tmp_path / "data", "jsonl", ROWS)
    first = Text(path=path)
    write_table(tmp_path / "data", "jsonl", [*ROWS[:-1], None])
    second = Text(path=path)
    assert first.fingerprint != second.fingerprint
    assert sorted(whole(second)) == sorted([row.encode() for row in ROWS[:-1]] + [b""])
    assert second.report(1, 1)["train"]["documents"] + second.report(1, 1)["validation"]["documents"] == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"text":\n', "not readable as json: .*JSON parse error"),
        (b'[{"text": "\xff"}]', "not readable as json: .*"),
        (b'{"text": "\\ud800"}\n', "not readable as json: .*surrogate"),
        (b'{"body": "a", "n": 1}\n', "task.field=text: no such column in task.path=.*; it has body, n"),
        (b'{"text": 3}\n', "task.field=text: must be a column of texts; .* it is int64"),
        (b'{"text": "2020-01-01"}\n', "must be a column of texts; .* it is timestamp"),
        (b"", "its files are empty"),
    ],
)
def test_a_table_that_cannot_be_read_is_told_in_a_line(tmp_path, capfd, content, message):
    (tmp_path / "data.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        Text(path=str(tmp_path / "data.jsonl"))
    assert "\n" not in str(error.value) and capfd.readouterr() == ("", "")


def test_bytes_that_are_not_utf8_stay_as_they_are_in_json_lines(tmp_path):
    (tmp_path / "data.jsonl").write_bytes(b'{"text": "one \xff"}\n{"text": "\xfe two"}\n')
    assert sorted(whole(Text(path=str(tmp_path / "data.jsonl")))) == [b"one \xff", b"\xfe two"]


def test_tables_and_texts_are_not_mixed_in_silence(tmp_path):
    folder = tmp_path / "data"
    write_table(folder, "jsonl", ROWS)
    put(folder, [b"text"])
    with pytest.raises(UserError, match=r"data.jsonl is a table, other files are not"):
        Text(path=str(folder))
    with pytest.raises(UserError, match=r"task.field=text: for JSON and parquet"):
        Text(path=str(folder), field="text")
    (folder / "0000.txt").unlink()
    write_table(folder, "parquet", ROWS)
    with pytest.raises(UserError, match="holds JSON and parquet"):
        Text(path=str(folder))


# ------------------------------------------------------------------------------------------- tokens

WORDS = "the quick brown fox jumps over the lazy dog and then some more, 'tis said; naïve café 東京 12 345\n\n  x"
DOCUMENTS = [f"{i} {WORDS[i % 9 :]} ".encode() * (1 + i % 5) for i in range(40)]


def tokenizer_file(path: Path, size: int = 300, **changes) -> str:
    """A byte-level tokenizer.json with some merges."""
    tokenizer = tokens._bpe(iter([WORDS] * 3), size, "test")
    for name, value in changes.items():
        setattr(tokenizer, name, value)
    tokenizer.save(str(path))
    return str(path)


def texts_of(task: Text, tokenizer: Tokenizer) -> list[bytes]:
    parts = (task.train, task.validation)
    return [tokenizer.decode(ids.tolist(), skip_special_tokens=False).encode() for part in parts for ids in part]


def test_a_vocabulary_learned_from_the_training_documents_is_lossless(tmp_path, cache):
    task = Text(path=put(tmp_path / "texts", DOCUMENTS), bpe=300)
    assert (task.vocab, task.unit, task.marks) == (300, "token", 0)
    (file,) = cache.rglob("tokenizer.json")
    assert sorted(texts_of(task, Tokenizer.from_file(str(file)))) == sorted(DOCUMENTS)
    assert sum(len(ids) for ids in task.train) < sum(len(d) for d in DOCUMENTS) / 2
    total = sum(int(task.bytes_per_id[ids].sum()) for part in (task.train, task.validation) for ids in part)
    assert total == sum(len(document) for document in DOCUMENTS)
    batch = task.batch(0, 0, range(4), 16)
    assert batch.inputs.dtype == torch.int64 and int(batch.targets.max()) < 300
    assert task.report(16, 16)["train"]["tokens"] == sum(len(ids) for ids in task.train)
    assert Text(path=str(tmp_path / "texts"), bpe=300, bos=True).batch(0, 0, range(1), 4).inputs[0, 0] == 300


def test_validation_documents_do_not_shape_the_vocabulary(tmp_path, cache):
    task = Text(path=put(tmp_path / "texts", DOCUMENTS))
    train = [document.tobytes() for document in task.train]
    vocabulary = tokens.Vocabulary.train(task.train, 300, "train", None)
    counted = tokens._bpe((document.decode() for document in train), 300, "test")
    assert json.loads(vocabulary.text) == json.loads(counted.to_str())
    assert Text(path=str(tmp_path / "texts"), bpe=300).facts["tokenizer"] == vocabulary.fingerprint


def test_two_tokenizers_and_two_fields_never_share_a_cache(tmp_path):
    folder = put(tmp_path / "texts", DOCUMENTS)
    path = tokenizer_file(tmp_path / "tokenizer.json", 280)
    first = Text(path=folder, tokenizer=path)
    tokenizer_file(Path(path), 320)
    second = Text(path=folder, tokenizer=path)
    assert (first.vocab, second.vocab) == (280, 320)
    assert sum(second.train.lengths) < sum(first.train.lengths)
    assert len({first.fingerprint, second.fingerprint, Text(path=folder).fingerprint}) == 3


def test_field_bug_29_truncation_padding_and_marks_of_a_tokenizer_file_are_not_applied(tmp_path):
    plain = Text(path=put(tmp_path / "texts", DOCUMENTS), tokenizer=tokenizer_file(tmp_path / "plain.json"))
    tokenizer = Tokenizer.from_file(str(tmp_path / "plain.json"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=500)
    tokenizer.save(str(tmp_path / "all.json"))
    assert len(tokenizer.encode(WORDS * 9).ids) == 500  # so the file does ask for all of it
    task = Text(path=str(tmp_path / "texts"), tokenizer=str(tmp_path / "all.json"))
    assert task.vocab == 301 and task.bytes_per_id[300] == 3
    assert all(np.array_equal(a, b) for a, b in zip(task.train, plain.train, strict=True))


@pytest.mark.timeout(60)
def test_field_bug_71_the_ids_are_the_same_for_any_number_of_processes(tmp_path):
    """A document of a million characters among short ones, in a process that has used torch before."""
    torch.ones(300, 300) @ torch.ones(300, 300)
    documents = [*DOCUMENTS[:7], (WORDS * 10_000).encode()[:1_000_000].decode(errors="ignore").encode()]
    task = Text(path=put(tmp_path / "texts", documents))
    vocabulary = tokens.Vocabulary.load(tokenizer_file(tmp_path / "tokenizer.json"))
    ids = [tokens.encode(task.train, vocabulary, f"key {n}", None, n) for n in (1, 2, 20)]
    for other in ids[1:]:
        assert np.array_equal(other.lengths, ids[0].lengths)
        assert all(np.array_equal(a, b) for a, b in zip(other, ids[0], strict=True))


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(max_size=60)
    | st.text("ab Z9.,'\n\t \u00a0\u3000é́東²Ⅷ", max_size=60)
    | st.lists(st.sampled_from(["the", " quick", "  ", "\n", "'s", " 12", ".", "<s>", " é"]), max_size=30).map("".join),
    size=st.integers(1, 12),
)
def test_ids_of_the_pieces_are_the_ids_of_the_whole(text, size):
    pieces = list(tokens.pieces(text, size))
    assert "".join(pieces) == text
    for tokenizer in PATTERNS:
        together = [id for piece in pieces for id in tokenizer.encode(piece).ids]
        assert together == tokenizer.encode(text).ids


def _with_pattern(pattern: str | None) -> Tokenizer:
    tokenizer = tokens._bpe(iter([WORDS] * 3), 320, "test")
    if pattern is not None:
        splits = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    return tokenizer


# GPT-2's own, and that of cl100k and Llama 3.
PATTERNS = [
    _with_pattern(None),
    _with_pattern(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
]


def test_long_documents_are_encoded_in_pieces(monkeypatch):
    monkeypatch.setattr(tokens, "PIECE", 10)
    monkeypatch.setattr(tokens, "GROUP", 40)
    assert len(list(tokens.pieces(WORDS, 10))) > 5
    texts = ["", WORDS, "a b", "", "", WORDS * 3, " "]
    vocabulary = tokens.Vocabulary(PATTERNS[0].to_str(), "test")
    assert [ids.tolist() for ids in tokens._encode(vocabulary, texts)] == [PATTERNS[0].encode(t).ids for t in texts]


def test_a_tokenizer_that_joins_words_gets_documents_whole(monkeypatch):
    monkeypatch.setattr(tokens, "PIECE", 10)
    tokenizer = tokens._bpe(iter([WORDS]), 280, "test")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.train_from_iterator([WORDS] * 3, trainers.BpeTrainer(vocab_size=330, show_progress=False))
    vocabulary = tokens.Vocabulary(tokenizer.to_str(), "test")
    (ids,) = tokens._encode(vocabulary, [WORDS])
    assert ids.tolist() == tokenizer.encode(WORDS).ids
    cut = [id for piece in tokens.pieces(WORDS, 10) for id in tokenizer.encode(piece).ids]
    assert cut != ids.tolist()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_document_that_is_not_utf8_is_named_where_tokens_are_asked_for(tmp_path, processes):
    folder = put(tmp_path / "texts", [*DOCUMENTS, b"fine until \xff here"])
    assert Text(path=folder).vocab == 256
    path = tokenizer_file(tmp_path / "tokenizer.json")
    for asked in {"tokenizer": path}, {"bpe": 300}:
        with pytest.raises(UserError, match=r"needs UTF-8, and 0040.txt is not at byte 11; convert or remove"):
            Text(path=folder, processes=processes, **asked)


def test_tokenizers_that_do_not_keep_the_bytes_are_refused(tmp_path):
    folder = put(tmp_path / "texts", DOCUMENTS)
    path = tmp_path / "tokenizer.json"
    lower = tokenizer_file(path, normalizer=normalizers.Replace("the", "a"))
    with pytest.raises(UserError, match=r"changes the text: the ids of 00\d\d.txt stand for other bytes than its own"):
        Text(path=folder, tokenizer=lower)
    unknown = spaced(path, "no pre-tokenizer", byte_fallback=False)  # of letters that were not seen, <unk>
    with pytest.raises(UserError, match=r"changes the text: the ids of"):
        Text(path=put(tmp_path / "other", ["東".encode() * 4] * 9), tokenizer=unknown)
    two = spaced(path, "no pre-tokenizer")
    with pytest.raises(UserError, match=r"changes the text: the ids of"):  # ▁ is no space here
        Text(path=put(tmp_path / "marked", ["a▁b c".encode() * 4] * 9), tokenizer=two)
    for broken in (tokenizer_file(path, decoder=decoders.WordPiece()), _word_piece(path)):
        with pytest.raises(UserError, match="neither byte-level nor with ▁ for a space, so bits per byte"):
            Text(path=folder, tokenizer=broken)
    path.write_text("{}")
    with pytest.raises(UserError, match="not a tokenizer.json"):
        Text(path=folder, tokenizer=str(path))
    with pytest.raises(UserError, match=r"task.tokenizer=missing.json: cannot be read: No such file"):
        Text(path=folder, tokenizer="missing.json")


def spaced(path: Path, kind: str = "no pre-tokenizer", byte_fallback: bool = True, size: int = 450) -> str:
    """A tokenizer.json as of Llama 2: ▁ for a space, one put in front, <0xE6> for a byte of what is not known."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=byte_fallback, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    alphabet = [*map(chr, range(33, 127)), "é"]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", *single], initial_alphabet=alphabet, limit_alphabet=97,
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([WORDS.replace("東京", "") * 3], trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:1]
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": kind == "words"}
    if kind == "no pre-tokenizer":
        replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaced]}
        back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]
        content |= {"pre_tokenizer": None, "decoder": {"type": "Sequence", "decoders": decoders}}
    else:
        content |= {"pre_tokenizer": meta, "decoder": meta}
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize("kind", ["no pre-tokenizer", "words", "whole"])
def test_a_tokenizer_that_writes_spaces_as_a_letter_of_its_own(tmp_path, kind, monkeypatch):
    """The ids are the library's, less the space that it puts in front, and their bytes add up to the document's."""
    monkeypatch.setattr(tokens, "PIECE", 10)
    path = spaced(tmp_path / "tokenizer.json", kind)
    task = Text(path=put(tmp_path / "texts", DOCUMENTS), tokenizer=path)
    library = Tokenizer.from_file(path)
    documents = [ids.tolist() for part in (task.train, task.validation) for ids in part]
    assert sorted(documents) == sorted(theirs(library, text.decode()) for text in DOCUMENTS)
    assert sum(map(len, documents)) < sum(map(len, DOCUMENTS)) / 2
    assert sorted(int(task.bytes_per_id[ids].sum()) for ids in documents) == sorted(map(len, DOCUMENTS))


def theirs(library: Tokenizer, text: str) -> list[int]:
    """The library's ids behind those of a byte that nothing is joined with: no space is put before them."""
    ids = library.encode("\x00" + text).ids
    return ids[ids.index(library.token_to_id("<0x00>")) + 1 :]


def test_a_token_called_like_a_setting_is_a_token(tmp_path):
    tokenizer = Tokenizer.from_file(tokenizer_file(tmp_path / "plain.json"))
    tokenizer.add_tokens(["add_prefix_space"])
    content = json.loads(tokenizer.to_str())
    added = content["added_tokens"].pop()
    content["model"]["vocab"][added["content"]] = added["id"]
    vocabulary = tokens.Vocabulary(json.dumps(content), "test")
    assert vocabulary.spellings[added["id"]] == b"add_prefix_space" and len(vocabulary.spellings) == added["id"] + 1


def test_no_space_is_put_in_front_of_a_text(tmp_path):
    folder = put(tmp_path / "texts", DOCUMENTS)
    plain = Text(path=folder, tokenizer=tokenizer_file(tmp_path / "plain.json"))
    added = pre_tokenizers.ByteLevel(add_prefix_space=True)
    asked = Text(path=folder, tokenizer=tokenizer_file(tmp_path / "space.json", pre_tokenizer=added))
    assert all(np.array_equal(a, b) for a, b in zip(asked.train, plain.train, strict=True))


def _word_piece(path: Path) -> str:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "the": 1, "東": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(path))
    return str(path)


def test_a_vocabulary_larger_than_the_corpus_gives_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"task.bpe=9000: this corpus gives \d+ ids; ask for \d+"):
        Text(path=put(tmp_path / "texts", DOCUMENTS), bpe=9000)


# ---------------------------------------------------------------------------------------------- Hub
#
# A stand-in for the Hub on this machine, asked in a process of its own: its address is fixed on import.

COMMIT = "0123456789abcdef" * 2 + "01234567"
CARD = b"""---
configs:
- config_name: books
  data_files: [{split: train, path: books/train*}, {split: validation, path: books/valid*}]
- config_name: pages
  data_files: [{split: train, path: pages/*}]
---
"""


def parquet(rows: list[str]) -> bytes:
    pyarrow.parquet.write_table(pyarrow.table({"page": rows, "n": range(len(rows))}), sink := io.BytesIO())
    return sink.getvalue()


BOOKS = {"train": ["a" * 100, "b" * 50], "validation": ["c" * 70]}
PAGES = [f"page {i:02}" for i in range(40)]
REPOSITORIES = {
    "me/data": {
        "README.md": CARD,
        "books/train-00000.parquet": parquet(BOOKS["train"]),
        "books/valid-00000.parquet": parquet(BOOKS["validation"]),
        "pages/00000.parquet": parquet(PAGES[:20]),
        "pages/00001.parquet": parquet(PAGES[20:]),
    },
    "me/script": {"script.py": b"raise SystemExit", "README.md": b""},
    "me/tests": {"data/test-00000.parquet": parquet(PAGES), "README.md": b""},
}


class StandIn(BaseHTTPRequestHandler):
    """The few questions that `datasets` asks of the Hub."""

    def log_message(self, *_):
        pass

    def say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if match := re.fullmatch(r"/api/datasets/(\w+/\w+)(?:/(revision|tree)/(\w+)/?(.*))?", path):
            self.answer(*match.groups())
        elif match := re.fullmatch(r"/datasets/(\w+/\w+)/resolve/\w+/(.*)", path):
            body = REPOSITORIES[match[1]].get(match[2])
            if body is None:
                self.say(404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
            else:
                self.say(200, body, X_Repo_Commit=COMMIT, ETag=f'"{hashlib.sha1(body).hexdigest()}"')
        else:
            self.say(404)

    do_HEAD = do_GET

    def answer(self, name: str, what: str | None, revision: str | None, below: str | None):
        files = REPOSITORIES.get(name)
        if files is None:
            self.say(404, X_Error_Code="RepoNotFound")
        elif revision not in (None, "main", COMMIT):
            self.say(404, X_Error_Code="RevisionNotFound")
        elif what == "tree":
            found = [_entry(path, content) for path, content in files.items() if path.startswith(below or "")]
            folders = {path.rpartition("/")[0] for path in files} - {"", below}
            found += [{"type": "directory", "path": path, "size": 0, "oid": COMMIT} for path in folders]
            self.say(200, json.dumps(found).encode())
        else:
            siblings = [{"rfilename": file} for file in files]
            self.say(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())


def _entry(path: str, content: bytes) -> dict:
    return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


ASK = """
import json, sys, time
from posenc_train.config import UserError
from posenc_train.tasks import tables
from posenc_train.tasks.text import Text
tables.WAIT = float(sys.argv[1])
answers = []
for settings in json.loads(sys.argv[2]):
    began = time.monotonic()
    try:
        task = Text(**settings)
        parts = [sorted(d.tobytes().decode() for d in part) for part in (task.train, task.validation)]
        answer = {"parts": parts, "facts": task.facts, "fingerprint": task.fingerprint}
    except UserError as error:
        answer = {"error": str(error)}
    answers.append(answer | {"seconds": time.monotonic() - began})
print(json.dumps([answers, "datasets" in sys.modules]))
"""


def ask(endpoint: str, home: Path, *settings: dict, wait: float = 30.0) -> tuple[list[dict], bool]:
    """The answers, and whether `datasets` was imported for them."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    command = [sys.executable, "-c", ASK, str(wait), json.dumps(settings)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ONE = {"hub": "me/data", "subset": "books", "field": "page"}


@pytest.fixture(scope="module")
def online(tmp_path_factory) -> tuple[Path, list[dict]]:
    """What the stand-in answered, and the home folder that it left behind for those without network."""
    home = tmp_path_factory.mktemp("home")
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answers, imported = ask(
        f"http://127.0.0.1:{server.server_port}",
        home,
        ONE,
        {**ONE, "subset": "pages"},
        {"hub": "me/data", "files": "pages/00000.parquet", "field": "page", "revision": COMMIT},
        {"hub": "me/data", "field": "page"},
        {**ONE, "subset": "poems"},
        {**ONE, "field": "text"},
        {**ONE, "revision": "dev"},
        {"hub": "me/script"},
        {"hub": "me/tests", "field": "page"},
        {"hub": "me/nobody"},
        {"hub": "wikitext"},
    )
    assert imported
    server.shutdown()
    server.server_close()
    return home, answers


def test_a_data_set_of_the_hub_is_read_with_its_splits_and_its_commit_recorded(online):
    books, pages, file = online[1][:3]
    assert books["parts"] == [BOOKS["train"], BOOKS["validation"]]
    assert sorted(itertools.chain(*pages["parts"])) == PAGES and len(pages["parts"][1]) == 4
    assert sorted(itertools.chain(*file["parts"])) == PAGES[:20]
    for answer in (books, pages, file):
        assert answer["facts"]["commit"] == COMMIT and answer["facts"]["hub"] == "me/data"
    assert len({answer["fingerprint"] for answer in (books, pages, file)}) == 3


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (3, r"task.hub=me/data: Config name is missing.*'books', 'pages'.*; choose it by task.subset="),
        (4, r"task.hub=me/data: BuilderConfig 'poems' not found.*; choose it by task.subset="),
        (5, r"task.field=text: no such column in task.hub=me/data; it has page, n"),
        (6, r"task.revision=dev: me/data has none of that name"),
        (7, r"task.hub=me/script: Dataset scripts are no longer supported.*; give .*parquet.*wikitext103"),
        (8, r"task.hub=me/tests: has no split train, but test; take another"),
        (9, r"task.hub=me/nobody: the Hub shows you no such data set; check the name"),
        (10, r"task.hub=wikitext: must be namespace/name, as in task.hub=Salesforce/wikitext"),
    ],
)
def test_field_bug_68_what_the_hub_refuses_is_told_in_a_line_with_a_remedy(online, index, message):
    error = online[1][index]["error"]
    assert re.match(message, error) and "\n" not in error


def test_field_bug_69_without_network_what_was_prepared_is_used_and_nothing_else(online):
    """A Hub that accepts and never answers. `datasets`, two seconds to import, is left alone meanwhile."""
    home, before = online
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (same, pinned, other_part, other_commit, new), imported = ask(
            endpoint,
            home,
            ONE,
            {**ONE, "revision": COMMIT},
            {**ONE, "field": "n"},
            {**ONE, "revision": "f" * 40},
            {"hub": "me/other"},
            wait=1.5,
        )
    for answer in (same, pinned):
        assert answer["parts"] == before[0]["parts"] and answer["fingerprint"] == before[0]["fingerprint"]
    assert not imported
    for answer in (other_part, other_commit, new):
        assert re.match(r"task.hub=me/\w+: the Hub cannot be reached .*; task=text needs no network", answer["error"])
        assert answer["seconds"] < 3 and tables.WAIT <= 3


def test_the_hub_is_asked_before_torch_is_imported(online):
    script = """if True:
        import sys
        from posenc_train.config import UserError
        from posenc_train.tasks import tables
        tables.ask({"hub": None})
        tables.ask({"hub": "me/data", "subset": "books", "field": "page"})
        try:
            tables.ask({"hub": "me/data", "subset": "books"})
        except UserError as error:
            print(str(error)[:43], "torch" in sys.modules)
    """
    environment = os.environ | {"HF_DATASETS_CACHE": str(online[0] / "datasets"), "HF_HUB_OFFLINE": "1"}
    said = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    assert said == "task.hub=me/data: the Hub cannot be reached False\n"


def test_a_name_that_resolves_never_does_not_hold_up_the_answer(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: release.wait(20))
    monkeypatch.setattr(tables, "WAIT", 0.2)
    began = time.monotonic()
    with pytest.raises(UserError, match=r"the Hub cannot be reached \(no answer in 0 s\)"):
        Text(hub="me/data")
    assert time.monotonic() - began < 10
    release.set()


def test_field_bug_69_offline_mode_fails_at_once_or_uses_what_was_prepared(online, monkeypatch):
    home, before = online
    monkeypatch.setenv("HF_DATASETS_CACHE", str(home / "datasets"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert Text(**ONE).fingerprint == before[0]["fingerprint"]
    began = time.monotonic()
    with pytest.raises(UserError, match=r"cannot be reached \(.*offline mode is enabled.*task.path"):
        Text(**{**ONE, "revision": "f" * 40})
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("name", ["wikitext103", "pg19", "fineweb_edu"])
def test_ready_data_sets_are_pinned_parquet_and_say_that_they_were_never_tried(name):
    text = Path(CONF, "task", f"{name}.yaml").read_text()
    assert text.startswith("# Never tried against the Hub itself")
    task = compose("train", [f"task={name}"])["task"]
    assert re.fullmatch(r"[0-9a-f]{40}", task["revision"]) and re.fullmatch(r"[\w-]+/[\w-]+", task["hub"])
    assert task.keys() == compose("train", ["task=text"])["task"].keys()
