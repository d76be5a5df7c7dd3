"""From a checked configuration to the objects it names: a task, a model with its schemes, a sampling."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from posenc_train.config import UserError
from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.tasks.base import Task


def class_of(target: str, key: str) -> type:
    """The class that a dotted path names. Importing its module executes it: `runs.reopened` says whose may be.
    Raises UserError if there is none."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
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
    return construct("task", cfg["task"])


def build_sampling(cfg: Mapping[str, Any]) -> Any:
    return construct("sampling", cfg["sampling"])


def build_model(cfg: Mapping[str, Any], task: Task) -> Transformer:
    """A model with fresh weights, the same for the same seed whatever was drawn before."""
    settings = dict(cfg["model"])
    width, heads, layers = (settings.pop(key) for key in ("width", "heads", "layers"))
    dims = Dims(width, heads, width // heads, layers, cfg["train_length"])
    torch.manual_seed(cfg["seed"])
    schemes: list[PositionScheme] = [construct("position", cfg["position"], dims)]
    if not schemes[0].shared:
        schemes += [construct("position", cfg["position"], dims) for _ in range(layers - 1)]
    return Transformer(dims, task.vocab, task.marks, schemes, **settings)
