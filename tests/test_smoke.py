"""Every published table at the scale smoke, really run: trained, evaluated, judged and put beside theirs."""

import time

import pytest
from running import run
from test_experiments import TABLES, lines

from posenc_train import study
from posenc_train.config import check, compose, expand, run_folder
from posenc_train.report import claims, published, store


@pytest.mark.parametrize("name", TABLES)
def test_a_table_runs_at_the_scale_smoke(name, tmp_path, monkeypatch):
    began = time.process_time()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "command_line", lambda: [])
    cfg = compose("reproduce", [f"experiment={name}"])
    check(cfg)
    experiment = cfg["experiment"]
    jobs = [job for line in lines(experiment, scale="smoke") for job in expand(line)]
    cells = [study.Cell(job, run("train", *job)) for job in jobs]
    then = study.second_act({"experiment": {"then": lines(experiment, "then", "smoke")}}, cells)
    for cell in then:
        run("train", *cell.overrides)
    frame = store.read(run_folder(cells[0].config).parent)
    assert set(frame["cell"]) == {run_folder(cell.config).name for cell in [*cells, *then]}
    verdicts = claims.judge(frame, experiment)
    assert len(verdicts) == len(experiment["claims"])
    assert {verdict.verdict for verdict in verdicts} == {"undecided"}  # one seed, and few of the cells
    table = published.beside(frame, experiment)
    for text in (claims.text(verdicts), published.text(table)):
        assert max(map(len, text.splitlines())) <= 80
    assert claims.csv(verdicts).count("\n") == len(verdicts) + 1
    assert bool(table.blocks) == bool(experiment["published"])
    if name == "attention_sinks":  # of long texts, whose length they do not tell
        assert all(ours.spread for block in table.blocks for ours in block.ours.values())
    assert time.process_time() - began < 120


def test_a_second_act_follows_the_cells_that_it_names(monkeypatch):
    monkeypatch.setattr(study, "command_line", lambda: [])
    cells = [
        study.Cell(job, compose("train", job))
        for job in (["position=rope", "task=copy"], ["position=alibi", "task=copy"])
    ]
    monkeypatch.setattr(study, "check", lambda cfg: None)  # the runs that it would start from are not there
    acts = study.second_act({"experiment": {"then": ["position=rope -> position=nope"]}}, cells)
    assert [act.config["init"] for act in acts] == [str(cells[0].folder)]
    assert acts[0].config["names"]["position"] == "nope" and acts[0].config["names"]["task"] == "copy"
    both = study.second_act({"experiment": {"then": ["position=nope"]}}, cells)
    assert {act.config["init"] for act in both} == {str(cell.folder) for cell in cells}
