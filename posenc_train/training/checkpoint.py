"""Reading a checkpoint, without Lightning."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc_train.config import UserError
from posenc_train.model.transformer import Transformer


def load(model: Transformer, checkpoint: Path) -> tuple[int, float]:
    """Puts a checkpoint's weights into the model; returns its step and the seconds of training up to there.

    Executes nothing that the file brings. Raises UserError, with the model as it was, for a file that is damaged or
    holds another model.
    """
    weights, step, seconds = read(checkpoint)
    _put(model, weights, checkpoint)
    return step, seconds


def initialise(model: Transformer, folder: Path) -> str:
    """Puts the weights of another run into a fresh model: all of the network, and the scheme's where it has the very
    same ones. Returns what was taken, in words. Raises UserError as `load` does."""
    weights, step, _ = read(folder / "last.ckpt")
    own = {key: value for key, value in model.state_dict().items() if key.startswith("positions.")}
    same = all(key in weights and weights[key].shape == value.shape for key, value in own.items())
    network = {key: value for key, value in weights.items() if not key.startswith("positions.")}
    theirs = {key: weights[key] for key in own} if same else own
    _put(model, network | theirs, folder / "last.ckpt")
    fresh = "" if same else "; the position scheme's parameters start afresh"
    return f"weights of {folder} at step {step}{fresh}"


def read(checkpoint: Path) -> tuple[dict[str, Tensor], int, float]:
    """Weights, step and seconds."""
    try:
        state: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
        weights = {key.removeprefix("model."): value for key, value in state["state_dict"].items()}
        return weights, state["global_step"], state["callbacks"]["Recorder"]["seconds"]
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"{checkpoint}: is no readable checkpoint ({type(error).__name__}): it may be damaged"
        ) from error


def _put(model: Transformer, weights: dict[str, Tensor], checkpoint: Path) -> None:
    own = model.state_dict()
    if weights.keys() != own.keys() or any(weights[key].shape != own[key].shape for key in own):
        raise UserError(f"{checkpoint}: holds the weights of another model than this configuration describes")
    model.load_state_dict(weights)
