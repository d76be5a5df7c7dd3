"""The report against numbers that the tests know: brute force over JSON lines, never its own code."""

import csv
import html
import io
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import posenc_train.report
from posenc_train.checks import choices
from posenc_train.config import UserError
from posenc_train.evaluation.rows import FIELDS, Row
from posenc_train.report import figures, formats, store, tables

NLL = {"protocol": "nonoverlapping", "metric": "nll", "unit": "byte"}
DERIVED = (
    "extrapolation ratio", "longest usable length", "gain over window", "fewer starved tokens", "longer context",
)  # fmt: skip
COPY = {"task": "copy", "train_length": 51, "protocol": "free_running", "unit": "token", "metric": "token"}


def row(**changes) -> Row:
    """A good row of text, changed. Its cell follows from scheme, task, seed and `config` unless given."""
    config = changes.pop("config", "1a2b3c4d")
    values = {
        "study": "s", "scheme": "rope", "extension": "none", "sampling": "consecutive", "task": "text",
        "model": "tiny", "seed": 0, "train_length": 128, "length": 128, "tokens_seen": 1_000_000, **NLL,
        "slice": {}, "total": 200.0, "count": 100, "eval_hash": "e0", "checkpoint": "last@400", "code": "c0",
        "data": "d0",
    } | changes  # fmt: skip
    name = "{scheme}-{task}-{model}-L{train_length}-s{seed}".format(**values)
    values.setdefault("cell", f"{re.sub('[^A-Za-z0-9._-]', '_', name)}-{config}")
    if values.get("status", "ok") != "ok":
        values |= {"total": None, "count": 0}
    return Row(**values)


def save(folder: Path, rows: list[Row]) -> Path:
    """Rows into runs/<study>/<cell>/rows.jsonl below `folder`; returns the study's folder."""
    for cell in dict.fromkeys(r.cell for r in rows):
        store.append(folder / "runs" / rows[0].study / cell / "rows.jsonl", [r for r in rows if r.cell == cell])
    return folder / "runs" / rows[0].study


def configure(study: Path, rows: list[Row], **changes) -> None:
    """Writes the config.yaml of these rows' runs."""
    for r in {r.cell: r for r in rows}.values():
        config = {
            "position": {"_target_": r.scheme}, "sampling": {}, "model": {}, "optim": {"lr": 2e-3},
            "init": None, "train_length": r.train_length, "seed": r.seed, "task": {},
            "trainer": {"precision": "32"},
        } | changes  # fmt: skip
        (study / r.cell / "config.yaml").write_text(yaml.safe_dump(config))


def report(folder: Path, rows: list[Row], **options) -> tables.Report:
    return tables.summary(store.read(save(folder, rows)), **options)


def write(study: Path) -> list[Path]:
    return posenc_train.report.write(posenc_train.report.of(study), study)


def written(of: tables.Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(formats.csv(of))))


def cells(of: tables.Report) -> list[dict[str, str]]:
    """The lines of table.csv that hold a row's own number."""
    return [line for line in written(of) if not line["quantity"].startswith(DERIVED)]


def worth(of: tables.Report) -> dict[tuple, dict[str, str]]:
    """The others: (scheme and extension, quantity, length) -> the line."""
    lines = [line for line in written(of) if line["quantity"].startswith(DERIVED)]
    return {(line["label"], line["quantity"], int(line["length"])): line for line in lines}


def copies(scheme: str, shares: list[float], **more) -> list[Row]:
    """Token accuracy, exact match and stopping at 1x, 2x, 4x … of 100 targets each, all with these shares."""
    return [
        row(
            **COPY | {"metric": metric, "unit": unit, "scheme": scheme} | more,
            length=length,
            total=100 * share,
        )
        for length, share in zip((51, 102, 204, 408), shares, strict=False)
        for metric, unit in (("token", "token"), ("exact", "example"), ("stops", "example"))
    ]


# ---- rows ------------------------------------------------------------------------------------------------


def test_a_row_is_its_fields_in_order_on_one_line():
    line = row(slice={"position": (64, 71)}, scheme="é\n|").json()
    assert "\n" not in line
    assert list(json.loads(line)) == list(FIELDS)
    assert " ".join(FIELDS) == (
        "study cell scheme extension sampling task model seed train_length length tokens_seen protocol slice "
        "metric total count unit eval_hash checkpoint code data status version"
    )
    assert Row.parse(line).json() == line


def test_a_key_is_every_field_but_the_number():
    one = row()
    for name in FIELDS:
        other = {"slice": {"size": 1}, "status": "not finite", "version": 1}.get(
            name, "x" if isinstance(getattr(one, name), str) else 7
        )
        changed = replace(one, **{name: other} | ({"total": None, "count": 0} if name == "status" else {}))
        assert (changed.key() == one.key()) == (name in ("total", "count", "status", "version")), name


@pytest.mark.parametrize(
    "change",
    [{"total": math.nan}, {"total": math.inf}, {"total": None}, {"count": 0}, {"status": "fine"},
     {"seed": 0.5}, {"seed": "0"}, {"status": "not finite"}, {"slice": []}, {"scheme": None}, {"version": 2},
     {"count": None}],
)  # fmt: skip
def test_what_is_not_a_measurement_is_no_row(change):
    with pytest.raises(ValueError, match=r"must|needs|version|not "):
        Row.parse(json.dumps(json.loads(row().json()) | change))


@pytest.mark.parametrize("line", ["", "[]", "{}", row().json()[:-9], row().json()[:-1] + ',"more":1}'])
def test_what_is_not_exactly_a_row_is_refused(line):
    with pytest.raises(ValueError):
        Row.parse(line)


# ---- store -----------------------------------------------------------------------------------------------


def test_appending_a_known_key_adds_nothing(tmp_path):
    path = tmp_path / "cell" / "rows.jsonl"
    rows = [row(length=n) for n in (128, 256)]
    assert store.append(path, rows) == 2
    before = path.read_bytes()
    assert store.append(path, [replace(r, total=1.0) for r in rows]) == 0
    assert path.read_bytes() == before
    assert store.append(path, [row(length=512), row(length=512), rows[0]]) == 1
    assert path.read_bytes() == before + (row(length=512).json() + "\n").encode()
    assert os.listdir(path.parent) == ["rows.jsonl"]


@pytest.mark.parametrize("damage", [row().json()[:100].encode(), b"\xff\xfe", b"\n"])
def test_a_damaged_line_is_named_and_nothing_is_lost(tmp_path, damage):
    path = save(tmp_path, [row(), row(length=256)]) / row().cell / "rows.jsonl"
    with open(path, "ab") as file:
        file.write(damage)
    before = path.read_bytes()
    for act in (lambda: store.append(path, [row(length=512)]), lambda: store.read(path.parent.parent)):
        with pytest.raises(UserError) as error:
            act()
        assert f"{path} line 3" in str(error.value) and "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_rows_are_added_together_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    store.append(path, [row()])

    def rows():
        yield row(length=256)
        raise RuntimeError("the evaluation died")

    with pytest.raises(RuntimeError):
        store.append(path, rows())
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError):
        store.append(path, [row(length=256)])
    assert store.load(path) == [row()] and os.listdir(tmp_path) == ["rows.jsonl"]


def test_reading_gives_slices_as_columns(tmp_path):
    frame = store.read(save(tmp_path, [row(slice={"position": [64, 71]}), row(slice={"size": 24}), row()]))
    assert frame["size"].isna().tolist() == [True, False, True] and frame["size"][1] == 24
    assert (frame["position_first"][0], frame["position_last"][0]) == (64, 71)
    assert len(store.read(tmp_path / "runs" / "s" / row().cell)) == 3


def test_a_notebook_gets_a_line_for_each_measurement(tmp_path):
    made = [*(r for r in quickstart(random.Random(4)) if r.scheme != "t5"), row(scheme="t5", status="out of memory")]
    study = save(tmp_path, made)
    frame = posenc_train.rows(str(study))
    assert len(frame) == len(made) and set(FIELDS) < set(frame.columns)
    lines = [json.loads(line) for file in study.glob("*/rows.jsonl") for line in file.read_text().splitlines()]
    coordinates = ("cell", "protocol", "metric", "length", "extension", "status")
    wanted = {
        (*(line[name] for name in coordinates), json.dumps(line["slice"], sort_keys=True), line["unit"]): line
        for line in lines
    }
    for _, found in frame.iterrows():
        line = wanted.pop((*(found[name] for name in coordinates), found["slice"], found["unit"]))
        if line["status"] == "ok":
            assert found["value"] == line["total"] / line["count"]
        else:
            assert math.isnan(found["value"])
    assert not wanted
    with pytest.raises(UserError) as error:
        posenc_train.rows(tmp_path / "runs" / "other")
    assert "\n" not in str(error.value) and "study=other" in str(error.value) and "s" in str(error.value)


def test_importing_the_package_imports_nothing_dear():
    code = (
        "import sys, posenc_train; exit(bool({'torch', 'pandas', 'numpy', 'wandb', 'matplotlib'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1], timeout=60)


def test_a_study_without_rows_is_told_from_one_that_is_not_there(tmp_path):
    save(tmp_path, [row(study="mine")])
    save(tmp_path, [row(study="other")])
    (tmp_path / "runs" / "wandb" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "wandb" / "x" / "config.yaml").touch()
    (tmp_path / "runs" / "young" / "cell").mkdir(parents=True)
    (tmp_path / "runs" / "young" / "cell" / "config.yaml").touch()
    with pytest.raises(UserError, match=r"^study=mien: no runs .*: mine, other, young; .* makes one$"):
        store.read(tmp_path / "runs" / "mien")
    with pytest.raises(UserError, match="study=young: none of its 1 runs has rows yet"):
        store.read(tmp_path / "runs" / "young")
    with pytest.raises(UserError, match="holds no study yet"):
        store.read(tmp_path / "nowhere" / "x")
    assert not (tmp_path / "runs" / "mien").exists()


def test_runs_without_rows_are_named_under_the_tables(tmp_path):
    study = save(tmp_path, [row()])
    (study / "t5-text-tiny").mkdir()
    (study / "t5-text-tiny" / "config.yaml").touch()
    of = tables.summary(store.read(study))
    assert "t5-text-tiny" in formats.render(of) and "t5-text-tiny" in formats.markdown(of)


# ---- numbers ---------------------------------------------------------------------------------------------


def quickstart(rng: random.Random, seeds: int = 1) -> list[Row]:
    """A study like the quickstart's with random numbers."""
    rows = []
    for scheme in ("nope", "sinusoidal", "learned", "rope", "alibi", "t5"):
        for seed in range(seeds):
            more = {"scheme": scheme, "seed": seed}
            cost = {"protocol": "training", **more}
            rows.append(row(metric="parameters", unit="parameter", total=167_936, count=1, **cost))
            rows.append(row(metric="seconds", unit="second", total=rng.uniform(20, 60), count=400, **cost))
            for n in (128, 256, 512, 1024):
                status = "beyond reach" if scheme == "learned" and n > 128 else "ok"
                for protocol, count in (("nonoverlapping", 65536), ("same_targets(k=64)", 4096)):
                    total = count * rng.uniform(1.9, 3.5)
                    rows.append(row(protocol=protocol, length=n, total=total, count=count, status=status, **more))
                if status != "ok":
                    rows.append(row(protocol="per_position", length=n, status=status, **more))
                    continue
                for first in [*range(64), *range(64, n, 64)]:
                    last = first if first < 64 else first + 63
                    place = {"protocol": "per_position", "slice": {"position": [first, last]}, "length": n}
                    rows.append(row(total=rng.uniform(100, 300) * (last - first + 1), count=64, **place, **more))
            if scheme not in ("learned", "t5"):
                for r in copies(scheme, [rng.choice((0.5, 0.97)), *(rng.random() for _ in range(3))], seed=seed):
                    rows.append(replace(r, slice={"size": (r.length - 3) // 2}))
    return rows


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_number_of_the_table_follows_from_the_lines_of_the_rows(tmp_path, seeds):
    rows = quickstart(random.Random(seeds), seeds)
    study = save(tmp_path, rows)
    configure(study, [r for r in rows if r.protocol == "training" and r.metric == "seconds"])
    configure(study, [r for r in rows if r.metric == "stops"], task={"n": 1})
    found = cells(tables.summary(store.read(study)))

    lines = [json.loads(x) for f in study.glob("*/rows.jsonl") for x in f.read_text().splitlines()]
    learned = {
        x["cell"]: x["total"] / x["count"] >= 0.95 for x in lines if x["metric"] == "token" and x["length"] == 51
    }
    expected: dict[tuple, list] = {}
    costs: dict[tuple, list] = {}
    for x in lines:
        if x["protocol"] == "training":
            costs.setdefault((x["scheme"], x["metric"]), []).append(x["total"])
        elif x["protocol"] != "per_position":
            mean = x["total"] / x["count"] if x["count"] else None
            hidden = x["task"] == "copy" and x["length"] > 51 and not learned[x["cell"]]
            names = {"exact": "exact match", "token": "token accuracy", "stops": "stopping"}
            quantities = {names.get(x["metric"], "perplexity"): mean}
            if x["metric"] == "nll":
                quantities["perplexity"] = mean and 2.718281828459045**mean
                if x["protocol"] == "nonoverlapping":
                    quantities["bits per byte"] = mean and mean * 1.4426950408889634
            for quantity, value in quantities.items():
                key = (x["task"], x["protocol"], quantity, x["scheme"], x["length"])
                expected.setdefault(key, []).append("not learned" if hidden else value)

    assert len(found) == len(expected) == 6 * 4 * 3 + 4 * 4 * 3
    for line in found:
        values = expected[line["task"], line["protocol"], line["quantity"], line["scheme"], int(line["length"])]
        assert int(line["n"]) == len(values) == seeds
        assert float(line["factor"]) == int(line["length"]) / int(line["train_length"])
        failed = values.count("not learned")
        if failed:
            assert line["status"] == f"not learned{'' if failed == seeds else f' {failed}/{seeds}'}"
            assert line["value"] == line["sd"] == ""
        elif values[0] is None:
            assert (line["status"], line["value"], line["sd"]) == ("beyond reach", "", "")
        else:
            assert float(line["value"]) == pytest.approx(statistics.mean(values), rel=1e-12)
            assert float(line["median"]) == pytest.approx(statistics.median(values), rel=1e-12)
            assert float(line["max"]) == pytest.approx(max(values), rel=1e-12)
            rate = sum(value >= 0.95 for value in values) / seeds if line["quantity"] in names.values() else None
            assert line["success"] == ("" if rate is None else str(rate))
            if seeds > 1:
                assert float(line["sd"]) == pytest.approx(statistics.stdev(values), rel=1e-9)
        if line["task"] == "text":
            seconds = costs[line["scheme"], "seconds"]
            assert float(line["seconds"]) == pytest.approx(statistics.mean(seconds))
            assert float(line["tokens_per_second"]) == pytest.approx(statistics.mean(1e6 / s for s in seconds))
            assert (float(line["parameters"]), line["tokens_seen"]) == (167_936, "1000000")


def test_perplexity_is_divided_once_and_averaged_over_seeds_afterwards(tmp_path):
    rows = [row(seed=s, total=t, count=n) for s, t, n in ((0, 100 * math.log(4), 100), (1, 300 * math.log(16), 300))]
    study = save(tmp_path, rows)
    configure(study, rows)
    of = tables.summary(store.read(study))
    value = {c["quantity"]: (float(c["value"]), float(c["sd"]), c["count"]) for c in cells(of)}
    assert value["perplexity"][:2] == pytest.approx((10.0, statistics.stdev([4, 16])), rel=1e-12)  # not exp(mean) = 8
    assert value["bits per byte"][:2] == pytest.approx((3.0, statistics.stdev([2, 4])), rel=1e-12)
    assert value["perplexity"][2] == "100, 300"
    text = formats.render(of)
    assert "10.00 ±8.49" in text and "exp(nll / count)" in text and "over seeds 0, 1" in text
    assert "100 to 300 scored bytes" in text


def test_one_seed_has_no_deviation(tmp_path):
    of = report(tmp_path, [row(total=100 * math.log(4))])
    assert cells(of)[0]["sd"] == "" and "±" not in formats.render(of) and "seed 0" in formats.render(of)


def test_a_seed_that_is_missing_or_failed_is_not_averaged_away(tmp_path):
    rows = [row(seed=s, length=n, total=230) for s, n in ((0, 128), (0, 256), (0, 512), (1, 128))]
    rows += [row(seed=1, length=256, status="not finite"), row(seed=2, length=128)]
    study = save(tmp_path, rows)
    configure(study, rows)
    table = tables.summary(store.read(study)).tables[0]
    by_length = {column.length: cell for column, cell in table.lines[0].cells.items()}
    assert by_length[256].status == "not finite 1/2" and by_length[512].seeds == (0,)
    text = formats.render(tables.Report(("s",), (table,), ()))
    assert "(n=1)" in text and re.search(r"not +finite", text)
    record = {int(c["length"]): c for c in cells(tables.Report(("s",), (table,), ()))}
    assert record[256]["value"] == "" and record[512]["value"] != ""
    drawn = figures.against_length([table], "perplexity").axes[0].lines[0].get_xdata()
    assert list(drawn) == [128, 512]


def test_an_exploded_perplexity_is_shown_and_drawn_as_far_as_it_goes(tmp_path):
    rows = [row(length=n, total=100 * t) for n, t in ((128, 2), (256, 20), (512, 800))]
    of = report(tmp_path, rows)
    text = formats.render(of)
    assert "4.9e+08" in text and "inf" in text
    assert figures.draw(of)


# ---- what may stand together -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"protocol": "same_targets(k=64)"}, {"protocol": "sliding(stride=8)"}, {"task": "pg19"},
     {"model": "small"}, {"train_length": 64}, {"unit": "token"}],
)  # fmt: skip
def test_a_table_refuses_to_mix(tmp_path, change):
    of = report(tmp_path, [row(), row(scheme="t5", **change)])
    kept = [table for table in of.tables if table.quantity == "perplexity"]
    assert sorted([line.scheme for line in table.lines] for table in kept) == [["rope"], ["t5"]]
    (value,) = change.values()
    shown = [formats.render(replace(of, tables=(table,))) for table in kept if table.lines[0].scheme == "t5"]
    assert str(value) in shown[0].replace("\n", " ")


def test_settings_of_one_protocol_do_not_mix(tmp_path):
    of = report(tmp_path, [row(protocol=f"same_targets(k={k})") for k in (32, 64)])
    assert sorted(table.protocol for table in of.tables) == ["same_targets(k=32)", "same_targets(k=64)"]


def test_extensions_samplings_and_lengths_are_told_apart(tmp_path):
    rows = [
        row(),
        row(extension="pi(scale=8)", total=210),
        row(sampling="pose", config="00000001", total=220),
    ]
    of = report(tmp_path, [*rows, row(length=200)])
    table = of.tables[0]
    assert [line.label for line in table.lines] == ["rope", "rope + pi(scale=8)", "rope, pose"]
    assert [tables.heading(table, column) for column in table.columns] == ["1x 128", "1.56x 200"]
    assert [len(line.cells) for line in table.lines] == [2, 1, 1]


@pytest.mark.parametrize("key", ["data", "code", "eval_hash"])
def test_seeds_of_other_data_or_code_are_shown_marked_and_never_averaged(tmp_path, key):
    rows = [row(seed=s, total=100 * t, **{key: k}) for s, t, k in ((0, 1, "aaa"), (1, 2, "aaa"), (2, 3, "bbb"))]
    study = save(tmp_path, rows)
    configure(study, rows)
    of = tables.summary(store.read(study))
    lines = of.tables[0].lines
    assert [line.seeds for line in lines] == [(0, 1), (2,)] and lines[0].label != lines[1].label
    values = [float(c["value"]) for c in cells(of) if c["quantity"] == "perplexity"]
    assert values == pytest.approx([(math.e + math.e**2) / 2, math.e**3])
    text = " ".join(formats.render(of).split())
    assert (
        re.search(rf"{key}\)? differs from the rest: rope [a-z]+ bbb: bbb", text)
        and "20.09†" in text
        and "5.05†" not in text
    )


def test_nothing_is_marked_where_nothing_differs(tmp_path):
    of = report(tmp_path, [row(), row(scheme="t5"), *copies("rope", [1, 1], eval_hash="x")])
    assert tables.MARK not in formats.render(of) + formats.markdown(of)


def test_other_evaluation_data_at_one_length_are_marked_for_text_and_expected_for_copying(tmp_path):
    text = [
        row(scheme=s, length=n, eval_hash=h) for s in ("rope", "t5") for n, h in ((128, "a"), (256, "a"), (512, "b"))
    ]
    copying = [row(**COPY, length=n, eval_hash=h) for n, h in ((51, "x"), (102, "y"))]
    of = report(tmp_path, text + copying)
    marked = {
        (t.quantity, c.length) for t in of.tables for ln in t.lines for c, cell in ln.cells.items() if cell.marked
    }
    assert marked == {("perplexity", 512), ("bits per byte", 512)}
    assert "at 4x 512" in " ".join(formats.render(of).split())


def test_of_the_same_cell_written_by_two_codes_the_last_counts(tmp_path):
    of = report(tmp_path, [row(total=100, code="old"), row(total=200, code="new")])
    (cell,) = (c for c in cells(of) if c["quantity"] == "perplexity")
    assert (float(cell["value"]), cell["code"], cell["n"]) == (pytest.approx(math.exp(2)), "new", "1")


def test_runs_that_differ_in_their_seed_only_are_one_line_and_others_are_not(tmp_path):
    rows = [row(seed=s, config=f"0000000{i}") for i, s in enumerate((0, 1, 0))]
    study = save(tmp_path, rows)
    configure(study, rows[:2])
    configure(study, rows[2:], optim={"lr": 1e-3})
    table = tables.summary(store.read(study)).tables[0]
    assert {line.label: line.seeds for line in table.lines} == {
        "rope #00000000": (0, 1),
        "rope #00000002": (0,),
    }
    assert any(note.startswith("#:") for note in table.notes)


def test_a_seed_that_ran_twice_is_two_lines(tmp_path):
    rows = [row(config="00000001", total=100), row(config="00000002", total=200)]
    study = save(tmp_path, rows)
    configure(study, rows)
    table = tables.summary(store.read(study)).tables[0]
    assert [(line.label, line.seeds) for line in table.lines] == [
        ("rope #00000001", (0,)),
        ("rope #00000002", (0,)),
    ]


def test_damaged_notes_and_configurations_are_named(tmp_path):
    study = save(tmp_path, [row()])
    for text in ("{", "[1]"):
        (study / store.NOTES).write_text(text)
        with pytest.raises(UserError, match=r"notes\.json: is damaged"):
            store.read(study)
    for text in ("a: [", "just text", "{}"):
        (study / row().cell / "config.yaml").write_text(text)
        with pytest.raises(UserError, match=r"config\.yaml"):
            store.read(study)


# ---- what follows from two lengths -----------------------------------------------------------------------


def losses(protocol: str, values: dict[int, float], count: int = 1000, **more) -> list[Row]:
    """Rows of these mean losses in nats, by length."""
    return [row(protocol=protocol, length=n, total=count * mean, count=count, **more) for n, mean in values.items()]


def test_the_gain_over_the_window_and_the_split_are_the_formulas(tmp_path):
    """loss(1x) - loss(c x); S = (2.0 + (c - 1) 1.6) / c is 1.8 at 2x and 1.7 at 4x."""
    rows = losses("same_targets(k=64)", {128: 1.9, 256: 1.7, 512: 2.0})
    rows += losses("nonoverlapping", {128: 2.0, 256: 1.75, 512: 1.72})
    rows += losses("window(L=128, targets=1024)", {128: 1.6}, 1024)
    found = worth(report(tmp_path, rows))
    expected = {
        ("gain over window", 256): 0.2, ("gain over window", 512): -0.1,
        ("fewer starved tokens", 256): 0.2, ("longer context", 256): 0.05,
        ("fewer starved tokens", 512): 0.3, ("longer context", 512): -0.02,
    }  # fmt: skip
    for (quantity, length), value in expected.items():
        line = found["rope", quantity, length]
        assert float(line["value"]) == pytest.approx(value) and line["protocol"].startswith(("same", "nonover"))
    text = " ".join(formats.render(report(tmp_path, rows)).split())
    assert "+0.200 -0.100" in text and "nats per byte gained over 1x" in text


def test_without_the_window_nothing_is_split_and_another_text_is_not_compared(tmp_path):
    rows = losses("nonoverlapping", {128: 2.0, 256: 1.75})
    rows += losses("window(L=128)", {128: 1.6}, eval_hash="other")
    rows += losses("same_targets(k=64)", {128: 1.9}) + losses("same_targets(k=64)", {256: 1.7}, eval_hash="other")
    quantities = {quantity for _, quantity, _ in worth(report(tmp_path, rows))}
    assert quantities == {"extrapolation ratio of perplexity", "longest usable length by perplexity"}


def test_nothing_is_split_where_a_length_leaves_targets_out(tmp_path):
    """Of 1,024 targets a text windows of 384 leave out the first 256, and the others are other targets."""
    rows = losses("nonoverlapping", {128: 2.0, 256: 1.75}) + losses("nonoverlapping", {384: 1.7}, 750)
    found = worth(report(tmp_path, rows + losses("window(L=128)", {128: 1.6})))
    assert {length for _, quantity, length in found if quantity == "longer context"} == {256}


def test_each_text_has_a_1x_of_its_own(tmp_path):
    """Evaluated again up to a greater length, whose texts are others: 1x was measured on both."""
    rows = losses("same_targets(k=64)", {128: 1.9, 256: 1.7}, eval_hash="first")
    rows += losses("same_targets(k=64)", {128: 2.3, 512: 2.0}, eval_hash="second")
    found = worth(report(tmp_path, rows))
    assert float(found["rope", "gain over window", 256]["value"]) == pytest.approx(0.2)
    assert float(found["rope", "gain over window", 512]["value"]) == pytest.approx(0.3)


def test_seeds_are_differences_first_and_a_mean_afterwards(tmp_path):
    rows = [
        r
        for seed, (one, two) in enumerate(((2.0, 1.5), (3.0, 2.9)))
        for r in losses("same_targets(k=64)", {128: one, 256: two}, seed=seed)
    ]
    study = save(tmp_path, rows)
    configure(study, rows)
    found = worth(tables.summary(store.read(study)))
    gain, ratio, usable = (
        found["rope", name, 256]
        for name in ("gain over window", "extrapolation ratio of perplexity", "longest usable length by perplexity")
    )
    assert float(gain["value"]) == pytest.approx(0.3) and float(gain["sd"]) == pytest.approx(math.sqrt(0.08))
    assert float(ratio["value"]) == pytest.approx((math.exp(-0.5) + math.exp(-0.1)) / 2)
    assert (float(usable["value"]), usable["sd"]) == (256, "")


@pytest.mark.parametrize(
    "at_2x, at_4x, tolerance, usable",
    [(1.04, 1.04, 0.05, 512), (1.06, 1.0, 0.05, 128), (1.04, 1.06, 0.05, 256), (1.06, 1.06, 0.1, 512)],
)
def test_the_longest_usable_length_ends_before_the_first_that_is_not(tmp_path, at_2x, at_4x, tolerance, usable):
    rows = losses("same_targets(k=64)", {128: 2.0, 256: 2.0 + math.log(at_2x), 512: 2.0 + math.log(at_4x)})
    of = report(tmp_path, rows, tolerance=tolerance)
    assert float(worth(of)["rope", "longest usable length by perplexity", 512]["value"]) == usable
    assert ("≥512" if usable == 512 else str(usable)) in formats.render(of)
    assert f"at most {1 + tolerance:g} times" in " ".join(formats.render(of).split())


def test_accuracy_has_a_ratio_and_a_usable_length_where_the_task_was_learned(tmp_path):
    found = worth(report(tmp_path, copies("rope", [1.0, 0.96, 0.5]) + copies("nope", [0.9, 0.9])))
    assert float(found["rope", "extrapolation ratio of token accuracy", 204]["value"]) == 0.5
    assert float(found["rope", "longest usable length by token accuracy", 204]["value"]) == 102
    for quantity in ("extrapolation ratio of exact match", "longest usable length by token accuracy"):
        assert (found["nope", quantity, 102]["status"], found["nope", quantity, 102]["value"]) == ("not learned", "")
    assert not report(tmp_path / "none", copies("nope", [0.9, 0.9])).worth  # a table of nothing but that


def test_an_extension_is_compared_with_the_plain_model_at_1x(tmp_path):
    rows = losses("same_targets(k=64)", {128: 2.0, 256: 2.5})
    rows += losses("same_targets(k=64)", {128: 2.4, 256: 2.3}, extension="pi(scale=8)")
    found = worth(report(tmp_path, rows))
    assert float(found["rope + pi(scale=8)", "gain over window", 256]["value"]) == pytest.approx(-0.3)


@pytest.mark.parametrize("status", ["beyond reach", "out of memory", "not finite"])
def test_what_has_no_number_has_no_gain_and_is_not_usable(tmp_path, status):
    rows = losses("same_targets(k=64)", {128: 2.0, 256: 2.0})
    rows.append(row(protocol="same_targets(k=64)", length=512, status=status))
    found = worth(report(tmp_path, rows))
    assert found["rope", "gain over window", 512]["status"] == status
    assert float(found["rope", "longest usable length by perplexity", 512]["value"]) == 256


# ---- intervals -------------------------------------------------------------------------------------------


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson 1927, with z = 1.959964."""
    z = 1.959963984540054
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def test_a_rate_has_the_interval_of_its_examples(tmp_path):
    """Newcombe 1998, table I: 81 of 263 is 0.2553 to 0.3662. 400 tokens of 100 examples count as 100."""
    of = report(
        tmp_path,
        [row(**COPY | {"metric": "exact", "unit": "example"}, length=51, total=81, count=263)]
        + [row(**COPY, length=51, total=526, count=1052)],
    )
    found = {line["quantity"]: (float(line["low"]), float(line["high"])) for line in cells(of)}
    assert found["exact match"] == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert found["exact match"] == pytest.approx(wilson(81 / 263, 263), abs=1e-12)
    low, high = wilson(131 / 263, 263)[0], wilson(132 / 263, 263)[1]  # 131.5 of 263, outwards
    assert found["token accuracy"] == pytest.approx((low, high), abs=1e-12)
    text = " ".join(formats.render(of).split())
    assert "0.308 (0.26–0.37)" in text and "each taken as wholly right or wrong" in text


def test_all_or_nothing_and_losses(tmp_path):
    of = report(tmp_path, [*copies("rope", [1.0]), *copies("nope", [0.0]), row()])
    found = {(line["scheme"], line["quantity"]): (line["low"], line["high"]) for line in cells(of)}
    low, high = map(float, found["rope", "exact match"])
    assert (low, high) == (pytest.approx(wilson(1, 100)[0]), 1)
    assert float(found["nope", "exact match"][1]) == pytest.approx(wilson(0, 100)[1])
    assert found["rope", "perplexity"] == ("", "")


# ---- parts, and along the training -----------------------------------------------------------------------


def needles(depths: list[float], shares: list[float], **more) -> list[Row]:
    """Exact match and token accuracy of 100 examples at 1x and 2x, whole and by depth."""
    rows = []
    for length in (51, 102):
        for depth, share in [(None, sum(shares) / len(shares)), *zip(depths, shares, strict=True)]:
            slice = {"size": length} | ({} if depth is None else {"depth": depth})
            for metric, unit in (("token", "token"), ("exact", "example")):
                changes = COPY | {"task": "needle", "metric": metric, "unit": unit} | more
                rows.append(row(**changes, length=length, slice=slice, total=100 * share))
    return rows


def test_depths_are_lines_of_a_table_of_their_own(tmp_path):
    """A depth x length map, in the order of the depths, beside the table of all; the gate looks at all of them."""
    of = report(tmp_path, needles([0.0, 0.5, 1.0], [0.9, 0.97, 1.0]) + needles([0.0, 0.5, 1.0], [1.0] * 3, scheme="t5"))
    (table,) = (table for table in of.parts if table.quantity == "token accuracy")
    assert [line.label for line in table.lines] == [f"{s} {d}" for s in ("rope", "t5") for d in (0.0, 0.5, 1.0)]
    assert [column.length for column in table.columns] == [51, 102]
    assert {cell.status for line in table.lines for cell in line.cells.values()} == {"ok"}
    (whole,) = (table for table in of.tables if table.quantity == "token accuracy")
    assert [line.label for line in whole.lines] == ["rope", "t5"]
    lines = [line for line in cells(of) if line["by"] == "depth" and line["quantity"] == "exact match"]
    assert {(line["part"], line["value"]) for line in lines if line["scheme"] == "rope"} == {
        ("0.0", "0.9"), ("0.5", "0.97"), ("1.0", "1.0"),
    }  # fmt: skip
    assert "by depth" in formats.render(of)


def test_parts_in_words_keep_their_order(tmp_path):
    rows = [
        row(protocol="recurrence(bytes=8)", slice={"recurrence": part})
        for part in ("never", "65-128", "1-64", "129-256")
    ]
    (table,) = report(tmp_path, rows).parts
    assert [line.part for line in table.lines] == ["1-64", "65-128", "129-256", "never"]


def test_a_loss_of_few_targets_says_of_how_many(tmp_path):
    rows = [
        row(protocol="recurrence(bytes=8)", slice={"recurrence": part}, total=2.0 * count, count=count)
        for part, count in (("1-64", 29), ("65-128", 30))
    ]
    text = " ".join(formats.render(report(tmp_path, rows)).split())
    assert "rope 1-64 7.39 (of 29)" in text and "(of n): of so few bytes" in text and "(of 30)" not in text


def test_along_the_training_a_line_is_a_length_and_a_column_the_tokens_seen(tmp_path):
    rows = losses("same_targets(k=64)", {128: 2.0, 256: 2.1})
    rows += losses("same_targets(k=64)", {128: 2.5, 256: 2.2}, checkpoint="step@100", tokens_seen=250_000)
    of = report(tmp_path, rows)
    assert [line.label for line in of.tables[0].lines] == ["rope"]  # the end, and no other checkpoint beside it
    (table,) = of.along
    assert [line.label for line in table.lines] == ["rope 1x 128", "rope 2x 256"]
    values = [[cell.value for _, cell in sorted(line.cells.items())] for line in table.lines]
    assert values == [pytest.approx([math.exp(2.5), math.exp(2.0)]), pytest.approx([math.exp(2.2), math.exp(2.1)])]
    text = formats.render(of)
    assert "250k tokens" in text and "along the training" in " ".join(text.split())
    lines = [line for line in written(of) if line["by"] == "training"]
    assert {(line["length"], line["tokens_seen"]) for line in lines} == {
        (n, tokens) for n in ("128", "256") for tokens in ("250000", "1000000")
    }
    assert not report(tmp_path / "other", losses("nonoverlapping", {128: 2.0})).along


def test_words_have_a_perplexity_of_their_own(tmp_path):
    rows = [row(total=300, count=100), row(total=300, count=30, unit="word")]
    found = {line["quantity"]: float(line["value"]) for line in cells(report(tmp_path, rows))}
    assert found["word perplexity"] == pytest.approx(math.exp(10)) and found["perplexity"] == pytest.approx(math.exp(3))


# ---- what keeps two numbers apart ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, says",
    [
        ({"task": "text(bos=true)"}, "text and text(bos=true) are apart: task.bos differs"),
        ({"task": "text(bpe=512, packed=reset)"}, "are apart: task.bpe, task.packed differ"),
        ({"model": "tiny(width=128)"}, "tiny and tiny(width=128) are apart: model.width differs"),
        ({"train_length": 64}, "text trained on 64 and 128 tokens are apart: train_length differs"),
    ],
)
def test_what_differs_is_said_by_its_key(tmp_path, change, says):
    of = report(tmp_path, [row(), row(scheme="t5", **change)])
    assert any(says in note for note in of.notes)
    assert says in " ".join(formats.render(of).split())
    assert "are apart" not in formats.render(report(tmp_path / "one", [row(), row(scheme="t5")]))


def test_settings_of_a_protocol_are_said_too(tmp_path):
    rows = losses("sliding(stride=64)", {128: 2.0}) + losses("sliding(stride=1)", {128: 1.9}, scheme="t5")
    rows += losses("window(L=128, targets=100)", {128: 2.0}) + losses("window(L=64, targets=100)", {64: 1.9})
    notes = " ".join(report(tmp_path, rows).notes)
    assert "sliding(stride=1)" in notes and "protocol.sliding.stride differs" in notes
    assert "protocol.window.L differs" in notes and "targets differ" not in notes


def test_what_was_out_of_memory_gives_way_to_a_number(tmp_path):
    study = save(tmp_path, [row(status="out of memory"), row(length=256, status="not finite")])
    path = study / row().cell / "rows.jsonl"
    assert store.append(path, [row(status="out of memory")]) == 0
    assert store.append(path, [row(total=100)]) == 1
    assert store.append(path, [row(total=200), row(length=256, total=1)]) == 0
    assert [(r.length, r.status, r.total) for r in store.load(path)] == [(256, "not finite", None), (128, "ok", 100.0)]


# ---- the gate --------------------------------------------------------------------------------------------


def test_what_has_not_learned_1x_says_so_and_keeps_its_1x(tmp_path):
    of = report(tmp_path, copies("nope", [0.94, 0.93]) + copies("alibi", [0.95, 0.5]))
    assert {table.quantity for table in of.tables} == {"token accuracy", "exact match", "stopping"}
    for table in of.tables:
        shown = {line.scheme: [cell.status for _, cell in sorted(line.cells.items())] for line in table.lines}
        assert shown == {"nope": ["ok", "not learned"], "alibi": ["ok", "ok"]}, table.quantity
    for text in (formats.render(of), formats.markdown(of), formats.csv(of)):
        assert "0.94" in text and "0.93" not in text and "not learned" in " ".join(text.split())
    assert "0.93" in formats.render(report(tmp_path, copies("nope", [0.94, 0.93]), gate=0.9))


def test_the_gate_is_a_matter_of_each_seed(tmp_path):
    rows = [r for s, share in enumerate((1.0, 0.5, 1.0)) for r in copies("rope", [share, 0.25], seed=s)]
    study = save(tmp_path, rows)
    configure(study, rows)
    at_2x = [c for c in cells(tables.summary(store.read(study))) if c["length"] == "102"]
    assert [(c["status"], c["value"]) for c in at_2x] == [("not learned 1/3", "")] * 3


def test_without_1x_nobody_knows_what_was_learned(tmp_path):
    of = report(tmp_path, [row(**COPY, length=102, total=70)])
    assert cells(of)[0]["status"] == "1x not measured" and "0.700" not in formats.render(of)


def test_an_extension_is_judged_by_the_plain_model(tmp_path):
    rows = [*copies("rope", [1.0, 0.1]), *copies("rope", [0.2, 0.8], extension="pi(scale=8)")]
    shown = {(c["extension"], c["length"]): c["status"] for c in cells(report(tmp_path, rows))}
    assert set(shown.values()) == {"ok"}
    of_text = report(tmp_path / "text", [row(total=500), row(length=256)])
    assert {c["status"] for c in cells(of_text)} == {"ok"}


@pytest.mark.parametrize("status", ["beyond reach", "not finite", "out of memory"])
def test_a_cell_without_a_number_says_why(tmp_path, status):
    of = report(tmp_path, [row(), row(length=256, status=status)])
    markdown = formats.markdown(of)
    assert f"| {status} |" in markdown and f"- {status}:" in markdown
    assert f"{status}:" in formats.render(of)


# ---- looks -----------------------------------------------------------------------------------------------

HOSTILE = "a|b<script>alert(1)</script>$x_1^{2}$[red]`*_"


def hostile() -> list[Row]:
    names = {"scheme": HOSTILE, "task": HOSTILE, "model": HOSTILE, "extension": "[/]", "cell": "hostile"}
    rows = [row(length=n, **names) for n in (128, 256)]
    rows += [
        row(length=n, **names | {"scheme": s})
        for n in (128, 256)
        for s in ("_hidden", "$\\frac{$", "字" * 20, "w" * 99)
    ]
    rows += [row(**names, protocol="per_position", slice={"position": [i, i]}) for i in range(8)]
    return [replace(r, cell=f"c{r.scheme.encode().hex()[:8]}") for r in rows]


def test_hostile_names_are_only_names(tmp_path):
    study = save(tmp_path, hostile())
    paths = write(study)
    of = tables.summary(store.read(study))
    markdown = (study / "table.md").read_text()
    assert "<" not in markdown
    grids = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(grids) > 4 and len({len(re.findall(r"(?<!\\)\|", line)) for line in grids}) == 1
    assert HOSTILE in (study / "table.csv").read_text()
    assert "[red]" in formats.render(of, 200)
    assert {p.parent for p in paths} == {study}
    assert all(re.fullmatch(r"[A-Za-z0-9._=-]+", p.name) for p in paths)
    for path in paths:
        if path.suffix == ".svg":
            assert not {e.tag for e in ET.parse(path).iter() if "script" in str(e.tag).lower()}
            names = ("_hidden", "$\\frac{$", HOSTILE[:20]) if "perplexity" in path.name else (HOSTILE[:20],)
            assert all(name in texts(path) for name in names)


def widths(text: str) -> set[int]:
    from rich.cells import cell_len

    return {cell_len(line) for line in text.splitlines()}


def wide(lengths: int) -> list[Row]:
    """Two seeds, long labels, huge and tiny numbers, wide headings."""
    rng = random.Random(0)
    copying = {"task": "copy", "metric": "token", "protocol": "free_running", "slice": {"size": 123456}}
    return [
        row(scheme=scheme, length=128 * 2**i, total=100 * rng.uniform(*share), seed=seed, **more)
        for scheme in ("rope", "alibi(slopes=[1.0,0.5,0.25,0.125])", "字" * 20)
        for more, share in (({}, (2, 14)), (copying, (0.9, 1)))
        for i in range(lengths)
        for seed in (0, 1)
    ]


@pytest.mark.parametrize("rows", [wide(1), wide(4), wide(9), quickstart(random.Random(0))])
def test_a_terminal_of_80_columns_is_enough(tmp_path, rows):
    study = save(tmp_path, rows)
    configure(study, [r for r in rows if r.protocol != "training"])
    of = tables.summary(store.read(study))
    for table in of.tables:
        if table.quantity in formats.AGAIN:
            continue
        text = formats.render(replace(of, tables=(table,)))
        words = text.split()
        assert max(widths(text)) <= 80
        assert {
            "params",
            "tokens",
            "train",
            "tok/s",
            *(str(column.length) for column in table.columns),
        } <= set(words)
        shown = [word for line in table.lines for cell in formats._texts(table, line) for word in cell.split()]
        assert all(words.count(word) >= shown.count(word) for word in set(shown)), "a cell is cut"
    assert max(widths(formats.render(of, 60))) <= 60


def test_a_title_says_how_a_number_was_made(tmp_path):
    of = report(tmp_path, [row(protocol="same_targets(k=64)", count=4096), row(count=4096), *copies("rope", [1])])
    titles = [" ".join(formats.title(table)) for table in of.tables]
    assert len(titles) == 6
    for part in (
        "text, tiny, trained on 128 tokens",
        "perplexity",
        "same_targets(k=64)",
        "4,096 scored bytes",
        "seed 0",
    ):
        assert part in titles[0], part
    terminal, whole = (" ".join(text.split()) for text in (formats.render(of, 200), formats.markdown(of)))
    for title, table in zip(titles, of.tables, strict=True):
        again = table.quantity in ("bits per byte", "word perplexity")  # of the same losses: not in a terminal
        assert (title in terminal) is not again and "scored" in title
        assert f"trained on 128 tokens: {table.quantity}" in whole or "copy" in title
    assert "the same losses as bits per byte: table.md" in terminal


# ---- figures ---------------------------------------------------------------------------------------------


def texts(svg: Path | bytes) -> str:
    """What an SVG with outlined letters says: matplotlib leaves each text in a comment above its shapes."""
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    root = ET.fromstring(svg if isinstance(svg, bytes) else svg.read_bytes(), parser)
    return html.unescape("\n".join(e.text for e in root.iter() if e.tag is ET.Comment))


def test_figures_are_there_whole_labelled_and_the_same_each_time(tmp_path):
    study = save(tmp_path, quickstart(random.Random(1)))
    paths = write(study)
    assert [p.name for p in paths] == [
        "table.csv", "table.md",
        "perplexity_text_tiny_L128.png", "perplexity_text_tiny_L128.svg",
        "accuracy_copy_tiny_L51.png", "accuracy_copy_tiny_L51.svg",
        "loss_by_position_text_tiny_L128.png", "loss_by_position_text_tiny_L128.svg",
    ]  # fmt: skip
    assert sorted(p for p in study.iterdir() if p.is_file()) == sorted(paths)
    said = {p.name.split("_")[0]: texts(p) for p in paths if p.suffix == ".svg"}
    for scheme in ("nope", "sinusoidal", "learned", "rope", "alibi", "t5"):
        assert scheme in said["perplexity"] and scheme in said["loss"]
        drawn = f"\n {scheme} " in said["accuracy"]
        assert drawn == (scheme not in ("learned", "t5"))
    assert "learned (beyond reach at 256)" in said["perplexity"] and "learned (length 128)" in said["loss"]
    for part in ("same_targets(k=64)", "nonoverlapping", "trained on 128 tokens", "seed 0", "trained length"):
        assert part in said["perplexity"], part
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
    of = tables.summary(store.read(study))
    again = figures.draw(replace(of, curves=(), tables=of.tables[:2]))
    assert len(again) == 2 and again == {name: (study / name).read_bytes() for name in again}


def test_a_figure_shows_the_numbers_of_the_table(tmp_path):
    of = report(tmp_path, quickstart(random.Random(2)))
    shown = [table for table in of.tables if table.quantity == "perplexity"]
    figure = figures.against_length(shown, "perplexity")
    for axes, table in zip(figure.axes, shown, strict=True):
        assert axes.get_yscale() == "log" and axes.get_xscale() == "log"
        drawn = [{int(x): y for x, y in zip(*ln.get_data(), strict=True)} for ln in axes.lines]
        for line in table.lines:
            points = {c.length: cell.value for c, cell in line.cells.items() if cell.status == "ok"}
            assert points in drawn, line.label
        assert [ln.get_xdata()[0] for ln in axes.lines if ln.get_linestyle() == ":"] == [128]


def test_loss_by_position_adds_up_sums_and_counts(tmp_path):
    rng = random.Random(3)
    rows = [
        row(protocol="per_position", slice={"position": [i, i]}, total=9.0 * (i + 1), count=rng.randint(5, 9))
        for i in range(16)
    ]
    of = report(tmp_path, rows)
    points = figures._buckets(of.curves[0].curves[0])
    members: dict[int, list[Row]] = {}
    for i, r in enumerate(rows):
        members.setdefault(max(k for k in range(13) if 2 ** (k / figures.PER_OCTAVE) <= i + 1 + 1e-6), []).append(r)
    expected = [sum(r.total for r in part) / sum(r.count for r in part) for part in members.values()]
    assert points["mean"].tolist() == pytest.approx(expected)
    drawn = figures.loss_by_position(of.curves[0]).axes[0].lines[0].get_ydata()
    assert list(drawn) == pytest.approx([value / math.log(2) for value in expected])


def test_what_has_not_learned_is_dashed(tmp_path):
    of = report(tmp_path, copies("nope", [0.2, 0.1]) + copies("rope", [1, 0.9]))
    figure = figures.against_length([t for t in of.tables if t.quantity == "token accuracy"], "accuracy")
    legend = figure.axes[0].get_legend()
    looks = {
        text.get_text(): line.get_linestyle() for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    assert looks == {"rope": "-", "nope (not learned)": "--"}


def test_nothing_to_draw_is_no_figure(tmp_path):
    study = save(tmp_path, [row(status="not finite"), row(protocol="per_position", status="not finite")])
    assert [p.name for p in write(study)] == ["table.csv", "table.md"]


def test_a_scheme_looks_the_same_in_every_figure_and_like_no_other(tmp_path):
    known = [figures.colour_and_marker(scheme) for scheme in tables.SCHEMES]
    assert len(set(known)) == len(tables.SCHEMES)
    assert len({c for c, _ in known[:6]}) == len({m for _, m in known[:6]}) == 6  # those of the quickstart
    assert figures.colour_and_marker("rope(base=500000.0)") == figures.colour_and_marker("rope")
    assert figures.colour_and_marker("wave.Wave") == figures.colour_and_marker("wave.Wave(r=2)")
    rows = [
        row(),
        row(extension="pi"),
        row(scheme="rope(base=1.0)"),
        row(scheme="alibi"),
        row(scheme="kerple_log"),
    ]
    all_styles = figures._styles(report(tmp_path, rows).tables[0].lines)
    assert all_styles["rope"][:2] == figures.colour_and_marker("rope")
    assert len({(s.color, s.marker) for s in all_styles.values()}) == len(rows)
    hollow = {label for label, s in all_styles.items() if s.markerfacecolor == "white"}
    assert hollow == {"rope + pi", "rope(base=1.0)"}


def test_whatever_there_is_can_be_drawn(tmp_path):
    """A line for every scheme, and one of a user's: all in one figure, no two alike."""
    names = [*choices("position"), "wave.Wave", "wave.Other"]
    study = save(tmp_path, [row(scheme=name, length=length) for name in names for length in (128, 256)])
    assert any(path.suffix == ".png" for path in write(study))
    styles = figures._styles(report(tmp_path, [row(scheme=name) for name in names]).tables[0].lines)
    assert len({(s.color, s.marker) for s in styles.values()}) == len(names)


def test_reports_need_no_torch():
    code = "import sys, posenc_train.report.figures, posenc_train.report.formats; exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1], timeout=60)


def test_a_table_says_what_a_memory_reads(tmp_path):
    """Segment recurrence: that a length is read at once is the same as in segments with a memory of the rest, which
    the tests of the model show; a scheme without a memory has no such note."""
    made = [row(scheme=scheme, length=n) for scheme in ("transformer_xl(memory=64)", "rope") for n in (128, 512)]
    (table, *_) = report(tmp_path, made).tables
    assert "memory: n tokens are read as segments of 128 with n - 128 tokens of memory would be, all at once" in (
        table.notes
    )
    plain = report(tmp_path / "plain", [row(scheme="transformer_xl"), row(scheme="rope")]).tables[0]
    assert not any(note.startswith("memory") for note in plain.notes)
