"""Retrieval in text, and counting words: what the drawings in the docstrings say, read by solvers written from them."""

import itertools
import json
import time
from collections import Counter

import numpy as np
import pytest
import solving
import torch
from solvers_needle import needles, of_keys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from posenc_train.config import UserError
from posenc_train.tasks.base import IGNORE
from posenc_train.tasks.common_words import CommonWords
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.frequent_words import FrequentWords
from posenc_train.tasks.haystack import bury, few
from posenc_train.tasks.multi_key import MultiKey
from posenc_train.tasks.multi_query import MultiQuery
from posenc_train.tasks.multi_value import MultiValue
from posenc_train.tasks.needle import Needle
from posenc_train.tasks.passkey import Passkey
from posenc_train.tasks.variable_tracking import VariableTracking

IN_TEXT = (Passkey, Needle, MultiKey, MultiValue, MultiQuery, VariableTracking)
WORDS = (CommonWords, FrequentWords)
TASKS = (*IN_TEXT, *WORDS)
OTHER = {
    Passkey: {"digits": 4},
    Needle: {"digits": 4},
    MultiKey: {"keys": [4, 5], "queries": 1},
    MultiValue: {"values": 3},
    MultiQuery: {"queries": 4},
    VariableTracking: {"hops": 2, "ask": "number"},
    CommonWords: {"ratio": 5},
    FrequentWords: {"exponent": 1.5},
}
LENGTHS = (64, 65, 100, 128, 256, 1024)  # and the shortest of each task


def corpus(folder, seed: int) -> str:
    """20 documents of random bytes: any six of them tell where they stand. Two become validation."""
    folder.mkdir()
    drawn = np.random.default_rng(seed)
    for index in range(20):
        (folder / f"{index:02}.txt").write_bytes(drawn.integers(0, 256, 1500 + 10 * index, np.uint8).tobytes())
    return str(folder)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return corpus(tmp_path_factory.mktemp("needle") / "text", seed=0)


def made(cls, path: str, **settings):
    return cls(path=path, **settings) if cls in IN_TEXT else cls(**settings)


@pytest.mark.parametrize("cls", TASKS)
@pytest.mark.parametrize("other", [False, True])
def test_every_question_has_exactly_one_answer(cls, other, path):
    """From the shortest length to 1,024, in evaluation and training, at the default settings and at others."""
    task = made(cls, path, examples=20, **OTHER[cls] if other else {})
    for length in (task.shortest, task.shortest + 1, *LENGTHS):
        examples = task.examples(length)
        batch = task.batch(seed=1, step=2, rows=range(20), length=length)
        assert examples.ids.shape == batch.inputs.shape == batch.targets.shape == (20, length)
        asked = examples.asked
        assert torch.equal(batch.targets[:, :-1], batch.inputs[:, 1:].masked_fill(~asked[1:], IGNORE))
        assert (batch.targets[:, -1] == IGNORE).all()
        for ids in [*examples.ids, *batch.inputs]:
            fed = [None if a else task.symbols[id] for id, a in zip(ids.tolist(), asked.tolist(), strict=True)]
            wanted = [{task.symbols[id]} for id in ids[asked].tolist()]
            assert solving.SOLVERS[task.name](task, fed) == wanted, (length, fed)


@pytest.mark.parametrize(
    "cls, shortest, answer, settings",
    [
        (Passkey, 3 + 2 * 3 + 1, 3, {}),
        (Needle, 14, 3, {}),
        (Needle, 2 * 2 + 8, 2, {"digits": 2}),
        (MultiKey, 3 * 7 + 2 * 6 + 1, 6, {}),
        (MultiKey, 4 * 7 + 7, 3, {"keys": [2, 4], "queries": 1}),
        (MultiValue, 2 * 7 + 3 + 6 + 1, 6, {}),
        (MultiQuery, 2 * 7 + 2 * 6 + 1, 6, {}),
        (VariableTracking, 2 * (7 + 6) + 3 + 5 + 1, 5, {}),
        (VariableTracking, 2 * (7 + 6 + 6) + 3 + 3 + 1, 3, {"hops": 2, "ask": "number"}),
        (VariableTracking, 7 + 6 + 3 + 5 + 1, 5, {"chains": 1, "hops": 1}),
        (CommonWords, 3 * 4 + 1 + 4, 3, {}),
        (FrequentWords, 37, 3, {}),
    ],
)
def test_the_smallest_length(cls, shortest, answer, settings, path):
    task = made(cls, path, **settings)
    assert task.shortest == shortest and task.asked(task.size(64)).sum() == answer
    assert shortest <= 64
    with pytest.raises(UserError, match=f"length {shortest - 1}: the smallest length of {task.name} is {shortest}"):
        task.batch(0, 0, range(1), shortest - 1)


# ---------------------------------------------------------------------------------------- the text


def text_of(task, ids: list[int]) -> bytes:
    """What is left without needles and what is behind the text."""
    ids = ids[: ids.index(task.question)]
    while task.opening in ids:
        first = ids.index(task.opening)
        del ids[first : ids.index(task.closing) + 1]
    return bytes(ids)


@pytest.mark.parametrize("cls", IN_TEXT)
def test_text_is_a_passage_of_one_document_of_its_own_split(cls, path):
    """Field bug 36: the needles' ids stand whole, once, and change nothing around them."""
    task = made(cls, path, examples=30)
    train, held = ([document.tobytes() for document in part] for part in (task.text.train, task.text.validation))
    assert not set(train) & set(held) and len(held) == 2
    most = {Passkey: {1}, Needle: {1}, MultiKey: {2, 3}, MultiValue: {2}, MultiQuery: {2}, VariableTracking: {4}}[cls]
    for length in (128, 256, 1024):
        examples, batch = task.examples(length), task.batch(0, 0, range(30), length)
        for rows, documents in ((examples.ids.tolist(), held), (batch.inputs.tolist(), train)):
            for ids in rows:
                needles = ids.count(task.opening)
                assert needles in most and ids.count(task.closing) == needles
                text = text_of(task, ids)
                assert sum(text in document for document in documents) == 1
                assert len(text) >= length - task.overhead


def test_every_place_of_the_text_is_as_likely_as_another(tmp_path):
    """Counted out for passages of six bytes of documents of 5, 6, 7 and 20."""
    contents = [bytes(range(first, first + size)) for first, size in ((0, 5), (10, 6), (20, 7), (40, 20), (100, 26))]
    for index, content in enumerate(contents):
        (tmp_path / f"{index}.txt").write_bytes(content)
    task = Needle(path=str(tmp_path))
    train = [document.tobytes() for document in task.text.train]
    places = {document[start : start + 6] for document in train for start in range(len(document) - 5)}
    drawn = Draw(0, "training", 0, np.arange(20000)).uniform()
    counts = Counter(bytes(row) for row in task.passages("training", drawn, 6).tolist())
    assert set(counts) == places
    expected = 20000 / len(places)
    chi_square = sum((counts[place] - expected) ** 2 / expected for place in places)
    assert abs(chi_square - (len(places) - 1)) < 5 * (2 * (len(places) - 1)) ** 0.5


@pytest.mark.parametrize("cls", IN_TEXT)
def test_what_needles_say_has_nothing_to_do_with_the_text(cls, path, tmp_path):
    """Other text, of documents of the same lengths: the same needles at the same slots. Nobody guesses them from it."""
    one, other = made(cls, path), made(cls, corpus(tmp_path / "other", seed=1))
    a, b = (task.write(Draw(0, "training", 0, np.arange(50)), 128).ids for task in (one, other))
    needles = a >= one.vocab  # marks, and what is between them
    needles |= np.cumsum(a == one.opening, axis=1) > np.cumsum(a == one.closing, axis=1)
    needles |= np.cumsum(a == one.question, axis=1) > 0
    assert (a[needles] == b[needles]).all()
    assert (a[~needles] == b[~needles]).mean() < 0.02  # random bytes


def test_keys_and_numbers_are_uniform_and_differ_within_a_text(path):
    task = MultiKey(path=path, keys=[5], letters=26)
    said = [needles([task.symbols[id] for id in ids]) for ids in task.batch(0, 0, range(3000), 64).inputs.tolist()]
    for row in said:
        assert [len({needle[part] for needle in row}) for part in (0, 1, slice(2, None))] == [5, 5, 5]
    said = [needle for row in said for needle in row]
    for place, kinds in enumerate((26, 26, 10, 10, 10)):
        counts = Counter(needle[place] for needle in said)
        expected = len(said) / kinds
        assert len(counts) == kinds and all(abs(n - expected) < 4.5 * expected**0.5 for n in counts.values())


def test_a_few_different_numbers_are_as_likely_in_every_order():
    found = few(Draw(0, "training", 0, np.arange(24000)), 3, 4)
    counts = Counter(map(tuple, found.tolist()))
    assert set(counts) == set(itertools.permutations(range(4), 3))
    assert all(abs(n - 1000) < 4.5 * 1000**0.5 for n in counts.values())


def test_needles_of_any_widths_go_to_their_slots():
    text = np.arange(5)[None]
    long, short = np.array([[[10, 11, 12], [20, 21, 22]]]), np.array([[[30, 31]]])
    ids = bury(text, [long, short], [np.array([[5, 2]]), np.array([[2]])])
    assert ids.tolist() == [[0, 1, 20, 21, 22, 30, 31, 2, 3, 4, 10, 11, 12]]


# ---------------------------------------------------------------------------------------- depths


@pytest.mark.parametrize("cls", [Passkey, Needle])
@pytest.mark.parametrize("length", [36, 64, 128, 256, 1024])
def test_depths_of_evaluation_are_those_asked_for_and_balanced(cls, length, path):
    """Field bug 36: 0 is before all text, 1 right before the question, others within a slot of what was asked."""
    task = made(cls, path)
    examples = task.examples(length)
    depths = examples.slices["depth"]
    assert Counter(depths.tolist()) == dict.fromkeys((0.0, 0.25, 0.5, 0.75, 1.0), 40)
    assert task.batch(0, 0, range(1), length).inputs.shape == (1, length)
    for ids, depth in zip(examples.ids.tolist(), depths, strict=True):
        start, place = ids.index(task.question), ids.index(task.opening)
        before, behind = ids[:place], ids[ids.index(task.closing) + 1 : start]
        room = len(before) + len(behind)
        assert abs(len(before) - depth * room) <= 0.5
        if depth == 0:
            assert place == 0
        if depth == 1:
            assert ids[start - 1] == task.closing and place == start - (7 if cls is Needle else 5)


def test_training_draws_every_slot_alike(path):
    task = Needle(path=path)
    slots = Counter(ids.index(task.opening) for ids in task.batch(0, 0, range(10400), 64).inputs.tolist())
    assert sorted(slots) == list(range(52))  # 51 tokens of text
    assert all(abs(n - 200) < 4.5 * 200**0.5 for n in slots.values())


def test_numbers_of_needles_are_balanced(path):
    task = MultiKey(path=path, keys=[1, 2, 3], queries=1, examples=60)
    examples = task.examples(80)
    assert Counter(examples.slices["keys"].tolist()) == {1: 20, 2: 20, 3: 20}
    assert [ids.count(task.opening) for ids in examples.ids.tolist()] == examples.slices["keys"].tolist()
    trained = (task.batch(0, 0, range(3000), 80).inputs.numpy() == task.opening).sum(1)
    assert all(abs(n - 1000) < 4.5 * 1000**0.5 for n in Counter(trained.tolist()).values())
    assert not MultiQuery(path=path).examples(64).slices


@pytest.mark.parametrize(
    "cls, settings", [(MultiKey, {"keys": [4]}), (MultiQuery, {"queries": 4}), (VariableTracking, {})]
)
def test_what_is_asked_for_has_nothing_to_do_with_where_it_stands(cls, settings, path):
    """Of four needles the first asked for is the first, second, … in the text as often; of two chains as well."""
    task, orders = made(cls, path, **settings), Counter()
    for ids in task.batch(0, 0, range(4000), 64).inputs.tolist():
        said = needles([task.symbols[id] for id in ids])
        if cls is VariableTracking:
            key = "".join(task.symbols[id] for id in ids[-5:-3])  # the chain's first variable
            said = [n for n in said if n[2:].isdecimal()]
        else:
            start = ids.index(task.question)
            key = "".join(task.symbols[id] for id in ids[start + 1 : start + 3])
        orders[[n[:2] for n in said].index(key)] += 1
    expected = 4000 / len(orders)
    assert len(orders) == (2 if cls is VariableTracking else 4)
    assert all(abs(n - expected) < 4.5 * expected**0.5 for n in orders.values())


@pytest.mark.parametrize("cls, room", [(MultiValue, 41), (MultiQuery, 38)])
def test_needles_stand_at_any_slots(cls, room, path):
    task, slots = made(cls, path), Counter()
    for ids in task.batch(0, 0, range(2600), 64).inputs.tolist():
        places = [place for place, id in enumerate(ids) if id == task.opening]
        slots.update(place - 7 * before for before, place in enumerate(places))
    expected = slots.total() / (room + 1)
    assert sorted(slots) == list(range(room + 1))
    assert all(abs(n - expected) < 4.5 * expected**0.5 for n in slots.values())


def test_achieved_depths_are_recorded(path):
    facts = Needle(path=path).report(64, 1024)
    assert facts["depths at 64"] == "0 is 0/51, 0.25 is 13/51, 0.5 is 26/51, 0.75 is 38/51, 1 is 51/51"
    assert facts["depths at 1024"] == "0 is 0/1011, 0.25 is 253/1011, 0.5 is 506/1011, 0.75 is 758/1011, 1 is 1011/1011"


# ---------------------------------------------------------------------------------------- words


@pytest.mark.parametrize("task", [CommonWords(), CommonWords(words=5, asked=2, ratio=2), CommonWords(asked=1)])
def test_common_words_cannot_be_tied(task):
    for size in range(task.least, 2000):
        counts = task.counts(size)
        common, others = counts[: task.answer], counts[task.answer :]
        assert counts.sum() == size and len(counts) == task.vocab
        assert len(set(common)) == 1 and others.max() * task.ratio <= common[0]
        assert others.max() - others.min() <= 1
    with pytest.raises(UserError):
        task.examples(task.shortest - 1)


@pytest.mark.parametrize("task", [FrequentWords(), FrequentWords(exponent=1), FrequentWords(words=4, asked=3)])
def test_frequent_words_cannot_be_tied(task):
    for size in range(task.least, 2000):
        counts = task.counts(size)
        top = counts[: task.answer + 1].tolist()
        assert counts.sum() == size and len(counts) == task.vocab
        assert top == sorted(set(top), reverse=True) and counts[task.answer :].max() < counts[task.answer - 1]
        shares = np.arange(1, task.vocab + 1) ** -float(task.exponent)
        assert (abs(counts[1:] - size * (shares / shares.sum())[1:]) < 1).all()


@pytest.mark.parametrize("cls", WORDS)
def test_a_word_is_as_likely_as_another_to_be_frequent_and_stands_anywhere(cls):
    task = cls()
    batch = task.batch(0, 0, range(6400), 64).inputs.numpy()
    expected = 6400 * 3 / task.vocab
    assert all(abs(n - expected) < 4.5 * expected**0.5 for n in np.bincount(batch[:, -3:].ravel()))
    first = batch[:, -3] if cls is FrequentWords else batch[:, -1]
    places = (batch[:, :-4] == first[:, None]).mean(0)
    assert abs(places - places.mean()).max() < 4.5 * (places.mean() * (1 - places.mean()) / 6400) ** 0.5


# ---------------------------------------------------------------------------------------- addressing and settings


@pytest.mark.parametrize("cls", TASKS)
def test_rows_are_addressed_by_seed_step_and_row(cls, path):
    task = made(cls, path)
    whole = task.batch(3, 17, range(16), 80).inputs
    parts = [task.batch(3, 17, range(a, a + 4), 80).inputs for a in (0, 4, 8, 12)]
    assert all((whole[4 * i : 4 * i + 4] == part).all() for i, part in enumerate(parts))
    assert not (task.batch(3, 18, range(16), 80).inputs == whole).all()
    assert not (task.batch(4, 17, range(16), 80).inputs == whole).all()
    assert (made(cls, path).examples(80).ids == task.examples(80).ids).all()
    assert task.fingerprint == made(cls, path).fingerprint != made(cls, path, **OTHER[cls]).fingerprint


@pytest.mark.parametrize(
    "cls, settings, message",
    [
        (MultiKey, {"keys": [1, 4]}, "task.queries=2: must be at most 1, the needles that task.keys gives"),
        (MultiKey, {"keys": [11]}, "task.letters=10: must be at least 11"),
        (MultiQuery, {"queries": 11}, "task.letters=10: must be at least 11"),
        (
            MultiKey,
            {"keys": [11], "letters": 26, "digits": 1},
            "task.digits=1: gives 10 numbers, and 11 different ones",
        ),
        (MultiValue, {"values": 11, "digits": 1}, "task.digits=1: gives 10 numbers"),
        (VariableTracking, {"chains": 6}, "task.letters=10: must be at least 12"),
        (VariableTracking, {"ask": "maybe"}, "task.ask=maybe: must be one of way, number"),
        (CommonWords, {"words": 3}, "task.words=3: must be more than task.asked=3"),
        (CommonWords, {"words": 5}, "task.asked=3: must be at most 2, half of task.words=5"),
        (FrequentWords, {"exponent": 0}, "task.exponent=0: must be above 0"),
    ],
)
def test_settings_that_cannot_be(cls, settings, message, path):
    with pytest.raises(UserError, match=message):
        made(cls, path, **settings)


@pytest.mark.parametrize("part", ["training", "validation"])
def test_a_text_that_is_too_short_is_told_before_anything_is_trained(part, path):
    task = Needle(path=path)
    longest = max(map(len, task.text.train if part == "training" else task.text.validation))
    told = f"1691 tokens of a document are its text at length 1704; the longest {part} document of text has {longest}; "
    with pytest.raises(UserError, match=f"task=needle: {told}"):
        task.ready(*((1704, []) if part == "training" else (64, [1704])))


# ---------------------------------------------------------------------------------------- tokens, and time


def test_tokens_in_place_of_bytes(tmp_path):
    words = ["".join(word) for word in itertools.product("bcdfg", "aeiou", "lmnrt")]
    for index in range(12):
        text = np.random.default_rng(index).choice(words, 900)
        (tmp_path / f"{index}.txt").write_text(" ".join(text))
    task = MultiKey(path=str(tmp_path), bpe=300, examples=20, queries=1)
    assert (task.vocab, task.marks, task.opening) == (300, 3, 300)
    documents = [document.astype(np.uint16).tobytes() for document in task.text.validation]
    for ids in task.examples(256).ids.tolist():
        words = [task.symbols[id] for id in ids]
        assert of_keys(task, [*words[:-3], None, None, None]) == solving.known(words[-3:])
        ids = ids[: ids.index(task.question)]
        while task.opening in ids:
            del ids[ids.index(task.opening) : ids.index(task.closing) + 1]
        assert any(np.array(ids, np.uint16).tobytes() in document for document in documents)


def test_a_tokenizer_without_all_digits_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("ab " * 300)
    (tmp_path / "b.txt").write_text("ba " * 300)
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set("7X"))
    tokenizer = Tokenizer(models.BPE({symbol: id for id, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert "7" not in json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    (tmp_path / "texts").mkdir()
    for name in "ab":
        (tmp_path / f"{name}.txt").rename(tmp_path / "texts" / f"{name}.txt")
    with pytest.raises(UserError, match="needs a token for every capital letter and every digit.*has none for X:"):
        Needle(path=str(tmp_path / "texts"), tokenizer=str(tmp_path / "tokenizer.json"))


def test_marks_among_a_vocabulary_are_ids_of_no_document_and_no_needle(tmp_path):
    """The greatest ids are the letters and digits, of which texts have none; before them come twelve that are in one
    document each, of training or validation; before these, the marks."""
    symbols, rare = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "!#$%&'()*+,-"
    others = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {*symbols, *rare})
    tokenizer = Tokenizer(models.BPE({symbol: id for id, symbol in enumerate([*others, *rare, *symbols])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "texts").mkdir()
    for number, one in enumerate(rare):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"{one} ab" * 100)
    task = Needle(path=str(tmp_path / "texts"), tokenizer=str(tmp_path / "tokenizer.json"))
    assert len(task.text.train) and len(task.text.validation)
    task.mark_by_unused_ids()
    assert [task.opening, task.closing, task.question] == list(range(len(others) - 3, len(others))) and not task.marks


@pytest.mark.parametrize("cls", TASKS)
def test_ten_thousand_sequences_take_about_a_second(cls, path):
    task = made(cls, path)
    task.batch(0, 0, range(2), 256)
    began = time.process_time()
    assert task.batch(0, 1, range(10000), 256).inputs.shape == (10000, 256)
    assert time.process_time() - began < 3  # 0.1 to 0.4 s were measured
