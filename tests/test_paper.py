"""What goes into a paper: LaTeX tables against bests and ties computed here, parquet beside CSV, PDF figures."""

import io
import math
import re
from dataclasses import replace

import pandas as pd
import pytest
import scipy.stats
from running import ROOT
from test_depth_map import needles, shares
from test_published import experiment, frame, rows_of
from test_report import HOSTILE, copies, hostile, report, row, save

import posenc_train.report
from posenc_train.report import figures, formats, latex, published, store, tables

TOTALS = {  # scheme -> length -> total of 100 targets for the seeds 0, 1, 2
    "alibi": {128: (200.0, 210.0, 205.0), 256: (199.0, 203.0, 207.0)},
    "rope": {128: (201.0, 209.0, 206.0), 256: (259.0, 268.0, 262.0)},
    "t5": {128: (240.0, 251.0, 244.0), 256: (198.5, 208.0, 205.0)},
}


def losses(seeds: int = 3):
    return [
        row(scheme=scheme, seed=seed, length=length, total=totals[seed])
        for scheme, lengths in TOTALS.items()
        for length, totals in lengths.items()
        for seed in range(seeds)
    ]


def floats(text: str) -> list[str]:
    return re.findall(r"\\begin\{table\}.*?\\end\{table\}", text, re.S)


def grid(table: str) -> list[list[str]]:
    """The cells of a tabular: head, then one list a line."""
    rules = r"\\toprule\n(.*?) \\\\\n\\midrule\n(.*?)\n\\bottomrule"
    head, body = re.search(rules, table, re.S).groups()
    assert all(line.endswith(r" \\") for line in body.splitlines())
    return [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in [head, *body.splitlines()]]


def marks(table: str) -> dict[str, list[str]]:
    """scheme -> for each column best, tied or nothing."""

    def mark(cell: str) -> str:
        return "best" if cell.startswith(r"\textbf{") else "tied" if cell.endswith("$^{=}$") else ""

    return {label: [mark(cell) for cell in cells] for label, *cells in grid(table)[1:]}


def expected(length: int) -> dict[str, str]:
    """By the means of the perplexities, scipy's paired t-test (one-sided at 0.025) and Holm's rule by hand."""
    values = {scheme: [math.exp(total / 100) for total in lengths[length]] for scheme, lengths in TOTALS.items()}
    best = min(values, key=lambda scheme: sum(values[scheme]))
    p = {s: scipy.stats.ttest_rel(values[s], values[best], alternative="greater").pvalue for s in values if s != best}
    found, still = {best: "best"}, True
    for left, scheme in zip(range(len(p), 0, -1), sorted(p, key=p.get), strict=True):
        still = still and p[scheme] * left < 0.025
        found[scheme] = "" if still else "tied"
    return found


def test_the_best_is_bold_and_ties_are_marked(tmp_path):
    (first, *_) = floats(latex.text(report(tmp_path, losses())))
    found = marks(first)
    for column, length in enumerate((128, 256)):
        assert {scheme: cells[column] for scheme, cells in found.items()} == expected(length), length
    assert {mark for length in (128, 256) for mark in expected(length).values()} == {"best", "tied", ""}
    assert r"\textbf{Bold}: the best." in first and "not told from it by its seeds" in first


def test_one_seed_ties_nothing_and_says_so(tmp_path):
    (first, *_) = floats(latex.text(report(tmp_path, losses(seeds=1))))
    assert {s: cells[:2] for s, cells in marks(first).items()} == {
        "alibi": ["best", ""],
        "rope": ["", ""],
        "t5": ["", "best"],
    }
    assert "one seed tells it from no other" in first and "$^{=}$" not in first


def test_more_is_better_where_it_is_and_equal_ones_are_both_best(tmp_path):
    """Of what was not learned at 1x, longer lengths are not compared."""
    made = copies("rope", [0.97, 0.5]) + copies("alibi", [0.97, 0.9]) + copies("nope", [0.2, 0.95])
    tables_ = {
        re.search(r"caption\{.*?: ([\w ]+)", table)[1]: table for table in floats(latex.text(report(tmp_path, made)))
    }
    found = {scheme: cells[:2] for scheme, cells in marks(tables_["token accuracy"]).items()}
    assert found == {"rope": ["best", ""], "alibi": ["best", "best"], "nope": ["", ""]}
    worth = marks(tables_["what longer context is worth"])
    assert not any(mark for cells in worth.values() for mark in cells)  # of a ratio there is no best


def test_gains_have_a_best_and_a_minus(tmp_path):
    made = [
        row(scheme=s, length=n, total=t, protocol="same_targets(k=64)")
        for s, n, t in (("rope", 128, 200), ("rope", 256, 250), ("alibi", 128, 210), ("alibi", 256, 200))
    ]
    worth = floats(latex.text(report(tmp_path, made)))[-1]
    gain = grid(worth)[0].index("2x 256, gain")
    assert {line[0]: line[gain] for line in grid(worth)[1:]} == {"rope": "$-$0.500", "alibi": r"\textbf{+0.100}"}


def test_each_depth_has_its_own_best(tmp_path):
    made = needles("rope", lambda depth, n: 0.99 - 0.5 * depth * (n > 64)) + needles("alibi", lambda *_: 0.96)
    depths = [t for t in floats(latex.text(report(tmp_path, made))) if "token accuracy, by depth" in t][0]
    bold = {(*label.split(), i) for label, cells in marks(depths).items() for i, mark in enumerate(cells) if mark}
    assert bold == {
        ("rope" if 0.99 - 0.5 * depth * (i > 0) > 0.96 else "alibi", f"{depth:g}" if depth % 1 else f"{depth}", i)
        for depth in (0.0, 0.25, 1.0)
        for i in range(3)
    }


def test_other_data_are_not_compared(tmp_path):
    made = [row(scheme=s, total=t) for s, t in (("rope", 200), ("alibi", 210), ("t5", 220))]
    made += [row(scheme="nope", total=100, eval_hash="other")]
    found = marks(floats(latex.text(report(tmp_path, made)))[0])
    assert {scheme for scheme, (mark, *_) in found.items() if mark} == {"rope"}


def test_names_are_only_names(tmp_path):
    """Unescaped, each of these signs would be LaTeX's; a row that begins with [ or * would be read as its \\\\'s."""
    names = [r"50%_of&all#1$x^2~{a}\b", "[2]", "*", "a|b<c>"]
    text = latex.text(report(tmp_path, [row(scheme=name, task="a_b & c") for name in names]))
    (table, *_) = floats(text)
    wanted = [r"50\%\_of\&all\#1\$x\textasciicircum{}2\textasciitilde{}\{a\}\textbackslash{}b", "{[}2{]}", "{*}"]
    labels = [line[0] for line in grid(table)[1:]]
    assert set(labels) == {*wanted, r"a\textbar{}b\textless{}c\textgreater{}"}
    assert len({len(line) for line in grid(table)}) == 1 and r"\caption{a\_b \& c, tiny" in table


def test_every_float_is_whole(tmp_path):
    text = latex.text(report(tmp_path, [*hostile(), *losses(), *needles("rope", shares)]))
    for table in floats(text):
        (columns,) = re.findall(r"\\begin\{tabular\}\{(lr*)\}", table)
        assert {len(line) for line in grid(table)} == {len(columns)}
        bare = re.sub(r"\\[{}]", "", table)  # escaped braces are letters
        assert bare.count("{") == bare.count("}")
        for name in ("toprule", "midrule", "bottomrule", "caption", "end{tabular}"):
            assert table.count(f"\\{name}") == 1
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == len(floats(text)) > 5
    rest = re.sub(r"\\begin\{table\}.*?\\end\{table\}", "", text, flags=re.S)
    assert all(line.startswith("%") for line in rest.splitlines() if line)
    assert HOSTILE not in text


def test_a_published_table_has_ours_above_theirs():
    """Two seeds each: rope is 5 apart from t5 in both, which two seeds tell; alibi wavers. Theirs are not marked."""
    rows = rows_of("t5", 512, (10, 11)) + rows_of("rope", 512, (15, 16)) + rows_of("alibi", 512, (9, 13.5))
    beside = published.beside(frame(rows), experiment("alibi_table2"))
    (table,) = floats(latex.published(beside))
    head, *body = grid(table)
    column = head.index("512")
    assert [line[1] for line in body] == ["ours", "theirs"] * (len(body) // 2) and "{llr" in table
    found = {line[0]: (line[column], body[i + 1][column]) for i, line in enumerate(body) if i % 2 == 0}
    assert found["t5"][0] == r"\textbf{10.50 $\pm$0.707}" and found["alibi"][0] == r"11.25 $\pm$3.182$^{=}$"
    assert found["rope"][0] == r"15.50 $\pm$0.707" and found["sinusoidal"][0] == "--"
    cells = {(r["scheme"], r["length"]): r["value"] for r in published.load("alibi_table2")}
    assert {label: theirs for label, (_, theirs) in found.items()} == {s: cells[s, "512"] for s in found}
    assert r"\textbf{Bold}: the best." in table and "paired $t$-test" in table and "arXiv" in table


def test_parquet_is_the_csv(tmp_path):
    of = report(tmp_path, [*losses(), *copies("rope", [0.97, 0.5])])
    parquet = pd.read_parquet(io.BytesIO(formats.parquet(of)))
    again = pd.read_csv(io.StringIO(parquet.to_csv(index=False)), keep_default_na=False)
    pd.testing.assert_frame_equal(again, pd.read_csv(io.StringIO(formats.csv(of)), keep_default_na=False))
    assert pd.api.types.is_float_dtype(parquet["value"]) and pd.api.types.is_integer_dtype(parquet["length"])


def test_a_paper_has_tables_and_figures_in_its_forms(tmp_path):
    study = save(tmp_path, [*losses(), *(row(length=n, protocol="same_targets(k=64)") for n in (128, 256))])
    study = save(tmp_path, needles("rope", shares) + copies("rope", [0.97, 0.5]))
    of = tables.summary(store.read(study))
    paths = posenc_train.report.for_paper(of, study)
    assert [path.name for path in paths][:2] == ["table.tex", "table.parquet"]
    assert {path.stem for path in paths[2:]} == set(figures._figures(of))
    widths = {}
    for path in paths[2:]:
        pdf = path.read_bytes()
        assert pdf.startswith(b"%PDF") and b"/FontFile2" in pdf and b"/Type3" not in pdf, "fonts are embedded"
        widths[path.stem.split("_")[0]] = float(re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", pdf)[1]) / 72
    assert widths == pytest.approx({"perplexity": 6.75, "accuracy": 6.75, "depth": 3.25})
    again = figures.for_paper(replace(of, tables=()))
    assert again == {name: (study / name).read_bytes() for name in again} and len(again) == 2


def test_a_paper_figure_is_the_figure_with_its_legend_below(tmp_path):
    of = report(tmp_path, losses())
    shown = [table for table in of.tables if table.quantity == "perplexity"]
    before, after = (figures.against_length(shown, "perplexity") for _ in range(2))
    figures.typeset(after)
    assert [list(map(tuple, ln.get_xydata())) for ln in after.axes[0].lines] == [
        list(map(tuple, ln.get_xydata())) for ln in before.axes[0].lines
    ]
    (legend,) = after.legends
    assert {text.get_text() for text in legend.get_texts()} == set(TOTALS)
    after.canvas.draw()
    box, panel = legend.get_window_extent(), after.axes[0].get_window_extent()
    assert box.y1 < panel.y0 and box.x0 >= 0 and box.x1 <= after.get_figwidth() * after.dpi
    assert not after.get_suptitle() and after.get_figwidth() == 3.25


def test_the_committed_rows_make_a_paper():
    """Every scheme of the quickstart, in every column its best computed from the rows themselves."""
    from posenc_train.evaluation.rows import Row

    lines = (ROOT / "posenc_train/data/quickstart.jsonl").read_text().splitlines()
    rows = [r for r in map(Row.parse, lines) if r.protocol == "same_targets(k=64)" and r.status == "ok"]
    best = {
        n: min((r for r in rows if r.length == n), key=lambda r: r.total / r.count).scheme
        for n in (128, 256, 512, 1024)
    }
    frame = pd.DataFrame.from_records([store._record(r, None, None) for r in map(Row.parse, lines)])
    table = next(t for t in floats(latex.text(tables.summary(frame))) if "same\\_targets" in t and "perplexity = " in t)
    found = marks(table)
    assert {n: next(s for s in found if found[s][i] == "best") for i, n in enumerate(best)} == best
