"""The depth × length map: the numbers of the table by depth, a panel a scheme, readable without colours."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import rgb_to_hsv, to_rgb
from test_report import report, row

from posenc_train.report import figures

DEPTHS, LENGTHS = (0.0, 0.25, 1.0), (64, 128, 512)


def needles(scheme: str, share, protocol: str = "free_running", **more):
    """Rows of all depths together and of each, of 40 examples with three digits a depth; share(depth, length)."""
    rows = []
    for length, (metric, digits) in itertools.product(LENGTHS, {"token": 3, "exact": 1}.items()):
        common = {
            "task": "needle", "train_length": 64, "protocol": protocol, "metric": metric, "scheme": scheme,
            "unit": "token" if metric == "token" else "example", "length": length,
        } | more  # fmt: skip
        for depth in DEPTHS:
            at = {"slice": {"size": length, "depth": depth}, "total": 40 * digits * share(depth, length)}
            rows.append(row(**common, **at, count=40 * digits))
        every = sum(r.total for r in rows[-len(DEPTHS) :])
        rows.append(row(**common, slice={"size": length}, total=every, count=120 * digits))
    return rows


def shares(depth: float, length: int) -> float:
    return 1.0 if length == 64 else depth * 64 / length


def maps(folder, rows):
    of = report(folder, rows)
    (table,) = (table for table in of.parts if table.quantity == "token accuracy" and table.by == "depth")
    return of, figures.depth_by_length(table)


def shown(axes) -> list[list[str]]:
    texts = {tuple(text.get_position()): text.get_text() for text in axes.texts}
    return [[texts[x, y].replace("\n", " ") for x in range(len(LENGTHS))] for y in range(len(DEPTHS))]


def test_numbers_and_shades_are_those_of_the_rows(tmp_path):
    """Depth 0 is on top, and lengths grow to the right."""
    _, figure = maps(tmp_path, needles("rope", shares) + needles("alibi", lambda *_: 0.96))
    rope, alibi = figure.axes[:2]
    assert [axes.get_title() for axes in (rope, alibi)] == ["rope", "alibi"]
    wanted = [[shares(depth, length) for length in LENGTHS] for depth in DEPTHS]
    assert shown(rope) == [[f"{value:.2f}" for value in line] for line in wanted]
    np.testing.assert_allclose(rope.images[0].get_array(), wanted)
    assert [label.get_text() for label in rope.get_xticklabels()] == ["64\n1x", "128\n2x", "512\n8x"]
    assert [label.get_text() for label in rope.get_yticklabels()] == ["0", "0.25", "1"]
    low, high = rope.get_ylim()
    assert low > high  # the first row is the highest


def test_the_title_says_protocol_counts_and_seeds(tmp_path):
    rows = [r for seed in (0, 1) for r in needles("rope", shares, seed=seed)]
    _, figure = maps(tmp_path, rows)
    title = " ".join(figure.get_suptitle().split())
    assert title == (
        "needle, tiny, trained on 64 tokens: token accuracy by depth and length, free_running, 120 tokens a cell and "
        "seed, mean over 2 seeds"
    )


def test_the_mean_over_seeds_is_shown(tmp_path):
    rows = needles("rope", lambda *_: 0.96) + needles("rope", lambda *_: 1.0, seed=1)
    _, figure = maps(tmp_path, rows)
    assert {word for line in shown(figure.axes[0]) for word in line} == {"0.98"}


def test_shades_in_grey_keep_the_order_and_numbers_stand_out(tmp_path):
    _, figure = maps(tmp_path, needles("rope", shares))
    image = figure.axes[0].images[0]
    luminance = image.cmap(np.linspace(0, 1, 101))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(luminance) > 0).all() and image.get_clim() == (0, 1)
    for text in figure.axes[0].texts:
        under = image.cmap(float(text.get_text()))[:3] @ np.array([0.2126, 0.7152, 0.0722])
        assert abs(under - rgb_to_hsv(to_rgb(text.get_color()))[2]) > 0.35


def test_what_has_no_number_says_why_and_what_was_not_learned_is_hatched(tmp_path):
    rows = needles("nope", lambda depth, length: 0.9)
    rows += needles("learned", lambda depth, length: 0.97)
    rows = [
        row(**vars(r) | {"status": "beyond reach", "total": None, "count": 0}) if key else r
        for r in rows
        for key in [r.scheme == "learned" and r.length > 64]
    ]
    _, figure = maps(tmp_path, rows)
    nope, learned = figure.axes[:2]
    assert nope.get_title() == "nope (not learned)" and learned.get_title() == "learned"
    assert shown(learned) == [["0.97", "beyond reach", "beyond reach"]] * 3
    assert len(nope.patches) == 6 and all(patch.get_hatch() for patch in nope.patches) and not learned.patches


@pytest.mark.parametrize("schemes, grid", [(1, (1, 1)), (5, (1, 5)), (6, (2, 3)), (11, (3, 4))])
def test_many_schemes_are_small_multiples_with_numbered_axes(tmp_path, schemes, grid):
    rows = [r for n in range(schemes) for r in needles(f"wave{n}", shares)]
    _, figure = maps(tmp_path, rows)
    panels = figure.axes[:schemes]
    places = [axes.get_subplotspec() for axes in panels]
    assert {(spec.get_gridspec().nrows, spec.get_gridspec().ncols) for spec in places} == {grid}
    numbered = [axes for axes in panels if axes.xaxis.get_tick_params()["labelbottom"]]
    assert len(numbered) == grid[1]
    assert len(figure.axes) == schemes + 1  # and the scale


def test_two_extensions_of_one_scheme_are_two_panels(tmp_path):
    rows = needles("rope", shares) + needles("rope", shares, extension="pi(scale=2)")
    _, figure = maps(tmp_path, rows)
    assert [axes.get_title() for axes in figure.axes[:2]] == ["rope", "rope + pi(scale=2)"]


def test_maps_are_drawn_where_there_are_depths_and_for_the_models_own_answers_first(tmp_path):
    def drawn(name, rows):
        return sorted(file for file in figures.draw(report(tmp_path / name, rows)) if file.startswith("depth"))

    wanted = [f"depth_{q}_needle_tiny_L64.{kind}" for q in ("exact_match", "token_accuracy") for kind in ("png", "svg")]
    own, forced = needles("rope", shares), needles("rope", shares, protocol="teacher_forced")
    assert drawn("own", own) == drawn("both", own + forced) == drawn("forced", forced) == wanted
    assert drawn("whole", [r for r in own if "depth" not in r.slice]) == []


def test_depths_do_not_enter_the_table_of_all(tmp_path):
    of, _ = maps(tmp_path, needles("rope", shares))
    (table,) = (table for table in of.tables if table.quantity == "token accuracy")
    (line,) = table.lines
    values = [cell.value for _, cell in sorted(line.cells.items())]
    assert values == pytest.approx([np.mean([shares(depth, length) for depth in DEPTHS]) for length in LENGTHS])
    assert line.label == "rope"
