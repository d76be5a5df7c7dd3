"""The loss of the training itself, at the trained length, on data that is neither trained on nor evaluated: for choices
that are made before anything is compared, such as a learning rate."""

import torch
import torch.nn.functional as F

from posenc_train.evaluation.measurement import TOKENS, Measurement, attempted
from posenc_train.model.transformer import Transformer
from posenc_train.positions.sampling import Sampling
from posenc_train.tasks.base import IGNORE, Task, digest


def validated(
    model: Transformer, task: Task, length: int, longest: int, sampling: Sampling, tokens: int = TOKENS
) -> Measurement:
    """nll in nats over all targets, the mean over the sampling's draws of positions. The model is left as it was."""
    batch = task.held_out(length, longest)
    draws = [sampling.at_evaluation(length, draw) for draw in range(sampling.draws)] if batch.pos is None else [None]
    common = {"length": length, "protocol": "validation", "metric": "nll", "unit": task.unit}
    common["eval_hash"] = digest(batch.inputs.numpy(), batch.targets.numpy())
    count = int((batch.targets != IGNORE).sum())
    was_training = model.training
    model.eval()
    try:
        total, status = attempted(lambda: sum(_total(model, batch, pos, tokens) for pos in draws) / len(draws))
    finally:
        model.train(was_training)
    if total is not None and not total < float("inf"):
        total, status = None, "not finite"
    return Measurement(total=total, count=count if status == "ok" else 0, status=status, **common)


@torch.no_grad()
def _total(model: Transformer, batch, pos, tokens: int) -> float:
    device, total = next(model.parameters()).device, 0.0
    rows = max(1, tokens // batch.inputs.shape[1])
    for first in range(0, len(batch.inputs), rows):
        inputs, targets, doc, own = (None if part is None else part[first : first + rows].to(device) for part in batch)
        logits = model(inputs, pos=own if pos is None else pos.to(device), doc=doc).flatten(0, 1).float()
        losses = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE, reduction="none")
        total += losses.sum(dtype=torch.float64).item()
    return total
