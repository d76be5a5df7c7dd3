"""Order and its control: the answers by a solver of its own, chance by symmetry and not by training, and what a short
training makes of each."""

from collections import Counter

import numpy as np
import pytest
import torch
from running import run

import posenc_train.report
from posenc_train.build import build_schemes, build_task
from posenc_train.checks import choices, file_settings
from posenc_train.config import UserError, compose, run_folder
from posenc_train.evaluation.evaluate import evaluate
from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import Dims
from posenc_train.tasks.majority import Majority
from posenc_train.tasks.order import Order

TASKS = {
    "order": Order(examples=64),
    "direction": Order(direction=True, examples=64),
    "majority": Majority(examples=64),
}
ONE_SIDED = ("xpos", "xpos_blockwise", "fox", "cope", "path", "own")  # which refuse model.causal=false
# Schemes that know nothing of places (the windows and blocks are longer than these texts) …
PLACELESS = {"nope", "logn", "nope_logn", "ssmax", "window", "blockwise"}
# … and those that know |i - j| and no more.
BY_DISTANCE = {"alibi", "alibi_blockwise", "hard_alibi", "inverse", "kerple_log", "kerple_power", "sandwich", "dape"}


def words_of(task, ids):
    return [task.symbols[i].rstrip("0123456789") for i in ids]


def chaser(words):
    """0, the cat, or 1, the mouse: the animal right before every verb."""
    assert Counter(words)["chases"] == Counter(words)["cat"] == Counter(words)["mouse"] >= 1
    (found,) = {words[i - 1] for i, word in enumerate(words) if word == "chases"}
    return ["cat", "mouse"].index(found)


def more(words):
    count = Counter(words)
    assert count["cat"] + count["mouse"] == (len(words) + 1) // 2
    assert 2 * min(count["cat"], count["mouse"]) <= max(count["cat"], count["mouse"])  # never close
    return int(count["mouse"] > count["cat"])


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [4, 5, 8, 17, 64, 300])
def test_no_example_is_ambiguous(name, length):
    task = TASKS[name]
    solve = more if name == "majority" else chaser
    batch, examples = task.batch(0, 0, range(200), length), task.examples(length)
    assert batch.inputs.shape == (200, length) and batch.targets.shape == (200, 1)
    assert [solve(words_of(task, ids)) for ids in batch.inputs] == batch.targets[:, 0].tolist()
    assert [solve(words_of(task, ids)) for ids in examples.ids] == examples.answers.tolist()
    assert 60 <= batch.targets.sum() <= 140


@pytest.mark.parametrize("length", [4, 9, 64])
def test_the_chased_is_behind_the_chaser_and_farther_from_the_verb(length):
    """Or on its other side, with direction."""
    for ids in TASKS["order"].batch(0, 0, range(300), length).inputs:
        words = words_of(TASKS["order"], ids)
        verb, animals = words.index("chases"), [i for i, word in enumerate(words) if word in ("cat", "mouse")]
        assert animals[0] == verb - 1 and animals[1] - verb >= max(2, length // 4)
    for ids in TASKS["direction"].batch(0, 0, range(300), length).inputs:
        words = words_of(TASKS["direction"], ids)
        verbs = [i for i, word in enumerate(words) if word == "chases"]
        assert len(verbs) == max(1, length // 16)
        assert all({words[verb - 1], words[verb + 1]} == {"cat", "mouse"} for verb in verbs)


def test_no_edge_gives_the_direction_away():
    """Sentences stand at every place as often as at the one mirrored: 4 standard errors."""
    task, count = TASKS["direction"], 20_000
    ids, _ = task.sequences(0, "training", 0, np.arange(count), 33)
    verbs = ((task.verb <= ids) & (ids < task.filler)).sum(0)
    assert verbs.sum() == 2 * count and verbs[0] == verbs[-1] == 0
    assert (np.abs(verbs - verbs[::-1]) <= 4 * np.sqrt(verbs + verbs[::-1] + 1e-9)).all()


@pytest.mark.parametrize("name", ["order", "direction"])
@pytest.mark.parametrize("length", [4, 9, 64])
def test_every_example_has_a_partner_of_the_same_tokens_and_the_other_answer(name, length):
    task = TASKS[name]
    examples = task.examples(length)
    half = len(examples.ids) // 2
    one, other = examples.ids[:half], examples.ids[half:]
    assert torch.equal(one.sort(1).values, other.sort(1).values)
    assert torch.equal(examples.answers[:half], 1 - examples.answers[half:])
    if name == "direction":
        assert torch.equal(other, one.flip(1))
    else:
        assert torch.equal((one != other).sum(1), torch.full((half,), 2))
    train = {tuple(row) for row in task.batch(0, 0, range(2000), length).inputs.tolist()}
    assert not train & {tuple(row) for row in examples.ids.tolist()}


def model_of(task, position, causal=False):
    """Random weights everywhere, also where a scheme begins with zeros."""
    dims = Dims(width=32, heads=4, head_width=8, layers=4, train_length=16, causal=causal)
    torch.manual_seed(0)
    schemes = build_schemes(dict(file_settings("position", position)), dims)
    model = Transformer(dims, task.vocab, task.marks, schemes, pooled=task.pooled).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.positions.parameters():
        parameter.data += torch.randn(parameter.shape, generator=generator)
    return model


def between_partners(task, model, length=16):
    ids = task.examples(length).ids
    with torch.no_grad():
        logits = model(ids)
    one, other = logits.chunk(2)
    assert (one[0] - one[1]).abs().max() > 1e-4  # other sequences differ
    return (one - other).abs().max().item()


def accuracy(task, model, length):
    (row,) = evaluate(model, task, [length], {"classified": {}, "free_running": {}}, 16, 128)
    assert (row.protocol, row.metric, row.unit, row.count) == ("classified", "token", "example", task.count)
    return row.total / row.count


BOTH_SIDED = [name for name in choices("position") if name not in ONE_SIDED]


@pytest.mark.parametrize("position", BOTH_SIDED)
def test_by_symmetry_who_knows_no_places_is_at_chance_in_order_and_nobody_else(position):
    difference = between_partners(TASKS["order"], model_of(TASKS["order"], position))
    assert difference <= 1e-6 if position in PLACELESS else difference > 1e-5


@pytest.mark.parametrize("position", BOTH_SIDED)
def test_by_symmetry_who_knows_distance_alone_is_at_chance_in_direction_and_nobody_else(position):
    difference = between_partners(TASKS["direction"], model_of(TASKS["direction"], position))
    assert difference <= 1e-6 if position in PLACELESS | BY_DISTANCE else difference > 1e-5


@pytest.mark.parametrize("length", [16, 100])
@pytest.mark.parametrize("name, position", [("order", "nope"), ("direction", "nope"), ("direction", "kerple_log")])
def test_chance_is_exactly_half(name, position, length):
    assert accuracy(TASKS[name], model_of(TASKS[name], position), length) == 0.5


def test_a_causal_mask_tells_order_by_itself():
    assert between_partners(TASKS["order"], model_of(TASKS["order"], "nope", causal=True)) > 1e-4
    assert "a causal mask tells order by itself" in TASKS["order"].report(16, 128)["chance"]


def test_the_answer_is_read_from_the_mean_over_the_real_tokens():
    model, ids = model_of(TASKS["order"], "nope"), TASKS["order"].examples(8).ids[:3]
    with torch.no_grad():
        expected = model.head(model.hidden(ids).mean(1))
        assert torch.allclose(model(ids)[:, 0], expected, atol=1e-6) and model(ids).shape == (3, 1, 2)
        padded = torch.cat([ids[:, :2], ids], dim=1)
        doc = torch.tensor([-1] * 2 + [0] * 8).expand(3, -1)
        assert torch.allclose(model(padded, doc=doc)[:, 0], expected, atol=1e-6)


def test_what_is_too_short_or_too_few_is_refused():
    with pytest.raises(UserError, match="length 3: the smallest length of majority is 4"):
        Majority().examples(3)
    with pytest.raises(UserError, match="task=order: too few different sequences of 4 tokens"):
        Order(animals=1, verbs=1, fillers=1).ready(4, [4])
    for line in ("task=order train_length=3", "task=order task.examples=7", "task=order protocol=[free_running]"):
        with pytest.raises(UserError, match="least of task=order|must be an even integer|choose one of classified"):
            posenc_train.config.check(compose("train", line.split()))


def taught(task, position, steps):
    """The share that a nano model gets right after so many steps on sequences of 8 tokens."""
    dims = Dims(width=32, heads=2, head_width=16, layers=2, train_length=8, causal=False)
    torch.manual_seed(0)
    schemes = build_schemes(dict(file_settings("position", position)), dims)
    model = Transformer(dims, task.vocab, task.marks, schemes, pooled=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(steps):
        batch = task.batch(0, step, range(64), 8)
        loss = torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return accuracy(task, model, 8)


def test_a_short_training_tells_who_knows_order():
    task = Order(animals=2, verbs=1, fillers=2, examples=128)
    assert taught(task, "rope", 60) >= 0.95
    assert taught(task, "nope", 20) == 0.5


@pytest.mark.parametrize("position", ["nope", "rope", "alibi", "t5", "sinusoidal"])
def test_all_tie_where_order_does_not_matter(position):
    assert taught(Majority(animals=2, fillers=2, examples=128), position, 40) >= 0.95


def test_the_command_trains_on_a_question_and_its_table_tells_what_was_not_learned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["task=order", "position=nope", "model=nano", "model.causal=false", "train_length=8", "factors=[1,2]"]
    report = posenc_train.report.of(run_folder(run("train", *words, "optim.steps=4", "logger=none")))
    (table,) = report.tables
    assert (table.protocol, table.quantity, table.unit) == ("classified", "token accuracy", "example")
    first, longer = (cell for _, cell in sorted(table.lines[0].cells.items()))
    assert first.value == 0.5 and first.counts == (512,) and longer.status == "not learned"
    shown = " ".join(posenc_train.report.text(report).split())
    assert "not learned: token accuracy below 0.95 at 1x" in shown and "one answer a sequence" in shown


def test_a_causal_model_may_be_trained_too():
    posenc_train.config.check(compose("train", ["task=order"]))
    assert build_task(compose("train", ["task=order", "train_length=64"])).pooled
