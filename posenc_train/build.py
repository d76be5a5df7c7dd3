"""From a checked configuration to the objects it names: a task, a model with its schemes, a sampling."""

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from posenc_train.checks import ANYTHING, EXTENSIONS, nothing_to_extend, under
from posenc_train.config import UserError, lengths
from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.tasks.base import Task


def class_of(target: str, key: str) -> type:
    """The class that a dotted path names. Importing its module executes it: `runs.reopened` says whose may be.
    Raises UserError if there is none."""
    module, _, name = target.rpartition(".")
    try:
        found = importlib.import_module(module)
        if not hasattr(found, name):
            raise ImportError(f"{getattr(found, '__file__', module)} has no {name}")
        return getattr(found, name)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{key}._target_={target}: cannot be imported ({error}); write module.Class, the module on PYTHONPATH"
        ) from error


def construct(group: str, settings: Mapping[str, Any], *arguments: Any) -> Any:
    """The object of a configuration group. Raises UserError for settings that its class does not take or refuses."""
    settings = dict(settings)
    cls = class_of(settings.pop("_target_"), group)
    known = list(inspect.signature(cls).parameters)[len(arguments) :]
    for key in settings:
        if key not in known:
            raise UserError(f"{group}.{key}={settings[key]}: {cls.__name__} takes {', '.join(known) or 'no settings'}")
    try:
        return cls(*arguments, **settings)
    except ValueError as error:
        raise UserError(str(error)) from error


def build_task(cfg: Mapping[str, Any]) -> Task:
    """Raises UserError for lengths that the task cannot have as well."""
    task = construct("task", cfg["task"])
    task.ready(cfg["train_length"], lengths(cfg))
    return task


def build_sampling(cfg: Mapping[str, Any]) -> Any:
    return construct("sampling", cfg["sampling"])


def build_model(cfg: Mapping[str, Any], task: Task) -> Transformer:
    """A model with fresh weights, the same for the same seed whatever was drawn before."""
    sizes = ("width", "heads", "layers", "causal")
    settings = {key: value for key, value in cfg["model"].items() if key not in sizes}
    dims = dims_of(cfg)
    torch.manual_seed(cfg["seed"])
    schemes = _under(cfg, build_schemes(cfg["position"], dims), dims)
    return Transformer(dims, task.vocab, task.marks, schemes, pooled=task.pooled, **settings)


def _under(cfg: Mapping[str, Any], schemes: Sequence[PositionScheme], dims: Dims) -> list[PositionScheme]:
    """The schemes as they are trained: under an extension, if the configuration says so."""
    trained = under(cfg)
    if trained is None:
        return list(schemes)
    name, settings, length = trained
    scale = float(settings.get("scale", 1.0))
    return extend({**cfg, "extension": {name: settings}}, name, schemes, replace(dims, train_length=length), scale)


def rehearse(cfg: Mapping[str, Any]) -> None:
    """Builds what is cheap to build, and forgets it: what refuses something does so before any data is read, and not
    after the training. Raises UserError as they do, and for a task whose answers a bidirectional model would see."""
    if not cfg["model"]["causal"] and class_of(cfg["task"]["_target_"], "task").next_token:
        raise UserError(
            f"model.causal=false: must be true with task={cfg['names']['task']}, whose targets are its inputs: "
            "the model would see what it is to predict"
        )
    build_sampling(cfg)
    dims = dims_of(cfg)
    schemes = _under(cfg, build_schemes(cfg["position"], dims), dims)
    if any(scheme.memory for scheme in schemes) and not all(scheme.relative for scheme in schemes):
        raise UserError(
            f"position={cfg['names']['position']}: a memory needs relative positions only: it holds tokens of earlier "
            "segments, which had the positions of this one"
        )
    for extension in cfg["extension"]:
        extend(cfg, extension, schemes, dims, scale=1.0)


def dims_of(cfg: Mapping[str, Any]) -> Dims:
    model = cfg["model"]
    return Dims(
        model["width"],
        model["heads"],
        model["width"] // model["heads"],
        model["layers"],
        cfg["train_length"],
        model["causal"],
    )


def build_schemes(settings: Mapping[str, Any], dims: Dims, key: str = "position") -> list[PositionScheme]:
    """The scheme of every layer: one for all, one for each, or what a composition makes of its parts."""
    cls = class_of(settings["_target_"], key)
    if not hasattr(cls, "assemble"):
        if not (isinstance(cls, type) and issubclass(cls, PositionScheme)):
            target = settings["_target_"]
            raise UserError(
                f"{key}._target_={target}: must be a subclass of posenc_train.positions.base.PositionScheme"
            )
        first = construct(key, settings, dims)
        return [first, *(first if first.shared else construct(key, settings, dims) for _ in range(dims.layers - 1))]
    own = {name: value for name, value in settings.items() if name != "_target_"}
    known = {name: p.default for name, p in list(inspect.signature(cls.assemble).parameters.items())[2:]}
    needed = {name for name, default in known.items() if default is inspect.Parameter.empty}
    if not needed <= set(own) <= set(known):
        raise UserError(f"{key}: {cls.__name__} takes {', '.join(known)}, and here are {', '.join(own) or 'none'}")
    try:
        return cls.assemble(dims, lambda part, dims: build_schemes(part, dims, f"{key}.parts"), **own)
    except ValueError as error:
        raise UserError(str(error)) from error


def scale_of(settings: Mapping[str, Any], length: int, train_length: int) -> float:
    """How many times longer an extension makes the context at an evaluation length: what it says, or as it needs."""
    scale = settings.get("scale", "auto")
    return float(max(1.0, length / train_length) if scale == "auto" else scale)


def extend(
    cfg: Mapping[str, Any], name: str, schemes: Sequence[PositionScheme], dims: Dims, scale: float, **found: Any
) -> list[PositionScheme]:
    """The schemes of all layers under an extension, which share their parameters and leave them as they are.

    found: settings in place of the configured ones. One scheme for several layers stays one.
    Raises UserError for settings that do not fit the schemes, and when there is nothing in any of them to extend.
    """
    settings = {key: value for key, value in (cfg["extension"][name] | found).items() if key != "scale"}
    once = {id(scheme): construct(f"extension.{name}", settings, scheme, dims, scale) for scheme in schemes}
    extended = [once[id(scheme)] for scheme in schemes]
    needs = name in EXTENSIONS and name not in ANYTHING
    if needs and all(new is scheme for new, scheme in zip(extended, schemes, strict=True)):
        raise UserError(nothing_to_extend(name, cfg["names"]["position"]))
    return extended
