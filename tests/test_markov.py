"""Sources whose best predictor is known: the closed form against counting by hand and against entropies, models of
known regret, and the optimum's curve in tables and figures."""

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from running import run

import posenc_train.report
from posenc_train.build import build_task
from posenc_train.config import UserError, compose, run_folder
from posenc_train.evaluation.evaluate import evaluate, position_buckets
from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import Dims
from posenc_train.positions.learned import Learned
from posenc_train.positions.nope import Nope
from posenc_train.report import figures
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.far_copy import FarCopy
from posenc_train.tasks.markov import Markov, dirichlet

MANY = 10_000


def markov_by_hand(ids, symbols, alpha):
    """Every prediction from a fresh count of the whole past."""
    losses = []
    for t in range(1, len(ids)):
        after = Counter(ids[s + 1] for s in range(t - 1) if ids[s] == ids[t - 1])
        losses.append(-math.log((after[ids[t]] + alpha) / (sum(after.values()) + symbols * alpha)))
    return losses


def far_copy_by_hand(ids, symbols, distance, probability):
    losses = []
    for t in range(1, len(ids)):
        chances = [1 / symbols] * symbols
        if t >= distance:
            chances = [(1 - probability) / symbols] * symbols
            chances[ids[t - distance]] += probability
        losses.append(-math.log(chances[ids[t]]))
    return losses


def test_the_number_in_the_docstring():
    assert Markov(symbols=4).optimum(np.array([[0, 1, 2, 0, 3, 2, 0, 1]]))[0, -1] == -math.log(1.3 / 3.2)
    assert FarCopy(distance=4).optimum(np.array([[0, 3, 1, 2, 0]]))[0].tolist() == pytest.approx(
        [math.log(16)] * 3 + [-math.log(0.8 + 0.2 / 16)]
    )


@pytest.mark.parametrize("settings", [{}, {"symbols": 3, "alpha": 1.0}, {"symbols": 20, "alpha": 0.05}])
def test_the_optimum_of_a_chain_is_what_counting_by_hand_gives(settings):
    task = Markov(windows=20, **settings)
    ids = task.windows(90)
    expected = [markov_by_hand(row, task.vocab, task.alpha) for row in ids.tolist()]
    assert np.allclose(task.optimum(ids), expected, rtol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"distance": 1, "symbols": 2}, {"distance": 7, "probability": 0.0}])
def test_the_optimum_of_a_far_copy_is_its_mixture(settings):
    task = FarCopy(windows=20, **settings)
    ids = task.windows(90)
    expected = [far_copy_by_hand(row, task.vocab, task.distance, task.probability) for row in ids.tolist()]
    assert np.allclose(task.optimum(ids), expected, rtol=1e-12)


def within_three_standard_errors(difference):
    """At every position; a difference that is 0 has no error."""
    error = difference.std(0, ddof=1) / math.sqrt(len(difference))
    return (np.abs(difference.mean(0)) <= 3 * error + 1e-12).all()


def test_the_loss_of_the_optimum_of_a_chain_is_the_entropy_of_its_prediction_at_every_position():
    """Only a predictor that knows the source has this: one of another prior fails."""
    task = Markov()
    ids = task.sequences(0, "evaluation", 0, np.arange(MANY), 64)

    def difference(alpha):
        losses = []
        for t in range(1, 65):
            here = ids[:, : t - 1] == ids[:, t - 1 : t]
            counts = np.stack([(here & (ids[:, 1:t] == symbol)).sum(1) for symbol in range(8)], axis=1)
            p = (counts + alpha) / (counts + alpha).sum(1, keepdims=True)
            losses.append(-np.log(p[np.arange(MANY), ids[:, t]]) + (p * np.log(p)).sum(1))
        return np.stack(losses, axis=1)

    entropy = -np.log(1 / 8) * np.ones(MANY)  # before anything has followed
    assert np.allclose(task.optimum(ids)[:, 0], entropy)
    own = difference(0.3)
    assert within_three_standard_errors(own)
    assert abs(own.mean()) < 3 * own.mean(1).std() / math.sqrt(MANY)
    assert not within_three_standard_errors(difference(0.2)) and not within_three_standard_errors(difference(0.45))


def test_the_loss_of_the_optimum_of_a_far_copy_is_its_entropy_at_every_position():
    task = FarCopy()
    loss = task.optimum(task.sequences(0, "evaluation", 0, np.arange(MANY), 64))
    chances = np.array([0.8 + 0.2 / 16, *[0.2 / 16] * 15])
    entropy = np.array([math.log(16)] * 31 + [-(chances * np.log(chances)).sum()] * 33)
    assert within_three_standard_errors(loss - entropy)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 2.5])
def test_rows_are_of_the_dirichlet_prior(alpha):
    """Mean 1/K, variance (K - 1) / (K^2 (K alpha + 1)) of every entry; the rows are 4 standard errors from neither."""
    p = dirichlet(Draw(0, "test", 0, np.arange(2000)), alpha, 25, 4).reshape(-1, 4)
    assert np.allclose(p.sum(1), 1) and (p >= 0).all()
    error = (p.std(0) / math.sqrt(len(p)), ((p - 0.25) ** 2).std(0) / math.sqrt(len(p)))
    assert (np.abs(p.mean(0) - 0.25) <= 4 * error[0]).all()
    assert (np.abs(((p - 0.25) ** 2).mean(0) - 3 / (16 * (4 * alpha + 1))) <= 4 * error[1]).all()


@pytest.mark.parametrize("task", [Markov(), FarCopy()], ids=["markov", "far_copy"])
def test_a_row_depends_on_its_address_alone(task):
    """Also where some rows' gamma variables are rejected and drawn again."""
    whole = task.batch(3, 17, range(32), 40)
    parts = [task.batch(3, 17, range(a, a + 8), 40) for a in (0, 8, 16, 24)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), whole.inputs)
    assert torch.equal(whole.inputs[:, 1:], whole.targets[:, :-1])
    assert not torch.equal(task.batch(3, 18, range(32), 40).inputs, whole.inputs)
    windows = {tuple(row) for row in task.windows(40).tolist()}
    assert not windows & {tuple(row) for row in torch.cat([whole.inputs, whole.targets[:, -1:]], dim=1).tolist()}


@pytest.mark.parametrize(
    "task, length",
    [(Markov(symbols=2), 8), (Markov(symbols=2, alpha=0.05), 32), (FarCopy(symbols=2, distance=2), 12)],
)
def test_what_is_trained_on_is_never_evaluated_however_few_sequences_there_are(task, length):
    seen = {
        split: {row.tobytes() for row in task.sequences(0, split, 0, np.arange(count), length)}
        for split, count in {"training": 20_000, "validation": 500, "evaluation": 500}.items()
    }
    assert seen["training"] and not seen["training"] & (seen["validation"] | seen["evaluation"])
    assert not seen["validation"] & seen["evaluation"]


def test_too_few_sequences_for_a_split_of_their_own_are_refused():
    task = FarCopy(symbols=2, distance=1)
    with pytest.raises(UserError, match="^task=far_copy: too few different sequences of [123] tokens for a split of"):
        task.ready(1, [1, 2, 3])


def test_far_copies_are_as_frequent_as_said():
    task = FarCopy(distance=5, probability=0.6, symbols=4)
    ids = task.sequences(0, "evaluation", 0, np.arange(2000), 60)
    same = (ids[:, 5:] == ids[:, :-5]).mean()
    assert abs(same - 0.7) < 4 * math.sqrt(0.21 / ids[:, 5:].size)  # .6 + .4 / 4
    assert abs((ids[:, 4:] == ids[:, :-4]).mean() - 0.25) < 0.01


class Known(Transformer):
    """Stands in for a model: what is fed to it, and a function of that, are its logits."""

    def __init__(self, logits):
        torch.nn.Module.__init__(self)
        self.logits, self.nothing, self.positions = logits, torch.nn.Parameter(torch.zeros(1)), []

    def hidden(self, ids, pos=None, doc=None):
        return self.logits(ids)

    def head(self, hidden):
        return hidden


def predictions(task):
    """The closed form of the chain as logits, by counting."""

    def logits(ids):
        b, n = ids.shape
        pair = torch.zeros(b, n, task.vocab, dtype=torch.float64)
        for t in range(n):
            past = (ids[:, :t] == ids[:, t : t + 1])[..., None]
            pair[:, t] = (past * torch.nn.functional.one_hot(ids[:, 1 : t + 1], task.vocab)).sum(1)
        return (pair + task.alpha).log()

    return logits


def regrets(model, task, lengths, **options):
    rows = list(evaluate(model, task, lengths, {"regret": {}, "per_position": {}}, 16, 64, **options))
    return {r.length: r for r in rows if r.protocol == "regret" and r.metric == "regret" and not r.slice}, rows


@pytest.mark.parametrize("lengths", [[16, 64], [64, 25, 16]])
@pytest.mark.parametrize("tokens", [1, 448, 4096])
def test_a_model_that_is_the_optimum_has_no_regret(lengths, tokens):
    task = Markov(windows=12)
    found, rows = regrets(Known(predictions(task)), task, lengths, tokens=tokens)
    assert {length: row.count for length, row in found.items()} == {length: 12 * length for length in lengths}
    assert all(abs(row.total) <= 1e-6 * row.count for row in rows if row.metric == "regret")


def test_a_uniform_model_regrets_ln_k_less_the_optimum():
    task = Markov(windows=12)
    best = task.optimum(task.windows(64))
    found, rows = regrets(Known(lambda ids: torch.zeros(*ids.shape, 8)), task, [16, 50])
    for length, row in found.items():
        assert row.total == pytest.approx(12 * length * math.log(8) - best[:, :length].sum(), rel=1e-12)
    for name, length in (("regret", 50), ("nll", 50)):
        parts = [r for r in rows if r.protocol == "regret" and r.metric == name and r.length == length and r.slice]
        assert [r.slice["position"] for r in parts] == [list(bucket) for bucket in position_buckets(50)]
        floor = np.zeros(50) if name == "nll" else best[:, :50].sum(0)
        assert np.allclose([r.total for r in parts], 12 * math.log(8) - floor)
    assert {r.metric for r in rows if r.protocol == "per_position"} == {"nll"}


def test_beyond_reach_is_said_of_the_regret():
    dims = Dims(8, 2, 4, 1, train_length=16)
    model = Transformer(dims, 8, 0, [Learned(dims)])
    _, rows = regrets(model, Markov(windows=2), [32])
    assert [(r.metric, r.status) for r in rows if r.protocol == "regret"] == [("regret", "beyond reach")]


def test_lengths_at_which_nothing_returns_are_refused():
    for words in (["train_length=16"], ["lengths=[31]"], ["task.distance=200", "train_length=128"]):
        cfg = compose("train", ["task=far_copy", *words])
        with pytest.raises(UserError, match="smallest length of far_copy|least of task=far_copy"):
            posenc_train.config.check(cfg)
            build_task(cfg)
    assert build_task(compose("train", ["task=far_copy", "train_length=64"])).shortest == 32


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("markov")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ["task=markov", "task.symbols=4", "task.windows=64", "model=nano", "train_length=32", "factors=[1,2]"]
        cfg = run("train", *words, "optim.steps=120", "logger=none", "position=alibi")
    return folder / run_folder(cfg)


def test_a_trained_model_is_above_the_optimum_and_the_figure_shows_both(trained):
    report = posenc_train.report.of(trained)
    (table,) = [table for table in report.tables if table.quantity == "regret"]
    (line,) = table.lines
    values = [cell.value for _, cell in sorted(line.cells.items())]
    task = Markov(symbols=4, windows=64)
    best = task.optimum(task.windows(256))
    for (column, cell), length in zip(sorted(line.cells.items()), (32, 64), strict=True):
        assert (column.length, cell.counts) == (length, (64 * length,))
        assert 0 < cell.value < math.log(4) - best[:, :length].mean()  # and better than a guess
    (curves,) = [curves for curves in report.curves if curves.protocol == "regret"]
    axes = figures.loss_by_position(curves).axes[0]
    model, floor = axes.lines[0].get_ydata(), axes.lines[1].get_ydata()
    assert len(model) == len(floor) and (model[3:] > floor[3:]).all()
    seen = axes.lines[1].get_xdata()
    assert floor[0] == pytest.approx(math.log(4)) and seen[0] == 1
    assert floor[1] == pytest.approx(best[:, 1].mean()) and floor[2] == pytest.approx(best[:, 2].mean())
    assert "the best predictor" in [text.get_text() for text in axes.get_legend().get_texts()]
    assert list(trained.glob("loss_and_optimum_markov*.png"))
    shown = posenc_train.report.text(report)
    assert "regret = (nll - that of the best" in shown and f"{values[0]:.3f}" in shown


def test_curves_without_a_known_optimum_have_none_beside_them():
    point = {"position_first": 0, "position_last": 0, "seed": 0, "total": 1.0, "count": 1, "floor": math.nan}
    curve = SimpleNamespace(label="rope", scheme="rope", length=1, points=[point])
    curves = SimpleNamespace(
        task="text", model="nano", train_length=1, protocol="per_position", unit="byte", seeds=(0,), curves=(curve,)
    )
    assert len(figures.loss_by_position(curves).axes[0].lines) == 2  # the curve, and where it was trained


@pytest.mark.long
def test_a_trained_model_comes_near_the_optimum(tmp_path, monkeypatch):
    """A tiny transformer learns to count: within 0.1 nats of the best at the trained length."""
    monkeypatch.chdir(tmp_path)
    words = ["task=markov", "position=rope", "model=tiny", "train_length=64", "factors=[1]", "optim.steps=600"]
    report = posenc_train.report.of(tmp_path / run_folder(run("train", *words, "logger=none")))
    (cell,) = [c for t in report.tables if t.quantity == "regret" for line in t.lines for c in line.cells.values()]
    assert 0 < cell.value < 0.1


def test_nothing_else_is_a_source():
    dims = Dims(8, 2, 4, 1, train_length=16)
    task = compose("train", ["task=copy"])
    rows = evaluate(Transformer(dims, 27, 1, [Nope(dims)]), build_task(task), [16], {"regret": {}}, 16, 16)
    assert not list(rows)
