"""Reading a checkpoint, without Lightning."""

from pathlib import Path

import torch

from posenc_train.model.transformer import Transformer


def load(model: Transformer, checkpoint: Path) -> tuple[int, float]:
    """Puts a checkpoint's weights into the model; returns its step and the seconds of training up to there.
    Executes nothing that the file brings."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    weights = {key.removeprefix("model."): value for key, value in state["state_dict"].items()}
    model.load_state_dict(weights)
    return state["global_step"], state["callbacks"]["Recorder"]["seconds"]
