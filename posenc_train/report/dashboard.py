"""The W&B workspace of a study: panels for what its rows hold, lines for what a table's lines are.

A line of a panel is the mean over the runs of one line of our tables, which differ in their seed only, with their
standard deviation around it: runs are told apart by `wandb.line`, W&B's job type. Which curves there are follows from
the rows, so that no panel is empty; the tables are those of the study's folder as they are now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc_train.config import UserError
from posenc_train.report import store, wandb

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Section, Workspace

FILE = "dashboard.json"
LOSSES = {  # metric -> title of its axis
    "perplexity": "perplexity per target", "bits_per_byte": "bits per byte", "word_perplexity": "perplexity per word",
    "regret": "nats above the best predictor",
}  # fmt: skip
RATES = {"token": "token accuracy", "exact": "exact match", "stops": "share that ends in time"}
COSTS = {"seconds": "seconds of training", "bytes": "peak memory, bytes", "parameters": "parameters"}
TABLES = ("claims.md", "published.md", "table.md")


def build(study: str, root: Path | str = "runs") -> str:
    """Builds the workspace at W&B and returns one line that says where it is; or, for whoever is not logged in or does
    not reach the server, that line says why not.

    What is, or would be, built is in runs/<study>/dashboard.json: entity, project, name, and the specification as W&B
    takes it. Built again, it is the same view. Raises UserError where there are no rows, or no wandb-workspaces.
    """
    folder = Path(root, study)
    store.read(folder)  # or an error: there is nothing to show
    made, known = workspace(folder), _before(folder / FILE)
    why = wandb.offline_because(Path(root))
    if why is None:
        try:
            import wandb as theirs

            made.entity = os.environ.get("WANDB_ENTITY") or theirs.Api(timeout=wandb.PATIENCE).default_entity
            if known.get("entity") == made.entity and known.get("project") == made.project:
                made._internal_name, made._internal_id = known["view"]["name"], known["view"]["id"]
            made.save()
        except Exception as error:  # whatever a server may do
            why = wandb.first_line(error)
    told = {"entity": made.entity, "project": made.project, "name": made.name}
    if why is None:
        told["view"] = {"name": made._internal_name, "id": made._internal_id, "url": made.url}
    elif known.get("view"):
        told |= {"entity": known["entity"], "view": known["view"]}
    spec = json.loads(made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))
    store.write_whole(folder / FILE, (json.dumps(told | {"spec": spec}, indent=1) + "\n").encode())
    if why is None:
        return f"the workspace of {study}: {made.url}"
    return f"not built at W&B ({why}); {folder / FILE} holds what would be"


def _before(path: Path) -> dict[str, Any]:
    """What an earlier call built; {} where it built nothing."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if found["view"]["name"] and found["view"]["id"] else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def workspace(folder: Path) -> Workspace:
    """Loss by length, training, retrieval and costs, of the runs of one study alone, and its tables."""
    ws, _ = _theirs()
    found = metrics(folder)
    sections = [
        _section("Loss by length", True, *_against_length(found, LOSSES)),
        _section("Retrieval", True, *_against_length(found, RATES)),
        _section("Training", True, *_training()),
        _section("Costs", False, *_costs(folder)),
        _section("Tables", False, *_tables(folder)),
    ]
    return ws.Workspace(
        entity=os.environ.get("WANDB_ENTITY", ""),
        project=wandb.project(),
        name=folder.name,
        sections=[section for section in sections if section.panels],
        settings=ws.WorkspaceSettings(max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=[ws.Metric("Group") == wandb.short(folder.name, 128)], groupby=[ws.Metric("JobType")]
        ),
        auto_generate_panels=False,
    )


def metrics(folder: Path) -> dict[tuple[str, str], list[str]]:
    """{(protocol, metric): the names of its curves, one for each extension}, as `wandb.Run` logs them."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in store.runs(folder):
        for _, values in wandb.points(store.load(run / store.ROWS)):
            for name in values:
                names = found.setdefault(tuple(name.split("/")[1:3]), [])
                names += [name] * (name not in names)
    return found


def _theirs() -> tuple[Any, Any]:
    try:
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
    except ImportError as error:
        raise UserError("a dashboard needs the package wandb-workspaces: pip install -e '.[dashboard]'") from error
    return ws, wr


def _section(name: str, is_open: bool, *panels: Any) -> Section:
    return _theirs()[0].Section(name=name, panels=list(panels), is_open=is_open)


def _against_length(found: dict[tuple[str, str], list[str]], titles: dict[str, str]) -> Iterator[Any]:
    for metric, title in titles.items():
        for protocol in sorted(protocol for protocol, name in found if name == metric):
            names = found[protocol, metric]
            yield _lines(f"{title}, {protocol}", "eval/length", names, log_x=True, log_y="perplexity" in metric)


def _training() -> Iterator[Any]:
    for name, title in {"loss": "training loss, nats per target", "lr": "learning rate"}.items():
        yield _lines(title, "train/step", [f"train/{name}"])
    yield _lines("training loss by tokens seen", "train/tokens", ["train/loss"])


def _lines(title: str, x: str, names: list[str], **more) -> Any:
    grouped = {"groupby": "JobType", "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}
    return _theirs()[1].LinePlot(title=title, x=x, y=names, max_runs_to_show=100, **grouped, **more)


def _costs(folder: Path) -> Iterator[Any]:
    there = {row.metric for run in store.runs(folder) for row in store.load(run / store.ROWS)}
    names = {f"cost/{name}": title for name, title in COSTS.items() if name in there}
    names["train/tokens_per_second"] = "tokens per second"
    for name, title in names.items():
        yield _theirs()[1].BarPlot(title=title, metrics=[name], groupby="JobType", groupby_aggfunc="mean")


def _tables(folder: Path) -> Iterator[Any]:
    for name in TABLES:
        if (folder / name).is_file():
            yield _theirs()[1].MarkdownPanel(markdown=(folder / name).read_text(encoding="utf-8"))
