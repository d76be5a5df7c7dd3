"""Scores the tasks that ask: by what the model says itself (free_running) and by what it would say next if all before
were right (teacher_forced)."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from posenc_train.evaluation.measurement import LOGITS, Draws, Measurement, attempted
from posenc_train.model.transformer import Transformer, answer, said_by
from posenc_train.tasks.asked import Asked, Examples

UNITS = {"exact": "example", "token": "token", "stops": "example"}


def answers(
    model: Transformer,
    task: Asked,
    length: int,
    protocols: Mapping[str, Mapping],
    tokens: int,
    draws: Draws,
    status: str | None = None,
) -> Iterator[Measurement]:
    """exact: examples whose answers are all right. token: answer tokens right; what comes after a premature end is
    wrong. stops, where answers end with a mark and are the model's own: examples whose first end mark stands where it
    should. The end mark counts for `stops` alone.

    Each is the mean over the draws of positions; a draw holds for prompt and answer. Where the task tells its examples
    apart (by depth, …), each value's own measurements follow those of all. status: why nothing is run, if so.
    """
    examples = task.examples(length)
    parts = [({}, np.full(len(examples.ids), True))]
    for name, values in examples.slices.items():
        parts += [({name: value.item()}, values == value) for value in np.unique(values)]
    for name in protocols:
        said, why = None, status
        if status is None:
            said, why = attempted(lambda name=name: [spoken(model, examples, name, tokens, pos) for pos in draws])
        marks = [marked(of_draw, examples, task.end, name == "free_running") for of_draw in said or ()]
        metrics = [m for m in UNITS if m != "stops" or (name == "free_running" and task.end is not None)]
        for metric in metrics:
            for part, rows in parts:
                common = {
                    "length": length,
                    "protocol": name,
                    "metric": metric,
                    "unit": UNITS[metric],
                    "eval_hash": examples.fingerprint,
                    "slice": {"size": examples.size, **part},
                }
                found = [of_draw[metric][rows] for of_draw in marks]
                if not found:
                    yield Measurement(total=None, count=0, status=why, **common)
                    continue
                total = sum(float(right.sum()) for right in found) / len(found)
                yield Measurement(total=total, count=found[0].numel(), **common)


@torch.no_grad()
def spoken(
    model: Transformer, examples: Examples, protocol: str, tokens: int, pos: Int[Tensor, "n"] | None
) -> Int[Tensor, "b m"]:
    """What the model says at the asked places; `tokens` are fed at once. Raises FloatingPointError where it says
    nothing: its logits are not finite."""
    device = next(model.parameters()).device
    length = examples.ids.shape[1]
    pos = None if pos is None else pos[:length].to(device)  # a sequence may be shorter than the length it is for
    said = []
    if protocol == "free_running":
        tokens *= 4  # the layers hold one token a row at a time
    for part in examples.ids.split(max(1, tokens // length)):
        part = part.to(device)
        if protocol == "free_running":
            said.append(answer(model, part, examples.asked, pos).cpu())
            continue
        before = examples.asked[1:].to(device)
        hidden = model.hidden(part[:, :-1], pos=None if pos is None else pos[:-1])[:, before]
        words = [said_by(model.head(some)) for some in hidden.flatten(0, 1).split(LOGITS)]
        said.append(torch.cat(words).view(len(part), -1).cpu())
    return torch.cat(said)


def marked(
    said: Int[Tensor, "b m"], examples: Examples, end: int | None, own: bool
) -> dict[str, Bool[Tensor, "b ..."]]:
    """Metric -> what of the answers is right. own: the model's own words were fed back."""
    right = said == examples.ids[:, examples.asked]
    if end is None:
        return {"exact": right.all(1), "token": right}
    letters = right[:, :-1]
    if not own:
        return {"exact": letters.all(1), "token": letters}
    running = (said == end).cumsum(1) == 0  # no end mark up to here
    stops = running[:, :-1].all(1) & (said[:, -1] == end)
    letters = letters & running[:, :-1]
    return {"exact": letters.all(1), "token": letters, "stops": stops}
