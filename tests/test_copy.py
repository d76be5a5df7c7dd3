"""The copy task: its tokens, its addressing, and its scoring against generation written here."""

import pytest
import torch

from posenc_train.build import build_model
from posenc_train.config import UserError, compose
from posenc_train.evaluation.evaluate import evaluate
from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import Dims
from posenc_train.positions.learned import Learned
from posenc_train.positions.nope import Nope
from posenc_train.tasks.base import IGNORE
from posenc_train.tasks.copy import Copy


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
    assert task.examples(length).ids.shape == (128, 2 * size + 3)
    assert (task.batch(0, 0, range(200), length).inputs != task.end).sum(1).max() == 2 * size + 2


def test_too_short():
    with pytest.raises(UserError, match="length 4: the smallest length of copy is 5"):
        Copy().examples(4)


def test_rows_are_addressed_by_seed_step_and_row():
    task = Copy()
    whole = task.batch(3, 17, range(32), 33)
    parts = [task.batch(3, 17, range(a, a + 8), 33) for a in (0, 8, 16, 24)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    others = [task.batch(3, 18, range(32), 33), task.batch(4, 17, range(32), 33)]
    assert all(not torch.equal(other.inputs, whole.inputs) for other in others)


def test_evaluation_examples_are_fixed():
    again, other = Copy().examples(64), Copy(eval_seed=1).examples(64)
    assert torch.equal(Copy().examples(64).ids, again.ids)
    assert not torch.equal(other.ids, again.ids)
    train = {tuple(row) for row in Copy().batch(0, 0, range(1000), 64).inputs.tolist()}
    assert not train & {tuple(row) for row in again.ids.tolist()}


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
