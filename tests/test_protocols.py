"""Every next-token protocol on models whose loss is known, against windows counted one by one; faults of memory and of
numbers; measuring along a training."""

import contextlib
import copy
import math
import os
import signal
import sys

import numpy as np
import pytest
import torch
from running import NANO, ROOT, run
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from posenc_train import config as configuration
from posenc_train import runs
from posenc_train.config import Unmeasured, UserError, check, compose, run_folder
from posenc_train.evaluation import run as evaluation_run
from posenc_train.evaluation.evaluate import evaluate
from posenc_train.evaluation.measurement import attempted
from posenc_train.evaluation.protocols import cuts, protocol_label, tokens_fed, where
from posenc_train.evaluation.rows import ALONG
from posenc_train.model.transformer import Transformer
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.fire import Fire
from posenc_train.positions.learned import Learned
from posenc_train.positions.nope import Nope
from posenc_train.positions.rope import Rope
from posenc_train.report import figures, store, wandb
from posenc_train.tasks.base import NEXT_TOKEN, Task
from posenc_train.tasks.copy import Copy
from posenc_train.training import fit

V, TRAINED = 7, 10
DIMS = Dims(width=16, heads=2, head_width=8, layers=1, train_length=TRAINED)
SETTINGS = {
    "nonoverlapping": {},
    "per_position": {},
    "same_targets": {"k": 4},
    "sliding": {"stride": 3},
    "masked_window": {"L": 4},
    "window": {"L": 10, "targets": None},
}


class Given(Task):
    """Texts that are given."""

    protocols, unit, begin, vocab, marks = NEXT_TOKEN, "token", None, V, 1
    bytes_per_id = None

    def __init__(self, ids: np.ndarray, begin: int | None = None):
        self.ids, self.begin = ids, begin

    def windows(self, longest: int) -> np.ndarray:
        assert longest + 1 == self.ids.shape[1]
        return self.ids


class Known(nn.Module):
    """What evaluation asks of a model; `logits` are known of what is fed and of how many tokens are visible."""

    reach = None

    def __init__(self, w: int | None = None):
        super().__init__()
        self.positions, self.dims, self.w = [Nope(DIMS)], DIMS, w
        self.any, self.fed = nn.Parameter(torch.zeros(1)), []

    def under(self, schemes):
        other = copy.copy(self)
        other.positions = schemes
        return other

    def hidden(self, ids, pos=None, doc=None):
        self.fed.append(ids.shape)
        n, scheme = ids.shape[1], self.positions[0]
        seen = Span.of(n).allowed()
        if scheme.visible is not None:
            seen = seen & scheme.visible(Span.of(n))[0, 0]
        count = seen.sum(-1)
        return self.logits(ids, count if self.w is None else count.clamp(max=self.w))

    def read(self, hidden):
        return hidden

    def head(self, hidden):
        return hidden


class Uniform(Known):
    def logits(self, ids, seen):
        return torch.zeros(*ids.shape, V)

    def loss(self, text, target, seen):
        return math.log(V)


class Bigram(Known):
    """Knows of which row of a matrix the next token is drawn."""

    chances = np.random.default_rng(3).dirichlet(np.ones(V), V)

    def logits(self, ids, seen):
        return torch.from_numpy(np.log(self.chances))[ids].float()

    def loss(self, text, target, seen):
        return -math.log(self.chances[text[target], text[target + 1]])


class Copies(Known):
    """Repeats what stood `period` tokens before, with 0.9, where it sees so far back; else it knows nothing."""

    period = 5

    def logits(self, ids, seen):
        before = torch.cat([ids[:, :1].expand(-1, self.period - 1), ids], dim=1)[:, : ids.shape[1]]
        sure = torch.full((*ids.shape, V), math.log(0.1 / (V - 1))).scatter(2, before[..., None], math.log(0.9))
        return torch.where((seen >= self.period)[:, None], sure, 0.0)

    def loss(self, text, target, seen):
        if seen < self.period:
            return math.log(V)
        return -math.log(0.9 if text[target + 1 - self.period] == text[target + 1] else 0.1 / (V - 1))


class Sees(Known):
    """The text counts 0, 1, …, V - 1, 0, …: of c visible tokens, the next is given c / (c + 1)."""

    def logits(self, ids, seen):
        c = seen.float()[:, None, None].movedim(0, 1).expand(len(ids), -1, 1)
        right = nn.functional.one_hot((ids + 1) % V, V)
        return torch.where(right > 0, (c / (c + 1)).log(), (1 / (c + 1) / (V - 1)).log())

    def loss(self, text, target, seen):
        c = seen if self.w is None else min(seen, self.w)
        return math.log((c + 1) / c)


def texts(model: Known, count: int, longest: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    if isinstance(model, Sees):
        return (np.arange(longest + 1) + rng.integers(V, size=(count, 1))) % V
    if isinstance(model, Copies):
        ids = np.tile(rng.integers(V, size=(count, model.period)), (1, longest))[:, : longest + 1]
        return np.where(rng.random(ids.shape) < 0.1, rng.integers(V, size=ids.shape), ids)
    return rng.integers(V, size=(count, longest + 1))


def counted(name: str, settings: dict, longest: int, length: int) -> list[tuple[int, int]]:
    """(target, tokens that the window has up to it) of everything that a protocol scores in one text: written from the
    words of the protocols, with windows made one by one."""
    if name == "window":
        return [(end - 1, length) for end in range(length, longest + 1)] if length == settings["L"] else []
    if name == "sliding":
        found, end, scored = [], length, 0
        while True:
            found += [(target, target - (end - length) + 1) for target in range(scored, end)]
            if end == longest:
                return found
            scored, end = end, min(end + settings["stride"], longest)
    found, end = [], longest
    while end >= length:  # from the end
        found += [(target, target - (end - length) + 1) for target in range(end - length, end)]
        end -= length
    if name == "same_targets":
        return [(target, context) for target, context in found if target >= longest - settings["k"]]
    if name == "masked_window":
        return [(target, min(context, settings["L"])) for target, context in found]
    return found


def rows_of(model, ids, lengths, settings=SETTINGS, begin=None, **options):
    return list(evaluate(model, Given(ids, begin), lengths, settings, TRAINED, ids.shape[1] - 1, **options))


MODELS = [Uniform(), Bigram(), Copies(), Sees(), Sees(w=3)]


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}{m.w or ''}")
@pytest.mark.parametrize("longest", [24, 31])
def test_models_of_known_loss_have_it_under_every_protocol(model, longest):
    """24 tokens are no multiple of any of the lengths 10, 7 and 5; strides of 3 divide none of the remainders."""
    ids = texts(model, 3, longest)
    rows = rows_of(model, ids, [10, 7, 5, longest])
    for length in (10, 7, 5, longest):
        for name, settings in SETTINGS.items():
            found = [r for r in rows if r.length == length and r.protocol == protocol_label(name, settings, TRAINED)]
            expected = counted(name, settings, longest, length)
            losses = [model.loss(text, target, context) for text in ids for target, context in expected]
            if not losses:
                assert not found
            elif name == "per_position":
                by = {r.slice["position"][0]: r for r in found}
                assert len(by) == length
                for place, row in by.items():
                    own = [model.loss(t, target, c) for t in ids for target, c in expected if c == place + 1]
                    assert (row.total, row.count) == (pytest.approx(sum(own), rel=1e-6), len(own))
            else:
                (row,) = found
                assert (row.total, row.count) == (pytest.approx(sum(losses), rel=1e-6), len(losses)), name


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}{m.w or ''}")
@pytest.mark.parametrize("lengths, tokens", [([5, 7, 10], 1), ([10, 5, 7], 7 * 10), ([7, 10, 5], 10**9)])
def test_neither_the_batch_nor_the_order_of_lengths_changes_a_number(model, lengths, tokens):
    ids = texts(model, 4, 24)
    expected = {(r.length, r.protocol, str(r.slice)): r for r in rows_of(model, ids, [10, 7, 5])}
    found = {(r.length, r.protocol, str(r.slice)): r for r in rows_of(model, ids, lengths, tokens=tokens)}
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert (found[key].total, found[key].count) == (pytest.approx(row.total, rel=1e-9), row.count)


@pytest.mark.parametrize("model", [Bigram(), Sees()], ids=["Bigram", "Sees"])
def test_of_25_tokens_with_window_and_stride_of_10_each_but_the_first_is_scored_once(model):
    """The windows end at 10, 20 and 24; without a token in front the first of the 25 is no target."""
    ids = texts(model, 1, 24)
    (row,) = rows_of(model, ids, [10], {"sliding": {"stride": 10}})
    contexts = [*range(1, 11), *range(1, 11), 7, 8, 9, 10]
    losses = [model.loss(ids[0], target, context) for target, context in enumerate(contexts)]
    assert (row.count, row.protocol) == (24, "sliding(stride=10)") and row.total == pytest.approx(sum(losses))
    assert {shape[1] for shape in model.fed[-2:]} == {10}  # length is tokens fed, of the last window too


@pytest.mark.parametrize("length", range(1, 13))
@pytest.mark.parametrize("longest", [12, 17])
def test_sliding_scores_every_target_once_with_the_longest_context(length, longest):
    for stride in range(1, length + 1):
        windows = cuts("sliding", {"stride": stride}, 2, longest, length, TRAINED)
        assert where(windows, length, 2, longest).all() and windows[:, 2].sum() == 2 * longest
        assert (windows[:, 1] >= 0).all() and (windows[:, 1] + length <= longest).all()
        first = windows[:, 1] == 0
        assert (windows[first, 2] == length).all() and (windows[~first, 2] <= stride).all()
        assert (length - windows[~first, 2] >= length - stride).all()


def test_the_window_control_is_a_stride_of_one_and_what_same_targets_has_at_1x():
    """Fed alone; the last token of every window of a stride of 1; a mask, where one layer is all there is."""
    torch.manual_seed(0)
    model = Transformer(DIMS, V, 0, [Rope(DIMS)])
    ids = texts(Uniform(), 2, 24)
    settings = {"window": {"L": 10, "targets": None}, "sliding": {"stride": 1}, "same_targets": {"k": 1}}
    rows = {r.protocol: r for r in rows_of(model, ids, [10], settings)}
    alone, slid = rows["window(L=10, targets=all)"], rows["sliding(stride=1)"]
    first = rows_of(model, ids[:, :11], [10], {"nonoverlapping": {}})[0]
    last_of_first = rows_of(model, ids[:, :11], [10], {"same_targets": {"k": 1}})[0]
    assert slid.total - first.total == pytest.approx(alone.total - last_of_first.total)
    assert (alone.count, slid.count) == (2 * 15, 2 * 24)
    masked = {r.protocol: r for r in rows_of(model, ids, [24], {"masked_window": {"L": 10}, "nonoverlapping": {}})}
    whole = rows_of(model, ids[:, :11], [10], {"nonoverlapping": {}})[0]  # … and RoPE knows distances alone
    assert masked["masked_window(L=10)"].total == pytest.approx(
        alone.total + whole.total - last_of_first.total, rel=1e-5
    )
    assert masked["nonoverlapping"].total != pytest.approx(masked["masked_window(L=10)"].total, rel=1e-5)


def test_a_stride_of_the_length_is_nonoverlapping_where_it_divides():
    model = Transformer(DIMS, V, 0, [Alibi(DIMS)])
    rows = rows_of(model, texts(Uniform(), 3, 24), [8], {"sliding": {"stride": 8}, "nonoverlapping": {}})
    assert rows[0].total == pytest.approx(rows[1].total, rel=1e-12) and rows[0].count == rows[1].count == 72


def test_a_mask_as_long_as_the_input_hides_nothing():
    model = Transformer(DIMS, V, 0, [Alibi(DIMS)])
    rows = rows_of(model, texts(Uniform(), 3, 24), [8, 12], {"masked_window": {"L": 12}, "nonoverlapping": {}})
    totals = {(r.length, r.protocol): r.total for r in rows}
    for length in (8, 12):
        assert totals[length, "masked_window(L=12)"] == pytest.approx(totals[length, "nonoverlapping"], rel=1e-6)


@pytest.mark.parametrize("targets, count", [(1, 1), (4, 4), (30, 30), (31, 30), (None, 30)])
def test_the_targets_of_the_window_control_are_spread_evenly(targets, count):
    windows = cuts("window", {"L": 10, "targets": targets}, 2, 24, 10, TRAINED)
    places = windows[:, 0] * 15 + windows[:, 1]
    assert len(places) == len(set(places.tolist())) == count and (places >= 0).all() and (places < 30).all()
    assert count == 1 or np.ptp(np.diff(places)) <= 1
    middle = 15 if count == 1 else None
    assert middle is None or places[0] == middle


def test_each_window_is_fed_once_whatever_the_protocols_ask():
    """nonoverlapping, per_position, same_targets at 12 of 24 tokens are two windows a text; sliding by 6 adds one."""
    model = Uniform()
    names = ("nonoverlapping", "per_position", "same_targets")
    rows_of(model, texts(model, 2, 24), [12], {name: SETTINGS[name] for name in names} | {"sliding": {"stride": 6}})
    assert sum(shape[0] for shape in model.fed) == 2 * 3
    assert tokens_fed("nonoverlapping", {}, 2, 24, 12, TRAINED) == 2 * 2 * 12
    assert tokens_fed("sliding", {"stride": 6}, 2, 24, 12, TRAINED) == 2 * 3 * 12


def test_every_window_begins_with_the_mark_and_the_mark_is_no_target():
    """As in training, under every protocol: 10 tokens fed of which the first is the mark."""
    fed = []
    torch.manual_seed(0)
    model = Transformer(DIMS, V, 1, [Alibi(DIMS)])
    hidden = model.hidden

    def spy(ids, **options):
        fed.append(ids.clone())
        return hidden(ids, **options)

    model.hidden = spy
    ids = texts(Uniform(), 2, 24)
    with_mark = rows_of(model, ids, [10], {k: v for k, v in SETTINGS.items() if k != "masked_window"}, begin=V)
    without = rows_of(model, ids, [10], {k: v for k, v in SETTINGS.items() if k != "masked_window"})
    half = len(fed) // 2
    assert all((x[:, 0] == V).all() and (x[:, 1:] < V).all() for x in fed[:half])
    assert [(r.protocol, r.count) for r in with_mark] == [(r.protocol, r.count) for r in without]


@pytest.mark.parametrize("name", ["sliding", "masked_window", "window"])
def test_beyond_reach_is_said_by_the_new_protocols_too(name):
    model = Transformer(DIMS, V, 0, [Learned(DIMS)])
    settings = {name: SETTINGS[name] | ({"L": 12} if name == "window" else {})}
    rows = rows_of(model, texts(Uniform(), 2, 24), [10, 12], settings)
    statuses = {r.length: (r.status, r.total is None) for r in rows}
    assert statuses.get(10, ("ok", False)) == ("ok", False) and statuses[12] == ("beyond reach", True)


def test_field_bug_28_a_row_is_what_was_fed_and_a_smaller_stride_sees_more():
    """Whatever the protocol, a row of length n was fed windows of n tokens; its label says stride and window."""
    ids, losses = texts(Sees(), 2, 24), []
    for length in (10, 7):
        model = Sees()
        rows_of(model, ids, [length])
        assert {shape[1] for shape in model.fed} == {length}
    for stride in (10, 7, 5, 2, 1):
        (row,) = rows_of(Sees(), ids, [10], {"sliding": {"stride": stride}})
        assert row.protocol == f"sliding(stride={stride})" and row.count == 2 * 24
        losses.append(row.total)
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 5


@pytest.mark.parametrize("batch", [1, 4, 9])
def test_field_bug_31_every_target_weighs_the_same_whatever_the_batch(batch):
    """9 texts in batches of 4, 4 and 1, of which the last has a loss of 4 and the others 1: 12 / 9 and not 2."""

    class ByText(Known):
        def logits(self, ids, seen):
            chance = torch.where(ids[:, :1] == 6, math.exp(-4), math.exp(-1))[..., None]
            right = nn.functional.one_hot(ids, V)  # the text repeats one id
            return torch.where(right > 0, chance.log(), ((1 - chance) / (V - 1)).log())

    ids = np.full((9, 11), 2)
    ids[8] = 6
    (row,) = rows_of(ByText(), ids, [10], {"nonoverlapping": {}}, tokens=10 * batch)
    assert row.total / row.count == pytest.approx(12 / 9, rel=1e-6) and row.count == 90


# ---- labels and settings ---------------------------------------------------------------------------------


def test_a_label_is_the_same_at_every_length_and_says_every_setting():
    assert protocol_label("sliding", {"stride": None}, 128) == "sliding(stride=64)"
    assert protocol_label("masked_window", {"L": None}, 128) == "masked_window(L=128)"
    assert protocol_label("window", {"L": None, "targets": 1024}, 128) == "window(L=128, targets=1024)"
    assert protocol_label("window", {"L": 64, "targets": None}, 128) == "window(L=64, targets=all)"
    assert protocol_label("sliding", {"stride": None}, 1) == "sliding(stride=1)"


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["protocol=[sliding]", "protocol.sliding.stride=129"], "at most the shortest evaluation length, 128"),
        (["protocol=[sliding]", "protocol.sliding.stride=0"], "protocol.sliding.stride=0: must be an integer"),
        (["protocol=[window]", "protocol.window.L=1025"], "at most the length of the evaluation texts, 1024"),
        (["protocol=[masked_window]", "protocol.masked_window.L=0"], "at least 1"),
        (["protocol.at=[0,1]"], "protocol.at=[0,1]: must be a list, each a number above 0 and at most 1"),
        (["protocol.at=[]"], "protocol.at=[]: must be a list"),
        (["protocol=[]"], "protocol=[]: needs at least one of"),
        (["task=copy", "protocol=[sliding]"], "does not score task=copy"),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(overrides, says):
    with pytest.raises(UserError) as error:
        check(compose("train", overrides))
    assert says in str(error.value)


def test_one_fraction_stands_for_a_list_and_no_name_depends_on_it():
    plain, along = compose("train", []), compose("train", ["protocol.at=0.5"])
    assert along["protocol"]["at"] == [0.5] and plain["protocol"]["at"] == [1]
    check(along)
    assert run_folder(along) == run_folder(plain)
    del plain["protocol"]["at"]  # the configuration of a run from before there was this key
    check(plain)
    assert configuration.steps_along(plain) == [] and configuration.protocols(along) == configuration.protocols(plain)


def test_the_steps_of_the_fractions():
    cfg = compose("train", ["protocol.at=[0.001,0.25,0.5,0.5,1]", "optim.steps=10"])
    assert configuration.steps_along(cfg) == [1, 2, 5]  # Python rounds 2.5 to the even number


# ---- runs ------------------------------------------------------------------------------------------------

PROTOCOLS = "protocol=[nonoverlapping,same_targets,per_position]"
SMALL = [*NANO, "logger=none", f"task.path={ROOT / 'posenc_train' / 'positions'}"]  # a text of 150 kB
PLAIN = [*SMALL, "position=rope", "factors=[1,8]", PROTOCOLS]
NEW = "protocol=[nonoverlapping,sliding,masked_window,window]"


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(figures, "draw", lambda report: {})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with measurements along it; tests copy nothing into it and change nothing in it but by evaluate.py."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield root / run_folder(run("train", *PLAIN, "protocol.at=[0.25,0.5,1]"))


def test_the_cost_is_told_first_and_a_second_call_does_nothing(trained, monkeypatch, capsys):
    """4 texts of 128 tokens. Sliding by 8 over lengths 16, 32, 64, 128: 15, 13, 9 and 1 windows a text."""
    monkeypatch.chdir(trained.parents[2])
    overrides = [f"run={trained}", NEW, "extension=[none,pi]", "lengths=[16,32,64,128]"]
    run("evaluate", *overrides)
    said = capsys.readouterr().out
    fed = 2 * 4 * (15 * 16 + 13 * 32 + 9 * 64 + 1 * 128)
    assert f"sliding(stride=8): {fed:,} tokens to be fed, {fed / (2 * 4 * 4 * 128):.3g} times" in said
    assert f"masked_window(L=16): {2 * 4 * 4 * 128:,} tokens to be fed, 1 times" in said
    assert f"window(L=16, targets=all): {4 * 113 * 16:,} tokens to be fed" in said
    rows = [r for r in store.load(trained / "rows.jsonl") if r.checkpoint == "last@12" and r.unit == "byte"]
    places = {(r.extension, r.length, r.protocol) for r in rows if r.protocol.startswith("window")}
    assert places == {("none", 16, "window(L=16, targets=all)")}  # once, of the plain model
    assert {(r.extension, r.length) for r in rows if r.protocol == "sliding(stride=8)"} == {
        (extension, n) for extension in ("none", "pi") for n in (16, 32, 64, 128)
    }
    before = (trained / "rows.jsonl").read_bytes()
    monkeypatch.setattr(runs, "prepare", lambda trainer: pytest.fail("was evaluated again"))
    run("evaluate", *overrides)
    assert "there already" in capsys.readouterr().out and (trained / "rows.jsonl").read_bytes() == before


def labels(folder) -> dict[str, int]:
    """Checkpoint -> how many rows of `same_targets` at the longest length."""
    rows = [r for r in store.load(folder / "rows.jsonl") if (r.protocol, r.length) == ("same_targets(k=8)", 128)]
    return {label: sum(r.checkpoint == label for r in rows) for label in dict.fromkeys(r.checkpoint for r in rows)}


def weights(folder) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]


def test_measuring_along_the_training_changes_nothing_of_it(trained, tmp_path, monkeypatch):
    rows = store.load(trained / "rows.jsonl")
    assert labels(trained) == {f"{ALONG}3": 1, f"{ALONG}6": 1, "last@12": 1}
    assert {r.checkpoint: r.tokens_seen for r in rows} == {
        f"{ALONG}3": 3 * 64, f"{ALONG}6": 6 * 64, "last@12": 12 * 64,
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    other = tmp_path / run_folder(run("train", *PLAIN))
    assert other.name == trained.name and labels(other) == {"last@12": 1}
    ours, theirs = weights(trained), weights(other)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    last = {r.key(): r.total for r in rows if r.checkpoint == "last@12" and r.metric == "nll"}
    again = {r.key(): r.total for r in store.load(other / "rows.jsonl") if r.metric == "nll"}
    assert again.items() <= last.items()
    # The run is done, and the weights of its step 6 are gone.
    with pytest.raises(UserError, match=r"protocol\.at=\[0\.5,1\].*past step 6 without"):
        run("train", *PLAIN, "protocol.at=[0.5,1]")


def test_the_weights_after_step_6_are_those_that_were_measured(trained, tmp_path, monkeypatch):
    """Stopped there, and evaluated by evaluate.py, they give the same numbers."""
    monkeypatch.chdir(tmp_path)
    stop_after(monkeypatch, 6, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit):
        run("train", *PLAIN)
    (folder,) = (tmp_path / "runs" / "default").iterdir()
    run("evaluate", f"run={folder}", PROTOCOLS)
    measured = {
        (r.length, r.protocol, r.unit, str(r.slice)): r.total
        for r in store.load(trained / "rows.jsonl")
        if r.checkpoint == f"{ALONG}6"
    }
    found = {(r.length, r.protocol, r.unit, str(r.slice)): r.total for r in store.load(folder / "rows.jsonl")}
    assert measured == pytest.approx(found, rel=1e-9)


def stop_after(monkeypatch, step: int, stop) -> None:
    """Stops the training behind what is done between a step and its checkpoint; once."""
    plain, done = fit.Pauses.on_train_batch_end, []

    def hook(self, trainer, *rest):
        plain(self, trainer, *rest)
        if trainer.global_step == step and not done:
            done.append(step)
            stop()

    monkeypatch.setattr(fit.Pauses, "on_train_batch_end", hook)


def killed() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["a signal", "killed before the checkpoint", "killed while measuring"])
def test_an_interrupted_training_measures_nothing_twice_and_leaves_nothing_out(trained, tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    overrides = [*PLAIN, "protocol.at=[0.25,0.5,1]", "trainer.checkpoint_every=4"]
    measured, plain = [], evaluation_run.evaluate_run

    def spied(cfg, task, model, step, label, *rest):
        measured.append(label)
        for row in plain(cfg, task, model, step, label, *rest):
            if how == "killed while measuring" and measured == [f"{ALONG}3", f"{ALONG}6"]:
                killed()
            yield row

    monkeypatch.setattr(evaluation_run, "evaluate_run", spied)
    if how != "killed while measuring":
        stop_after(monkeypatch, 6, killed if how[0] == "k" else lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        run("train", *overrides)
    (folder,) = (tmp_path / "runs" / "default").iterdir()
    run("train", *overrides)
    twice = [f"{ALONG}6"] * (how == "killed while measuring")
    assert measured == [f"{ALONG}3", f"{ALONG}6", *twice, "last@12"]
    assert labels(folder) == {f"{ALONG}3": 1, f"{ALONG}6": 1, "last@12": 1}
    assert all(torch.equal(value, weights(folder)[key]) for key, value in weights(trained).items())
    totals = [
        {r.key(): r.total for r in store.load(each / "rows.jsonl") if r.checkpoint == f"{ALONG}6"}
        for each in (folder, trained)
    ]
    assert totals[0] == totals[1]


def test_the_clock_of_the_training_stands_while_it_is_measured(monkeypatch):
    now = iter([100.0, 160.0])
    monkeypatch.setattr(fit.time, "perf_counter", lambda: next(now))

    class Recorder:
        clock = 90.0

    class Trainer:
        global_step, is_global_zero = 6, True

    worked = []
    pauses = fit.Pauses([6], worked.append, Recorder())
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    pauses.work = lambda step: worked.append((step, torch.rand(1)))
    pauses.on_train_batch_end(Trainer(), None, None, None, 0)
    assert worked[0][0] == 6 and pauses.recorder.clock == 150.0 and torch.equal(torch.rand(1), expected)
    Trainer.global_step = 7
    pauses.on_train_batch_end(Trainer(), None, None, None, 0)
    assert len(worked) == 1


def test_w_and_b_has_the_curves_of_the_end_alone(trained):
    rows = store.load(trained / "rows.jsonl")
    last = [row for row in rows if row.checkpoint == "last@12"]
    assert list(wandb.points([*last, *(row for row in rows if row not in last)])) == list(wandb.points(last))


# ---- faults ----------------------------------------------------------------------------------------------

CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: not enough memory: you tried to allocate 1e12"
ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), RuntimeError(CPU)]


@pytest.mark.parametrize("error", ERRORS, ids=["cuda", "python", "cpu"])
def test_out_of_memory_at_one_length_costs_that_cell_alone(error):
    class Hungry(Bigram):
        def hidden(self, ids, **options):
            if ids.shape[1] >= 12:
                raise error
            return super().hidden(ids, **options)

    ids = texts(Bigram(), 2, 24)
    expected = {(r.length, r.protocol, str(r.slice)): r for r in rows_of(Bigram(), ids, [12, 10])}
    found = {(r.length, r.protocol, str(r.slice)): r for r in rows_of(Hungry(), ids, [12, 10])}
    assert {key: row for key, row in found.items() if key[0] == 10} == {
        key: row for key, row in expected.items() if key[0] == 10
    }
    at_12 = [row for row in found.values() if row.length == 12]
    assert {(row.status, row.total, row.count) for row in at_12} == {("out of memory", None, 0)}
    assert {row.protocol for row in at_12} == {row.protocol for row in expected.values() if row.length == 12}


def test_another_error_is_not_taken_for_want_of_memory():
    def work():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        attempted(work)
    assert attempted(lambda: 3) == (3, "ok")


def test_answers_that_no_memory_is_left_for_and_answers_of_no_numbers():
    torch.manual_seed(0)
    task = Copy(examples=4)
    model = Transformer(DIMS, task.vocab, task.marks, [Nope(DIMS)])
    chosen = {"free_running": {}, "teacher_forced": {}}
    hidden = model.hidden

    def hungry(ids, **options):
        if options.get("cache") is None:  # teacher forcing feeds all at once
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return hidden(ids, **options)

    model.hidden = hungry
    rows = list(evaluate(model, task, [13], chosen, TRAINED, 13))
    assert {(r.protocol, r.status) for r in rows} == {("free_running", "ok"), ("teacher_forced", "out of memory")}
    model.hidden = hidden
    model.norm.weight.data[0] = math.nan
    rows = list(evaluate(model, task, [13], chosen, TRAINED, 13))
    assert {(r.protocol, r.status, r.total) for r in rows} == {(name, "not finite", None) for name in chosen}


SCHEME = '''
import torch
from posenc_train.positions.base import PositionScheme


class Fails(PositionScheme):
    """Out of memory, or NaN, from 64 tokens on."""

    def __init__(self, dims, how="memory"):
        super().__init__()
        self.how = how

    def embed(self, x, pos):
        if x.shape[1] < 60:
            return x
        if self.how == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return x * float("nan")
'''


@pytest.mark.parametrize("how, status", [("memory", "out of memory"), ("nan", "not finite")])
def test_a_run_with_a_hole_keeps_all_else_and_its_exit_code_tells(tmp_path, monkeypatch, capsys, how, status):
    """The rows of the other lengths, the checkpoint, the table; one line; code 1, of the same command again too. With
    memory, the same command measures what was missing."""
    (tmp_path / "fails.py").write_text(SCHEME)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fails", raising=False)
    monkeypatch.chdir(tmp_path)
    scheme = ["position=own", "position._target_=fails.Fails", f"+position.how={how}"]
    overrides = [*SMALL, *scheme, "factors=[1,4]"]
    capsys.readouterr()
    assert configuration._attempt(lambda: run("train", *overrides)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    (folder,) = (tmp_path / "runs" / "default").iterdir()
    assert line.startswith(f"error: {folder.name}: {status} at 64 tokens (") and "nonoverlapping" in line
    rows = [r for r in store.load(folder / "rows.jsonl") if r.metric == "nll"]
    assert {(r.length, r.status) for r in rows} == {(16, "ok"), (64, status)}
    assert (folder / "last.ckpt").exists() and status in (folder / "table.csv").read_text()
    with pytest.raises(Unmeasured):
        run("evaluate", f"run={folder}", "trust=true")
    monkeypatch.setattr(sys.modules["fails"].Fails, "embed", lambda self, x, pos: x)
    with pytest.raises(Unmeasured) if how == "nan" else contextlib.nullcontext():
        run("train", *overrides)  # what is not a number stays none: the weights are the same
    again = [r for r in store.load(folder / "rows.jsonl") if r.metric == "nll"]
    assert len(again) == len({r.key() for r in again})
    assert {r.status for r in again} == ({"ok"} if how == "memory" else {"ok", status})


# ---- memory ----------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that is made."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("scheme", [Rope, Alibi, Fire])
def test_memory_grows_no_faster_than_the_length(scheme):
    """The largest tensor at 1,024 tokens is at most that at 512 twice, one text or example at a time, however large the
    vocabulary: neither a matrix of queries and keys nor the logits of all positions."""
    dims = Dims(width=8, heads=2, head_width=4, layers=1, train_length=64)
    task = Copy(alphabet=2000, examples=1)
    largest = {}
    for n in (512, 1024):
        model = Transformer(dims, task.vocab, task.marks, [scheme(dims)])
        ids = np.random.default_rng(0).integers(V, size=(1, n + 1))
        text = Given(ids)
        chosen = {"nonoverlapping": {}, "sliding": {"stride": n // 2}, "masked_window": {"L": 64}}
        for what, asked, protocols in (("text", text, chosen), ("copy", task, {"teacher_forced": {}})):
            with Largest() as seen:
                list(evaluate(model, asked, [n], protocols, 64, n, tokens=n))
            largest[what, n] = seen.bytes
    for what in ("text", "copy"):
        assert largest[what, 1024] <= 2.1 * largest[what, 512], what
