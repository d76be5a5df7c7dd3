"""Reading a checkpoint, without Lightning."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_train.config import UserError
from posenc_train.model.transformer import Transformer
from posenc_train.tasks.base import digest

UNREADABLE = (RuntimeError, EOFError, OSError, pickle.UnpicklingError, zipfile.BadZipFile)
NO_CHECKPOINT = (LookupError, TypeError, ValueError, AttributeError)


class Saved(NamedTuple):
    """What its readers use of a checkpoint.

    label: how rows name it, `last@400`; with weights that were changed after the training saved them it is another
        checkpoint, `last@400 edited 1a2b3c4d`.
    seconds: of training up to its step. data: the fingerprint of what it was trained on. code: that of what trained it,
        + between those of several attempts. position: the configuration of its scheme.
    """

    weights: dict[str, Tensor]
    step: int
    seconds: float
    label: str
    data: str
    code: str
    position: Any


def load(model: Transformer, checkpoint: Path) -> Saved:
    """Puts a checkpoint's weights into the model.

    Executes nothing that the file brings. Raises UserError, with the model as it was, for a file that is damaged or
    holds another model. Where the two copies of tied weights disagree, in an edited file, that of the head counts.
    """
    saved = read(checkpoint)
    _put(model, saved.weights, checkpoint)
    return saved


def initialise(model: Transformer, position: Mapping[str, Any], folder: Path) -> str:
    """Puts the weights of another run into a fresh model: all of the network, and the scheme's where it is of the same
    classes and sizes. Returns what was taken, in words. Raises UserError as `load` does.

    position: the configuration of the model's scheme."""
    saved = read(folder / "last.ckpt")
    own = {key: value for key, value in model.state_dict().items() if key.startswith("positions.")}
    sizes = all(key in saved.weights and saved.weights[key].shape == value.shape for key, value in own.items())
    same = sizes and classes(position) == classes(saved.position)
    network = {key: value for key, value in saved.weights.items() if not key.startswith("positions.")}
    theirs = {key: saved.weights[key] for key in own} if same else own
    _put(model, network | theirs, folder / "last.ckpt")
    fresh = "" if same or not own else "; the position scheme's parameters start afresh"
    return f"weights of {folder} at step {saved.step}{fresh}"


def read(checkpoint: Path) -> Saved:
    """Raises UserError for a file that is damaged, be it in one byte of a weight, or not a training's checkpoint."""
    try:
        with zipfile.ZipFile(checkpoint) as file:  # torch.load does not compare the checksums
            if damaged := file.testzip():
                raise ValueError(f"{damaged} is damaged")
        state: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
        step, seconds = int(state["global_step"]), float(state["callbacks"]["Recorder"]["seconds"])
        weights = {key.removeprefix("model."): value for key, value in state["state_dict"].items()}
        config = dict(state["config"])
        _ = state["optimizer_states"], state["lr_schedulers"], state["loops"], state["rng"]  # continuing needs them
        now = fingerprint(weights)
    except (*UNREADABLE, *NO_CHECKPOINT) as error:
        why = type(error).__name__
        raise UserError(f"{checkpoint}: is no readable checkpoint ({why}): it may be damaged or missing") from error
    edited = "" if now == state.get("weights") else f" edited {now[:8]}"
    data, code = str(state.get("data")), str(state.get("code"))
    return Saved(weights, step, seconds, f"last@{step}{edited}", data, code, config.get("position"))


def classes(position: Any) -> Any:
    """The classes of a scheme and of its parts, as a configuration names them."""
    if not isinstance(position, Mapping):
        return None
    return position.get("_target_"), {name: classes(part) for name, part in position.get("parts", {}).items()}


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """16 hex digits of named tensors."""
    return digest(*(part for key, value in sorted(weights.items()) for part in (key, value.detach().cpu().numpy())))


def _put(model: Transformer, weights: dict[str, Tensor], checkpoint: Path) -> None:
    own = model.state_dict()
    if weights.keys() != own.keys() or any(weights[key].shape != own[key].shape for key in own):
        raise UserError(f"{checkpoint}: holds the weights of another model than this configuration describes")
    model.load_state_dict(weights)
