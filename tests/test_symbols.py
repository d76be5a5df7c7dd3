"""The copying, recall and algorithmic tasks: their drawings, their settings' limits, and how evenly they are drawn."""

import sys
import time
import tracemalloc

import numpy as np
import pytest
import solvers_symbols  # noqa: F401  registers them
from solving import SOLVERS

from posenc_train.build import construct
from posenc_train.checks import file_settings
from posenc_train.config import UserError
from posenc_train.tasks.asked import SPLITS, Asked, hashed
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.symbols import digits, letters


def task_of(name: str, **settings) -> Asked:
    return construct("task", {**file_settings("task", name), **settings})


DRAWN = [  # task, settings, size, which of the docstring's drawings
    ("copy", {}, 5, 0),
    ("copy_twice", {}, 3, 0),
    ("reverse", {}, 5, 0),
    ("reverse_and_copy", {}, 3, 0),
    ("sorting", {}, 6, 0),
    ("repeat_copy", {}, 5, 0),
    ("repeat_copy", {"varied": False}, 5, 1),
    ("ngram", {"answer": 3}, 8, 0),
    ("ngram_prefix", {"answer": 3}, 8, 1),
    ("recall", {"times": 2}, 3, 0),
    ("induction", {}, 6, 0),
    ("kv_lookup", {}, 5, 0),
    ("nth", {}, 6, 0),
    ("nth_from_end", {}, 6, 1),
    ("modular_counting", {"modulus": 3}, 6, 0),
    ("modular_counting", {"modulus": 3, "running": False}, 6, 1),
    ("parity", {}, 6, 0),
    ("addition", {}, 3, 0),
    ("addition", {"order": "reversed"}, 3, 1),
    ("addition", {"order": "plain"}, 3, 2),
    ("addition", {"order": "reversed", "hints": 9}, 3, 3),
]


@pytest.mark.parametrize("name, settings, size, which", DRAWN)
def test_the_drawing_in_the_docstring(name, settings, size, which):
    """As many tokens as the task says for the size, asked for where the task asks, the answers those of the solver."""
    task = task_of(name, **settings)
    lines = [line.split() for line in sys.modules[type(task).__module__].__doc__.splitlines()]
    fed = [words[1:] for words in lines if words[:1] == ["fed"]][which]
    targets = [words[1:] for words in lines if words[:1] == ["targets"]][which]
    fed, targets = fed[: task.tokens(size)], targets[: task.tokens(size)]  # parity has two side by side
    asked = task.asked(size)
    assert len(fed) == len(targets) == task.tokens(size) == len(asked)
    assert targets == [*(token if a else "_" for token, a in zip(fed[1:], asked[1:], strict=True)), "_"]
    if name in SOLVERS and settings.get("varied", True):
        known = [None if a else token for token, a in zip(fed, asked, strict=True)]
        assert SOLVERS[name](task, known) == [{token} for token, a in zip(fed, asked, strict=True) if a]


SETTINGS = [
    ("copy", {"alphabet": 2}, 20),
    ("sorting", {"alphabet": 3}, 20),
    ("ngram", {"key_letters": 3, "answer": 1}, 4),
    ("ngram", {"alphabet": 3, "key_letters": 4}, 60),
    ("ngram_prefix", {"key_letters": 1}, 10),
    ("recall", {"keys": 4, "values": 2, "times": 1}, 4),
    ("kv_lookup", {"key": 1, "value": 1, "queries": 5}, 26),
    ("kv_lookup", {"key": 3, "alphabet": 3, "queries": 1}, 27),
    ("nth", {"indices": 12}, 12),
    ("nth_from_end", {"indices": 1}, 9),
    ("modular_counting", {"modulus": 12, "running": False}, 30),
    ("parity", {"running": False}, 30),
    ("addition", {"order": "reversed"}, 12),
    ("addition", {"order": "reversed", "hints": 300}, 12),
    ("addition", {"hints": 5, "order": "plain"}, 4),
    ("addition", {"order": "plain"}, 40),
]


@pytest.mark.parametrize("name, settings, size", SETTINGS)
def test_the_solver_finds_the_one_answer_at_other_settings_too(name, settings, size):
    task = task_of(name, **settings)
    ids, asked = task.sequences(0, "training", 3, np.arange(20), size).ids, task.asked(size)
    for row in ids.tolist():
        symbols = [task.symbols[id] for id in row]
        known = [None if a else symbol for symbol, a in zip(symbols, asked, strict=True)]
        assert SOLVERS[name](task, known) == [{symbol} for symbol, a in zip(symbols, asked, strict=True) if a]


@pytest.mark.parametrize(
    "name, settings, length, said",
    [
        ("recall", {"keys": 4}, 41, "the greatest length of recall is 40 tokens; raise task.keys"),
        ("kv_lookup", {"alphabet": 3, "key": 1}, 32, "the greatest length of kv_lookup is 31 tokens; raise task"),
        (
            "addition",
            {"hints": 4, "order": "reversed"},
            28,
            "the greatest length of addition is 27 tokens",
        ),
        ("ngram", {"alphabet": 3}, 400, "task=ngram: no 2 of 392 letters stand in one place only: give a larger"),
        ("ngram", {"alphabet": 4, "answer": 2}, 104, "task=ngram: no 2 of 98 letters stand in one place only"),
        ("nth", {"indices": 30}, 31, "length 31: the smallest length of nth is 33 tokens"),
    ],
)
def test_a_length_that_the_settings_do_not_hold_is_refused_before_training(name, settings, length, said):
    task = task_of(name, **settings)
    for train_length, lengths in ((length, [length]), (task.shortest, [task.shortest, length])):
        with pytest.raises(UserError, match=said) as refused:
            task.ready(train_length, lengths)
        assert "\n" not in str(refused.value)
    if "greatest" in said:
        task.ready(length - 1, [length - 1])
        assert task.size(length - 1) == task.most


def test_too_few_different_sequences_for_a_split_of_their_own_are_refused_in_one_line():
    """Of one letter out of 26 there are 26 words of a size: at some sizes none of them is evaluation's sixteenth."""
    task = task_of("repeat_copy", varied=False)
    with pytest.raises(
        UserError, match="^task=repeat_copy: too few different sequences of size [0-9]+ for a split of "
    ):
        task.ready(64, range(5, 65))
    task_of("repeat_copy", varied=False, alphabet=256).ready(64, range(5, 65))


@pytest.mark.parametrize(
    "name, settings, said",
    [
        ("recall", {"values": 1}, "task.values=1: must be at least 2"),
        ("ngram", {"key": "infix"}, "task.key=infix: must be one of suffix, prefix"),
        ("nth", {"frame": "middle"}, "task.frame=middle: must be one of start, end"),
        ("addition", {"hints": 1, "order": "plain"}, "task.hints=1: must be 0 or at least 2"),
        ("addition", {"hints": 9}, "task.hints=9: must be 0 or at least 2, and 0 with task.order=columns"),
        ("addition", {"order": "random"}, "task.order=random: must be one of columns, reversed, plain"),
        ("kv_lookup", {"alphabet": 300, "key": 2}, "must be 2 to 65536"),
    ],
)
def test_settings_that_make_no_task(name, settings, said):
    with pytest.raises(UserError, match=said):
        task_of(name, **settings)


@pytest.mark.parametrize(
    "name, settings, size, value, number",
    [
        ("induction", {}, 15, lambda ids: (ids == 16).argmax(1), 15),  # where the mark stands
        ("nth", {}, 20, lambda ids: ids[:, -2] - 27, 4),  # the index
        ("nth", {"frame": "end"}, 20, lambda ids: ids[:, -1], 26),  # the answer
        ("recall", {}, 8, lambda ids: (ids[:, :16:2] == ids[:, 17:18]).argmax(1), 8),  # which pair is asked first
        ("recall", {}, 8, lambda ids: ids[:, 18], 10),  # its value
        ("kv_lookup", {}, 9, lambda ids: ids[:, 1] - 10, 26),  # a letter of a key
        ("modular_counting", {}, 30, lambda ids: ids[:, -1], 5),  # the last count
        ("parity", {}, 30, lambda ids: ids[:, 0] - 2, 2),  # what is counted
        ("addition", {}, 5, lambda ids: ids[:, 1], 10),  # a digit
        ("addition", {"order": "plain", "hints": 30}, 5, lambda ids: ids[:, 10 + 1 + 8] - 10, 25),  # where they begin
        ("repeat_copy", {}, 5, lambda ids: (ids[:, 1] - ids[:, 2]) % 26 - 1, 25),  # the other letter
        ("ngram", {}, 30, lambda ids: ids[:, -1], 26),  # the last letter of the answer
    ],
)
def test_what_is_drawn_is_uniform(name, settings, size, value, number):
    """Chi squared within 4.5 standard deviations of its mean."""
    ids = task_of(name, **settings).write(Draw(0, "training", 0, np.arange(10_000)), size).ids
    counts = np.bincount(value(ids), minlength=number)
    assert len(counts) == number
    mean = len(ids) / number
    chi, free = ((counts - mean) ** 2 / mean).sum(), number - 1
    assert abs(chi - free) < 4.5 * np.sqrt(2 * free) + 5, counts


def test_a_hash_of_contents_is_the_polynomial_that_it_says():
    """By Python's own integers, modulo 2^64; what differs in one place, or by a zero at the end, has another."""
    ids = np.random.default_rng(0).integers(0, 300, (50, 23))

    def by_hand(row: list[int]) -> int:
        whole = len(row)
        for id in row:
            whole = (whole * 0xD6E8FEB86659FD93 + id + 1) % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            whole = (whole ^ whole >> shift) * factor % 2**64
        return whole ^ whole >> 31

    assert hashed(ids).tolist() == [by_hand(row) for row in ids.tolist()]
    assert hashed(ids[:, :-1]).tolist() == [by_hand(row) for row in ids[:, :-1].tolist()]


def test_different_numbers_in_random_order():
    drawn = Draw(0, "training", 0, np.arange(2000)).distinct(3, 5)
    assert drawn.shape == (2000, 3) and drawn.min() == 0 and drawn.max() == 4
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    orders = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(orders) == 60 and abs(orders - 2000 / 60).max() < 4.5 * np.sqrt(2000 / 60)


def test_names_of_ids():
    assert letters(3) == ["a", "b", "c"] and letters(28)[-3:] == ["az", "ba", "bb"] and letters(0) == []
    assert digits(10)[-1] == "9" and digits(11) == [f"{n:02}" for n in range(11)]
    assert SPLITS == ("evaluation", "validation")


def test_a_hundred_thousand_recall_examples_take_under_two_seconds_and_200_mb():
    """Of 256 tokens, on one core; the fastest of three, since other work on the machine slows all."""
    task, rows = task_of("recall"), np.arange(100_000)
    fastest = float("inf")
    for _ in range(3):
        began = time.process_time()
        ids = task.sequences(0, "training", 0, rows, task.size(256)).ids
        fastest = min(fastest, time.process_time() - began)
        if fastest < 2:
            break
    assert ids.shape == (100_000, 249) and ids.dtype == np.uint8 and fastest < 2
    del ids
    tracemalloc.start()
    task.sequences(0, "training", 0, rows[:20_000], task.size(256))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200e6 / 5
