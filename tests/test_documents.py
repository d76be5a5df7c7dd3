"""Sums of nll by document: they are those of the rows, to the last bit; what is resampled from them; and that no moment
at which a process dies leaves rows without them, half of them, or two of them."""

import csv
import itertools
import json
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from running import NANO, run
from test_protocols import MODELS, SETTINGS, TRAINED, Given, counted, texts
from test_report import row

import posenc_train.report
from posenc_train.build import build_task
from posenc_train.config import UserError, longest, run_folder
from posenc_train.evaluation.evaluate import evaluate
from posenc_train.evaluation.measurement import Documents
from posenc_train.report import statistics, store

WHOLE = ("nonoverlapping", "same_targets", "sliding", "masked_window", "window")


class OfThree(Given):
    """Five texts, of the documents 7, 2, 7, 2 and 4."""

    def documents(self, longest: int) -> np.ndarray:
        return np.array([7, 2, 7, 2, 4])


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{type(m).__name__}{m.w or ''}")
def test_a_sum_by_document_is_that_of_its_targets(model):
    """Of models whose loss is known, target by target of windows made one by one."""
    ids = texts(model, 5, 24)
    for m in evaluate(model, OfThree(ids), [10, 7, 24], SETTINGS, TRAINED, 24):
        name = m.protocol.partition("(")[0]
        if name not in WHOLE or m.slice:
            assert m.documents is None
            continue
        targets = counted(name, SETTINGS[name], 24, m.length)
        wanted = {
            document: [model.loss(ids[i], *target) for i in of_document for target in targets]
            for document, of_document in {2: (1, 3), 4: (4,), 7: (0, 2)}.items()
        }
        assert m.documents.document.tolist() == [2, 4, 7]
        assert m.documents.count.tolist() == [len(losses) for losses in wanted.values()]
        assert m.documents.total == pytest.approx([sum(losses) for losses in wanted.values()], rel=1e-6)
        assert math.fsum(m.documents.total) == m.total and m.documents.count.sum() == m.count


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with windows of several documents, every protocol, an extension and a measurement along the training."""
    root, before = tmp_path_factory.mktemp("run"), os.getcwd()
    os.chdir(root)
    try:
        cfg = run(
            "train", *NANO, "study=s", "logger=none", "position=rope", "task.windows=40", "extension=[none,pi]",
            "factors=[1,2]", "protocol=[sliding,window,masked_window,per_position]", "protocol.at=[0.5,1]",
        )  # fmt: skip
    finally:
        os.chdir(before)
    return cfg, root / run_folder(cfg)


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def by_row(folder: Path) -> dict[tuple, pd.DataFrame]:
    frame = pd.read_parquet(folder / "documents.parquet")
    return dict(iter(frame.groupby(list(store.SCORED))))


def coordinates(line: dict) -> tuple:
    return tuple(line[name] for name in store.SCORED)


def test_the_sums_of_a_run_are_its_rows_to_the_last_bit(trained):
    cfg, folder = trained
    found, made = by_row(folder), set()
    numbers = set(build_task(cfg).places(longest(cfg))[0].tolist())
    for line in lines(folder):
        whole = line["metric"] == "nll" and line["unit"] == "byte" and not line["slice"]
        if whole and line["protocol"].partition("(")[0] in WHOLE:
            sums = found[coordinates(line)]
            assert math.fsum(sums["total"]) == line["total"] and sums["count"].sum() == line["count"]
            assert set(sums["document"]) <= numbers and sums["document"].is_unique
            made.add(coordinates(line))
    assert made == found.keys()
    names = [{key[store.SCORED.index(name)] for key in made} for name in ("extension", "length", "checkpoint")]
    assert names == [{"none", "pi"}, {16, 32}, {"step@6", "last@12"}]
    assert 1 < len(numbers) < 40, "several windows are of one document"


def test_they_are_small(trained):
    _, folder = trained
    assert (folder / "documents.parquet").stat().st_size < 0.5 * (folder / "rows.jsonl").stat().st_size


def sums(of, totals, counts=None):
    counts = np.full(len(totals), 4) if counts is None else np.array(counts)
    return of, Documents(np.arange(len(totals)), np.array(totals, float), counts)


def written(path: Path) -> list[tuple]:
    """(length, document, total) of the file beside these rows."""
    frame = pd.read_parquet(path.with_name("documents.parquet"))
    return list(frame[["length", "document", "total"]].itertuples(index=False, name=None))


def test_an_evaluation_again_replaces_and_another_adds(tmp_path):
    path = tmp_path / "c" / "rows.jsonl"
    one, two = row(total=3.0), row(length=256, total=30.0)
    store.append(path, [one], [sums(one, [1.0, 2.0])])
    store.append(path, [one], [sums(one, [1.0, 2.0])])
    assert written(path) == [(128, 0, 1.0), (128, 1, 2.0)]
    store.append(path, [two], [sums(two, [10.0, 20.0])])
    store.append(path, [], [sums(one, [1.5, 1.5])])
    assert sorted(written(path)) == [(128, 0, 1.5), (128, 1, 1.5), (256, 0, 10.0), (256, 1, 20.0)]


@pytest.mark.parametrize("at", ["documents.parquet", "rows.jsonl"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_no_death_leaves_rows_without_their_sums_or_sums_twice(tmp_path, monkeypatch, at, when):
    """The process ends as it moves one of the two files into its place; the same evaluation is then made again."""
    path, rename = tmp_path / "c" / "rows.jsonl", os.replace
    first, second = row(total=3.0), row(length=256, total=7.0)
    store.append(path, [first], [sums(first, [1.0, 2.0])])

    def dies(old, new):
        if when == "after":
            rename(old, new)
        if Path(new).name == at:
            raise KeyboardInterrupt
        if when == "before":
            rename(old, new)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "replace", dies)
        store.append(path, [second], [sums(second, [3.0, 4.0])])
    have = {(length, document) for length, document, _ in written(path)}
    for found in store.load(path):
        assert {(found.length, 0), (found.length, 1)} <= have
    store.append(path, [second], [sums(second, [3.0, 4.0])])
    assert sorted(written(path)) == [(128, 0, 1.0), (128, 1, 2.0), (256, 0, 3.0), (256, 1, 4.0)]
    assert [r.length for r in store.load(path)] == [128, 256]
    assert {file.name for file in path.parent.iterdir()} == {"rows.jsonl", "documents.parquet"}


@pytest.mark.parametrize("damage", [b"", b"PAR1 and no more", {"document": [1]}, dict.fromkeys(store.SUMS, ["x"])])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "s" / "c" / "rows.jsonl"
    store.append(path, [row()])
    if isinstance(damage, dict):
        pd.DataFrame(damage).to_parquet(path.with_name("documents.parquet"))
    else:
        path.with_name("documents.parquet").write_bytes(damage)
    with pytest.raises(UserError, match="documents.parquet: not the sums") as error:
        posenc_train.report.of(tmp_path / "s")
    assert "\n" not in str(error.value)


# ---- what is resampled -----------------------------------------------------------------------------------


def test_the_interval_over_documents_against_brute_force():
    """Documents of different sizes; the quantiles of 20,000 resamples drawn here are near those of scipy's, which are
    corrected for bias and skew."""
    rng = np.random.default_rng(5)
    counts = rng.integers(10, 90, 80)
    totals = rng.normal(0.2, 0.5, 80) * counts
    picks = rng.integers(80, size=(20_000, 80))
    drawn = totals[picks].sum(1) / counts[picks].sum(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    found = statistics.over_documents([(1, totals, counts)])
    assert found == pytest.approx((low, high), abs=0.07 * (high - low))
    assert found == statistics.over_documents([(1, totals, counts)]), "the same each time"
    assert found[0] < totals.sum() / counts.sum() < found[1]


def test_of_documents_alike_sized_it_is_near_students():
    values = np.random.default_rng(6).normal(1.0, 0.3, 400)
    student = statistics.interval(values)
    found = statistics.over_documents([(1, 8 * values, np.full(400, 8))])
    assert found == pytest.approx((student.low, student.high), abs=0.06 * (student.high - student.low))


def test_few_documents_have_none_and_equal_ones_one_without_width():
    assert statistics.over_documents([(1, [1.0, 2.0, 3.0] * 3, [4] * 9)]) is None
    assert statistics.over_documents([(1, [3.0] * 10, [4] * 10)]) == (0.75, 0.75)


def study(folder: Path, seeds=(0,), extensions=("none",)) -> Path:
    """Runs of same_targets at 1x and 2x with the sums of 12 documents."""
    rng = np.random.default_rng(7)
    for scheme, seed in itertools.product(("rope", "alibi"), seeds):
        made = [
            row(scheme=scheme, seed=seed, length=n, extension=e, protocol="same_targets(k=4)", count=96, total=1.0)
            for n, e in [(128, "none"), *((256, e) for e in extensions)]
        ]
        kept = [sums(r, rng.uniform(8, 24, 12), [8] * 12) for r in made]
        made = [type(r)(**{**vars(r), "total": math.fsum(own.total)}) for r, (_, own) in zip(made, kept, strict=True)]
        store.append(folder / "s" / made[0].cell / "rows.jsonl", made, kept)
    return folder / "s"


def gains(folder: Path) -> dict[tuple, dict]:
    posenc_train.report.write(posenc_train.report.of(folder), folder)
    with open(folder / "table.csv", newline="") as file:
        table = list(csv.DictReader(file))
    return {(line["scheme"], line["extension"]): line for line in table if line["quantity"] == "gain over window"}


def test_one_seeds_gain_has_an_interval_over_documents(tmp_path):
    folder = study(tmp_path, extensions=("none", "pi"))
    found = gains(folder)
    assert len(found) == 4
    for (scheme, extension), line in found.items():
        (run_,) = folder.glob(f"{scheme}-*/rows.jsonl")
        of = {key[2:4]: part["total"].to_numpy() for key, part in by_row(run_.parent).items()}
        differences = of[128, "none"] - of[256, extension]
        assert float(line["value"]) == pytest.approx(differences.sum() / 96)
        picks = np.random.default_rng(0).integers(12, size=(20_000, 12))
        ends = np.quantile(differences[picks].mean(1) / 8, [0.025, 0.975])
        assert [float(line["low"]), float(line["high"])] == pytest.approx(ends, abs=0.15 * np.diff(ends)[0])
    text = posenc_train.report.text(posenc_train.report.of(folder))
    line = found["rope", "none"]
    assert f"({float(line['low']):.3f}…{float(line['high']):.3f})" in text and "and not another training" in " ".join(
        text.split()
    )


def test_the_split_has_an_interval_over_documents(tmp_path):
    """Two of twelve documents have no target of the window control; S and its parts by their formula at 2x."""
    rng = np.random.default_rng(8)
    asked = [("nonoverlapping", 128, [64] * 12), ("nonoverlapping", 256, [64] * 12)]
    asked += [("window(L=128, targets=20)", 128, [2] * 10)]
    made, sums_of = [], []
    for protocol, length, counts in asked:
        totals = rng.uniform(1, 3, len(counts)) * counts
        made.append(row(length=length, protocol=protocol, total=math.fsum(totals), count=sum(counts)))
        sums_of.append((np.pad(totals, (0, 12 - len(counts))), np.pad(counts, (0, 12 - len(counts)))))
    kept = [sums(r, t[c > 0], c[c > 0]) for r, (t, c) in zip(made, sums_of, strict=True)]
    store.append(tmp_path / "s" / made[0].cell / "rows.jsonl", made, kept)
    posenc_train.report.write(posenc_train.report.of(tmp_path / "s"), tmp_path)
    with open(tmp_path / "table.csv", newline="") as file:
        found = {line["quantity"]: line for line in csv.DictReader(file)}
    picks = np.random.default_rng(0).integers(12, size=(20_000, 12))
    one, two, alone = (t[picks].sum(1) / c[picks].sum(1) for t, c in sums_of)
    s = (one + alone) / 2
    for name, drawn in (("fewer starved tokens", one - s), ("longer context", s - two)):
        ends, line = np.quantile(drawn, [0.025, 0.975]), found[name]
        assert [float(line["low"]), float(line["high"])] == pytest.approx(ends, abs=0.15 * np.diff(ends)[0]), name
        assert float(line["low"]) < float(line["value"]) < float(line["high"])


def test_several_seeds_have_their_own_spread_instead(tmp_path):
    for line in gains(study(tmp_path, seeds=(0, 1, 2))).values():
        assert line["low"] == line["high"] == "" and float(line["sd"]) > 0


def test_without_sums_there_is_no_interval(tmp_path):
    folder = study(tmp_path)
    for file in folder.glob("*/documents.parquet"):
        file.unlink()
    assert all(line["low"] == "" and line["value"] for line in gains(folder).values())
