"""The copy task: its tokens, its addressing, and its scoring against generation written here."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from posenc_train.build import build_model, build_task
from posenc_train.config import UserError, compose
from posenc_train.evaluation.evaluate import evaluate
from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import Dims
from posenc_train.positions.learned import Learned
from posenc_train.positions.nope import Nope
from posenc_train.tasks.base import IGNORE
from posenc_train.tasks.copy import Copy
from posenc_train.training.data import Steps


def test_the_drawing_in_the_docstring():
    task = Copy()
    batch = task.batch(seed=0, step=0, rows=range(64), length=14)
    for fed, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        size = fed.index(task.separator, 1) - 1
        word = fed[1 : 1 + size]
        assert fed[0] == task.separator and 1 <= size <= 5 and max(word) < 26
        assert fed[size + 2 : 2 * size + 3] == [*word, task.end]
        assert targets == [IGNORE] * (size + 1) + [*word, task.end] + [IGNORE] * (14 - 2 * size - 2)


def test_sizes_are_uniform_and_letters_too():
    batch = Copy().batch(seed=0, step=0, rows=range(4000), length=11)
    sizes = (batch.targets != IGNORE).sum(1) - 1
    assert torch.bincount(sizes, minlength=5).tolist()[0] == 0
    assert all(abs(n - 1000) < 120 for n in torch.bincount(sizes)[1:].tolist())  # 4 standard deviations
    letters = torch.bincount(batch.targets[sizes == 4][:, 5:9].flatten())
    assert all(abs(n - letters.sum() / 26) < 49 for n in letters)  # 4 standard deviations of about 154


@pytest.mark.parametrize("length, size", [(5, 1), (6, 1), (7, 2), (51, 24), (128, 62)])
def test_what_fits_a_length(length, size):
    task = Copy()
    assert task.size(length) == size
    assert task.examples(length).ids.shape[1] == 2 * size + 3
    assert (task.batch(0, 0, range(200), length).inputs != task.end).sum(1).max() == 2 * size + 2


def test_too_short():
    with pytest.raises(UserError, match="length 4: the smallest length of copy is 5"):
        Copy().examples(4)


def test_field_39_no_example_comes_again_in_another_worker_rank_or_epoch():
    """Whole batches of 48 rows for 8 steps, once by two ranks of 24 and once by two loading processes: the same set,
    and no word of 10 letters or more in it twice."""
    task = Copy()
    seen = []
    for rows, workers in (((range(48),), 0), ((range(24), range(24, 48)), 0), ((range(48),), 2)):
        examples = []
        for part in rows:
            loader = iter(DataLoader(Steps(task, 3, 0, part, 64), batch_size=None, num_workers=workers))
            examples += [
                row.numpy().tobytes() for _, batch in zip(range(8), loader, strict=False) for row in batch.inputs
            ]
        seen.append(examples)
    assert len(seen[0]) == 8 * 48 and sorted(seen[0]) == sorted(seen[1]) == sorted(seen[2])
    long = [row for row in seen[0] if (np.frombuffer(row, np.int64) != task.end).sum() > 22]
    assert len(long) > 200 and len(set(long)) == len(long)


def test_field_42_the_end_is_asked_once_at_every_size_and_counted_apart():
    """Sizes vary in training, the end is a target once a row, filler behind it is none, and an answer may be as long as
    the evaluation length needs."""
    task = Copy()
    batch = task.batch(0, 0, range(500), 43)
    assert len(set((batch.targets != IGNORE).sum(1).tolist())) == 20  # sizes 1 to 20, and the end
    assert ((batch.targets == task.end).sum(1) == 1).all()
    for length in (23, 43, 83, 163):
        examples = task.examples(length)
        assert examples.asked.sum() == examples.size + 1 == (length - 3) // 2 + 1
        assert (examples.ids[:, -1] == task.end).all() and examples.asked[-1]


def test_field_44_one_hash_for_a_length_and_an_evaluation_seed_at_all_times():
    """Whatever the scheme, the training seed and what was drawn before; another length or seed has another."""
    found = set()
    for line in (["position=nope", "seed=1"], ["position=rope", "seed=2", "optim.batch_size=5"]):
        cfg = compose("train", ["model=nano", "task=copy", *line])
        task = build_task(cfg)
        build_model(cfg, task)
        before = task.examples(64).fingerprint
        task.batch(cfg["seed"], 0, range(8), 64)
        found |= {before, task.examples(64).fingerprint}
    assert len(found) == 1
    assert len(found | {Copy(eval_seed=1).examples(64).fingerprint, Copy().examples(66).fingerprint}) == 3
    steps = [Copy().batch(0, step, range(8), 64).inputs for step in (0, 1)]
    assert not torch.equal(*steps)  # training data is new at every step


class Speaker(Transformer):
    """Stands in for a model: whatever is fed, it says the given answer, token by token."""

    def __init__(self, task, answers, size):
        torch.nn.Module.__init__(self)
        self.task, self.answers, self.size = task, answers, size
        self.nothing = torch.nn.Parameter(torch.zeros(1))
        self.positions = []

    def hidden(self, ids, pos=None, doc=None, cache=None):
        self.spoken = 0 if ids.shape[1] > 1 else self.spoken + 1
        return torch.nn.functional.one_hot(self.answers[:, self.spoken], self.task.vocab)[:, None].float()

    def head(self, hidden):
        return hidden


@pytest.mark.parametrize(
    "said, exact, token, stops",
    [
        ("right", 2, 20, 2),
        ("does not stop", 2, 20, 0),
        ("stops early", 0, 8, 0),
        ("one letter wrong", 0, 18, 2),
        ("ends one early", 0, 18, 0),
    ],
)
def test_exact_match_token_accuracy_and_stopping_apart(said, exact, token, stops):
    task = Copy(examples=2)
    examples = task.examples(23)  # 10 letters
    answers = examples.ids[:, examples.asked]
    if said == "does not stop":
        answers[:, 10] = 0
    elif said == "stops early":
        answers[:, 4] = task.end
    elif said == "ends one early":
        answers[:, 9] = task.end
    elif said == "one letter wrong":
        answers[:, 5] = (answers[:, 5] + 1) % 26
    rows = list(evaluate(Speaker(task, answers, 10), task, [23], {"free_running": {}}, 23, 184))
    assert {row.metric: (row.total, row.count) for row in rows} == {
        "exact": (exact, 2), "token": (token, 20), "stops": (stops, 2)
    }  # fmt: skip
    assert all(row.slice == {"size": 10} and row.protocol == "free_running" for row in rows)


def test_scores_are_those_of_feeding_back_by_hand():
    """Free-running: every answer token is the model's own, by a full forward without a cache."""
    task = Copy(alphabet=3, examples=40)
    model = build_model(compose("train", ["model=nano", "task=copy", "seed=3"]), task).eval()
    examples = task.examples(15)
    text = examples.ids[:, :8]
    answers = examples.ids[:, 8:].tolist()
    with torch.no_grad():
        for _ in range(7):
            text = torch.cat([text, model(text)[:, -1:].argmax(-1)], dim=1)
    said = text[:, 8:].tolist()
    letters = exact = stops = 0
    for answer, wanted in zip(said, answers, strict=True):
        end = answer.index(task.end) if task.end in answer else 7
        right = [i < end and answer[i] == wanted[i] for i in range(6)]
        letters, exact, stops = letters + sum(right), exact + all(right), stops + (end == 6)
    found = {row.metric: row.total for row in evaluate(model, task, [15], {"free_running": {}}, 15, 120)}
    assert found == {"exact": exact, "token": letters, "stops": stops} and letters > 0


def test_beyond_reach_is_said_and_not_run():
    task = Copy(examples=2)
    dims = Dims(8, 2, 4, 1, train_length=15)
    rows = list(evaluate(Transformer(dims, 27, 2, [Learned(dims)]), task, [15, 30], {"free_running": {}}, 15, 120))
    assert [row.status for row in rows] == ["ok"] * 3 + ["beyond reach"] * 3
    assert all(row.total is None and row.count == 0 for row in rows[3:])
    assert all(
        row.status == "ok"
        for row in evaluate(Transformer(dims, 27, 2, [Nope(dims)]), task, [30], {"free_running": {}}, 15, 120)
    )
