"""Which positions the tokens of a row are given: what each sampling promises, in training and at evaluation."""

import itertools
import json
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from running import NANO, run

from posenc_train.build import build_model, build_sampling, construct
from posenc_train.checks import check, choices
from posenc_train.config import UserError, cell_name, compose, label, run_folder
from posenc_train.evaluation.evaluate import evaluate
from posenc_train.model.transformer import Transformer
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.learned import Learned
from posenc_train.positions.nope import Nope
from posenc_train.positions.rope import Rope
from posenc_train.positions.sampling import Consecutive, Pose, Randomized, Sampling, Shifted
from posenc_train.positions.sinusoidal import Sinusoidal
from posenc_train.positions.t5 import T5
from posenc_train.tasks.base import Batch, Task
from posenc_train.tasks.copy import Copy
from posenc_train.training.module import Training

DRAWING = [Shifted, Randomized, Pose]
DIMS = Dims(width=16, heads=2, head_width=8, layers=2, train_length=16)
PROTOCOLS = {"nonoverlapping": {}, "same_targets": {"k": 8}, "per_position": {}, "free_running": {}}


def model_of(scheme, vocab=32, marks=0, **settings):
    torch.manual_seed(0)
    return Transformer(DIMS, vocab, marks, [scheme(DIMS, **settings)]).eval()


def of_rows(sampling, rows, length, seed=0, step=0):
    """One line of positions a row, whether or not they are all the same."""
    pos = sampling(rows, length, seed, step)
    pos = torch.arange(length) if pos is None else pos
    return pos.expand(len(rows), length)


# ---------------------------------------------------------------- what is drawn


@pytest.mark.parametrize(
    "sampling", [Consecutive(), Shifted(50), Randomized(50), Pose(50)], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("length", [1, 2, 17, 49, 50])
def test_positions_are_in_order_distinct_and_below_longest(sampling, length):
    for step in range(20):
        pos = of_rows(sampling, range(3, 9), length, step=step)
        assert pos.dtype == torch.int64 and pos.min() >= 0 and pos.max() < 50
        assert (pos.diff(dim=1) > 0).all()


@pytest.mark.parametrize("cls", DRAWING)
def test_as_many_positions_as_tokens_are_consecutive_ones(cls):
    for length in (1, 2, 40):
        assert torch.equal(of_rows(cls(length), range(4), length), torch.arange(length).expand(4, -1))


@pytest.mark.parametrize("cls", DRAWING)
def test_a_row_longer_than_the_positions_is_refused(cls):
    with pytest.raises(ValueError, match=r"^sampling\.longest=8: must be at least the 9 tokens of a row; "):
        cls(8)(range(2), 9, 0, 0)


@pytest.mark.parametrize("cls", DRAWING)
def test_a_row_is_a_function_of_its_number_the_seed_and_the_step(cls):
    """Any division of a batch is the same batch, whatever was asked for before and whatever torch's generator holds."""
    whole = of_rows(cls(2048), range(12), 40, seed=3, step=7)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    parts = [of_rows(cls(2048), rows, 40, seed=3, step=7) for rows in (range(8, 12), range(0, 1), range(1, 8))]
    assert torch.equal(torch.cat([parts[1], parts[2], parts[0]]), whole)
    assert torch.equal(torch.get_rng_state(), state)
    others = [of_rows(cls(2048), range(12), 40, seed, step) for seed, step in ((3, 8), (4, 7), (7, 3), (37, 7))]
    assert all(not torch.equal(one, other) for one, other in itertools.combinations([whole, *others], 2))
    assert len({tuple(row) for row in whole.tolist()}) == (1 if cls is Randomized else 12)


def test_shifts_are_uniform_and_include_both_ends():
    begins = Counter(of_rows(Shifted(20), range(8000), 16)[:, 0].tolist())
    assert sorted(begins) == [0, 1, 2, 3, 4]
    assert chi_squared(begins.values()) < 18.5  # 4 degrees of freedom: above it once in a thousand
    pos = of_rows(Shifted(20), range(8), 16)
    assert torch.equal(pos, pos[:, :1] + torch.arange(16))


def chi_squared(counts):
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


@pytest.mark.verifies("randomized", "mean gap (longest + 1) / (n + 1) = 49.976, arXiv 2305.16843")
def test_the_mean_gap_of_randomized_positions():
    """All n-subsets being equally likely, the k-th smallest is (k + 1) (longest + 1) / (n + 1) - 1 on average."""
    pos = torch.stack([Randomized(2048)(range(1), 40, 0, step) for step in range(1500)]).double()
    assert float(pos.diff(dim=1).mean()) == pytest.approx(49.976, abs=0.2)
    expected = torch.arange(1, 41) * 2049 / 41 - 1
    assert (pos.mean(0) - expected).abs().max() < 4 * 324 / 1500**0.5  # the middle one's deviation is 324


def test_all_subsets_are_equally_likely():
    seen = Counter(tuple(Randomized(5)(range(1), 3, 0, step).tolist()) for step in range(3000))
    assert set(seen) == set(itertools.combinations(range(5), 3))
    assert chi_squared(seen.values()) < 27.9  # 9 degrees of freedom: above it once in a thousand


@pytest.mark.verifies("pose", "no jump with probability 1 / (longest - n + 1), arXiv 2309.10400")
@pytest.mark.parametrize("length, longest", [(9, 12), (10, 13), (8, 11)])
def test_pose_jumps_once_or_not_at_all(length, longest):
    """The first chunk has 1 … (n + 1) // 2 tokens, the jump is 0 … longest - n more than a step: all equally likely."""
    rows = 6000
    jumps = of_rows(Pose(longest), range(rows), length).diff(dim=1) - 1
    assert (of_rows(Pose(longest), range(rows), length)[:, 0] == 0).all()
    assert ((jumps > 0).sum(1) <= 1).all()
    gaps = Counter(jumps.sum(1).tolist())
    assert sorted(gaps) == list(range(longest - length + 1))
    p = 1 / (longest - length + 1)
    assert abs(gaps[0] - rows * p) < 4 * math.sqrt(rows * p * (1 - p))
    firsts = Counter((jumps[jumps.sum(1) > 0].argmax(1) + 1).tolist())
    assert sorted(firsts) == list(range(1, (length + 1) // 2 + 1))
    assert chi_squared(gaps.values()) < 16.3 and chi_squared(firsts.values()) < 18.5  # once in a thousand
    pairs = Counter((int(jump.max()), int(jump.argmax())) for jump in jumps[jumps.sum(1) > 0])
    assert len(pairs) == (longest - length) * ((length + 1) // 2) and chi_squared(pairs.values()) < 36  # independent


# ---------------------------------------------------------------- in a model, in training


@pytest.mark.parametrize("scheme", [Nope, Rope, Alibi, T5, Sinusoidal])
def test_a_shift_is_nothing_to_a_scheme_of_distances(scheme):
    model, ids = model_of(scheme), torch.randint(0, 32, (4, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain, shifted = model(ids), model(ids, pos=Shifted(256)(range(4), 16, 0, 0))
    assert torch.allclose(plain, shifted, atol=1e-4) == (scheme is not Sinusoidal)


def test_queries_and_keys_have_the_same_draw():
    """Each layer, each row; and what attention then makes of it is the formula's: -slope (i_a - i_b)."""
    spans = []

    class Spy(Alibi):
        def rotate(self, q, k, span):
            spans.append(span)
            return q, k

    pos = Randomized(64)(range(3), 16, 0, 0)
    model_of(Spy)(torch.zeros(3, 16, dtype=torch.int64), pos=pos)
    assert len(spans) == DIMS.layers
    for span in spans:
        assert torch.equal(span.q_pos, pos) and torch.equal(span.k_pos, pos) and not span.consecutive
        assert torch.equal(span.distance(), pos[:, None] - pos[None, :])


@pytest.mark.parametrize("cls", [Consecutive, *DRAWING])
def test_a_batch_divided_among_devices_is_the_same_batch(cls):
    """The loss of a training step over all rows is the mean of two devices' losses on half of the rows."""
    model, sampling = model_of(Sinusoidal), cls() if cls is Consecutive else cls(64)
    ids = torch.randint(0, 32, (6, 17), generator=torch.Generator().manual_seed(2))

    def loss(rank, rows):
        trainer = SimpleNamespace(
            global_rank=rank, global_step=5, strategy=SimpleNamespace(reduce=lambda value, reduce_op: value)
        )
        module = SimpleNamespace(model=model, sampling=sampling, config={"seed": 1}, trainer=trainer, memory=None)
        return Training.training_step(module, Batch(ids[rows, :-1], ids[rows, 1:]), 0).item()

    whole, halves = loss(0, slice(0, 6)), [loss(0, slice(0, 3)), loss(1, slice(3, 6))]
    assert whole == pytest.approx(sum(halves) / 2, rel=1e-6)
    if cls in (Shifted, Pose):
        assert whole != pytest.approx((halves[0] + loss(0, slice(3, 6))) / 2, rel=1e-6)  # as if rank 1 were rank 0
    with torch.no_grad():
        expected = model(ids[:, :-1], pos=sampling(range(6), 16, 1, 5)).flatten(0, 1)
    assert whole == pytest.approx(torch.nn.functional.cross_entropy(expected, ids[:, 1:].flatten()).item(), rel=1e-6)


# ---------------------------------------------------------------- at evaluation


class Windows(Task):
    """A task of given windows of ids."""

    protocols = ("nonoverlapping", "same_targets", "per_position")
    unit, begin, vocab = "byte", None, 32

    def __init__(self, count=3, longest=40):
        self.ids = np.random.default_rng(0).integers(0, 32, (count, longest + 1)).astype(np.uint8)

    def windows(self, longest):
        return self.ids


class Given(Sampling):
    """Positions that a test names, one row a draw."""

    def __init__(self, *rows):
        self.rows, self.draws = rows, len(rows)

    def at_evaluation(self, length, draw):
        return self.rows[draw]


def rows_under(model, task, length, sampling, **options):
    return list(evaluate(model, task, [length], PROTOCOLS, 16, 40, sampling=sampling, **options))


def test_only_randomized_positions_are_drawn_at_evaluation():
    for sampling in (Consecutive(), Shifted(16), Pose(16)):
        assert sampling.draws == 1 and sampling.at_evaluation(64, 0) is None
    draws = [Randomized(256, draws=3).at_evaluation(64, draw) for draw in range(3)]
    assert all(len(pos) == 64 and (pos.diff() > 0).all() and pos.max() < 256 for pos in draws)
    assert len({tuple(pos.tolist()) for pos in draws}) == 3
    assert all(torch.equal(pos, Randomized(256).at_evaluation(64, draw)) for draw, pos in enumerate(draws))
    assert not set(Randomized(256).at_evaluation(32, 0).tolist()) <= set(draws[0].tolist())  # a draw of its own
    with pytest.raises(ValueError, match=r"sampling\.longest=256: must be at least the 257 tokens"):
        Randomized(256).at_evaluation(257, 0)


@pytest.mark.parametrize("tokens", [1, 4096])
def test_losses_are_means_over_the_draws_by_brute_force(tokens):
    """Window by window through the model's plain forward, under every draw; sums and counts of every protocol."""
    model, task, sampling = model_of(Rope), Windows(), Randomized(128, draws=3)
    loss = np.zeros((3, 3, 2, 16))  # draw, window, piece
    for draw, window, piece in np.ndindex(3, 3, 2):
        first = 40 - (2 - piece) * 16
        ids = torch.from_numpy(task.ids[window, first : first + 17].astype(np.int64))
        with torch.no_grad():
            log_p = model(ids[None, :-1], pos=sampling.at_evaluation(16, draw))[0].double().log_softmax(-1)
        loss[draw, window, piece] = -log_p[torch.arange(16), ids[1:]].numpy()
    assert loss.sum((1, 2, 3)).std() > 0.1  # else any draw would do
    found = {(r.protocol, str(r.slice)): r for r in rows_under(model, task, 16, sampling, tokens=tokens)}
    assert len(found) == 2 + 16
    for key, part in {
        ("nonoverlapping", "{}"): loss,
        ("same_targets(k=8)", "{}"): loss[:, :, -1, -8:],
        ("per_position", "{'position': [3, 3]}"): loss[..., 3],
    }.items():
        assert found[key].total == pytest.approx(part.sum() / 3, rel=1e-6)
        assert found[key].count == part[0].size


def test_generated_answers_are_marked_under_every_draw_by_brute_force():
    """Fed back by hand without a cache, under a position row of prompt and answer together."""
    task, sampling = Copy(alphabet=8, examples=60), Randomized(64, draws=4)
    model = build_model(compose("train", ["model=nano", "task=copy", "seed=3"]), task).eval()
    for block in model.blocks:
        block.out.weight.data *= 5  # else it says what it heard last, wherever that stood
    examples, totals = task.examples(11), {"exact": [], "token": [], "stops": []}
    for draw in range(4):
        pos, text = sampling.at_evaluation(11, draw), examples.ids[:, :6]  # 4 letters, and a separator on each side
        with torch.no_grad():
            for _ in range(5):
                text = torch.cat([text, model(text, pos=pos[: text.shape[1]])[:, -1:].argmax(-1)], dim=1)
        letters = exact = stops = 0
        for answer, wanted in zip(text[:, 6:].tolist(), examples.ids[:, 6:].tolist(), strict=True):
            end = answer.index(task.end) if task.end in answer else 5
            right = [i < end and answer[i] == wanted[i] for i in range(4)]
            letters, exact, stops = letters + sum(right), exact + all(right), stops + (end == 4)
        for metric, total in {"exact": exact, "token": letters, "stops": stops}.items():
            totals[metric].append(total)
    assert len(set(totals["token"])) > 1  # else any draw would do
    rows = {r.metric: r for r in rows_under(model, task, 11, sampling)}
    assert {metric: r.total for metric, r in rows.items()} == {m: sum(t) / 4 for m, t in totals.items()}
    count = len(examples.ids)
    assert {metric: r.count for metric, r in rows.items()} == {"exact": count, "token": 4 * count, "stops": count}


def test_prompt_and_answer_have_one_draw():
    """Every call of a generation goes on in the positions where the one before ended."""
    task, sampling, fed = Copy(examples=4), Randomized(500, draws=2), []
    model = model_of(Nope, task.vocab, task.marks)
    hidden = model.hidden
    model.hidden = lambda ids, pos, **options: fed.append(pos) or hidden(ids, pos=pos, **options)
    rows_under(model, task, 13, sampling, tokens=10**6)
    assert [len(pos) for pos in fed] == [7, 1, 1, 1, 1, 1] * 2
    for draw in range(2):
        used = torch.cat(fed[6 * draw : 6 * draw + 6])
        assert torch.equal(used, sampling.at_evaluation(13, draw)[:12])


@pytest.mark.parametrize("length", range(5, 40))
def test_prompt_and_answer_fit_the_positions_of_a_length(length):
    examples = Copy(examples=1).examples(length)
    assert examples.ids.shape[1] <= length


def test_a_draw_that_is_not_finite_leaves_no_number():
    class Fragile(PositionScheme):
        def __init__(self, dims):
            super().__init__()

        def embed(self, x, pos):
            return x / (pos != 99).float().mean().floor()  # 0 where one is 99

    model, good, bad = model_of(Fragile), torch.arange(16), torch.cat([torch.arange(15), torch.tensor([99])])
    assert {r.status for r in rows_under(model, Windows(), 16, Given(good, good + 1))} == {"ok"}
    rows = rows_under(model, Windows(), 16, Given(good, bad))
    assert {(r.status, r.total, r.count) for r in rows if r.protocol != "per_position"} == {("not finite", None, 0)}


@pytest.mark.parametrize("task, length", [(Windows(), 16), (Copy(examples=2), 15)], ids=["text", "copy"])
def test_reach_is_that_of_the_largest_position(task, length):
    """A table of 32 rows holds 16 tokens, and not at position 32."""
    model = model_of(Learned, 32, 1, reach=32)
    fits, beyond = torch.arange(length) + 32 - length, torch.arange(length) + 33 - length
    assert {r.status for r in rows_under(model, task, length, Given(fits))} == {"ok"}
    assert {r.status for r in rows_under(model, task, length, None)} == {"ok"}
    for draws in ([beyond], [fits, beyond]):
        rows = rows_under(model, task, length, Given(*draws))
        assert {(r.status, r.total, r.count) for r in rows} == {("beyond reach", None, 0)}


# ---------------------------------------------------------------- configuration


def composed(*overrides):
    return compose("train", list(overrides))


def test_every_sampling_has_a_file_and_a_label():
    assert choices("sampling") == ["consecutive", "pose", "randomized", "shifted"]
    assert [label(composed(f"sampling={name}"), "sampling") for name in choices("sampling")] == choices("sampling")
    assert label(composed("sampling=randomized", "sampling.draws=8"), "sampling") == "randomized(draws=8)"
    assert label(composed("sampling=pose", "sampling.longest=512"), "sampling") == "pose(longest=512)"
    for name in choices("sampling"):
        assert isinstance(build_sampling(composed(f"sampling={name}")), Sampling)


def test_draws_change_no_weight_and_the_longest_position_does():
    cells = {
        line: cell_name(composed("sampling=randomized", *line.split()))
        for line in ("", "sampling.draws=8", "sampling.longest=4096")
    }
    assert cells[""] == cells["sampling.draws=8"] != cells["sampling.longest=4096"]
    assert len({cell_name(composed(f"sampling={name}")) for name in choices("sampling")}) == 4


@pytest.mark.parametrize(
    "line, message",
    [
        ("sampling=shifted sampling.longest=127", "sampling.longest=127: must be at least train_length=128"),
        ("sampling=pose sampling.longest=64", "sampling.longest=64: must be at least train_length=128"),
        ("sampling=randomized sampling.longest=512", "sampling.longest=512: must be at least the longest evaluation"),
        ("sampling=randomized lengths=[4096]", "sampling.longest=2048: must be at least the longest evaluation length"),
        ("sampling=randomized sampling.longest=0", "sampling.longest=0: must be an integer of at least 1"),
        ("sampling=randomized sampling.draws=0", "sampling.draws=0: must be an integer of at least 1"),
        ("sampling=shifted sampling.longest=2e3", "sampling.longest=2000.0: must be an integer"),
        *(
            (f"position=learned sampling={name} {reach}", f"position.reach={shown}: must be at least sampling.longest")
            for name in ("shifted", "randomized", "pose")
            for reach, shown in (("", "null"), ("position.reach=2047", "2047"))
        ),
    ],
)  # fmt: skip
def test_positions_that_cannot_be_are_refused_before_anything_is_built(line, message):
    with pytest.raises(UserError) as refusal:
        check(composed(*line.split()))
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    "line",
    [
        "sampling=shifted sampling.longest=128",
        "sampling=pose lengths=[4096]",
        "sampling=randomized sampling.longest=1024",
        "position=learned sampling=randomized position.reach=2048",
        "position=learned sampling=randomized position.beyond=clamp",
        "position=learned sampling=pose sampling.longest=128",
    ],
)
def test_positions_that_can_be_are_not_refused(line):
    check(composed(*line.split()))


# ---------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    here = tmp_path_factory.mktemp("samplings")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for sampling in ("shifted", "randomized", "pose"):
            run("train", *words(sampling))
        yield here


def words(sampling, *more):
    few = ["factors=[1,4]", "protocol=[nonoverlapping,same_targets]", "logger=none", "study=s"]
    return [*NANO, *few, "position=rope", f"sampling={sampling}", *more]


def rows_of(sampling, *more):
    folder = run_folder(composed(*words(sampling, *more)))
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_rows_say_the_sampling(trained, monkeypatch):
    monkeypatch.chdir(trained)
    for sampling in ("shifted", "randomized", "pose"):
        rows = rows_of(sampling)
        assert {row["sampling"] for row in rows} == {sampling} and {row["status"] for row in rows} == {"ok"}
        assert {row["length"] for row in rows if row["metric"] == "nll"} == {16, 64}


def test_the_mean_over_draws_is_that_of_separate_evaluations(trained, monkeypatch):
    """Of the trained run's own rows: the same model evaluated once under each single draw."""
    monkeypatch.chdir(trained)
    cfg = composed(*words("randomized"))
    task = construct("task", cfg["task"])
    model = build_model(cfg, task)
    saved = torch.load(run_folder(cfg) / "last.ckpt", weights_only=True)["state_dict"]
    model.load_state_dict({key.removeprefix("model."): value for key, value in saved.items()})
    sampling, protocols = build_sampling(cfg), {"nonoverlapping": {}, "same_targets": {"k": None}}
    found = {(r["length"], r["protocol"]): r for r in rows_of("randomized") if r["metric"] == "nll"}
    for length in (16, 64):
        alone = [
            {
                (r.length, r.protocol): r
                for r in evaluate(
                    model, task, [length], protocols, 16, 128, sampling=Given(sampling.at_evaluation(length, draw))
                )
            }
            for draw in range(sampling.draws)
        ]
        for key in alone[0]:
            assert found[key]["total"] == pytest.approx(np.mean([rows[key].total for rows in alone]), rel=1e-9)
            assert {rows[key].count for rows in alone} == {found[key]["count"]}


def test_another_number_of_draws_evaluates_the_same_weights_again(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    folder = run_folder(composed(*words("randomized")))
    before = (folder / "last.ckpt").read_bytes()
    run("train", *words("randomized", "sampling.draws=2"))
    assert (folder / "last.ckpt").read_bytes() == before
    rows = [row for row in rows_of("randomized") if row["metric"] == "nll"]
    kept = {s: [r for r in rows if r["sampling"] == s] for s in ("randomized", "randomized(draws=2)")}
    assert len(kept["randomized"]) == len(kept["randomized(draws=2)"]) == len(rows) / 2
    assert all(a["total"] != b["total"] and a["count"] == b["count"] for a, b in zip(*kept.values(), strict=True))
    capsys.readouterr()
    for more in ((), ("sampling.draws=2",)):
        run("train", *words("randomized", *more))
        assert "nothing is trained again" in capsys.readouterr().out


def test_evaluation_is_drawn_apart_from_training():
    """Else the draw of a length and number would be that of a training step with this seed and step."""
    sampling = Randomized(longest=500)
    assert not any(
        torch.equal(sampling.at_evaluation(40, draw), sampling(range(1), 40, seed, step))
        for draw in range(4)
        for seed, step in ((40, draw), (draw, 40), (0, draw))
    )
