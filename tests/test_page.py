"""report.html: what a reader sees of it in a browser, against the rows that it was made from."""

import json
import math
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import posenc_train.report
from posenc_train.checks import UserError, choices
from posenc_train.config import compose
from posenc_train.evaluation.rows import Row
from posenc_train.report import again, store

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "posenc_train/data"
NEEDED = "CI_REQUIRES_CHROMIUM"
HOSTILE = "</script><script>window.broken = 1</script>"
IMAGE = "<img src=x onerror=window.broken=1>"
VISIBLE = "canvas => Chart.getChart(canvas).getVisibleDatasetCount()"
LARGEST = 1_000_000  # bytes


def without_browser():
    """Skips with the remedy; where a skip must not be, fails with it."""
    why = "no browser to look at report.html with: apt-get install chromium"
    pytest.fail(why) if os.environ.get(NEEDED) else pytest.skip(why)


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        without_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def tab(browser):
    """A page of the browser, with what it told on the way: errors, and what was asked for."""
    page, wrong, asked = browser.new_page(), [], []
    page.set_default_timeout(10_000)  # milliseconds
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append("a dialog"))
    page.on("request", lambda request: asked.append(request.url))
    return page, wrong, asked


@pytest.fixture
def look(tab):
    """Opens a study's page. Afterwards: nothing but that was asked for, and nothing went wrong."""
    (page, wrong, asked), opened = tab, []

    def open_(study: Path, width: int = 1200, scheme: str = "light"):
        opened.append((study / "report.html").as_uri())
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(opened[-1])
        return page

    wrong.clear(), asked.clear()
    yield open_
    assert (wrong, asked) == ([], opened)


# ---- studies ---------------------------------------------------------------------------------------------


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


def save(folder: Path, rows: list[dict | Row]) -> Path:
    """A study's folder with these rows in it, and its page."""
    cells = {}
    for row in rows:
        row = row if isinstance(row, Row) else Row.parse(json.dumps(row))
        cells.setdefault(row.cell, []).append(row)
    for cell, own in cells.items():
        store.append(folder / cell / "rows.jsonl", own)
    return folder


def write(study: Path) -> Path:
    return posenc_train.report.write_page(posenc_train.report.of(study), study)


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    study = save(tmp_path_factory.mktemp("quickstart"), lines("quickstart"))
    write(study)
    return study


@pytest.fixture(scope="module")
def extrapolation(tmp_path_factory):
    study = save(tmp_path_factory.mktemp("extrapolation"), lines("extrapolation"))
    write(study)
    return study


def perplexities(study: Path, protocol: str, length: int) -> dict[str, float]:
    """By scheme, from the lines of rows.jsonl."""
    found = {}
    for file in study.glob("*/rows.jsonl"):
        for row in map(json.loads, file.read_text().splitlines()):
            if (row["protocol"], row["length"], row["metric"], row["status"]) == (protocol, length, "nll", "ok"):
                found[row["scheme"]] = math.exp(row["total"] / row["count"])
    return found


def chart(page, group: int, title: str, under: str = ""):
    """The canvas of a chart by the words above it."""
    cards = page.locator(f"#figures [data-group='{group}'] figure", has_text=re.compile(re.escape(under)))
    return cards.filter(has=page.locator("strong", has_text=re.compile(f"^{title}"))).locator("canvas").first


def hover(page, canvas, at: float) -> list[str]:
    """Puts the pointer where a value of the horizontal axis is; returns the lines of what is then shown."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x = canvas.evaluate("(canvas, at) => Chart.getChart(canvas).scales.x.getPixelForValue(at)", at)
    page.mouse.move(box["x"] + x, box["y"] + box["height"] / 2)
    return canvas.evaluate("canvas => Chart.getChart(canvas).tooltip.body.flatMap(part => part.lines)")


# ---- curves ----------------------------------------------------------------------------------------------


def test_a_reader_points_at_a_curve_and_reads_what_the_rows_say(look, quickstart):
    page = look(quickstart)
    told = hover(page, chart(page, 0, "perplexity", "same_targets(k=64)"), 512)
    read = {name: float(value) for name, value in (line.split(": ") for line in told)}
    wanted = perplexities(quickstart, "same_targets(k=64)", 512)
    assert read == pytest.approx(wanted, rel=1e-4) and len(wanted) == 5  # learned is beyond its reach
    assert list(read.values()) == sorted(read.values(), reverse=True)


def pixel(canvas, scheme: str, length: int) -> list[int]:
    """The colour in the middle of a scheme's point."""
    return canvas.evaluate(
        """(canvas, [scheme, length]) => {
            const chart = Chart.getChart(canvas), sharp = chart.currentDevicePixelRatio;
            const set = chart.data.datasets.find(set => set.label === scheme);
            const {x, y} = set.data.find(point => point.x === length);
            const at = [chart.scales.x.getPixelForValue(x), chart.scales.y.getPixelForValue(y)];
            const copy = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
            const seen = copy.getContext("2d", {willReadFrequently: true});
            seen.drawImage(canvas, ...at.map(v => -Math.floor(v * sharp)));
            return [...seen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        }""",
        [scheme, length],
    )


def test_a_reader_switches_a_scheme_off_and_on(look, quickstart):
    page = look(quickstart)
    canvases = page.locator("#figures [data-group='0'] canvas")
    before = [canvas.evaluate(VISIBLE) for canvas in canvases.all()]
    first = chart(page, 0, "perplexity", "same_targets(k=64)")
    assert before == [6, 6] and pixel(first, "rope", 1024) == [0xD5, 0x5E, 0x00]
    page.click("[data-chip=rope]")
    assert [canvas.evaluate(VISIBLE) for canvas in canvases.all()] == [5, 5]
    assert not any("rope" in line for line in hover(page, first, 1024))
    page.mouse.move(0, 0)
    assert pixel(first, "rope", 1024) != [0xD5, 0x5E, 0x00]
    assert page.get_attribute("[data-chip=rope]", "aria-pressed") == "false"
    page.click("[data-chip=rope]")
    assert [canvas.evaluate(VISIBLE) for canvas in canvases.all()] == before
    page.click(".chips button:text-is('none')")
    assert [canvas.evaluate(VISIBLE) for canvas in canvases.all()] == [0, 0]
    page.click(".chips button:text-is('all')")
    assert [canvas.evaluate(VISIBLE) for canvas in canvases.all()] == before


def test_axes_are_logarithmic_or_not(look, quickstart):
    page = look(quickstart)
    canvas = chart(page, 0, "perplexity", "same_targets(k=64)")
    figure = canvas.locator("xpath=ancestor::figure")

    def types():
        return canvas.evaluate("canvas => ['x', 'y'].map(axis => Chart.getChart(canvas).scales[axis].type)")

    def spread():  # 128 to 256 and 512 to 1024 tokens, in pixels
        scale = "canvas => [128, 256, 512, 1024].map(x => Chart.getChart(canvas).scales.x.getPixelForValue(x))"
        a, b, c, d = canvas.evaluate(scale)
        return (d - c) / (b - a)

    assert types() == ["logarithmic"] * 2 and spread() == pytest.approx(1, abs=0.01)
    figure.locator("[data-axis=x]").uncheck()
    figure.locator("[data-axis=y]").uncheck()
    assert types() == ["linear"] * 2 and spread() == pytest.approx(4, abs=0.05)


def test_tasks_stand_behind_tabs_and_what_was_not_learned_is_dashed(look, quickstart):
    page = look(quickstart)
    page.click("[data-tab] >> text=copy")
    canvas = chart(page, 1, "token accuracy")
    told = dict(line.split(": ") for line in hover(page, canvas, 51))
    shares = {
        r["scheme"]: r for r in lines("quickstart") if (r["task"], r["metric"], r["length"]) == ("copy", "token", 51)
    }
    assert told.keys() == shares.keys()
    for scheme, row in shares.items():
        assert float(told[scheme].split()[0]) == pytest.approx(row["total"] / row["count"], rel=1e-4)
        assert re.search(r"\(\d\.\d\d–\d\.\d\d\)", told[scheme])
    dashes = "canvas => Chart.getChart(canvas).data.datasets.filter(set => set.borderDash.length).map(set => set.label)"
    assert canvas.evaluate(dashes) == ["nope"]
    assert not page.locator("#figures [data-group='0']").is_visible()


def test_loss_by_position_has_the_losses_of_the_rows(look, tmp_path):
    base = next(r for r in lines("quickstart") if r["protocol"] == "nonoverlapping" and r["status"] == "ok")
    place = {"protocol": "per_position", "count": 10}
    rows = [base | place | {"slice": {"position": [i, i]}, "total": 10.0 * (i + 1), "length": 4} for i in range(4)]
    study = save(tmp_path, rows)
    write(study)
    page = look(study)
    canvas = chart(page, 0, "loss by position")
    told = float(hover(page, canvas, 1)[0].split(": ")[1])
    assert told == pytest.approx(1.0 / math.log(2), rel=1e-4)  # a nat, in bits
    assert float(hover(page, canvas, 4)[0].split(": ")[1]) == pytest.approx(4.0 / math.log(2), rel=1e-4)


# ---- maps, biases, tables --------------------------------------------------------------------------------


def test_depth_maps_have_the_shares_of_the_rows(look, extrapolation):
    page = look(extrapolation)
    page.click("[data-tab] >> text=needle")
    wanted = {
        (r["slice"]["depth"], r["length"]): r["total"] / r["count"]
        for r in lines("extrapolation")
        if "depth" in r["slice"] and r["scheme"] == "rope"
    }
    wanted_at_1x = {
        r["scheme"]: r["total"] / r["count"]
        for r in lines("extrapolation")
        if r["task"] == "needle" and "depth" not in r["slice"] and r["length"] == 64
    }
    table = page.locator(".map[data-label=rope] table")
    lengths = [int(words.split("\n")[0]) for words in table.locator("thead th").all_inner_texts()[1:]]
    found = {}
    for row in table.locator("tbody tr").all():
        depth, *shares = row.locator("th, td").all_inner_texts()
        found |= {(float(depth), length): float(share) for length, share in zip(lengths, shares, strict=True)}
    assert found == pytest.approx(wanted, abs=0.005 + 1e-9) and len(found) == 20
    for scheme in ("nope", "alibi"):
        learned = wanted_at_1x[scheme] >= 0.95
        assert learned != ("not learned" in page.locator(f".map[data-label={scheme}] h4").inner_text())
    assert wanted_at_1x["nope"] < 0.95 <= wanted_at_1x["alibi"]
    page.click("[data-chip=rope]")
    assert not table.is_visible() and page.locator(".map:visible").count() == 4


def test_biases_are_drawn_a_head_a_line(look, tmp_path):
    rows = [r for r in lines("quickstart") if r["task"] == "text" and r["scheme"] in ("alibi", "rope")]
    study = save(tmp_path, rows)
    cell = next(r["cell"] for r in rows if r["scheme"] == "alibi")
    told = {
        "length": 9,
        "distances": [0, 1, 8],
        "layers": [{"layers": [0, 2], "heads": [[0, -0.5, -4], [0, -0.25, -2]]}],
    }
    (study / cell / store.BIASES).write_text(json.dumps(told))
    write(study)
    page = look(study)
    canvas = chart(page, 0, "alibi", "layers 1, 3")
    assert canvas.evaluate(VISIBLE) == 2
    assert hover(page, canvas, 9) == ["head 2, distance 8: -2", "head 1, distance 8: -4"]
    page.click("[data-chip=alibi]")
    assert not canvas.is_visible()
    for damaged in ("{", "{}", "[]", "5"):
        (study / cell / store.BIASES).write_text(damaged)
        with pytest.raises(UserError, match="damaged"):
            write(study)


def test_a_table_is_sorted_by_what_was_measured(look, quickstart):
    page = look(quickstart)
    table = page.locator("#tables [data-group='0'] table").first
    wanted = perplexities(quickstart, "same_targets(k=64)", 1024)
    column = next(i for i, words in enumerate(table.locator("thead th").all_inner_texts()) if words.startswith("8x"))

    def press():
        table.locator("thead button").nth(column).click()
        return table.locator("tbody th").all_inner_texts()

    up = sorted(wanted, key=wanted.get)
    assert press() == [*up, "learned"]  # without a number: last, in both directions
    assert press() == [*up[::-1], "learned"]
    assert table.locator("thead th").nth(column).get_attribute("aria-sort") == "descending"
    table.locator("thead button").first.click()
    assert table.locator("tbody th").all_inner_texts() == sorted([*up, "learned"])


def test_costs_stand_beside_the_numbers(look, quickstart):
    page = look(quickstart)
    table = page.locator("#tables [data-group='0'] table").first
    head = [words.strip() for words in table.locator("thead button").all_inner_texts()]
    cells = table.locator("tbody tr", has_text="rope").locator("th, td").all_inner_texts()
    told = dict(zip(head, cells, strict=True))
    cost = {
        r["metric"]: r
        for r in lines("quickstart")
        if (r["protocol"], r["task"], r["scheme"]) == ("training", "text", "rope")
    }
    assert told["params"] == f"{cost['parameters']['total'] / 1e3:.0f}k"
    assert told["peak memory"] == f"{cost['bytes']['total'] / 1e6:.0f}MB"
    assert float(told["train s"]) == pytest.approx(cost["seconds"]["total"], rel=1e-2)
    speed = cost["seconds"]["tokens_seen"] / cost["seconds"]["total"]
    assert float(told["tok/s"].rstrip("k")) * 1e3 == pytest.approx(speed, rel=1e-2)


# ---- verdicts --------------------------------------------------------------------------------------------

EFFECTS = (0.01, 0.02, 0.06)  # nats by which ALiBi is worse at 8x, seed by seed
T_TWO = 4.302652729749464  # Student's t, 2 degrees of freedom, 97.5 %


def claimed(say: str, **bound) -> dict:
    sides = {"left": {"scheme": "alibi", "length": "8x"}, "right": {"scheme": "alibi", "length": "1x"}}
    return {"say": say, "metric": "nll", "protocol": "same_targets", **sides, **bound}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A study of three seeds with three claims."""
    of = [
        r
        for r in lines("quickstart")
        if (r["scheme"], r["task"], r["protocol"]) == ("alibi", "text", "same_targets(k=64)")
    ]
    base = {r["length"]: Row.parse(json.dumps(r)) for r in of}
    rows = []
    for seed, effect in enumerate(EFFECTS):
        own = {"cell": base[128].cell.replace("-s0-", f"-s{seed}-"), "seed": seed}
        rows.append(replace(base[128], **own, total=2.0 * base[128].count))
        rows.append(replace(base[1024], **own, total=(2.0 + effect) * base[1024].count))
    study = save(tmp_path_factory.mktemp("judged"), rows)
    experiment = compose("reproduce", ["experiment=alibi_table2"])["experiment"]
    claims = [claimed("flat", within=0.2), claimed("sinks", below=-0.1), claimed("rises", above=0.02)]
    cells = [run.name for run in store.runs(study)]
    command = "python scripts/reproduce.py experiment=alibi_table2 seeds=3"
    posenc_train.report.verdict(experiment | {"claims": claims}, study, cells, command)
    write(study)
    return study


def test_the_verdict_comes_first_with_effect_interval_margin_and_reason(look, judged):
    page = look(judged)
    assert page.locator("main > *").first.get_attribute("id") == "verdict"
    cards = page.locator(".claim")
    assert cards.locator("h3").all_inner_texts() == ["flat", "sinks", "rises"]
    badges = [words.split(maxsplit=1)[1] for words in cards.locator(".badge").all_inner_texts()]
    assert [badge.rstrip("*") for badge in badges] == ["holds", "does not hold", "undecided"]
    mean = sum(EFFECTS) / 3
    half = T_TWO * (sum((effect - mean) ** 2 for effect in EFFECTS) / 2 / 3) ** 0.5
    said = f"{mean:+.4f} [{mean - half:.4f}, {mean + half:.4f}] nats"
    assert cards.locator("dd", has_text="nats").all_inner_texts() == [said] * 3
    assert "below -0.1" in cards.nth(1).inner_text() and "Holm" in cards.nth(1).inner_text()
    assert "the interval holds 0.02" in cards.nth(2).inner_text()
    assert "1 hold" in page.locator(".lead").inner_text()


def test_where_an_interval_lies_is_to_scale(look, judged):
    page = look(judged)
    places = page.locator(".claim .scale").first.evaluate(
        """scale => {
            const at = selector => scale.querySelector(selector).getBoundingClientRect();
            const ticks = [...scale.querySelectorAll("b")].map(b => [Number(b.textContent), parseFloat(b.style.left)]);
            const width = scale.getBoundingClientRect(), mean = at(".mean"), ends = at(".ends"), part = at(".claimed");
            const share = x => 100 * (x - width.left) / width.width;
            return {ticks, mean: share(mean.left + mean.width / 2), ends: [share(ends.left), share(ends.right)],
                    part: [share(part.left), share(part.right)]};
        }"""
    )
    known = dict(places["ticks"])
    assert known.keys() == {0.0, -0.2, 0.2}
    unit = (known[0.2] - known[-0.2]) / 0.4
    mean = sum(EFFECTS) / 3
    half = T_TWO * (sum((effect - mean) ** 2 for effect in EFFECTS) / 2 / 3) ** 0.5
    assert places["mean"] == pytest.approx(known[0.0] + unit * mean, abs=0.2)
    assert places["ends"] == pytest.approx([known[0.0] + unit * (mean + side * half) for side in (-1, 1)], abs=0.2)
    assert places["part"] == pytest.approx([known[-0.2], known[0.2]], abs=0.2)


def test_the_published_table_stands_beside_ours(look, judged):
    page = look(judged)
    published = [
        row.split(",") for row in (DATA / "published/alibi_table2.csv").read_text().splitlines() if row[0] != "#"
    ]
    values = {row[published[0].index("value")] for row in published[1:]} - {""}
    theirs = page.locator(".beside .theirs td").all_inner_texts()
    assert values <= set(theirs) and len(page.locator(".beside .ours").all()) == len(
        page.locator(".beside .theirs").all()
    )


def test_a_page_made_again_keeps_the_verdict_and_its_bytes(judged, tmp_path):
    judged = shutil.copytree(judged, tmp_path / "copy")
    before = (judged / "report.html").read_bytes()
    assert write(judged).read_bytes() == before
    whole = json.loads((judged / store.EXPERIMENT).read_text())
    changes = [{"claims": [{"say": 1}]}, {"published": "gone"}, {"grid": 3}]
    changed = [whole | {"experiment": whole["experiment"] | change} for change in changes]
    for damaged in ({}, [], whole | {"experiment": 5}, *changed):
        (judged / store.EXPERIMENT).write_text(json.dumps(damaged))
        with pytest.raises(UserError, match="run the experiment again"):
            write(judged)


def test_without_claims_nothing_is_judged(look, quickstart):
    page = look(quickstart)
    assert "Nothing is claimed" in page.locator("#verdict").inner_text() and page.locator(".claim").count() == 0


# ---- configurations, fingerprints, commands --------------------------------------------------------------


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """Two runs with their configurations."""
    rows = [r for r in lines("quickstart") if (r["task"], r["scheme"]) in (("text", "alibi"), ("text", "rope"))]
    study = save(tmp_path_factory.mktemp("configured"), rows)
    for cell, words in {r["cell"]: [f"position={r['scheme']}", "model=tiny"] for r in rows}.items():
        config = compose("train", [*words, *(["optim.lr=0.001"] if "alibi" in cell else [])])
        (study / cell / "config.yaml").write_text(yaml.safe_dump(config))
    write(study)
    return study


def test_a_reader_sees_what_differs_between_two_runs(look, configured):
    page = look(configured)

    def shown():
        return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows.all()}

    rows = page.locator(".settings tbody tr")
    differ = shown()
    assert differ["optim.lr"] == ["0.001", "0.002"] and differ["names.position"] == ["alibi", "rope"]
    assert differ["position.base"] == ["–", "10000.0"] and "train_length" not in differ
    page.check("[data-all]")
    assert shown()["train_length"] == ["128", "128"]
    page.uncheck("[data-all]")
    page.select_option("[data-run='1']", "0")
    assert shown() == {} and "the same" in page.locator("[data-said]").inner_text()


def test_fingerprints_are_those_of_the_rows(look, quickstart):
    page = look(quickstart)
    told = {row.locator("th").inner_text(): row.inner_text().split() for row in page.locator(".prints tbody tr").all()}
    rows = lines("quickstart")
    assert told.keys() == {row["cell"] for row in rows}
    for row in rows:
        assert {row["checkpoint"], row["code"], row["data"], row["eval_hash"]} - {""} <= set(told[row["cell"]])


def test_the_commands_stand_there(look, judged, configured):
    said = look(judged).locator("#again").inner_text()
    assert "python scripts/reproduce.py experiment=alibi_table2 seeds=3" in said
    assert "python scripts/compare.py study=quickstart" in said
    said = look(configured).locator("#again pre").first.inner_text().splitlines()
    assert said[0] == "python scripts/train.py position=alibi task=text model=tiny optim.lr=0.001 seed=0"


@pytest.mark.parametrize(
    "words",
    [
        "position=rope task=text model=tiny",
        "position=alibi_rope model.heads=8 position.share.alibi=0.25 position.share.rope=0.75 task=copy",
        "position=own position._target_=wave.Wave +position.period=64",
        "extension=[none,pi] extension.pi.scale=8 protocol=[sliding] protocol.sliding.stride=3 protocol.at=[0.25,1]",
        "under={pi:{scale:4}} init=runs/a/b logger=none optim.lr=1e-4 factors=[1,2] trainer.precision=bf16",
        "sampling=randomized sampling.longest=1024 study=x 'task.path=\"a b, c\"'",
    ],
)
def test_a_command_composes_the_configuration_that_it_was_made_from(words):
    import shlex

    config = compose("train", [*shlex.split(words), "seed=3"])
    (command,) = again.commands([config])
    program, script, *overrides = shlex.split(command)
    assert (program, script) == ("python", "scripts/train.py") and compose("train", overrides) == config
    (both,) = again.commands([config, config | {"seed": 0}])
    assert both == command.replace("train.py", "train.py -m").replace("seed=3", "seed=0,3")


# ---- names, sizes, screens -------------------------------------------------------------------------------


def test_hostile_names_are_only_names(look, tmp_path):
    base = Row.parse(json.dumps(next(r for r in lines("quickstart") if r["status"] == "ok" and r["metric"] == "nll")))
    names = {"study": HOSTILE, "task": IMAGE, "model": "{{ 7 * 7 }}<!--", "sampling": HOSTILE, "code": IMAGE}
    place = {"protocol": "per_position", "length": 4}
    rows = []
    for i, scheme in enumerate((HOSTILE, IMAGE, "<!--<script>", "' onmouseover=window.broken=1 \"", "a&amp;b")):
        of = replace(base, scheme=scheme, cell=f"c{i}-s0-1a2b3c4d", **names)
        rows += [replace(of, length=n) for n in (128, 256)]
        rows += [replace(of, slice={"position": [j, j]}, **place) for j in range(4)]
        for depth in (0.0, 1.0):
            more = {"metric": "token", "unit": "token", "slice": {"depth": depth}, "protocol": "free_running"}
            rows.append(replace(of, **more, total=5.0, count=10))
    study = save(tmp_path, rows)
    (study / "c0-s0-1a2b3c4d" / "config.yaml").write_text(
        yaml.safe_dump(compose("train") | {"init": HOSTILE, "names": {"position": IMAGE, "task": HOSTILE}})
    )
    told = {"length": 2, "distances": [0, 1], "layers": [{"layers": [0], "heads": [[0.0, 1.0]]}]}
    (study / "c0-s0-1a2b3c4d" / store.BIASES).write_text(json.dumps(told))
    (study / store.NOTES).write_text(json.dumps({"a": HOSTILE, "b": IMAGE}))
    experiment = compose("reproduce", ["experiment=alibi_table2"])["experiment"]
    experiment |= {"title": HOSTILE, "matched": [IMAGE], "claims": [claimed(HOSTILE, within=0.1)]}
    posenc_train.report.verdict(experiment, study, [run.name for run in store.runs(study)], f"python x {HOSTILE}")
    text = write(study).read_text()
    assert "<script>window" not in text and "<img" not in text
    page = look(study)
    page.click(".chips button >> nth=1")
    hover(page, page.locator("#figures canvas:visible").first, 256)
    assert page.evaluate("[window.broken, document.images.length, document.scripts.length]") == [None, 0, 3]
    chips = page.eval_on_selector_all("[data-chip]", "chips => chips.map(chip => chip.textContent)")
    assert any(chip.startswith(HOSTILE) for chip in chips) and any(chip.startswith(IMAGE) for chip in chips)
    assert page.title() == HOSTILE and page.locator("h1").inner_text() == HOSTILE
    assert "7 * 7" in page.locator("#tables").inner_text()
    assert page.locator(".claim h3").inner_text() == HOSTILE


@pytest.mark.parametrize("name", ["quickstart", "extrapolation"])
def test_a_page_is_small(name, request):
    assert (request.getfixturevalue(name) / "report.html").stat().st_size < LARGEST


def test_a_page_of_every_scheme_is_small(tmp_path):
    """Under two protocols at four lengths, with curves by position."""
    text = Row.parse(json.dumps(next(r for r in lines("quickstart") if r["status"] == "ok" and r["metric"] == "nll")))
    rows = []
    for number, scheme in enumerate(sorted({*choices("position")} - {"own"})):
        of = replace(text, scheme=scheme, cell=f"{scheme}-text-tiny-L128-s0-{number:08x}")
        where = [(p, n) for p in ("nonoverlapping", "same_targets(k=64)") for n in (128, 256, 512, 1024)]
        rows += [replace(of, protocol=p, length=n, total=(number + 90.123) * 700) for p, n in where]
        by = {"protocol": "per_position", "length": 1024, "count": 1}
        rows += [replace(of, slice={"position": [i, 2 * i]}, total=0.1 + number, **by) for i in range(1, 512, 16)]
    store.append(tmp_path / "all" / "rows.jsonl", rows)
    assert write(tmp_path).stat().st_size < LARGEST


@pytest.mark.parametrize("name", ["extrapolation", "judged"])
def test_a_phone_is_wide_enough(name, look, request):
    page = look(request.getfixturevalue(name), width=390, scheme="dark")
    for tab in page.locator("[data-tab]").all() or [None]:
        if tab is not None:
            tab.click()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        for canvas in page.locator("#figures canvas:visible").all():
            assert canvas.bounding_box()["width"] > 280


def test_black_lines_are_white_in_the_dark(look, quickstart):
    """WCAG's contrast of a line with what is behind it, at least 3 for graphics."""

    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    page = look(quickstart, scheme="dark")
    back = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--card').trim()")
    colours = chart(page, 0, "perplexity").evaluate(
        "canvas => Chart.getChart(canvas).data.datasets.map(set => set.borderColor)"
    )
    assert all((light(colour) + 0.05) / (light(back) + 0.05) >= 3 for colour in colours) and len(colours) == 6


def test_without_scripts_tables_and_verdict_are_there(browser, judged):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((judged / "report.html").as_uri())
    assert page.locator(".claim:visible").count() == 3 and page.locator("#tables table:visible").count() >= 1
    context.close()


def test_what_is_inlined_is_what_is_named():
    assets = ROOT / "posenc_train/report/assets"
    head = (assets / "chart.umd.min.js").read_text()[:200]
    version = re.search(r"Chart\.js v(\d+\.\d+\.\d+)", head)[1]
    assert "MIT License" in head and f"{version} (MIT" in (ROOT / "README.md").read_text()
    assert "The MIT License" in (assets / "chart.LICENSE.md").read_text()


def test_a_missing_browser_is_told_with_its_remedy(monkeypatch):
    monkeypatch.delenv(NEEDED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        without_browser()
    monkeypatch.setenv(NEEDED, "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        without_browser()
    ci = (ROOT / ".ci/run").read_text()
    assert f"export {NEEDED}=1\n" in ci and "install -y" in ci
