"""The main job at nano size: train, evaluate, compare; what is in the folders, and what happens the second time."""

import contextlib
import csv
import fcntl
import json
import math
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import wandb_offline
import yaml
from running import NANO, ROOT, interruptible, lines, run

from posenc_train.config import UserError, compose, run_folder
from posenc_train.evaluation import run as evaluation_run
from posenc_train.evaluation.rows import FIELDS, Row
from posenc_train.report import figures

SMALL = [o for o in NANO if not o.startswith("task.")]


def rows_in(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def command(script: str, *overrides: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / f"{script}.py", *overrides],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of a few finished runs; tests read it and add to it, and never change what is there."""
    here = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for position in ("alibi", "learned", "t5"):
            run("train", *NANO, f"position={position}", "study=s")
        run("train", *NANO[:-2], "trainer.log_every=4", "task=copy", "task.examples=8", "position=rope", "study=s")
        yield here


@pytest.fixture
def in_study(study, monkeypatch):
    monkeypatch.chdir(study)
    return study


def folder_of(position: str, *more: str) -> Path:
    return run_folder(compose("train", [*NANO, f"position={position}", "study=s", *more]))


def test_a_run_folder(in_study):
    folder = folder_of("alibi")
    assert re.fullmatch(r"alibi-text-nano-L16-s0-[0-9a-f]{8}", folder.name)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config == compose("train", [*NANO, "position=alibi", "study=s"])
    checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 12 and checkpoint["config"] == config
    assert "pytorch-lightning_version" in checkpoint and "optimizer_states" in checkpoint
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics] == [4, 8, 12] and metrics[-1]["tokens"] == 12 * 4 * 16
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert "fingerprint" in (folder / "train.log").read_text()


def test_rows(in_study):
    rows = rows_in(folder_of("alibi"))
    assert all(tuple(row) == FIELDS for row in rows)
    assert all(Row(**row).json() == Row.parse(json.dumps(row)).json() for row in rows)
    whole = {(r["protocol"], r["length"]): r for r in rows if not r["slice"]}
    assert {key for key in whole if key[0] != "training"} == {
        (protocol, length) for protocol in ("nonoverlapping", "same_targets(k=8)") for length in (16, 32, 64, 128)
    }
    assert {r["count"] for (protocol, _), r in whole.items() if protocol == "same_targets(k=8)"} == {4 * 8}
    assert len({r["eval_hash"] for r in whole.values() if r["protocol"] != "training"}) == 1
    assert all(r["checkpoint"] == "last@12" and r["tokens_seen"] == 12 * 4 * 16 for r in rows)
    assert {r["metric"] for r in rows if r["protocol"] == "training"} == {"seconds", "bytes", "parameters"}


def test_every_scheme_was_scored_on_the_same_text(in_study):
    hashes = {r["eval_hash"] for p in ("alibi", "t5", "learned") for r in rows_in(folder_of(p)) if r["metric"] == "nll"}
    assert len(hashes) == 1


def test_learned_positions_beyond_their_reach(in_study):
    rows = [r for r in rows_in(folder_of("learned")) if r["metric"] == "nll"]
    assert {r["status"] for r in rows if r["length"] == 16} == {"ok"}
    assert {(r["status"], r["total"]) for r in rows if r["length"] > 16} == {("beyond reach", None)}


def test_a_finished_run_is_not_trained_again(in_study, capsys):
    folder = folder_of("alibi")
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    run("train", *NANO, "position=alibi", "study=s")
    assert "finished before, nothing is trained again" in capsys.readouterr().out
    assert before == {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_evaluate_adds_rows_and_the_same_again_adds_none(in_study, capsys):
    folder = folder_of("t5")
    before = rows_in(folder)
    run("evaluate", f"run={folder}", "lengths=[48,64]")
    after = rows_in(folder)
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert {r["length"] for r in added} == {48} and {r["checkpoint"] for r in added} == {"last@12"}
    run("evaluate", f"run={folder}", "lengths=[64,48]")
    said = capsys.readouterr().out
    assert rows_in(folder) == after and "there already" in said and "others than" not in said
    assert ",48," in (folder / "table.csv").read_text()


def test_what_was_measured_before_an_error_is_kept_and_not_measured_again(in_study, monkeypatch):
    monkeypatch.setattr(figures, "draw", lambda report: {})  # which takes longer than all else
    run("train", *NANO, "position=rope", "study=whole", "logger=none")
    asked, measure = [], evaluation_run.evaluate

    def breaking(model, task, lengths, *args, **kwargs):
        asked.extend(lengths)
        if lengths == [64] and asked.count(64) == 1:
            raise RuntimeError("the device is gone")
        return measure(model, task, lengths, *args, **kwargs)

    monkeypatch.setattr(evaluation_run, "evaluate", breaking)
    with pytest.raises(RuntimeError, match="the device is gone"):
        run("train", *NANO, "position=rope", "study=broken", "logger=none")
    broken = run_folder(compose("train", [*NANO, "position=rope", "study=broken"]))
    assert {r["length"] for r in rows_in(broken) if r["protocol"] != "training"} == {16, 32}
    run("train", *NANO, "position=rope", "study=broken", "logger=none")
    assert asked == [16, 32, 64, 64, 128]
    told = [
        sorted((r["protocol"], r["length"], r["unit"], str(r["slice"]), r["total"]) for r in rows_in(folder)
               if r["protocol"] != "training")
        for folder in (broken, broken.parents[1] / "whole" / broken.name)
    ]  # fmt: skip
    assert told[0] == told[1]


def test_longer_texts_are_told_and_have_a_1x_of_their_own(in_study, monkeypatch, capsys):
    """The study's other runs keep the texts that they have in common."""
    monkeypatch.setattr(figures, "draw", lambda report: {})
    run("train", *NANO, "position=alibi", "study=other", "logger=none")
    run("evaluate", f"run={(folder := folder_of('alibi', 'study=other'))}", "lengths=[16,256]")
    said = " ".join(capsys.readouterr().out.split())
    assert "so they are others than those of the rows before: what is to be compared must be asked for together" in said
    assert "texts are as long as the longest length asked for: ask for all lengths together" in said
    loss = {
        r["length"]: r["total"] / r["count"]
        for r in rows_in(folder)  # the later ones, at 16, are of the longer texts
        if (r["protocol"], r["unit"], r["slice"]) == ("same_targets(k=8)", "byte", {}) and r["length"] in (16, 256)
    }
    with open(folder / "table.csv", newline="") as file:
        gained = [r for r in csv.DictReader(file) if r["quantity"] == "gain over window" and r["length"] == "256"]
    assert [float(r["value"]) for r in gained] == [pytest.approx(loss[16] - loss[256])]


def test_a_zeroed_head_is_uniform(in_study, tmp_path, monkeypatch):
    """Edit last.ckpt, save it with torch.save, evaluate: perplexity exactly 256 at every length."""
    source = folder_of("alibi")
    folder = tmp_path / "runs" / "s" / source.name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_bytes((source / "config.yaml").read_bytes())
    checkpoint = torch.load(source / "last.ckpt", weights_only=True)
    heads = [key for key in checkpoint["state_dict"] if "head" in key]
    assert heads
    for key in heads:
        checkpoint["state_dict"][key] = torch.zeros_like(checkpoint["state_dict"][key])
    torch.save(checkpoint, folder / "last.ckpt")
    monkeypatch.chdir(tmp_path)
    run("evaluate", f"run={folder}", "lengths=[128,16,100]")
    rows = rows_in(folder)
    targets = {(r["protocol"], r["length"]): r["count"] for r in rows if r["unit"] == "byte" and not r["slice"]}
    for row in rows:
        if row["unit"] == "word":  # the same losses by another unit
            row["count"] = targets[row["protocol"], row["length"]]
        assert row["total"] / row["count"] / math.log(2) == pytest.approx(8.0, rel=1e-12)
        assert math.exp(row["total"] / row["count"]) == pytest.approx(256, rel=1e-12)


def test_an_edited_checkpoint_is_another_checkpoint(in_study, tmp_path, monkeypatch):
    """Its rows are beside those of the trained weights, never in their place; a line of the table each."""
    folder = Path(shutil.copytree(folder_of("alibi"), tmp_path / "runs" / "s" / folder_of("alibi").name))
    before = rows_in(folder)
    checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
    for key in ("model.head.weight", "model.embedding.weight"):
        checkpoint["state_dict"][key].zero_()
    torch.save(checkpoint, folder / "last.ckpt")
    monkeypatch.chdir(tmp_path)
    run("evaluate", f"run={folder}")
    added = rows_in(folder)[len(before) :]
    assert rows_in(folder)[: len(before)] == before
    assert {row["length"] for row in added} == {16, 32, 64, 128}
    assert all(row["checkpoint"].startswith("last@12 edited ") for row in added)
    added = [row for row in added if row["unit"] == "byte"]
    assert all(row["total"] / row["count"] == pytest.approx(math.log(256), rel=1e-12) for row in added)
    run("train", *NANO, "position=alibi", "study=s", "lengths=[16,96]", "logger=none")  # the training's command too
    more = [row for row in rows_in(folder) if row["length"] == 96]
    assert more and all(row["checkpoint"].startswith("last@12 edited ") for row in more)


@pytest.mark.parametrize("change", ["task.eval_seed=1", "task.windows=3", "task.longest=200"])
def test_another_evaluation_is_done_without_training(in_study, tmp_path, monkeypatch, change):
    source = folder_of("t5")
    folder = Path(shutil.copytree(source, tmp_path / "runs" / "s" / source.name))
    checkpoint, before = (folder / "last.ckpt").read_bytes(), rows_in(folder)
    monkeypatch.chdir(tmp_path)
    words = [word for word in NANO if change.partition("=")[0] not in word]
    run("train", *words, "position=t5", "study=s", change, "logger=none")
    added = rows_in(folder)[len(before) :]
    assert (folder / "last.ckpt").read_bytes() == checkpoint
    assert {row["eval_hash"] for row in added if row["metric"] == "nll"}.isdisjoint(row["eval_hash"] for row in before)
    assert {row["length"] for row in added if row["metric"] == "nll"} == {16, 32, 64, 128}


def test_the_table_is_the_rows(in_study):
    """Every number of table.csv, computed again from the lines of rows.jsonl; and no number is missing."""
    run("compare", "study=s")
    expected = {}
    for path in Path("runs/s").glob("*/rows.jsonl"):
        for r in rows_in(path.parent):
            if r["protocol"] in ("training", "per_position") or r["length"] not in (16, 32, 64, 128):
                continue
            if not set(r["slice"]) <= {"size"}:
                continue  # a part
            for quantity, of in QUANTITIES["words" if r["unit"] == "word" else r["metric"]].items():
                if quantity == "bits per byte" and r["protocol"] != "nonoverlapping":
                    continue  # one table of them says it
                value = None if r["status"] != "ok" else of(r["total"] / r["count"])
                expected[r["scheme"], r["task"], r["protocol"], quantity, r["length"]] = (value, r["status"])
    found = {}
    with open("runs/s/table.csv", newline="") as file:
        for line in csv.DictReader(file):
            own = any(line["quantity"] in of for of in QUANTITIES.values())  # of one row; others follow from several
            if own and not line["by"] and int(line["length"]) in (16, 32, 64, 128):
                key = line["scheme"], line["task"], line["protocol"], line["quantity"], int(line["length"])
                found[key] = (float(line["value"]) if line["value"] else None, line["status"])
    assert found.keys() == expected.keys()
    for key, (value, status) in expected.items():
        if status != "ok":
            assert found[key] == (None, status)
        elif found[key][1] != "not learned":
            assert found[key] == (pytest.approx(value, rel=1e-12), "ok")


QUANTITIES = {
    "nll": {"perplexity": math.exp, "bits per byte": lambda nats: nats / math.log(2)},
    "words": {"word perplexity": math.exp},
    "token": {"token accuracy": float},
    "exact": {"exact match": float},
    "stops": {"stopping": float},
}


def test_compare_writes_tables_and_figures(in_study):
    run("compare", "study=s")
    files = {path.suffix for path in Path("runs/s").iterdir() if path.is_file()}
    assert {".csv", ".md", ".png", ".svg", ".html"} <= files
    page = Path("runs/s/report.html").read_text()
    assert all(folder_of(position).name in page and "<title>s</title>" in page for position in ("alibi", "t5"))
    names = " ".join(path.name for path in Path("runs/s").glob("*.svg"))
    assert all(kind in names for kind in ("perplexity", "loss_by_position", "accuracy"))


def test_a_run_keeps_the_biases_that_its_scheme_has(in_study):
    run("compare", "study=s")
    slopes = [2**-4, 2**-8]  # ALiBi's, of two heads
    found = json.loads((folder_of("alibi") / "biases.json").read_text())
    assert found["length"] == 128  # the longest that was evaluated
    for head, slope in zip(found["layers"][0]["heads"], slopes, strict=True):
        assert head == pytest.approx([-slope * distance for distance in found["distances"]], rel=1e-4)
    assert "Biases by distance" in Path("runs/s/report.html").read_text()


def test_wandb_has_the_numbers_of_the_rows(in_study):
    """Read back from W&B's own files: one run a training, its configuration, curves and rows, its end."""
    stored = {run.run["display_name"]: run for run in wandb_offline.runs(Path("runs"))}
    assert len(stored) == len(list(Path("runs/wandb").glob("offline-run-*"))) == 4
    for position in ("alibi", "t5"):
        folder = folder_of(position)
        run = stored[folder.name]
        assert run.exit_code == 0 and run.config == yaml.safe_load((folder / "config.yaml").read_text())
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert run.curve("train/loss", "train/step") == {line["step"]: line["loss"] for line in metrics}
        rows = [row for row in rows_in(folder) if row["length"] in (16, 32, 64, 128)]
        for protocol in ("nonoverlapping", "same_targets(k=8)"):
            curve = run.curve(f"eval/{protocol.partition('(')[0]}/perplexity", "eval/length")
            scored = [row for row in rows if (row["protocol"], row["unit"]) == (protocol, "byte")]
            assert curve == {row["length"]: pytest.approx(math.exp(row["total"] / row["count"])) for row in scored}
        columns, table = run.table("eval/rows")
        assert tuple(columns) == FIELDS and len(table) == len(rows)


def test_a_study_that_does_not_exist(in_study):
    with pytest.raises(UserError, match=r"study=nowhere.*s"):
        run("compare", "study=nowhere")


def test_interrupted_training_continues_to_the_same_weights(tmp_path, monkeypatch):
    """Stopped after 8 of 12 steps, with a checkpoint at 5: the same command ends with the same weights and metrics."""
    from posenc_train.training import module

    overrides = [*NANO, "position=t5", "model.dropout=0.1", "trainer.checkpoint_every=5", "logger=none"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    monkeypatch.chdir(whole)
    folder = run_folder(run("train", *overrides))
    monkeypatch.chdir(broken)
    step = module.Training.training_step

    def stop(self, batch, index):
        if self.trainer.global_step == 8:
            raise RuntimeError("the power failed")
        return step(self, batch, index)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="the power failed"):
        patch.setattr(module.Training, "training_step", stop)
        run("train", *overrides)
    assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == 5
    run("train", *overrides)
    a, b = (torch.load(root / folder / "last.ckpt", weights_only=True)["state_dict"] for root in (whole, broken))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert "continuing from step 5" in (folder / "train.log").read_text()
    losses = [
        [json.loads(line)["loss"] for line in (root / folder / "metrics.jsonl").read_text().splitlines()]
        for root in (whole, broken)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 3  # also the mean that spans the checkpoint at 5
    spent = [json.loads(line)["seconds"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert 0 < spent[0] < spent[1] < spent[2]
    scores = [
        {row["length"]: row["total"] for row in rows_in(root / folder) if row["protocol"] == "nonoverlapping"}
        for root in (whole, broken)
    ]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("position", ["t5", "rope"])
def test_bfloat16_training_keeps_float32_weights_and_positions(tmp_path, monkeypatch, position):
    """It trains to nearly the loss of float32, in a folder of its own; what is stored and evaluated is float32."""
    monkeypatch.chdir(tmp_path)
    losses, folders = {}, set()
    for precision in ("32", "bf16"):
        words = [*NANO, f"position={position}", "logger=none", "model.qk_norm=true", f"trainer.precision={precision}"]
        folder = run_folder(run("train", *words))
        folders.add(folder)
        losses[precision] = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["loss"]
        weights = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
        assert {value.dtype for value in weights.values()} == {torch.float32}
    assert len(folders) == 2
    assert losses["bf16"] != losses["32"] and losses["bf16"] == pytest.approx(losses["32"], rel=0.02)


@pytest.mark.parametrize("overrides", [["train_length=300"], ["train_length=16", "factors=[1,64]"]])
def test_nothing_long_enough_is_said_before_training(tmp_path, monkeypatch, overrides):
    """For a training window, or for the longest evaluation window; nothing is left behind."""
    (tmp_path / "texts").mkdir()
    for n in range(20):
        (tmp_path / "texts" / f"{n}.txt").write_text(f"{n} " * 60)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"takes \d+ bytes of a document; the longest (training|validation) document"):
        run("train", "model=nano", "task.path=texts", *overrides)
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


@pytest.mark.parametrize("blocked", ["runs", "runs/default"])
def test_a_run_folder_that_cannot_be_written(tmp_path, monkeypatch, blocked):
    monkeypatch.chdir(tmp_path)
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).write_text("a file where a folder should be")
    with pytest.raises(UserError, match="cannot be written"):
        run("train", *SMALL, "task=copy", "logger=none")
    assert (tmp_path / blocked).read_text() == "a file where a folder should be"


def test_multirun_in_one_process(tmp_path):
    """One folder and one W&B run each; a sweep as a command, from any folder."""
    done = command("train", "-m", *NANO, "position=nope,alibi", "study=m", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = [path.parent for path in (tmp_path / "runs" / "m").glob("*/rows.jsonl")]
    assert len(folders) == 2
    offline = list((tmp_path / "runs" / "wandb").glob("offline-run-*"))
    assert len(offline) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


@pytest.mark.parametrize(
    "overrides, says",
    [
        (["position=ropee"], ["position=ropee", "rope"]),
        (["optim.stepz=3"], ["optim.stepz", "steps"]),
        (["model=tinny"], ["model=tinny", "tiny"]),
    ],
)
def test_a_misspelt_word_gets_one_line(tmp_path, overrides, says):
    done = command("train", *overrides, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in says)
    assert list(tmp_path.iterdir()) == []


def test_two_configurations_never_share_a_folder():
    """Whatever is swept."""
    sweeps = defaultdict(list)
    for overrides in (
        [],
        ["seed=1"],
        ["position.base=500"],
        ["position.pairing=interleaved"],
        ["optim.lr=1e-3"],
        ["model.width=96"],
        ["model.qk_norm=true"],
        ["train_length=64"],
        ["trainer.precision=bf16"],
        ["task=copy"],
        ["task=copy", "task.alphabet=8"],
        ["task.bos=true"],
        ["init=runs/a/b"],
    ):
        sweeps[run_folder(compose("train", overrides))].append(overrides)
    assert all(len(same) == 1 for same in sweeps.values())


def test_a_study_of_an_experiment(tmp_path):
    """reproduce.py: cells side by side in processes of their own, the report, and a second call that trains nothing."""
    overrides = ["experiment=quickstart", *SMALL, "study=q", "position=nope,alibi", "logger=none"]
    done = command("reproduce", *overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout and "token accuracy" in done.stdout and "4 of 4 done" in done.stderr
    cells = [path.parent for path in (tmp_path / "runs" / "q").glob("*/rows.jsonl")]
    assert len(cells) == 4
    before = {cell: (cell / "last.ckpt").stat().st_mtime_ns for cell in cells}
    again = command("reproduce", *overrides, cwd=tmp_path)
    assert again.returncode == 0 and again.stdout == done.stdout
    assert before == {cell: (cell / "last.ckpt").stat().st_mtime_ns for cell in cells}


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_interrupted_study_goes_on(tmp_path, number, code):
    """Its cells leave checkpoints and end with it; the same command continues them."""
    words = ["reproduce.py", "experiment=quickstart", *SMALL, "optim.steps=3000", "trainer.log_every=1", "logger=none"]
    words += ["study=q", "task=text", "factors=[1]", "position=nope,alibi"]
    command = [sys.executable, ROOT / "scripts" / words[0], *words[1:]]
    pipes = {"stderr": subprocess.PIPE, "preexec_fn": interruptible}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:
        metrics = tmp_path / "runs" / "q"
        while len([path for path in metrics.glob("*/metrics.jsonl") if lines(path) > 3]) < 2 and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=100)
    assert process.returncode == code and "Traceback" not in said
    for path in metrics.glob("*/metrics.jsonl"):
        with open(path.with_name(".lock"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # waits for the cell's end
        step = torch.load(path.with_name("last.ckpt"), weights_only=True)["global_step"]
        assert 3 < step == lines(path) < 3000


def test_one_failing_cell_does_not_stop_the_others(tmp_path):
    """What fails is said at the end, with the reason, and by the exit code too."""
    lines = ["study=q task=copy position=nope", "study=q task=copy position=own position._target_=nowhere.Wave"]
    done = command("reproduce", f"experiment.grid={lines}", *SMALL, "logger=none", cwd=tmp_path)
    assert done.returncode == 2 and "1 cell failed" in done.stderr and "nowhere.Wave" in done.stderr
    assert len(list((tmp_path / "runs" / "q").glob("*/rows.jsonl"))) == 1
