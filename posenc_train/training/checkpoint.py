"""Reading a checkpoint, without Lightning."""

import pickle
from pathlib import Path

import torch

from posenc_train.config import UserError
from posenc_train.model.transformer import Transformer


def load(model: Transformer, checkpoint: Path) -> tuple[int, float]:
    """Puts a checkpoint's weights into the model; returns its step and the seconds of training up to there.

    Executes nothing that the file brings. Raises UserError, with the model as it was, for a file that is damaged or
    holds another model.
    """
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        weights = {key.removeprefix("model."): value for key, value in state["state_dict"].items()}
        step, seconds = state["global_step"], state["callbacks"]["Recorder"]["seconds"]
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{checkpoint}: is no readable checkpoint ({type(error).__name__}): it may be damaged") from error
    own = model.state_dict()
    if weights.keys() != own.keys() or any(weights[key].shape != own[key].shape for key in own):
        raise UserError(f"{checkpoint}: holds the weights of another model than config.yaml beside it describes")
    model.load_state_dict(weights)
    return step, seconds
