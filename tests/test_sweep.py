"""conf/wandb_sweep.yaml at W&B: made and worked off by W&B's own client and agent, whose server is in this process."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml
from running import ROOT
from wandb_stub import ENTITY, Server

from posenc_train.config import check, choices, compose
from posenc_train.evaluation.rows import Row
from posenc_train.report import wandb as ours

FILE = ROOT / "conf" / "wandb_sweep.yaml"
SWEEP, RUN = "abcd1234", "wxyz5678"
SMALL = {
    "model": "nano",
    "train_length": 16,
    "optim.steps": 3,
    "optim.batch_size": 4,
    "task.windows": 4,
    "factors": "[1,2]",
}
BOTH = (  # as `wandb sweep` and `wandb agent` do, without the five seconds between two looks of the latter
    "import sys; from wandb import wandb_agent; from wandb.cli.cli import cli; "
    "cli(['sweep', '--project', 'sweeps', sys.argv[1]], standalone_mode=False); "
    "wandb_agent.Agent.POLL_INTERVAL = 0.05; "
    "wandb_agent.run_agent(sys.argv[2], entity='tester', project='sweeps')"
)


class Sweeps(Server):
    """A server with one sweep, which hands out one run of it and then sends the agent home."""

    def __init__(self, args: dict):
        super().__init__()
        self.args, self.sweep, self.states = args, {}, []

    def on_upsert_sweep(self, variables: dict) -> dict:
        self.sweep = variables
        project = {"id": "UHJvamVjdA", "name": variables["projectName"], "entity": ENTITY}
        return {"upsertSweep": {"sweep": {"name": SWEEP, "project": project}, "configValidationWarnings": []}}

    def on_sweep_with_runs(self, variables: dict) -> dict:
        assert variables["sweep"] == SWEEP
        return {"project": {"sweep": {"config": self.sweep["config"], "name": SWEEP, "runs": {"edges": []}}}}

    def on_create_agent(self, _) -> dict:
        return {"createAgent": {"agent": {"id": "YWdlbnQ"}}}

    def on_heartbeat(self, variables: dict) -> dict:
        self.states.append(json.loads(variables["runState"]))
        program = yaml.safe_load(self.sweep["config"])["program"]
        args = {key: {"value": value} for key, value in self.args.items()}
        begin = {"type": "run", "run_id": RUN, "program": program, "args": args}
        over = len(self.states) > 1 and not self.states[-1]
        commands = [begin] if len(self.states) == 1 else [{"type": "exit"}] * over
        return {"agentHeartbeat": {"agent": {"id": "YWdlbnQ"}, "commands": json.dumps(commands)}}


def test_every_cell_of_the_sweep_is_a_training_that_can_be():
    """The grid is chosen from what there is, and the metric is one that a training logs."""
    sweep = yaml.safe_load(FILE.read_text())
    parameters = {name: own["values"] for name, own in sweep["parameters"].items()}
    fixed = [word for word in sweep["command"] if "=" in word and "$" not in word]
    assert set(parameters["position"]) <= set(choices("position")) and sweep["method"] == "grid"
    cells = [
        *((position, 0.001) for position in parameters["position"]),
        *(("rope", lr) for lr in parameters["optim.lr"]),
    ]
    for position, lr in cells:
        cfg = compose("train", [f"position={position}", f"optim.lr={lr}", *fixed])
        check(cfg)
        assert cfg["optim"]["lr"] == lr and isinstance(lr, float)
    row = Row(
        study="s", cell="c", scheme="rope", extension="none", sampling="consecutive", task="text", model="tiny", seed=0,
        train_length=128, length=128, tokens_seen=1, protocol="validation", slice={}, metric="nll", total=2.0, count=1,
        unit="byte", eval_hash="e", checkpoint="last@400", code="c", data="d",
    )  # fmt: skip
    assert sweep["metric"] == {"name": "eval/validation/nll", "goal": "minimize"}
    assert list(ours.points([row]))[0][1][sweep["metric"]["name"]] == 2.0


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """(the server after it, the working folder) of a sweep that was made and of which one cell was run."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "scripts").symlink_to(ROOT / "scripts")
    (folder / "home").mkdir()
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"  # where `python` is this one
    env = {key: value for key, value in os.environ.items() if key != "WANDB_MODE"}
    env |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])]), "PATH": path}
    env |= {"HOME": str(folder / "home"), "WANDB_ERROR_REPORTING": "false", "WANDB_ENTITY": "tester"}
    with Sweeps({"position": "alibi", "optim.lr": 0.004} | SMALL) as server:
        options = {"cwd": folder, "env": env | server.environment, "capture_output": True, "text": True}
        done = subprocess.run([sys.executable, "-c", BOTH, str(FILE), SWEEP], **options, timeout=120)
        assert done.returncode == 0 and not server.errors, done.stdout + done.stderr
        yield server, folder, done.stdout + done.stderr
    shutil.rmtree(folder)


def test_the_client_takes_the_file(swept):
    server, _, _ = swept
    assert server.sweep["projectName"] == "sweeps"
    assert yaml.safe_load(server.sweep["config"]) == yaml.safe_load(FILE.read_text())


def test_the_agent_trains_the_cell_that_it_is_told(swept):
    server, folder, said = swept
    (cell,) = (folder / "runs" / f"sweep-{SWEEP}").glob("alibi-text-nano-L16-s0-*")
    config = yaml.safe_load((cell / "config.yaml").read_text())
    assert config["optim"]["lr"] == 0.004 and config["optim"]["steps"] == 3, said
    rows = [json.loads(line) for line in (cell / "rows.jsonl").read_text().splitlines()]
    assert {row["protocol"].partition("(")[0] for row in rows} == {
        "validation", "nonoverlapping", "same_targets", "training",
    }  # fmt: skip


def test_the_server_hears_the_metric_of_the_run_that_it_named(swept):
    server, folder, said = swept
    (file,) = (folder / "runs" / f"sweep-{SWEEP}").glob("*/rows.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    (wanted,) = [row["total"] / row["count"] for row in rows if row["protocol"] == "validation"]
    stored = server.runs[RUN]
    assert stored.summary["eval/validation/nll"] == wanted and stored.exit_code == 0, said
    assert stored.group == f"sweep-{SWEEP}" and list(server.runs) == [RUN]
    assert {state for states in server.states for state in states} <= {RUN}
