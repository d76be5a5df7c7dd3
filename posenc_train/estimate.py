"""What a study will take, before it is run: from finished cells of the same kind, else from a few steps and a forward
pass in a process of its own. Generation, token by token, takes longer than is reckoned from that."""

import json
import math
import resource
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from posenc_train import launch, runs
from posenc_train.build import build_model, build_sampling, build_task
from posenc_train.checks import kind, lengths, longest, protocols
from posenc_train.config import UserError
from posenc_train.evaluation.measurement import TOKENS
from posenc_train.evaluation.protocols import applies, tokens_fed
from posenc_train.lock import owner
from posenc_train.report import store
from posenc_train.study import Cell, second_act, title
from posenc_train.tasks.base import IGNORE, Batch

LIMIT = 2e11  # floating point operations of a step that is tried: seconds on two cores
STEPS = 3  # tried, of which the first warms up


class Cost(NamedTuple):
    """Of a step and of the evaluation in seconds, of the process in bytes; None: not known. how: it was found."""

    step: float | None
    evaluation: float | None
    memory: int | None
    how: str

    def seconds(self, cell: Cell) -> float | None:
        if self.step is None:
            return None
        left = cell.config["optim"]["steps"] * (1 - launch.tokens_done(cell) / cell.tokens)
        return self.step * left + (self.evaluation or 0.0)


def told(cfg: Mapping[str, Any], before: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """The plan, in lines: every cell, its state, and what it is expected to take. before: the trainings by which
    learning rates are chosen."""
    heading = f"of {title(cfg, cells)}"
    cells = [*before, *cells, *second_act(cfg, cells, planned=True)]
    states = {cell.folder: state(cell) for cell in cells}
    left = [cell for cell in cells if states[cell.folder] != "finished"]
    jobs = min(cfg["jobs"] or launch.at_once(left), max(1, len(left)))
    costs = expected(left, [cell for cell in cells if cell not in left], jobs)
    width = max(len(cell.folder.name) for cell in cells)
    lines = [f"{len(cells)} cell{'s' * (len(cells) != 1)} {heading}"]
    for cell in cells:
        cost = costs.get(cell.folder)
        words = ["", "", ""] if cost is None else [_clock(cost.seconds(cell)), _size(cost.memory), cost.how]
        row = [cell.folder.name.ljust(width), states[cell.folder].ljust(10), f"{_short(cell.tokens)} tokens".rjust(14)]
        lines.append("  ".join([*row, words[0].rjust(8), words[1].rjust(8), words[2]]).rstrip())
    lines += _sum(left, costs, jobs)
    changed = [cell for cell in cells if states[cell.folder] == "finished" and by_other_code(cell)]
    if changed:
        lines.append(f"{len(changed)} finished are by other code than there is now: rerun=changed trains them again")
    if before:
        rates = ", ".join(f"{rate:g}" for rate in cfg["tune"]["lr"])
        lines.append(f"{len(before)} of them choose among the learning rates {rates}, for each scheme; they come first")
    return "\n".join(lines)


def _sum(left: Sequence[Cell], costs: Mapping[Any, Cost], jobs: int) -> list[str]:
    if not left:
        return ["nothing to do"]
    seconds = [costs[cell.folder].seconds(cell) for cell in left]
    known = sum(second for second in seconds if second is not None)
    if launch.launcher():
        by, took = "by the launcher", f"about {_clock(known)} of training and evaluation by one process"
    else:
        by, took = f"{jobs} at a time on this machine", f"about {_clock(known / jobs)} of training and evaluation"
    unknown = f"; {seconds.count(None)} not known" if None in seconds else ""
    return [f"{len(left)} to run, {by}: {took}{unknown}"]


def state(cell: Cell) -> str:
    if owner(cell.folder):
        return "running"
    if launch.finished(cell) or (cell.config.get("rerun") and runs.record(cell.folder) and not by_other_code(cell)):
        return "finished"
    if cell.config.get("rerun") and runs.record(cell.folder):
        return "changed"
    return "unfinished" if (cell.folder / "last.ckpt").exists() else "new"


def by_other_code(cell: Cell) -> bool:
    return runs.record(cell.folder).get("code") != runs.training_code(cell.config)


# ---- what a kind of cell takes ---------------------------------------------------------------------------


def kind_of(config: Mapping[str, Any]) -> str:
    """What makes a training cost what it does."""
    keys = ("position", "sampling", "model", "task", "train_length", "under")
    return json.dumps([{key: config.get(key) for key in keys}, config["optim"]["batch_size"], config["trainer"]])


def expected(left: Sequence[Cell], done: Sequence[Cell], jobs: int) -> dict[Any, Cost]:
    """{run folder: what it will take}, where so many cells run at a time."""
    costs = {_like(cell.config): cost for cell in done if (cost := _measured(cell))}
    unknown = {_like(cell.config): launch.sharing(cell.config, jobs == 1) for cell in left}
    unknown = {kind: config for kind, config in unknown.items() if kind not in costs}
    with ThreadPoolExecutor(jobs) as side_by_side:
        costs |= zip(unknown, side_by_side.map(_tried_apart, unknown.values()), strict=True)
    return {cell.folder: costs[_like(cell.config)] for cell in left}


def _like(config: Mapping[str, Any]) -> str:
    """What makes a run, its evaluation included, cost what it does."""
    return json.dumps([kind_of(config), lengths(config), config["protocol"], list(config["extension"])])


def _tried_apart(config: dict[str, Any]) -> Cost:
    """In a process of its own: memory is that of a process."""
    server = launch.server()
    told, tells = server.Pipe(duplex=False)
    process = server.Process(target=_try, args=(config, tells))
    process.start()
    tells.close()
    try:
        return told.recv()
    except EOFError:  # it was killed, or has said on stderr what went wrong
        return _unknown("its process ended")
    finally:
        process.join()


def _try(config: dict[str, Any], tells: Connection) -> None:
    launch.tied()
    try:
        tells.send(tried(config))
    except (UserError, MemoryError, RuntimeError) as error:
        tells.send(_unknown(" ".join(str(error).split())[:80]))


def _unknown(why: str) -> Cost:
    return Cost(None, None, None, f"not known ({why})")


def _measured(cell: Cell) -> Cost | None:
    found = runs.record(cell.folder)
    peaks = [
        row.total for row in store.load(cell.folder / "rows.jsonl") if row.metric == "bytes" and row.status == "ok"
    ]
    if not found or not peaks:
        return None
    return Cost(found["trained"] / cell.config["optim"]["steps"], found["evaluated"], int(max(peaks)), "measured")


class Stand:
    """What a model is built for in place of a text that need not be read."""

    marks, pooled = 1, False

    def __init__(self, vocab: int):
        self.vocab = vocab


def tried(config: dict[str, Any]) -> Cost:
    """A few training steps, on random ids where the task is a text. Of a model too large for that, a shorter context or
    one layer, and the rest by arithmetic."""
    runs.prepare(config["trainer"])
    text = kind(config, "task") == "Text" and not config["task"]["tokenizer"]
    task = Stand(config["task"]["bpe"] or 256) if text else build_task(config)
    part, rows = reduced(config, task.vocab)
    share = operations(part, task.vocab, rows) / operations(config, task.vocab, config["optim"]["batch_size"])
    model = build_model(part, task)
    step = seconds_of_a_step(part, model, batch_of(part, task, rows, text)) / share
    forward = step / operations(config, task.vocab, config["optim"]["batch_size"])  # seconds of an operation
    if part is config and _forward(config, task.vocab, longest(config)) < LIMIT:
        forward = seconds_of_a_forward(model, longest(config), task) / _forward(config, task.vocab, longest(config))
    evaluation = forward * evaluated_operations(config, task.vocab)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if part is config:
        return Cost(step, evaluation, peak, f"{STEPS} steps tried" + ("" if share == 1 else f" of {rows} rows"))
    weights = 16 * parameters(config, task.vocab)  # weights, gradients and two moments, four bytes each
    how = f"tried with {part['model']['layers']} layers and {part['train_length']} tokens; memory without activations"
    return Cost(step, evaluation, weights, how)


def reduced(config: dict[str, Any], vocab: int) -> tuple[dict[str, Any], int]:
    """A configuration whose step can be tried, and the number of rows."""
    part, rows = config, config["optim"]["batch_size"]
    rows = max(1, min(rows, int(rows * LIMIT / operations(part, vocab, rows))))
    while operations(part, vocab, rows) > LIMIT and part["train_length"] > 128:
        part = part | {"train_length": part["train_length"] // 2}
    if operations(part, vocab, rows) > LIMIT and "pattern" not in part["position"]:
        part = part | {"model": part["model"] | {"layers": 1}}
    return part, rows


def batch_of(config: Mapping[str, Any], task: Any, rows: int, text: bool) -> Batch:
    if not text:
        return task.batch(0, 0, range(rows), config["train_length"])
    ids = torch.randint(task.vocab, (rows, config["train_length"] + 1))
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


def seconds_of_a_step(config: Mapping[str, Any], model: torch.nn.Module, batch: Batch) -> float:
    """The least of those tried: what else the machine does makes it longer."""
    optimizer, sampling, took = torch.optim.AdamW(model.parameters()), build_sampling(config), []
    for step in range(STEPS):
        began = time.perf_counter()
        train_step(config, model, batch, sampling, step)
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - began)
    return min(took[1:])


@torch.no_grad()
def seconds_of_a_forward(model: torch.nn.Module, length: int, task: Any) -> float:
    """Of one window; as many are fed at once as in an evaluation. Beyond a scheme's reach, at its reach."""
    length = min(length, model.reach or length)
    ids = torch.randint(task.vocab, (max(1, TOKENS // length), length))
    model.eval()
    model(ids)
    began = time.perf_counter()
    model(ids)
    return (time.perf_counter() - began) / len(ids)


def train_step(config: Mapping[str, Any], model: torch.nn.Module, batch: Batch, sampling: Any, step: int = 0) -> None:
    pos = sampling(range(len(batch.inputs)), batch.inputs.shape[1], 0, step) if batch.pos is None else batch.pos
    with torch.autocast("cpu", torch.bfloat16, enabled=config["trainer"]["precision"] == "bf16"):
        logits = model(batch.inputs, pos=pos, doc=batch.doc)
    F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORE).backward()


def parameters(config: Mapping[str, Any], vocab: int) -> int:
    """Of a plain Transformer of this size."""
    width, layers = config["model"]["width"], config["model"]["layers"]
    return 12 * layers * width**2 + width * vocab


def operations(config: Mapping[str, Any], vocab: int, rows: int) -> float:
    """Multiplications and additions of a training step: six for each weight and token, twelve for each layer, width and
    pair of tokens (causality does not halve them)."""
    return 3.0 * rows * _forward(config, vocab, config["train_length"])


def _forward(config: Mapping[str, Any], vocab: int, length: int) -> float:
    width, layers = config["model"]["width"], config["model"]["layers"]
    return length * (2 * (12 * layers * width**2 + width * vocab) + 4 * layers * width * length)


def evaluated_operations(config: Mapping[str, Any], vocab: int) -> float:
    """Of the evaluation's forward passes, windows once each."""
    task, total = config["task"], 0.0
    texts = task.get("windows")
    for length in lengths(config):
        fed = 2 * task.get("examples", 1) * length
        if texts:
            asked = [
                tokens_fed(name, own, texts, longest(config), length, config["train_length"])
                for name, own in protocols(config).items()
                if applies(name, own, length, config["train_length"])
            ]
            fed = max(asked, default=0)
        total += fed / length * _forward(config, vocab, length) * len(config["extension"])
    return total


# ---- wording ---------------------------------------------------------------------------------------------


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{max(1, math.ceil(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e9:.1f} GB"


def _short(count: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"
