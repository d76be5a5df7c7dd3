"""Verdicts on rows made by hand, whose effects, intervals and verdicts are known."""

import copy
import json
import math

import pandas as pd
import pytest
import yaml

from posenc_train import experiments
from posenc_train.checks import UserError
from posenc_train.config import compose, run_folder
from posenc_train.evaluation.rows import FIELDS, Row
from posenc_train.report import claims, store
from posenc_train.report.claims import judge

FLAT = {
    "say": "ALiBi is flat to 8x",
    "metric": "nll",
    "protocol": "same_targets",
    "left": {"scheme": "alibi", "length": "8x"},
    "right": {"scheme": "alibi", "length": "1x"},
    "within": 0.1,
}
T_TWO = 4.302652729749464  # Student's t, 2 degrees of freedom, 97.5 %


def row(scheme="alibi", length=128, seed=0, value=1.0, count=1000, **more):
    """One row as a record of store.read; value is the mean."""
    fields = {
        "study": "s", "cell": f"{scheme}-text-tiny-L128-s{seed}-{more.get('recipe', 'r')}", "scheme": scheme,
        "extension": "none", "sampling": "consecutive", "task": "text", "model": "tiny", "seed": seed,
        "train_length": 128, "length": length, "tokens_seen": 1000, "protocol": "same_targets(k=64)", "slice": {},
        "metric": "nll", "unit": "byte", "eval_hash": "e", "checkpoint": "last@10", "code": "c", "data": "d",
        "total": value * count if value is not None else None, "count": count if value is not None else 0,
    } | {key: value for key, value in more.items() if key in FIELDS}  # fmt: skip
    record = vars(Row(**fields)) | {"init": more.get("init", ""), "recipe": more.get("recipe", scheme)}
    return record | {"slice": json.dumps(record["slice"])}


def frame(rows):
    return pd.DataFrame.from_records(rows)


def pairs(effects, left=None, right=None):
    """1x and 8x of ALiBi whose difference is each seed's effect."""
    rows = []
    for seed, effect in enumerate(effects):
        rows += [row(length=1024, seed=seed, value=2.0 + seed + effect, **(left or {}))]
        rows += [row(length=128, seed=seed, value=2.0 + seed, **(right or {}))]
    return frame(rows)


def of(*claims):
    return {"grid": [], "then": None, "claims": list(claims)}


def bounded(bound, margin, **more):
    return {key: value for key, value in FLAT.items() if key != "within"} | {bound: margin} | more


# Verdicts


@pytest.mark.parametrize(
    "bound, margin, verdict",
    [
        # Effects 0.30, 0.32, 0.34: mean 0.32, sd 0.02, so 0.32 +- 4.303 x 0.02 / sqrt(3) = 0.32 +- 0.0497.
        ("above", 0.26, "holds"),
        ("above", 0.28, "undecided"),
        ("above", 0.36, "undecided"),
        ("above", 0.38, "does not hold"),
        ("below", 0.38, "holds"),
        ("below", 0.36, "undecided"),
        ("below", 0.26, "does not hold"),
        ("within", 0.38, "holds"),
        ("within", 0.36, "undecided"),
        ("within", 0.28, "undecided"),
        ("within", 0.26, "does not hold"),
    ],
)
def test_a_verdict_is_where_the_interval_lies(bound, margin, verdict):
    (found,) = judge(pairs([0.30, 0.32, 0.34]), of(bounded(bound, margin)))
    half = T_TWO * 0.02 / math.sqrt(3)
    assert found.interval == pytest.approx((0.32, 0.32 - half, 0.32 + half, 3))
    assert found.verdict == verdict and found.seeds == (0, 1, 2)
    assert found.effects == pytest.approx((0.30, 0.32, 0.34))
    assert (found.p < 0.025) == (verdict != "undecided")
    assert ("the interval holds" in found.reason) == (verdict == "undecided")


def test_negative_effects_lie_within_too():
    assert judge(pairs([-0.05, -0.06, -0.055]), of(FLAT))[0].verdict == "holds"
    assert judge(pairs([-0.5, -0.52, -0.51]), of(FLAT))[0].verdict == "does not hold"
    assert judge(pairs([-0.5, 0.5, 0.1]), of(FLAT))[0].verdict == "undecided"


def test_one_seed_is_always_undecided():
    (found,) = judge(pairs([0.0]), of(FLAT))
    assert (found.verdict, found.reason) == ("undecided", "one seed decides nothing")
    assert found.effects == (0.0,) and found.p is None and found.holm is None


def test_equal_effects_decide():
    """Exact match of 0 and of 1 for every seed: the interval has no width."""
    assert judge(pairs([0.0, 0.0]), of(FLAT))[0].verdict == "holds"
    assert judge(pairs([0.5, 0.5]), of(bounded("above", 0.5)))[0].verdict == "undecided"  # it touches


def test_only_seeds_of_both_sides_count():
    rows = pairs([0.30, 0.32, 0.34])
    rows = rows[~((rows["seed"] == 1) & (rows["length"] == 1024))]
    assert judge(rows, of(FLAT))[0].seeds == (0, 2)
    rows = frame([row(length=1024, seed=0), row(length=128, seed=1)])
    assert judge(rows, of(FLAT))[0].reason == "no seed has both sides"


def test_one_side_alone_is_compared_with_the_margin():
    rows = [row(metric="exact", unit="example", protocol="free_running", seed=s, value=1 - s / 100) for s in (0, 1, 2)]
    rows += [row(metric="token", protocol="free_running", seed=s, value=1.0) for s in (0, 1, 2)]
    almost = {"say": "almost perfect", "metric": "exact", "protocol": "free_running", "above": 0.9}
    (found,) = judge(frame(rows), of(almost | {"left": {"scheme": "alibi", "length": 128}}))
    assert found.verdict == "holds" and found.interval.mean == pytest.approx(0.99)


def test_several_lengths_are_taken_together():
    """Sums over counts: (1 x 100 + 4 x 300) / 400 = 3.25."""
    rows = [row(length=n, seed=s, value=v, count=c) for s in (0, 1) for n, v, c in ((178, 1.0, 100), (256, 4.0, 300))]
    several = bounded("above", 3.0, left={"scheme": "alibi", "length": ["L+50", "2x"]}, right=None)
    assert judge(frame(rows), of(several))[0].interval.mean == pytest.approx(3.25)
    missing = copy.deepcopy(several)
    missing["left"]["length"].append(1000)
    assert judge(frame(rows), of(missing))[0].reason.endswith("not run at 1000 (seed 0)")


# What cannot be compared is undecided, and says why


def copied(length, seed, accuracy):
    common = {"protocol": "free_running", "task": "copy", "eval_hash": str(length), "seed": seed, "length": length}
    whole = row(metric="token", unit="token", value=accuracy, slice={"size": length // 2}, **common)
    deep = row(metric="token", unit="token", value=1.0, slice={"size": length // 2, "depth": 1}, **common)
    return [whole, deep]


def test_a_failed_gate_is_undecided():
    claim = bounded("below", 0.5, metric="token", protocol="free_running")
    learned = [r for s in (0, 1) for n, v in ((128, 0.99), (1024, 0.1)) for r in copied(n, s, v)]
    (found,) = judge(frame(learned), of(claim))
    assert found.verdict == "holds" and found.effects == pytest.approx((-0.89, -0.89))  # of the whole, not of a depth
    failed = [r for s in (0, 1) for n, v in ((128, 0.99 - s / 10), (1024, 0.1)) for r in copied(n, s, v)]
    (found,) = judge(frame(failed), of(claim))
    assert found.verdict == "undecided" and "not learned at 1024 (seed 1)" in found.reason
    assert judge(frame(failed), of(claim), gate=0.8)[0].verdict == "holds"


@pytest.mark.parametrize("status", ["beyond reach", "not finite", "out of memory"])
def test_a_cell_without_a_number_is_undecided(status):
    rows = pairs([0.0, 0.0])
    rows = pd.concat([rows, frame([row("learned", 1024, s, None, status=status) for s in (0, 1)])])
    claim = bounded("above", 0, left={"scheme": "learned", "length": "8x"})
    assert f"learned at 8x: {status} at 1024 (seed 0)" in judge(rows, of(claim))[0].reason


def test_what_was_not_run_is_undecided():
    claim = bounded("above", 0, left={"scheme": "t5", "length": "8x"})
    assert judge(pairs([0.0, 0.0]), of(claim))[0].reason == "t5 at 8x: not run"
    of_another = {"scheme": "alibi", "length": "8x", "train_length": 64}
    assert "not run" in judge(pairs([0.0, 0.0]), of(bounded("above", 0, left=of_another)))[0].reason


@pytest.mark.parametrize(
    "more, words",
    [
        ({"code": "other"}, "rows of different code"),
        ({"data": "other"}, "rows of different data"),
        ({"recipe": "other"}, "of several recipes, alibi, other: name one"),
        ({"model": "base"}, "of several models, base, tiny: name one"),
        ({"protocol": "same_targets(k=32)"}, "of several protocols"),
    ],
)
def test_seeds_of_different_kinds_are_not_averaged(more, words):
    rows = pd.concat([pairs([0.0, 0.0]), frame([row(length=1024, seed=2, **more), row(seed=2, **more)])])
    found = judge(rows, of(FLAT))[0]
    assert found.verdict == "undecided" and words in found.reason


def test_sides_of_different_documents_are_not_compared():
    found = judge(pairs([0.0, 0.0], left={"eval_hash": "other"}), of(FLAT))[0]
    assert found.reason == "its sides have different evaluation data"
    found = judge(pairs([0.0, 0.0], left={"data": "other"}), of(FLAT))[0]
    assert found.reason == "its sides have different training data"
    found = judge(pairs([0.0, 0.0], left={"model": "base"}), of(FLAT))[0]
    assert found.reason == "its sides have different models, base and tiny"
    sides = {"left": FLAT["left"] | {"model": "base"}, "right": FLAT["right"] | {"model": "tiny"}}
    assert judge(pairs([0.0, 0.0], left={"model": "base"}), of(FLAT | sides))[0].verdict == "holds"  # as it was asked


def test_code_may_differ_by_what_is_a_schemes_own():
    apart = {"left": {"code": "1a-2b"}, "right": {"code": "1a-3c"}}
    assert judge(pairs([0.0, 0.0], **apart), of(FLAT))[0].verdict == "holds"
    apart["right"] = {"code": "9f-2b"}
    assert "of different code" in judge(pairs([0.0, 0.0], **apart), of(FLAT))[0].reason


def test_seeds_of_a_second_act_start_from_different_runs():
    rows = [
        row("nope", n, s, 2.0 + value, init=f"rope-text-tiny-L128-s{s}-{s}a2b3c4d", recipe="i")
        for s, value in enumerate((0.1, 0.2, 0.3))
        for n, value in ((1024, value), (128, 0.0))
    ]
    side = {"scheme": "nope", "init": "rope*"}
    claim = bounded("above", -0.1, left=side | {"length": "8x"}, right=side | {"length": "1x"})
    (found,) = judge(frame(rows), of(claim))
    assert found.verdict == "holds" and found.effects == pytest.approx((0.1, 0.2, 0.3))
    rows += [row("nope", n, 0, init="rope-text-tiny-L128-s0-ffffffff", recipe="j") for n in (128, 1024)]
    assert "of several recipes, i, j" in judge(frame(rows), of(claim))[0].reason


def test_losses_that_are_known_by_words_alone():
    words = {"unit": "word"}
    assert judge(pairs([0.0, 0.0], left=words, right=words), of(FLAT))[0].verdict == "holds"
    rows = pairs([0.0, 0.0], left=words, right=words)
    assert "not measured per byte" in judge(rows, of(FLAT | {"unit": "byte"}))[0].reason


def test_names_tell_rows_apart():
    """Without extension and init the plain rows are meant; a pattern finds the others; parts are never meant."""
    rows = [
        *(row(length=1024, seed=s, value=3.0, extension="pi(scale=8)") for s in (0, 1)),
        *(row(length=1024, seed=s, value=4.0, init="rope-text-tiny-L128-s0-1a2b3c4d", recipe="i") for s in (0, 1)),
        *(row(length=1024, seed=s, value=9.0, slice={"depth": 3}) for s in (0, 1)),
    ]
    rows = pd.concat([pairs([0.0, 0.0]), frame(rows)])
    sides = {
        "plain": {"scheme": "alibi"},
        "extended": {"scheme": "ali*", "extension": "pi*"},
        "from another": {"scheme": "alibi", "init": "rope*"},
    }
    sides = [bounded("above", 0, say=say, left=side | {"length": 1024}) for say, side in sides.items()]
    assert [found.effects for found in judge(rows, of(*sides))] == [(0.0, 0.0), (1.0, 0.0), (2.0, 1.0)]


def test_evaluated_again_the_last_row_counts():
    rows = pd.concat([pairs([5.0, 5.0]), pairs([0.0, 0.0], left={"code": "new"}, right={"code": "new"})])
    assert judge(rows, of(FLAT))[0].effects == (0.0, 0.0)


# Holm


def test_holm_is_over_the_claims_that_have_a_p():
    """p of effects 0.30, 0.32, 0.34 above m, with t = (0.32 - m) / (0.02 / sqrt(3)): 1/2 - t / (2 sqrt(2 + t^2))."""

    def p(m):
        t = (0.32 - m) * math.sqrt(3) / 0.02
        return 0.5 - t / (2 * math.sqrt(2 + t * t))

    run = of(bounded("above", 0.0), bounded("above", 0.265), bounded("above", 0.26), bounded("above", 0, left={
        "scheme": "t5", "length": "8x"}))  # fmt: skip
    found = judge(pairs([0.30, 0.32, 0.34]), run)
    assert [v.p for v in found[:3]] == pytest.approx([p(0.0), p(0.265), p(0.26)]) and found[3].holm is None
    assert [v.holm for v in found[:3]] == pytest.approx([3 * p(0), 2 * p(0.26), 2 * p(0.26)])
    assert [v.verdict for v in found] == ["holds", "holds", "holds", "undecided"]
    assert [v.corrected for v in found] == [True, False, False, False]


# What is printed


def everything():
    rows = pairs([0.30, 0.32, 0.34])
    said = of(
        bounded("above", 0.0, say="a | hostile <b>*name*</b>"),
        bounded("above", 0.265, say="after " + "very " * 20 + "long"),
        bounded("above", 0.375),  # as far on the other side: p of both is 0.0207, and twice that after Holm
        bounded("above", 0, left={"scheme": "t5", "length": "8x", "extension": "none"}),
    )
    return judge(rows, said)


def test_text_fits_80_columns_and_says_all():
    text = claims.text(everything())
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert words.startswith("4 claims: 2 hold, 1 does not hold, 1 undecided")
    assert "holds* after very very" in words and "does not hold* ALiBi is flat to 8x" in words
    assert "+0.3200 [0.2703, 0.3697] nats" in words and "t5 + none at 8x: not run" in words
    assert "nll of alibi at 8x less alibi at 1x, same_targets" in words and "seeds 0, 1, 2" in words
    assert "*: not after Holm's correction for 3 claims" in words
    assert "seed 0" in claims.text(judge(pairs([0.0]), of(FLAT)))
    assert claims.text([]) == "0 claims: 0 hold, 0 do not hold, 0 undecided\n"


def test_markdown_is_escaped():
    lines = claims.markdown(everything()).splitlines()
    (hostile,) = [line for line in lines if "hostile" in line]
    assert "<b>" not in hostile and "a \\| hostile" in hostile
    assert len({line.replace("\\|", "").count("|") for line in lines if line.startswith("|")}) == 1


def test_csv_has_every_number():
    from io import StringIO

    table = pd.read_csv(StringIO(claims.csv(everything())))
    assert list(table["verdict"]) == ["holds", "holds", "does not hold", "undecided"]
    assert list(map(float, table["effects"][0].split())) == pytest.approx([0.30, 0.32, 0.34])
    assert table["low"][0] == pytest.approx(0.32 - T_TWO * 0.02 / math.sqrt(3)) and pd.isna(table["effect"][3])


# Claims that cannot be right are refused


@pytest.mark.parametrize(
    "change, words",
    [
        ({"metric": "nil"}, r"claims\[0\].metric=nil: no such metric; choose one of nll"),
        ({"protocol": "sametargets"}, r"claims\[0\].protocol=sametargets: no such protocol; choose one of non"),
        ({"within": "0.1"}, r"claims\[0\].within=0.1: must be a number above 0"),
        ({"within": 0}, r"claims\[0\].within=0: must be a number above 0"),
        ({"above": 1}, r"claims\[0\]: has above and within; give one of above, below, within"),
        ({"lefft": {}}, r"claims\[0\].lefft: no such key; did you mean left\?"),
        ({"say": ""}, r"claims\[0\].say='': must be a sentence"),
        ({"left": {"length": "8x"}}, r"claims\[0\].left.scheme: is missing"),
        ({"left": {"scheme": "alibbi", "length": 1}}, r"claims\[0\].left.scheme=alibbi: no such scheme; did you mean"),
        ({"left": {"scheme": "alibi", "length": "8"}}, None),
        (
            {"left": {"scheme": "alibi", "length": "8y"}},
            r"left.length=8y: must be tokens, .*; such as 562, 8x or L\+50",
        ),
        ({"left": {"scheme": "alibi", "length": []}}, r"left.length=null: must be tokens"),
        ({"left": {"scheme": "alibi", "length": 1, "lenght": 2}}, r"left.lenght: no such key; did you mean length\?"),
        (
            {"left": {"scheme": "alibi", "length": 1, "extension": "yran"}},
            r"left.extension=yran: no such extension; did",
        ),
        (
            {"left": {"scheme": "alibi", "length": 1, "task": "cpoy"}},
            r"left.task=cpoy: no such task; did you mean copy",
        ),
        ({"left": {"scheme": "alibi", "length": 1, "train_length": 0}}, r"left.train_length=0: must be an integer"),
        ({"left": "alibi"}, r"claims\[0\].left=alibi: must select rows"),
        ({"left": {"scheme": "mine", "length": 1}}, None),  # the grid has it
        ({"left": {"scheme": "rope under pi(scale=4.0)", "length": 1}}, None),
        ({"left": {"scheme": "al*", "length": 1}}, None),
    ],
)
def test_a_wrong_claim_is_refused_by_experiment_and_place(change, words):
    experiment = of(FLAT | change) | {"published": None, "source": "ours; no numbers published"}
    experiment["grid"] = {"smoke": ["position=mine,rope"]}
    if words is None:
        experiments.check(experiment, "mine")
    else:
        with pytest.raises(UserError, match=rf"^experiment=mine: .*{words}"):
            experiments.check(experiment, "mine")


# Runs that start from others


def test_seeds_of_a_second_act_are_one_recipe(tmp_path, monkeypatch):
    """Its start is another folder for every seed, and what it says of itself is not: what is trained there is."""
    monkeypatch.chdir(tmp_path)

    def written(*overrides):
        cfg = compose("train", ["model=nano", *overrides])
        store.write_whole(run_folder(cfg) / "config.yaml", yaml.safe_dump(cfg).encode())
        line = {key: value for key, value in row(seed=cfg["seed"]).items() if key in FIELDS} | {"slice": {}}
        store.append(run_folder(cfg) / "rows.jsonl", [Row(**line | {"cell": run_folder(cfg).name})])
        return run_folder(cfg)

    for seed in (0, 1):
        for steps in (4, 5):
            start = written("position=rope", f"seed={seed}", f"optim.steps={steps}")
            written("position=nope", f"seed={seed}", f"init={start}")
    read = store.read("runs/default")
    second = read[read["init"] != ""]
    assert len(second) == 4 and set(second["init"]) == set(read[read["init"] == ""]["cell"])
    assert second.groupby("recipe")["seed"].agg(sorted).tolist() == [[0, 1], [0, 1]]
    moved = tmp_path / "copy"
    (tmp_path / "runs" / "default").rename(moved)
    assert sorted(store.read(moved)["recipe"]) == sorted(read["recipe"])
