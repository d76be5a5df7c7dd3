"""Every published table at the scale smoke, by its command: trained, evaluated, judged, put beside theirs."""

import os

import pandas as pd
import pytest
from running import ROOT, run
from test_experiments import TABLES

from posenc_train import study
from posenc_train.config import compose
from posenc_train.report import store


def seconds() -> float:
    """Of work, this process's and that of the cells, which have processes of their own."""
    return sum(os.times()[:4])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_runs_at_the_scale_smoke(name, tmp_path, monkeypatch, capsys):
    began = seconds()
    monkeypatch.chdir(tmp_path)
    words = [f"experiment={name}", "scale=smoke", "jobs=1"]
    monkeypatch.setattr(study, "command_line", lambda: words)
    monkeypatch.setattr("sys.argv", [str(ROOT / "scripts" / "reproduce.py")])
    experiment = run("reproduce", *words)["experiment"]
    said, folder = capsys.readouterr().out, tmp_path / "runs" / f"{name}-smoke"
    assert not store.read(folder).attrs["unfinished"]
    claims = pd.read_csv(folder / "claims.csv")
    assert list(claims["claim"]) == [claim["say"] for claim in experiment["claims"]]
    assert set(claims["verdict"]) == {"undecided"}  # one seed, and few of the cells
    assert f"{len(claims)} claims: 0 hold, 0 do not hold, {len(claims)} undecided" in " ".join(said.split())
    assert (folder / "published.csv").exists() == bool(experiment["published"])
    if name == "attention_sinks":  # of long texts, whose length they do not tell
        assert set(pd.read_csv(folder / "published.csv")["status"]) == {"ok"}
    if name == "drope_needle":  # only RoPE is dropped
        assert {init.split("-")[0] for init in store.read(folder)["init"]} == {"", "rope"}
    assert seconds() - began < 120


def test_a_second_act_follows_the_cells_that_it_names(monkeypatch):
    monkeypatch.setattr(study, "command_line", lambda: [])
    jobs = (["position=rope", "task=copy"], ["position=alibi", "task=copy"])
    cells = [study.Cell(job, compose("train", job)) for job in jobs]

    def following(line):
        return study.second_act({"scale": "laptop", "experiment": {"then": [line]}}, cells, planned=True)

    (act,) = following("position=rope -> position=nope")
    assert act.config["init"] == str(cells[0].folder)
    assert (act.config["names"]["position"], act.config["names"]["task"]) == ("nope", "copy")
    assert {act.config["init"] for act in following("position=nope")} == {str(cell.folder) for cell in cells}
