"""Laws of every task of the package: what is asked, where it comes from, and that it can be answered."""

import functools
import importlib
import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import torch
from running import run
from solving import SOLVERS

from posenc_train import checks
from posenc_train.build import construct
from posenc_train.config import UserError, compose
from posenc_train.tasks.asked import Asked
from posenc_train.tasks.base import IGNORE, Batch, Task
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.drawing import drawn, folded

for file in Path(__file__).parent.glob("solvers_*.py"):
    importlib.import_module(file.stem)

NAMES = [name for name in checks.choices("task") if not checks.file_settings("task", name).get("hub")]


@functools.cache
def task_of(name: str, **settings) -> Task:
    return construct("task", {**checks.file_settings("task", name), **settings})


@functools.cache
def asks(name: str) -> bool:
    module, _, cls = checks.file_settings("task", name)["_target_"].rpartition(".")
    return issubclass(getattr(importlib.import_module(module), cls), Asked)


ASKED = [name for name in NAMES if asks(name)]
every = pytest.mark.parametrize("name", NAMES)
every_asked = pytest.mark.parametrize("name", ASKED)


@every
def test_a_row_is_a_function_of_seed_step_and_row(name):
    """Not of the rows asked for with it or of what was asked before: so of no worker, rank or size of a batch."""
    task, length = task_of(name), 77
    whole = task.batch(3, 17, range(32), length)
    parts = [task.batch(3, 17, rows, length) for rows in (range(20, 32), range(7, 20), range(1, 7), range(1))]
    for field in ("inputs", "targets"):
        assert torch.equal(torch.cat([getattr(part, field) for part in reversed(parts)]), getattr(whole, field))
    for other in (task.batch(3, 18, range(32), length), task.batch(4, 17, range(32), length)):
        assert not torch.equal(other.inputs, whole.inputs)


@every
def test_ids_are_within_the_vocabulary_and_have_names(name):
    """Targets below vocab, what is fed below vocab + marks, each id with a name of its own."""
    task = task_of(name)
    batch = task.batch(0, 0, range(256), 64)
    asked = batch.targets[batch.targets != IGNORE]
    assert len(asked) and asked.min() >= 0 and asked.max() < task.vocab
    assert batch.inputs.min() >= 0 and batch.inputs.max() < task.vocab + task.marks
    assert batch.inputs.shape == (256, 64) and batch.targets.shape in ((256, 64), (256, 1))  # one for the whole
    assert len(task.symbols) == task.vocab + task.marks
    if asks(name):
        assert len(set(task.symbols)) == len(task.symbols)


@every
def test_the_shortest_length_works_and_one_less_is_refused_by_name(name):
    task = task_of(name)
    length = task.shortest
    assert task.batch(0, 0, range(3), length).inputs.shape == (3, length)
    task.ready(length, [length])
    cls = checks.file_settings("task", name)["_target_"].rpartition(".")[2]
    assert length == checks.SHORTEST.get(cls, 1)  # which is known before torch is
    cfg = whole(name)
    checks.check(cfg | {"train_length": length, "factors": [1]})
    for less in ({"train_length": length - 1, "factors": [1]}, {"lengths": [64, length - 1]}) if length > 1 else ():
        with pytest.raises(UserError, match=f"={length - 1}: must be at least {length}, the least of task={name}"):
            checks.check(cfg | less)
    if asks(name):
        called = rf"length {length - 1}: the smallest length of {task.name} is {length} tokens"
        for refused in (
            lambda: task.batch(0, 0, range(3), length - 1),
            lambda: task.examples(length - 1),
            lambda: task.ready(64, [64, length - 1]),
            lambda: task.ready(length - 1, [64]),
        ):
            with pytest.raises(UserError, match=called):
                refused()


@functools.cache
def training() -> dict:
    return compose("train")


def whole(name: str) -> dict:
    """The configuration of a training."""
    base, task = training(), dict(checks.file_settings("task", name))
    model = base["model"] | {"causal": task_of(name).next_token}
    return base | {"task": task, "names": base["names"] | {"task": name}, "model": model}


@every_asked
def test_what_fits_a_length(name):
    """Every length from the shortest to 80 holds the largest size that fits it."""
    task, last = task_of(name), 0
    for length in range(task.shortest, 81):
        size = task.size(length)
        assert task.tokens(size) <= length and (size == task.most or task.tokens(size + 1) > length)
        if size > last:  # each is written once
            assert task.sequences(0, "evaluation", size, np.arange(2), size).ids.shape == (2, task.tokens(size))
            last = size


@every_asked
def test_targets_stand_where_the_task_says_and_nowhere_else(name):
    """One layout for a size: a target is the next token of the sequence, where that is asked for."""
    task, length = task_of(name), 77
    rows = np.arange(200)
    sizes = task.sizes(Draw(5, "sizes", 2, rows), length)
    assert min(sizes) >= task.least and max(sizes) <= task.size(length)
    batch = task.batch(5, 2, range(200), length)
    for fed, targets, size in zip(batch.inputs.numpy(), batch.targets.numpy(), sizes.tolist(), strict=True):
        asked, end = task.asked(size), task.tokens(size)
        assert asked.shape == (end,) and asked.dtype == bool and asked.any() and not asked[0]
        assert (fed[end:] == task.filler).all() and (targets[end - 1 :] == IGNORE).all()
        wanted = np.where(asked[1:], fed[1:end], IGNORE)
        assert (targets[: end - 1] == wanted).all()


@every_asked
def test_no_sequence_is_in_two_splits(name):
    """Counted over thousands of the largest size in 64 tokens and of the smallest."""
    task = task_of(name)
    for size in {task.size(64), task.least}:
        seen = {}
        for split, count in {"training": 2000, "evaluation": 300, "validation": 300}.items():
            ids = task.sequences(0, split, 0, np.arange(count), size).ids
            seen[split] = {row.tobytes() for row in ids}
        assert not seen["training"] & seen["evaluation"] and not seen["training"] & seen["validation"]
        assert not seen["evaluation"] & seen["validation"]


@every_asked
def test_evaluation_examples_are_fixed_by_size_and_seed(name):
    """The same for every scheme, training seed and time, and named by a hash."""
    task = task_of(name)
    first = task.examples(64)
    task.batch(9, 9, range(8), 64)
    again = construct("task", dict(checks.file_settings("task", name))).examples(64)
    assert torch.equal(first.ids, again.ids) and first.fingerprint == again.fingerprint
    assert (first.asked.numpy() == task.asked(first.size)).all()
    drawn = task.sequences(0, "evaluation", first.size, np.arange(task.count), first.size).ids
    assert first.ids.tolist() == list(map(list, dict.fromkeys(map(tuple, drawn.tolist()))))  # each of them once
    other = task_of(name, eval_seed=1).examples(64)
    assert not torch.equal(first.ids, other.ids) and first.fingerprint != other.fingerprint
    assert all(len(values) == len(first.ids) for values in first.slices.values())


@every_asked
def test_every_task_that_asks_has_a_solver(name):
    assert name in SOLVERS, f"write one for task={name}: @solver({name!r}) in a file tests/solvers_….py"


@every_asked
def test_a_solver_finds_the_one_answer_at_any_length(name):
    """Written from the docstring alone, without the code that draws: it finds one answer, and it is the right one."""
    task, solve = task_of(name), SOLVERS.get(name, lambda *_: pytest.fail("no solver"))
    for size in {task.size(n) for n in (*range(task.shortest, 81, 6), 64, 128, 300, 513)}:
        ids, asked = task.sequences(1, "evaluation", size, np.arange(4), size).ids, task.asked(size)
        for row in ids.tolist():
            symbols = [task.symbols[id] for id in row]
            fed = [None if a else symbol for symbol, a in zip(symbols, asked, strict=True)]
            wanted = [{symbol} for symbol, a in zip(symbols, asked, strict=True) if a]
            assert solve(task, fed) == wanted, (size, symbols)


@every
def test_its_samples_are_drawn_in_80_columns(name):
    task = task_of(name)
    lines = drawn(task.batch(0, 0, range(3), 64), task.symbols).splitlines()
    heads = [line.split(" ")[0] for line in lines]
    below = "answer" if task.pooled else "targets"
    assert heads.count("fed") >= heads.count(below) >= 3 and max(map(len, lines)) <= 80, lines
    assert task.pooled or heads.count("fed") == heads.count("targets")


@pytest.mark.parametrize("name, said", [("kv_lookup", "key"), ("order", "answer +mouse!"), ("text", "Language")])
def test_show_task_says_what_it_is_and_prints_samples(name, said):
    with redirect_stdout(io.StringIO()) as out:
        run("show_task", f"task={name}", "length=64", "samples=2")
    assert (
        re.search(said, out.getvalue()) and f"2 training samples of task={name}, length 64; fed over" in out.getvalue()
    )
    assert max(map(len, out.getvalue().splitlines())) <= 80


@every
def test_what_show_task_prints_of_a_task_fits_80_columns(name):
    """A drawing that is cut has every token of the docstring's, in the same order."""
    for paragraph in sys.modules[type(task_of(name)).__module__].__doc__.strip().split("\n\n"):
        lines = folded(paragraph).splitlines()
        assert max(map(len, lines)) <= 80
        for head in ("    fed", "    targets") if paragraph.startswith("    fed") else ():
            tokens = [line.split()[1:] for line in lines if line.startswith(head)]
            whole = [line.split()[1:] for line in paragraph.splitlines() if line.startswith(head)]
            assert sum(tokens, []) == sum(whole, [])


def test_what_is_drawn_is_what_is_fed_over_what_should_come_next():
    """Symbols of one character stand close, others apart; what does not fit the width goes on below."""
    batch = Batch(torch.tensor([[0, 1, 2, 2]]), torch.tensor([[IGNORE, 2, 1, IGNORE]]))
    assert drawn(batch, "abc") == "fed      abcc\ntargets  _cb_"
    assert drawn(batch, ["a", "bb", "c"], width=14).splitlines() == [
        "fed      a bb", "targets  _ c", "fed      c  c", "targets  bb _"
    ]  # fmt: skip


@every
def test_its_file_begins_with_what_it_is(name):
    first = Path(checks.CONF, "task", f"{name}.yaml").read_text().splitlines()[0]
    assert re.match("# [A-Z]", first), first
