"""Evaluates a run and gives its measurements their coordinates."""

import resource
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from posenc_train import fingerprint
from posenc_train.build import build_sampling, extend, scale_of
from posenc_train.config import cell_name, extension_label, label, lengths, longest, protocols
from posenc_train.evaluation import longrope
from posenc_train.evaluation.evaluate import data_hash, evaluate
from posenc_train.evaluation.measurement import Documents, Measurement, attempted
from posenc_train.evaluation.protocols import applies, protocol_label, resolved, tokens_fed
from posenc_train.evaluation.rows import Row
from posenc_train.evaluation.validation import validated
from posenc_train.model.transformer import Transformer
from posenc_train.tasks.base import Task

ONCE = "window"  # the protocol that depends on no length and no extension
CHOICE = "validation"  # the protocol by which choices are made: at the trained length, under no extension, any task
DEAR = ("sliding", "masked_window", ONCE)  # protocols whose cost is told beforehand

Done = Collection[tuple[str, int, str, str]]  # extension, length, protocol and eval_hash of what was measured before


def wanted(cfg: Mapping[str, Any], names: tuple[str, ...]) -> set[tuple[str, int, str]]:
    """(extension, length, protocol) of every row that an evaluation of this configuration makes at least once.

    names: of the protocols that apply to the task.
    """
    trained = cfg["train_length"]
    labels = {
        (name, length): protocol_label(name, own, trained)
        for name, own in protocols(cfg).items()
        if name in (*names, CHOICE)
        for length in ([once(cfg, name)] if name in (ONCE, CHOICE) else lengths(cfg))
        if applies(name, own, length, trained)
    }
    extensions = [extension_label(*each) for each in cfg["extension"].items()]
    return {
        (extension, length, told)
        for (name, length), told in labels.items()
        for extension in (["none"] if name in (ONCE, CHOICE) else extensions)
    }


def once(cfg: Mapping[str, Any], name: str = ONCE) -> int:
    """The length at which `window` is measured, or validation."""
    return resolved(ONCE, protocols(cfg)[ONCE], cfg["train_length"])["L"] if name == ONCE else cfg["train_length"]


def coordinates(cfg: Mapping[str, Any], task: Task, step: int, checkpoint: str, code: str = "-") -> dict[str, Any]:
    """What every row of a run says of where it comes from. code: the fingerprint of the training."""
    return {
        "study": cfg["study"],
        "cell": cell_name(cfg),
        "scheme": label(cfg, "position"),
        "sampling": label(cfg, "sampling"),
        "task": label(cfg, "task"),
        "model": label(cfg, "model"),
        "seed": cfg["seed"],
        "train_length": cfg["train_length"],
        "tokens_seen": step * cfg["optim"]["batch_size"] * cfg["train_length"],
        "checkpoint": checkpoint,
        "code": code,
        "data": task.fingerprint,
    }


def evaluate_run(
    cfg: Mapping[str, Any],
    task: Task,
    model: Transformer,
    step: int,
    checkpoint: str,
    folder: Path | None = None,
    tell: Callable[[str], None] = print,
    code: str = "-",
    done: Done = (),
    documents: list[tuple[Row, Documents]] | None = None,
) -> Iterator[Row]:
    """The rows of every extension, length and protocol that the configuration asks for; checkpoint is its label.

    The scale of an extension is that of the length, so each length has schemes of its own. folder: keeps what a search
    finds (None: nothing does); tell: gets a line on its progress, and on what a dear protocol costs before it starts.
    code: the fingerprint of the training. done: what need not be measured again. documents: gets the sums by document
    of the rows that have such.
    """

    def row(m: Measurement, extension: str = "none", **more) -> Row:
        made = Row(**where | more, extension=extension, **{k: v for k, v in vars(m).items() if k != "documents"})
        if documents is not None and m.documents is not None:
            documents.append((made, m.documents))
        return made

    codes = {name: fingerprint.evaluated(cfg, name, code) for name in ("none", *cfg["extension"])}
    where, sampling = coordinates(cfg, task, step, checkpoint, codes["none"]), build_sampling(cfg)
    asked = {name: own for name, own in protocols(cfg).items() if name in (*task.protocols, CHOICE)}
    common = {"train_length": cfg["train_length"], "longest": longest(cfg), "sampling": sampling}
    trained = cfg["train_length"]

    def left(names: Iterable[str], extension: str, length: int) -> dict[str, Mapping]:
        """The protocols of these names that have something to measure there which is not done."""
        chosen = {name: asked[name] for name in names if applies(name, asked[name], length, trained)}
        labels = {name: protocol_label(name, own, trained) for name, own in chosen.items()}
        if not any((extension, length, told) == place[:3] for place in done for told in labels.values()):
            return chosen
        data = data_hash(task, length, longest(cfg))
        return {name: own for name, own in chosen.items() if (extension, length, labels[name], data) not in done}

    for line in costs(cfg, task, asked):
        tell(line)
    if CHOICE in asked:
        m = validated(model, task, trained, longest(cfg), sampling)
        if ("none", trained, m.protocol, m.eval_hash) not in done:
            yield row(m)
    if ONCE in asked and (alone := left([ONCE], "none", once(cfg))):
        yield from map(row, evaluate(model, task, [once(cfg)], alone, **common))
    usual = [name for name in asked if name not in (ONCE, CHOICE)]
    for name, settings in cfg["extension"].items():
        told = extension_label(name, settings)
        for length in lengths(cfg):
            here = left(usual, told, length)
            if not here:
                continue
            scale = scale_of(settings, length, trained)

            def extended(name=name, scale=scale) -> Transformer:
                found = longrope.factors(cfg, name, task, model, scale, checkpoint, folder, tell)
                return model.under(extend(cfg, name, model.positions, model.dims, scale, **found))

            built, status = attempted(extended)
            for m in evaluate(built or model, task, [length], here, status=None if built else status, **common):
                yield row(m, told, code=codes[name])


def costs(cfg: Mapping[str, Any], task: Task, asked: Mapping[str, Mapping]) -> Iterator[str]:
    """For each of the dear protocols a line: the tokens to be fed, and how that compares at the same lengths."""
    trained, whole = cfg["train_length"], longest(cfg)
    texts = len(task.windows(whole)) if set(DEAR) & set(asked) else 0
    for name in [name for name in DEAR if name in asked]:
        own, times = asked[name], 1 if name == ONCE else len(cfg["extension"])
        sizes = [n for n in ([once(cfg)] if name == ONCE else lengths(cfg)) if applies(name, own, n, trained)]
        fed = times * sum(tokens_fed(name, own, texts, whole, n, trained) for n in sizes)
        usual = times * sum(tokens_fed("nonoverlapping", {}, texts, whole, n, trained) for n in sizes)
        if usual:
            told = protocol_label(name, own, trained)
            yield f"{told}: {fed:,} tokens to be fed, {fed / usual:.3g} times nonoverlapping"


def cost_rows(
    cfg: Mapping[str, Any],
    task: Task,
    model: Transformer,
    step: int,
    seconds: float,
    code: str = "-",
) -> Iterator[Row]:
    """What the training took: seconds (count: steps), the process's peak memory in bytes, trained parameters. code: the
    fingerprint of the training."""
    where = coordinates(cfg, task, step, f"last@{step}", code) | {
        "extension": "none",
        "length": cfg["train_length"],
        "slice": {},
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # kilobytes on Linux
    parameters = sum(p.numel() for p in model.parameters())
    for metric, total, count, unit in (
        ("seconds", seconds, step, "second"),
        ("bytes", peak, 1, "byte"),
        ("parameters", parameters, 1, "parameter"),
    ):
        yield Row(**where, protocol="training", metric=metric, total=float(total), count=count, unit=unit, eval_hash="")
