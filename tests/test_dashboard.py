"""The workspace of a study: every panel shows what runs really log, and W&B's own package takes and sends it. Online,
it talks to a server in this process (wandb_stub.py)."""

import json
import sys
from pathlib import Path

import pytest
import wandb_offline
from test_report import copies, row
from test_wandb import CELL, cfg, server, surroundings  # noqa: F401  fixtures
from wandb_stub import USER

from posenc_train.config import UserError, compose
from posenc_train.report import dashboard, store, wandb


def study(name: str = "s") -> Path:
    """A study of text and copying in the working folder, with two seeds, an extension and a training's costs."""
    rows = [
        row(seed=seed, length=n, total=100.0 + n, extension=e, protocol="same_targets(k=64)", checkpoint="last@400")
        for seed in (0, 1)
        for n in (128, 256)
        for e in ("none", "pi(scale=8)")
    ]
    rows += [
        row(protocol="training", metric="seconds", unit="second", total=30.0, count=400),
        *copies("rope", [1, 0.5]),
    ]
    rows += [row(protocol="per_position", slice={"position": [0, 0]})]
    for cell in dict.fromkeys(r.cell for r in rows):
        store.append(Path("runs", name, cell, "rows.jsonl"), [r for r in rows if r.cell == cell])
    Path("runs", name, "table.md").write_text("# s\n\n| scheme | 1x |\n| --- | ---: |\n| rope | 7.4 |\n")
    return Path("runs", name)


def panels(spec: dict) -> dict[str, list[dict]]:
    sections = spec["section"]["panelBankConfig"]["sections"]
    return {section["name"]: [panel["config"] for panel in section["panels"]] for section in sections}


def logged(cfg) -> set[str]:  # noqa: F811
    """What W&B itself says it holds of the study's runs: names of curves and of the summary."""
    names = set()
    for cell in store.runs("runs/s"):
        with wandb.Run("offline", cell.name, "s", cfg) as run:
            run.train(20, {"loss": 1.0, "lr": 1e-3, "tokens": 10, "tokens_per_second": 1.0})
            run.evaluation(store.load(cell / "rows.jsonl"))
    for stored in wandb_offline.runs(Path("runs")):
        names |= {name for line in stored.history for name in line}
    return names


def test_every_panel_shows_what_runs_log(cfg):  # noqa: F811
    folder = study()
    assert "not built at W&B" in dashboard.build("s")
    told = json.loads((folder / "dashboard.json").read_text())
    found = panels(told["spec"])
    assert list(found) == ["Loss by length", "Retrieval", "Training", "Costs", "Tables"]
    known = logged(cfg) | {"cost/seconds"}  # of the summary, which the next test reads
    for name in ("Loss by length", "Retrieval", "Training", "Costs"):
        for panel in found[name]:
            assert panel["metrics"] and set(panel["metrics"]) <= known, panel
            assert panel["groupBy"] == "jobType" and panel["groupAgg"] == "mean"
    perplexity = found["Loss by length"][0]
    assert perplexity["metrics"] == [
        "eval/same_targets/perplexity",
        "eval/same_targets/perplexity/pi_scale_8",
    ]
    assert perplexity["xAxis"] == "eval/length" and perplexity["xLogScale"] and perplexity["yLogScale"]
    assert {tuple(panel["metrics"]) for panel in found["Retrieval"]} == {
        (f"eval/free_running/{metric}",) for metric in ("token", "exact", "stops")
    }
    assert {panel["xAxis"] for panel in found["Training"]} == {"train/step", "train/tokens"}
    assert [tuple(panel["metrics"]) for panel in found["Costs"]] == [("cost/seconds",), ("train/tokens_per_second",)]
    assert found["Tables"] == [{"value": (folder / "table.md").read_text()}]


def test_it_holds_the_runs_of_the_study_alone(cfg):  # noqa: F811
    """Filter and groups are in the words that W&B's runs are given."""
    study()
    dashboard.build("s")
    (runs,) = json.loads(Path("runs/s/dashboard.json").read_text())["spec"]["section"]["runSets"]
    (only,) = runs["filters"]["filters"]
    assert (only["key"], only["op"], only["value"]) == ({"section": "run", "name": "group"}, "=", "s")
    assert runs["grouping"] == [{"section": "run", "name": "jobType"}]
    with wandb.Run("offline", CELL, "s", cfg):
        pass
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.run["run_group"] == "s" and stored.run["job_type"].startswith("rope, text, tiny, L128 #")


def test_runs_that_differ_in_their_seed_only_are_one_line():
    base = compose("train", [])
    name = wandb.line(base, Path("runs/s"))
    assert wandb.line(compose("train", ["seed=3", "logger=none"]), Path("runs/s")) == name
    others = [["train_length=64"], ["optim.lr=0.1"], ["position=alibi"], ["position.base=500"], ["model=nano"]]
    assert len({name, *(wandb.line(compose("train", words), Path("runs/s")) for words in others)}) == 6
    assert len(wandb.line(base | {"names": base["names"] | {"position": "x" * 99}}, Path("runs/s"))) <= 64


def test_costs_are_numbers_of_the_summary(cfg, server):  # noqa: F811
    rows = [
        row(protocol="training", metric=metric, unit=unit, total=total, count=1)
        for metric, unit, total in (
            ("seconds", "second", 30.5),
            ("bytes", "byte", 2e9),
            ("parameters", "parameter", 7.0),
        )
    ]
    with wandb.Run("online", CELL, "s", cfg) as run:
        run.evaluation([row(), *rows])
    summary = server.runs[run.id].summary
    assert {name: value for name, value in summary.items() if name.startswith("cost/")} == {
        "cost/seconds": 30.5, "cost/bytes": 2e9, "cost/parameters": 7.0,
    }  # fmt: skip


@pytest.fixture
def views(server, monkeypatch):  # noqa: F811
    """The server, which keeps views too: what was sent of each."""
    server.views = []

    def on_upsert_view2(variables: dict) -> dict:
        server.views.append(variables)
        return {
            "upsertView": {"view": {"id": variables.get("id") or "Vmlldw", "name": variables["name"]}, "inserted": True}
        }

    server.on_upsert_view2 = on_upsert_view2
    server.on_get_default_entity = lambda _: {"viewer": {"id": USER["id"], "entity": "tester"}}
    return server


def test_logged_in_it_is_built_and_built_again_it_is_the_same(views):
    study()
    first = dashboard.build("s")
    (sent,) = views.views
    assert (sent["entityName"], sent["projectName"], sent["displayName"]) == ("tester", "posenc-train", "s")
    told = json.loads(Path("runs/s/dashboard.json").read_text())
    assert list(panels(json.loads(sent["spec"]))) == list(panels(told["spec"]))
    assert first == f"the workspace of s: {told['view']['url']}" and "tester/posenc-train" in first
    assert dashboard.build("s") == first
    again = views.views[1]
    assert (again["id"], again["name"]) == (told["view"]["id"], sent["name"])


@pytest.mark.parametrize("fault", ["refuse", "offline", "no key"])
def test_what_cannot_be_built_is_written_and_said_in_one_line(views, monkeypatch, fault):
    study()
    if fault == "refuse":
        views.refuse = True
    elif fault == "offline":
        monkeypatch.setenv("WANDB_MODE", "offline")
    else:
        monkeypatch.delenv("WANDB_API_KEY")
    said = dashboard.build("s")
    assert said.startswith("not built at W&B (") and "\n" not in said and "runs/s/dashboard.json" in said
    assert not views.views and panels(json.loads(Path("runs/s/dashboard.json").read_text())["spec"])


def test_mistakes_are_told(monkeypatch):
    with pytest.raises(UserError, match="study=other"):
        dashboard.build("other")
    study()
    monkeypatch.setitem(sys.modules, "wandb_workspaces.workspaces", None)
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[dashboard\]'"):
        dashboard.build("s")
    assert not Path("runs/s/dashboard.json").exists()


def test_a_perplexity_that_is_infinite_leaves_no_panel():
    rows = [row(total=1e9, protocol="same_targets(k=64)")]
    store.append(Path("runs/s", rows[0].cell, "rows.jsonl"), rows)
    dashboard.build("s")
    found = panels(json.loads(Path("runs/s/dashboard.json").read_text())["spec"])
    shown = {name for panel in found["Loss by length"] for name in panel["metrics"]}
    assert shown == {"eval/same_targets/bits_per_byte"}
