"""The Lightning module: loss, optimizer, schedule."""

import math
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc_train.model.cache import Memory
from posenc_train.model.transformer import Transformer
from posenc_train.positions.sampling import Sampling
from posenc_train.tasks.base import IGNORE, Batch
from posenc_train.training.checkpoint import fingerprint


class Training(L.LightningModule):
    """AdamW with warm-up and cosine decay over `optim.steps`. `config`, as plain values, and `data` and `code`, the
    fingerprints of what it is trained on and by, are kept in the checkpoint."""

    def __init__(self, model: Transformer, sampling: Sampling, config: dict[str, Any], data: str, code: str):
        super().__init__()
        self.model, self.sampling, self.config, self.data, self.code = model, sampling, config, data, code
        self.memory = Memory(model.memory) if model.memory else None

    def training_step(self, batch: Batch, index: int) -> Tensor:
        share, length = batch.inputs.shape
        first = self.trainer.global_rank * share  # which rows these are, as in Batches
        pos = batch.pos
        if pos is None:
            pos = self.sampling(range(first, first + share), length, self.config["seed"], self.trainer.global_step)
        pos = None if pos is None else pos.to(batch.inputs.device)
        logits = self.model(batch.inputs, pos=pos, doc=batch.doc, memory=self.memory)
        total = F.cross_entropy(
            logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"
        )
        # Over the targets of all devices: each then weighs the same, however they are spread.
        count = (batch.targets != IGNORE).sum()
        return total / self.trainer.strategy.reduce(count.float(), reduce_op="mean")

    def configure_optimizers(self):
        optim = self.config["optim"]
        optimizer = torch.optim.AdamW(
            parameter_groups(self.model, optim["weight_decay"]), lr=optim["lr"], betas=tuple(optim["betas"])
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: rate(step, optim["steps"], optim["warmup"], optim["decay_to"])
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["config"] = self.config
        checkpoint["rng"] = torch.get_rng_state()
        checkpoint["data"] = self.data
        checkpoint["code"] = self.code
        checkpoint["weights"] = fingerprint(self.model.state_dict())
        if self.memory is not None:
            checkpoint["memory"] = {"inputs": self.memory.inputs, "doc": self.memory.doc}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.rng = checkpoint["rng"]
        if self.memory is not None:
            self.memory.inputs, self.memory.doc = (checkpoint["memory"][key] for key in ("inputs", "doc"))

    def on_train_start(self) -> None:
        # Last of all: what the trainer draws while it sets up must not count.
        torch.set_rng_state(self.rng) if hasattr(self, "rng") else torch.manual_seed(self.config["seed"])


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices of the network are decayed; positions, embeddings and norms are not."""
    decayed, free = [], []
    for name, parameter in model.named_parameters():
        plain = parameter.ndim < 2 or "embedding" in name or name.startswith("positions.")
        (free if plain else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def rate(step: int, steps: int, warmup: float, decay_to: float) -> float:
    """The learning rate's factor at a step: linear up over warmup x steps, then half a cosine down to decay_to."""
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    progress = (step - rising) / max(1, steps - rising)
    return decay_to + (1 - decay_to) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
