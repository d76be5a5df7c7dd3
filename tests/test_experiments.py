"""Every file of conf/experiment: what it may hold, that its grid can be run, and that its claims are about its rows."""

import pytest
import yaml

from posenc_train import experiments
from posenc_train.checks import CONF, SCALES, UserError, check, choices
from posenc_train.config import compose, expand

EXPERIMENTS = choices("experiment")
TABLES = [
    "alibi_table13", "alibi_table2", "alibi_table5", "attention_sinks", "drope_needle", "hard_alibi_copying",
    "kazemnejad", "kerple_table3", "nope_lm", "randomized_positions", "rope_extensions", "xpos_table2",
]  # fmt: skip


@pytest.fixture(scope="module", params=EXPERIMENTS)
def experiment(request):
    cfg = compose("reproduce", [f"experiment={request.param}"])
    check(cfg)  # as the entry point does
    return request.param, cfg["experiment"]


def lines(experiment, part="grid", scale=None):
    value = experiment[part]
    return (value or {}).get(scale) or [] if isinstance(value, dict) else value or []


def test_there_are_the_twelve_tables():
    assert set(TABLES) <= set(EXPERIMENTS)


def test_a_file_says_what_it_must(experiment):
    name, settings = experiment
    scales = list(settings["grid"]) if isinstance(settings["grid"], dict) else [None]
    assert name not in TABLES or (scales == list(SCALES) and settings["matched"] and settings["not_matched"])
    assert settings["claims"] and all(claim["say"][0].isalpha() for claim in settings["claims"])
    with open(f"{CONF}/experiment/{name}.yaml", encoding="utf-8") as file:
        first = file.readline()
    assert f"python scripts/reproduce.py experiment={name}" in first or name == "quickstart"
    for scale in scales:
        folder = name if scale is None else f"{name}-{scale}"
        assert all(f"study={folder} " in line for line in lines(settings, scale=scale))


def test_its_grid_can_be_run(experiment):
    """The last cell of every scale; those of the scale smoke are run in test_smoke.py."""
    _, settings = experiment
    for scale in ("laptop", "paper") if isinstance(settings["grid"], dict) else [None]:
        check(compose("train", expand(lines(settings, scale=scale)[-1])[-1]))


def said(job):
    """The overrides of a cell, with what the configuration says elsewhere."""
    values = {"train_length": "128", "factors": "[1,2,4,8]"} | dict(word.split("=", 1) for word in job if "=" in word)
    trained = int(values["train_length"])
    lengths = values.get("lengths") or str([n * trained for n in yaml.safe_load(values["factors"])])
    return values | {"train_length": trained, "lengths": yaml.safe_load(lengths)}


@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_its_claims_are_about_its_cells(experiment, scale):
    """Every side has cells, at each of its lengths, under its protocol and its extension."""
    name, settings = experiment
    first = [said(job) for line in lines(settings, scale=scale) for job in expand(line)]
    second = [
        before | said([f"train_length={before['train_length']}", f"lengths={before['lengths']}", *job])
        for line in lines(settings, "then", scale)
        for job in expand(line.rpartition("->")[2])
        for before in first
    ]
    for claim in experiments.claims(settings, name):
        for side in filter(None, (claim.left, claim.right)):
            cells = second if "init" in side.names else first
            cells = [cell for cell in cells if experiments.bare(side.names["scheme"]) == cell["position"]]
            cells = [cell for cell in cells if side.train_length in (None, cell["train_length"])]
            cells = [cell for cell in cells if side.names.get("task", cell["task"]) == cell["task"]]
            cells = [
                cell
                for cell in cells
                if all(experiments.tokens(length, cell["train_length"]) in cell["lengths"] for length in side.lengths)
            ]
            assert cells, f"{name}: {claim.say}: {side.text()}"
            for cell in cells:
                extension = experiments.bare(side.names.get("extension", "none")).rstrip("*")
                assert extension in cell.get("extension", "none") or f"+extension.{extension}" in cell
                assert claim.protocol.partition("(")[0] in cell.get("protocol", "free_running same_targets")


# What is refused


@pytest.mark.parametrize(
    "words, message",
    [
        ("experiment.claims=[{say: a}]", r"claims\[0\].metric: is missing; a claim needs"),
        ("experiment.published=alibi_table_5", r"published=alibi_table_5: no such file; choose one of alibi_table13"),
        ("experiment.published=null", "source: must say 'no numbers published' where published is null"),
    ],
)
def test_a_wrong_experiment_is_refused_by_name(words, message):
    with pytest.raises(UserError, match=rf"^experiment=alibi_table5: {message}"):
        check(compose("reproduce", ["experiment=alibi_table5", words]))


@pytest.mark.parametrize(
    "words, message",
    [
        (
            "+experiment.grid.lapdog=['seed=0']",
            "experiment.grid=.*must be a list.*or one for each of smoke, laptop, paper",
        ),
        ("experiment.title=''", "experiment.title='': must be a text"),
        ("experiment.matched=[1]", r"experiment.matched=\[1\]: must be a list of sentences"),
        ("+experiment.clams=[]", r"experiment.clams=\[\]: no such key; did you mean experiment.claims\?"),
    ],
)
def test_keys_of_another_kind_are_refused(words, message):
    with pytest.raises(UserError, match=message):
        check(compose("reproduce", ["experiment=alibi_table2", words]))


def test_a_second_act_has_the_scales_of_the_first():
    cfg = compose("reproduce", ["experiment=pose"])
    cfg["experiment"]["then"] = {"paper": ["seed=1"]}
    with pytest.raises(UserError, match="^experiment=pose: then: is given for paper; must be given for scales of grid"):
        check(cfg)


def test_a_grid_of_ones_own_may_have_claims_of_its_schemes():
    check(compose("reproduce", ["experiment=quickstart", "experiment.grid=['task=copy position=nope']"]))


# Names and lengths


def test_lengths():
    written = ["562", "8x", "1.5x", "L+50", "L+0"]
    assert [experiments.tokens(length, 128) for length in written] == [562, 1024, 192, 178, 128]


@pytest.mark.parametrize(
    "pattern, name, fits",
    [
        ("rope", "rope", True),
        ("rope", "rope(base=500.0)", False),
        ("rope*", "rope under pi(scale=4)", True),
        ("rope under pi*", "rope under pi(scale=4, trained=128)", True),
        ("*rope*", "alibi_rope", True),
        ("r.pe", "rope", False),
        ("rope(fraction=0.25)", "rope(fraction=0.25)", True),
    ],
)
def test_patterns(pattern, name, fits):
    assert experiments.matches(pattern, name) is fits
