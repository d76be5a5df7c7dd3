"""Scores the tasks that ask one thing of a whole sequence."""

from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from posenc_train.evaluation.measurement import Draws, Measurement, attempted
from posenc_train.model.transformer import Transformer, said_by
from posenc_train.tasks.judged import Judged


def classified(
    model: Transformer, task: Judged, length: int, tokens: int, draws: Draws, status: str | None = None
) -> Iterator[Measurement]:
    """token: sequences whose one answer is right, the mean over the draws of positions. Ties go to the lowest id.

    status: why nothing is run, if so."""
    examples = task.examples(length)
    common = {
        "length": length,
        "protocol": "classified",
        "metric": "token",
        "unit": task.unit,
        "eval_hash": examples.fingerprint,
    }
    said = None
    if status is None:
        said, status = attempted(lambda: [judged(model, examples.ids, tokens, pos) for pos in draws])
    if said is None:
        yield Measurement(total=None, count=0, status=status, **common)
        return
    right = sum(int((of_draw == examples.answers).sum()) for of_draw in said)
    yield Measurement(total=right / len(draws), count=len(examples.ids), **common)


@torch.no_grad()
def judged(model: Transformer, ids: Int[Tensor, "b n"], tokens: int, pos: Int[Tensor, "n"] | None) -> Int[Tensor, "b"]:
    """The answer to every sequence; `tokens` are fed at once."""
    device = next(model.parameters()).device
    pos = None if pos is None else pos.to(device)
    parts = ids.split(max(1, tokens // ids.shape[1]))
    return torch.cat([said_by(model(part.to(device), pos=pos))[:, 0].cpu() for part in parts])
