"""Reads a W&B run back from its files by W&B's own inspector, not by the code under test."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from wandb.util import get_core_path

HIDDEN = ("_runtime", "_timestamp")


@dataclass
class StoredRun:
    """One segment of a run. Keys in history are flat, `eval/rows.path` for {"eval/rows": {"path": …}}."""

    folder: Path
    run: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    history: list[dict] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)  # metric -> what it is drawn against
    exit_code: int | None = None  # None: it never ended

    def curve(self, metric: str, axis: str) -> dict[float, float]:
        """{axis value: metric value}."""
        assert self.axes.get(metric) == axis, f"{metric} is drawn against {self.axes.get(metric)}"
        return {line[axis]: line[metric] for line in self.history if metric in line}

    def steps(self) -> list[int]:
        return [line["train/step"] for line in self.history if "train/step" in line]

    def table(self, name: str) -> tuple[list[str], list[list]]:
        """(columns, rows) of the last table logged under the name."""
        paths = [line[f"{name}.path"] for line in self.history if f"{name}.path" in line]
        value = json.loads((self.folder / "files" / paths[-1]).read_text())
        return value["columns"], value["data"]

    def image(self, name: str) -> bytes:
        paths = [line[f"{name}.path"] for line in self.history if f"{name}.path" in line]
        return (self.folder / "files" / paths[-1]).read_bytes()


def read(log: Path) -> StoredRun:
    """The segment in a file `<root>/wandb/offline-run-…/run-….wandb`."""
    inspect = [get_core_path(), "leet", "inspect", "--no-observability", "--json"]
    command = [*inspect, "--run-file", log, log.parent]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    stored = StoredRun(log.parent)
    for record in map(json.loads, lines):
        kind = record["type"]
        value = record.get(kind, {})
        if kind == "run":
            stored.run = value
            stored.config = {k: v for k, v in value["config"]["update"].items() if k != "_wandb"}
        elif kind == "history":
            stored.history.append({k: v for k, v in value["item"].items() if k not in HIDDEN})
        elif kind == "metric":
            stored.axes[value["name"]] = value.get("step_metric", "")
        elif kind == "exit":
            stored.exit_code = value.get("exit_code", 0)
    return stored


def runs(root: Path) -> list[StoredRun]:
    """Every segment under `<root>/wandb`, oldest first."""
    logs = (root / "wandb").glob("*run-*/*.wandb")
    return [read(log) for log in sorted(logs, key=lambda log: log.parent.name.partition("run-")[2])]
