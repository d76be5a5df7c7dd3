"""What W&B gets, read back from its own files, and what it may never do: lose a number, mix two runs, hold up
or end a training, write outside its folder. Online, it talks to a server in this process (wandb_stub.py).
"""

from __future__ import annotations

import json
import math
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wandb_offline
from wandb_stub import KEY, Server

from posenc_train.config import UserError, compose
from posenc_train.evaluation.rows import FIELDS, Row
from posenc_train.report import wandb as ours
from posenc_train.report.wandb import Run

REPOSITORY = Path(__file__).resolve().parent.parent
CELL = "rope-text-tiny-L128-s0-1a2b3c4d"
PNG = bytes.fromhex(  # one grey pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c6368000000820081777c0e0c0000000049454e44ae426082"
)


def row(length: int, metric: str = "nll", **other) -> Row:
    """4,096 bytes predicted by a model that knows nothing: perplexity 256, 8 bits per byte."""
    values = {
        "study": "s", "cell": CELL, "scheme": "rope", "extension": "none", "sampling": "consecutive",
        "task": "text", "model": "tiny", "seed": 0, "train_length": 128, "length": length,
        "tokens_seen": 1638400, "protocol": "same_targets(k=64)", "slice": {}, "metric": metric,
        "total": 4096 * math.log(256), "count": 4096, "unit": "byte", "eval_hash": "e" * 16,
        "checkpoint": "last@400", "code": "c" * 16, "data": "d" * 16,
    }  # fmt: skip
    return Row(**values | other)


BEYOND = {"status": "beyond reach", "total": None, "count": 0}


@pytest.fixture(scope="session")
def cfg() -> dict:
    return compose("train", ["optim.betas=[0.9,0.95]", "task.path=null", "factors=[1,8]"])


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """No variable of W&B's from outside, none left behind, an empty home folder, an empty working folder."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.chdir(tmp_path / "work")
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def server(monkeypatch):
    """A W&B server that the next run of this process will talk to."""
    import wandb

    wandb.teardown()  # it has read its variables already
    with Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
        wandb.teardown()
        assert not server.errors
        assert not server.unknown, "something is sent that no run needs"


def write(folder: Path, steps: range) -> None:
    """A run folder as the training leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"step": step, "loss": 1 / (1 + step), "lr": 1e-3, "tokens": 10 * step} for step in steps]
    with open(folder / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def train(run: Run, steps: range) -> None:
    for step in steps:
        run.train(step, {"loss": 1 / (1 + step), "lr": 1e-3, "tokens": 10 * step})


def in_its_own_process(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"} | environment
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def sync(server: Server, command: str) -> None:
    """A `wandb sync …` as it was printed, in a shell."""
    assert command.startswith("wandb sync ")
    program = f"{sys.executable} -m {command}"
    env = os.environ | server.environment | {"WANDB_ERROR_REPORTING": "false"}
    done = subprocess.run(["bash", "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr


def said(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("W&B: ")]


# What an offline run holds


def test_an_offline_run_holds_the_numbers_of_the_rows(cfg, tmp_path):
    figure = tmp_path / "perplexity.png"
    figure.write_bytes(PNG)
    rows = [
        row(1024, total=2 * 4096 * math.log(256)),
        row(128),
        row(2048, **BEYOND),
        row(128, protocol="nonoverlapping", total=4096.0),
        row(128, protocol="per_position", slice={"position": [0, 0]}, total=64 * 5.0, count=64),
        row(128, "seconds", protocol="training", total=30.0, count=400, unit="second"),
    ]
    with Run("offline", CELL, "s", cfg) as run:
        run.train(20, {"loss": 3.5, "lr": 0.001, "tokens": 81920, "tokens_per_second": 40000.0})
        run.train(40, {"loss": 3.25, "lr": 0.002, "tokens": 163840, "tokens_per_second": 41000.0})
        run.evaluation(rows)
        run.figure("perplexity", figure)
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.curve("train/loss", "train/step") == {20: 3.5, 40: 3.25}
    assert stored.curve("train/lr", "train/step") == {20: 0.001, 40: 0.002}
    assert stored.curve("train/tokens_per_second", "train/step") == {20: 40000.0, 40: 41000.0}
    assert stored.curve("train/tokens", "train/step") == {20: 81920, 40: 163840}
    perplexity = stored.curve("eval/same_targets/perplexity", "eval/length")
    assert perplexity == pytest.approx({128: 256, 1024: 65536}, rel=1e-12)
    bits = stored.curve("eval/same_targets/bits_per_byte", "eval/length")
    assert bits == pytest.approx({128: 8, 1024: 16}, rel=1e-12)
    assert stored.curve("eval/nonoverlapping/nll", "eval/length") == {128: 1.0}
    columns, cells = stored.table("eval/rows")
    assert columns == list(FIELDS)
    read = [dict(zip(columns, line, strict=True)) for line in cells]
    assert [Row(**line | {"slice": json.loads(line["slice"])}) for line in read] == rows
    assert stored.image("figures/perplexity") == PNG
    assert (stored.run["display_name"], stored.run["run_group"]) == (CELL, "s")
    assert stored.run["tags"] == ["rope", "text", "tiny"]
    assert stored.exit_code == 0
    others = {key.partition(".")[0] for line in stored.history for key in line} - set(stored.axes)
    assert others == {"_step", "eval/rows", "figures/perplexity"}, "loss by position and cost are no curves"


def test_copy_is_three_shares(cfg):
    values = {"task": "copy", "protocol": "free_running", "slice": {"size": 24}}
    rows = [
        row(64, "token", **values, total=3000.0, count=3072, unit="token"),
        row(64, "exact", **values, total=96.0, count=128, unit="example"),
        row(64, "stops", **values, total=128.0, count=128, unit="example"),
    ]
    assert list(ours.points(rows)) == [
        (
            64,
            {
                "eval/free_running/token": 3000 / 3072,
                "eval/free_running/exact": 0.75,
                "eval/free_running/stops": 1.0,
            },
        )
    ]


def test_field_66_the_config_is_nested_plain_values(cfg):
    """A DictConfig would become one string with its interpolations in it."""
    with Run("offline", CELL, "s", cfg | {"odd": ({"path": Path("a")}, [1, [2.5]]), "null": None}):
        pass
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.config == cfg | {"odd": [{"path": "a"}, [1, [2.5]]], "null": None}
    assert stored.config["factors"][1] == 8
    assert stored.config["optim"]["betas"] == [0.9, 0.95]


def test_field_62_no_order_of_calls_loses_a_number(cfg):
    """W&B drops what comes at a lower step than the last: lengths are an axis, not a step."""
    with Run("offline", CELL, "s", cfg) as run:
        train(run, range(20, 60, 20))
        run.evaluation([row(1024), row(256), row(128)])
        train(run, range(60, 100, 20))
        run.evaluation([row(4096), row(512)])
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.steps() == [20, 40, 60, 80]
    assert set(stored.curve("eval/same_targets/nll", "eval/length")) == {128, 256, 512, 1024, 4096}
    steps = [line["_step"] for line in stored.history]
    assert steps == sorted(set(steps))


def test_field_52_names_do_not_depend_on_the_lengths_asked_for():
    def names(*lengths: int) -> set[str]:
        return {name for _, values in ours.points([row(length) for length in lengths]) for name in values}

    assert names(128) == names(1024, 128) == names(128, 256, 1024)
    assert names(128) == {f"eval/same_targets/{metric}" for metric in ("nll", "perplexity", "bits_per_byte")}


def test_what_is_not_finite_has_no_point():
    """e^800 is not a float64: the nll is drawn, the perplexity is not."""
    ((length, values),) = ours.points([row(128, total=800.0, count=1), row(256, **BEYOND)])
    assert length == 128
    assert values["eval/same_targets/nll"] == 800
    assert "eval/same_targets/perplexity" not in values


def test_protocols_and_extensions_are_not_mixed_in_a_curve():
    rows = [
        row(128, protocol="same_targets(k=64)", total=1.0, count=1),
        row(128, protocol="same_targets(k=32)", total=2.0, count=1),
        row(128, protocol="nonoverlapping", total=3.0, count=1),
        row(128, protocol="nonoverlapping", extension="pi(scale=8)", total=4.0, count=1),
    ]
    ((_, values),) = ours.points(rows)
    assert {name: value for name, value in values.items() if "nll" in name} == {
        "eval/same_targets_k_64/nll": 1.0,
        "eval/same_targets_k_32/nll": 2.0,
        "eval/nonoverlapping/nll": 3.0,
        "eval/nonoverlapping/nll/pi_scale_8": 4.0,
    }


def test_tokens_of_several_bytes_have_no_bits_per_byte():
    ((_, values),) = ours.points([row(128, unit="token")])
    assert set(values) == {"eval/same_targets/nll", "eval/same_targets/perplexity"}


def test_the_same_losses_by_byte_and_by_word_have_names_of_their_own():
    rows = [row(128, unit=unit, total=400.0, count=n) for unit, n in (("token", 100), ("byte", 400), ("word", 50))]
    ((_, values),) = ours.points(rows)
    assert values == pytest.approx({
        "eval/same_targets/nll": 4.0,
        "eval/same_targets/perplexity": math.exp(4),
        "eval/same_targets/bits_per_byte": 1 / math.log(2),
        "eval/same_targets/word_perplexity": math.exp(8),
    })  # fmt: skip


def test_parts_and_checkpoints_along_the_training_are_in_no_curve():
    rows = [row(128), row(128, total=1.0, slice={"depth": 0.5}), row(128, total=1.0, checkpoint="step@100")]
    assert list(ours.points(rows)) == list(ours.points(rows[:1]))


def test_field_67_the_table_is_whole_or_missed(cfg, monkeypatch, capsys):
    """200 rows are one file with 200 rows; more than W&B takes are not cut to fit."""
    import wandb

    rows = [row(length, checkpoint=f"last@{step}") for step in range(50) for length in (128, 256, 512, 1024)]
    with Run("offline", CELL, "s", cfg) as run:
        run.evaluation(rows)
    (stored,) = wandb_offline.runs(Path("runs"))
    _, cells = stored.table("eval/rows")
    assert [(line[FIELDS.index("checkpoint")], line[FIELDS.index("length")]) for line in cells] == [
        (one.checkpoint, one.length) for one in rows
    ]
    assert len(list(stored.folder.rglob("*.table.json"))) == 1
    assert not any("not everything" in line for line in said(capsys))
    monkeypatch.setattr(wandb.Table, "MAX_ARTIFACT_ROWS", 199)
    with Run("offline", CELL, "s", cfg) as run:
        run.evaluation(rows)
    assert "not everything is logged" in said(capsys)[0]


def test_a_loss_that_is_no_number_ends_nothing(cfg, capsys):
    with Run("offline", CELL, "s", cfg) as run:
        run.train(20, {"loss": math.nan})
        run.train(40, {"loss": math.inf})
        run.train(60, {"loss": 1.0})
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.steps() == [20, 40, 60]
    assert len(said(capsys)) == 1, "only where to find it"


def test_two_runs_in_one_process_do_not_mix(cfg):
    """As the jobs of a multirun: one after another."""
    for seed in (5, 6):
        with Run("offline", f"cell-s{seed}", "s", cfg | {"seed": seed}) as run:
            run.train(20, {"loss": float(seed)})
            run.evaluation([row(128, seed=seed, total=float(seed), count=1)])
    first, second = wandb_offline.runs(Path("runs"))
    for stored, seed in ((first, 5), (second, 6)):
        assert stored.config["seed"] == seed
        assert stored.run["display_name"] == f"cell-s{seed}"
        assert stored.curve("train/loss", "train/step") == {20: seed}
        assert stored.curve("eval/same_targets/nll", "eval/length") == {128: seed}
    assert first.run["run_id"] != second.run["run_id"]


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("out of memory"), 1), (KeyboardInterrupt(), 1), (SystemExit(143), 1), (SystemExit(0), 0)],
    ids=lambda value: type(value).__name__ + str(getattr(value, "code", "")) if value not in (0, 1) else "",
)
def test_a_run_that_fails_is_marked_failed(cfg, error, code):
    with pytest.raises(type(error)), Run("offline", CELL, "s", cfg) as run:
        run.train(20, {"loss": 1.0})
        raise error
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.exit_code == code
    assert stored.steps() == [20]


# Names


def test_field_64_long_names_are_shortened_and_stay_different(cfg):
    """W&B refuses tags of 65 characters at once, and names of 129 only at the upload, when it is too late."""
    cells = ["c" * 199 + end for end in "ab"]
    long = cfg | {
        "position": {"_target_": "m.Wave", "period": "x" * 200},
        "names": cfg["names"] | {"position": "own"},
    }
    for cell in cells:
        with Run("offline", cell, "s" * 200, long) as run:
            run.train(20, {"loss": 1.0})
    stored = wandb_offline.runs(Path("runs"))
    names = [one.run["display_name"] for one in stored]
    assert len(set(names)) == 2
    assert all(len(name) <= 128 and name.startswith("c" * 100) for name in names)
    for one in stored:
        assert len(one.run["run_group"]) <= 128
        assert all(len(tag) <= 64 for tag in one.run["tags"])
        assert one.run["tags"][0].startswith("m.Wave(period=")
        assert re.fullmatch("[0-9a-f]{16}", one.run["run_id"])


def test_field_64_a_project_that_w_and_b_refuses_is_the_users_mistake(cfg, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "a/b")
    with pytest.raises(UserError, match="WANDB_PROJECT=a/b"):
        Run("offline", CELL, "s", cfg)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    with Run("offline", CELL, "s", cfg):
        pass
    assert wandb_offline.runs(Path("runs"))[0].run["project"] == "mine"


def test_a_mode_that_is_none_is_the_users_mistake(cfg):
    with pytest.raises(UserError, match="logger.mode=dryrun: offline, online or none"):
        Run("dryrun", CELL, "s", cfg)


@pytest.mark.parametrize(
    ("asked", "variable", "got"),
    [
        ("offline", "online", "offline"),
        ("offline", "disabled", "none"),
        ("online", "offline", "offline"),
        ("online", "disabled", "none"),
        ("online", "online", "online"),
        ("none", "online", "none"),
    ],
)
def test_field_63_the_variable_makes_it_quieter_and_never_louder(cfg, monkeypatch, asked, variable, got):
    monkeypatch.setenv("WANDB_MODE", variable)
    assert Run(asked, CELL, "s", cfg).mode == got


def test_a_quieter_mode_is_told(cfg, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    with Run("online", CELL, "s", cfg):
        pass
    (line,) = said(capsys)
    assert "offline (WANDB_MODE=offline)" in line


# Where it writes, and what


def test_nothing_is_written_outside_the_folder_nor_about_the_machine(cfg, tmp_path):
    code = """if True:
        import json, platform, socket, sys
        socket.gethostname = platform.node = lambda: "someones-machine"
        from posenc_train.report.wandb import Run
        from test_wandb import row
        with Run("offline", "cell", "s", json.loads(sys.argv[1])) as run:
            run.train(20, {"loss": 1.0})
            run.evaluation([row(128)])
            run.figure("f", sys.argv[2])
            print("a line in the terminal")
    """
    figure = tmp_path / "f.png"
    figure.write_bytes(PNG)
    (tmp_path / "temporary").mkdir()
    home, elsewhere = str(tmp_path / "home"), str(tmp_path / "elsewhere")
    config = cfg | {"task": cfg["task"] | {"path": f"{home}/texts"}}
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "remote", "add", "origin", "https://example.org/secret.git"], check=True)
    environment = {
        "USER": "someones-name",
        "LOGNAME": "someones-name",
        "WANDB_MODE": "online",
        "WANDB_DIR": elsewhere,
    }
    done = in_its_own_process(code, json.dumps(config), str(figure), TMPDIR=str(tmp_path / "temporary"), **environment)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == "a line in the terminal\n"
    written = {path for path in tmp_path.rglob("*") if ".git" not in path.parts}
    assert {path for path in written if not path.is_relative_to(tmp_path / "work" / "runs")} == {
        figure, tmp_path / "home", tmp_path / "temporary", tmp_path / "work",
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "work" / "runs").iterdir()} == {"wandb"}
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.config["task"]["path"] == "~/texts"
    content = b"".join(path.read_bytes() for path in written if path.is_file() and path != figure)
    for secret in (home, "a line in the terminal", "someones-name", "someones-machine", "example.org", KEY):
        assert secret.encode() not in content, secret
    assert "wandb-metadata.json" not in {path.name for path in written}  # which has all of these


def test_without_a_logger_nothing_is_imported_or_written(cfg):
    code = """if True:
        import json, sys
        from posenc_train.report.wandb import Run
        with Run("none", "cell", "s", json.loads(sys.argv[1])) as run:
            run.train(20, {"loss": 1.0})
            run.evaluation([])
            run.figure("f", "f.png")
        assert not {"wandb", "torch", "lightning"} & set(sys.modules)
    """
    done = in_its_own_process(code, json.dumps(cfg))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(Path().iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_no_training(cfg, capsys):
    Path("runs").mkdir()
    Path("runs", "wandb").write_text("a file")
    with Run("offline", CELL, "s", cfg) as run:
        run.train(20, {"loss": 1.0})
        run.evaluation([row(128)])
    (line,) = said(capsys)
    assert "nothing is logged" in line


def test_what_w_and_b_refuses_is_said_once(cfg, capsys):
    with Run("offline", CELL, "s", cfg) as run:
        run.figure("a", "missing.png")
        run.figure("b", "missing.png")
        run.train(20, {"loss": 1.0})
    assert len([line for line in said(capsys) if "missing.png" in line]) == 1
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.steps() == [20]


# After a resume

KILLED = """if True:
    import json, os, signal, sys
    from posenc_train.report.wandb import Run
    from posenc_train.report.wandb_segments import records
    from test_wandb import train, write, Path
    folder = Path("runs", "s", "cell")
    write(folder, range(0))
    with Run("offline", "cell", "s", json.loads(sys.argv[1])) as run:
        for step in range(int(sys.argv[2]), int(sys.argv[3]), 20):
            write(folder, range(step, step + 1))
            train(run, range(step, step + 1))
        log = Path(run._run.settings.sync_file)
        while step not in [record.history.step.num for record, _ in records(log)]:
            pass  # until it is on the disk, which takes a second
        os.kill(os.getpid(), signal.SIGKILL)
"""


def all_steps(root: Path = Path("runs")) -> list[int]:
    return [step for stored in wandb_offline.runs(root) for step in stored.steps()]


def test_a_killed_training_is_one_run_with_each_step_once(cfg, server, capsys):
    """Two attempts are killed, the third ends: three segments, one id, and a sync sends each step once."""
    for first, end in ((20, 100), (60, 160)):  # the second begins at a checkpoint before the first one's end
        assert in_its_own_process(KILLED, json.dumps(cfg), str(first), str(end)).returncode == -9
    torn = ours.segments(Path("runs/wandb"), Path("runs/s/cell/wandb.id").read_text().strip())[1]
    os.truncate(torn, torn.stat().st_size - 300)  # as when it is killed while a block is written
    assert max(wandb_offline.read(torn).steps()) < 140, "its last step is lost"
    with Run("offline", "cell", "s", cfg) as run:
        train(run, range(120, 220, 20))
        run.evaluation([row(128)])
    assert all_steps() == list(range(20, 220, 20))
    assert len({stored.run["run_id"] for stored in wandb_offline.runs(Path("runs"))}) == 1
    assert [stored.exit_code for stored in wandb_offline.runs(Path("runs"))] == [None, None, 0]
    command = said(capsys)[-1].partition("to upload: ")[2]
    sync(server, command)
    sync(server, command)  # the second has nothing to do
    assert list(server.runs) == [run.id]
    assert server.runs[run.id].steps_received() == list(range(20, 220, 20))
    assert server.runs[run.id].exit_code == 0


def test_a_log_is_settled_wherever_it_was_cut(cfg, tmp_path):
    """The last step agrees with W&B's own inspector, which has nothing to complain of afterwards."""
    with Run("offline", CELL, "s", cfg | {"long": "x" * 40000}) as run:  # a record over two blocks
        train(run, range(0, 400, 20))
    (log,) = ours.segments(Path("runs/wandb"), run.id)
    assert ours.settle(log) == 380
    whole = log.read_bytes()
    ends = [end for _, end in ours_records(log)]
    assert ends[-1] == len(whole)
    for cut in (ends[-1] - 1, ends[-2] + 3, ends[-2], ends[30] - 20, ends[30] + 8, 32768, 20000):
        log.write_bytes(whole[:cut])
        last = ours.settle(log)
        if any(end <= cut for end in ends[1:]):
            assert log.stat().st_size in ends
        assert last == max(wandb_offline.read(log).steps(), default=-1)
    log.write_bytes(whole[:7])
    assert ours.settle(log) == -1
    assert not log.exists()


def ours_records(log: Path):
    from posenc_train.report.wandb_segments import records

    return list(records(log))


def test_what_w_and_b_has_lost_comes_from_the_metrics_file(cfg):
    """Killed before anything was on disk: the segment is empty, and the next one has it all."""
    write(Path("runs", "s", CELL), range(20, 100, 20))
    with open(Path("runs", "s", CELL, "metrics.jsonl"), "a") as file:
        file.write('{"step": 1')  # cut short
    with Run("offline", CELL, "s", cfg) as run:
        train(run, range(60, 140, 20))
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.steps() == [20, 40, 60, 80, 100, 120]
    assert stored.curve("train/loss", "train/step")[40] == 1 / 41


def test_a_folder_trained_anew_is_another_run(cfg):
    folder, ids = Path("runs", "s", CELL), []
    for _ in range(2):
        folder.mkdir(parents=True)
        with Run("offline", CELL, "s", cfg) as run:
            train(run, range(20, 60, 20))
        ids.append(run.id)
        shutil.rmtree(folder)
    assert ids[0] != ids[1]
    assert ids[0][:8] == ids[1][:8], "the same study and cell"
    assert all_steps() == [20, 40, 20, 40]


def test_without_its_segments_a_run_is_told_again_in_full(cfg):
    """runs/wandb was removed: what had been sent is not known, so this is a new run and not a second half."""
    folder = Path("runs", "s", CELL)
    write(folder, range(20, 60, 20))
    with Run("offline", CELL, "s", cfg) as first:
        pass
    shutil.rmtree("runs/wandb")
    with Run("offline", CELL, "s", cfg) as second:
        train(second, range(60, 100, 20))
    assert first.id != second.id
    assert (folder / "wandb.id").read_text() == second.id + "\n"
    assert all_steps() == [20, 40, 60, 80]


# Online


def test_online_everything_arrives(cfg, server, tmp_path, capsys):
    figure = tmp_path / "f.png"
    figure.write_bytes(PNG)
    with Run("online", CELL, "s", cfg) as run:
        train(run, range(20, 100, 20))
        run.evaluation([row(128), row(1024)])
        run.figure("f", figure)
    stored = server.runs[run.id]
    assert stored.steps_received() == [20, 40, 60, 80]
    points = {line["eval/length"]: line["eval/same_targets/nll"] for line in stored.received if "eval/length" in line}
    assert points == pytest.approx({128: math.log(256), 1024: math.log(256)})
    tables = [json.loads(content) for path, content in server.files.items() if path.endswith(".table.json")]
    assert [len(table["data"]) for table in tables] == [2]
    assert PNG in server.files.values()
    config = {key: value["value"] for key, value in stored.config.items() if key != "_wandb"}
    assert config == cfg | {"protocol": {k: v for k, v in cfg["protocol"].items() if v}}  # W&B sends no empty dict
    assert (stored.name, stored.group, stored.tags) == (CELL, "s", ["rope", "text", "tiny"])
    assert (stored.project, stored.exit_code) == ("posenc-train", 0)
    assert said(capsys) == []
    assert not any(variables.get(name) for variables in server.upserts for name in ("host", "program", "repo"))


def test_online_a_resume_goes_on_where_the_server_is(cfg, server):
    """The first attempt's last steps never arrived, though its own file has them; then it is trained on."""
    folder = Path("runs", "s", CELL)
    write(folder, range(20, 100, 20))
    with pytest.raises(KeyboardInterrupt), Run("online", CELL, "s", cfg) as run:
        raise KeyboardInterrupt
    stored = server.runs[run.id]
    assert stored.exit_code == 1
    for line in [line for line, value in stored.history.items() if value["train/step"] > 40]:
        del stored.history[line]
    stored.summary["_step"] = 40
    stored.received.clear()
    with Run("online", CELL, "s", cfg) as again:
        train(again, range(60, 140, 20))
    assert again.id == run.id
    assert stored.steps() == [20, 40, 60, 80, 100, 120]
    assert stored.steps_received() == [60, 80, 100, 120]
    assert stored.exit_code == 0


@pytest.mark.parametrize("fault", ["refused", "silent", "closed", "no key", "bad key"])
def test_field_63_a_server_out_of_reach_makes_it_offline_in_seconds(cfg, server, monkeypatch, capsys, fault):
    monkeypatch.setattr(ours, "PATIENCE", 1)
    if fault == "refused":
        server.refuse = True
    elif fault == "silent":
        server.hang = True
    elif fault == "closed":
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    elif fault == "no key":
        monkeypatch.delenv("WANDB_API_KEY")
    else:
        monkeypatch.setenv("WANDB_API_KEY", "short")
    start = time.monotonic()
    with Run("online", CELL, "s", cfg) as run:
        train(run, range(20, 100, 20))
        run.evaluation([row(128)])
    assert time.monotonic() - start < 15
    first, last = said(capsys)
    assert "not online, offline instead: " in first
    assert KEY not in first + last
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.folder.name.startswith("offline-run-")
    assert stored.steps() == [20, 40, 60, 80]
    assert set(stored.curve("eval/same_targets/nll", "eval/length")) == {128}
    assert last.endswith(f"wandb sync runs/wandb/offline-run-*-{run.id}")


def test_field_63_online_in_a_terminal_asks_nothing(cfg):
    """Without a key W&B would ask for one, and wait."""
    code = """if True:
        import json, sys
        from posenc_train.report.wandb import Run
        assert sys.stdin.isatty() and sys.stdout.isatty()
        with Run("online", "cell", "s", json.loads(sys.argv[1])) as run:
            run.train(20, {"loss": 1.0})
    """
    ours, its = pty.openpty()
    process = subprocess.run(
        [sys.executable, "-c", code, json.dumps(cfg)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=its,
        stdout=its,
        stderr=its,
        timeout=30,
    )
    text = os.read(ours, 10000).decode()
    os.close(its)
    os.close(ours)
    assert process.returncode == 0, text
    assert len(text.splitlines()) == 2 and "no API key" in text, text


def test_online_a_run_that_ends_unheard_says_what_to_do(cfg, server, monkeypatch, capsys):
    monkeypatch.setattr(ours, "PATIENCE", 1)
    with pytest.raises(RuntimeError), Run("online", CELL, "s", cfg) as run:
        server.hang = True
        train(run, range(20, 100, 20))
        raise RuntimeError
    assert said(capsys)[-1].endswith(f"wandb sync --include-online runs/wandb/run-*-{run.id}")
    assert all_steps() == [20, 40, 60, 80]


@pytest.mark.parametrize("death", ["gone", "silent", "refusing"])
def test_field_63_a_server_that_dies_holds_up_nothing(cfg, server, monkeypatch, capsys, death):
    monkeypatch.setattr(ours, "PATIENCE", 1)
    with Run("online", CELL, "s", cfg) as run:
        train(run, range(20, 60, 20))
        if death == "gone":
            server.close()
        elif death == "silent":
            server.hang = True
        else:
            server.refuse = True
        start = time.monotonic()
        train(run, range(60, 10000, 20))
        assert time.monotonic() - start < 20, "497 steps that waited would take 497 s"
        run.evaluation([row(128)])
    assert time.monotonic() - start < 60
    (stored,) = wandb_offline.runs(Path("runs"))
    assert stored.steps() == list(range(20, 10000, 20))
    assert set(stored.curve("eval/same_targets/nll", "eval/length")) == {128}
    first, last = said(capsys)
    assert "not everything is logged" in first
    assert last.endswith(f"wandb sync --include-online runs/wandb/run-*-{run.id}")


def test_a_sync_of_an_offline_run_brings_table_and_figure(cfg, server, tmp_path, capsys):
    figure = tmp_path / "f.png"
    figure.write_bytes(PNG)
    with pytest.raises(RuntimeError), Run("offline", CELL, "s", cfg) as run:
        train(run, range(20, 100, 20))
        run.evaluation([row(128), row(1024), row(2048, **BEYOND)])
        run.figure("f", figure)
        raise RuntimeError
    assert server.operations == [], "offline means offline"
    sync(server, said(capsys)[-1].partition("to upload: ")[2])
    stored = server.runs[run.id]
    assert stored.steps_received() == [20, 40, 60, 80]
    tables = [json.loads(content) for path, content in server.files.items() if path.endswith(".table.json")]
    assert [len(table["data"]) for table in tables] == [3]
    assert PNG in server.files.values()
    assert stored.exit_code == 1
