"""Scores a trained model: a pure function from (model, task, lengths, protocols) to measurements.

Sums and counts in float64; dividing is the report's business. One forward per length serves every protocol that
scores next-token losses: the evaluation text is N windows of the longest length, and at length n each window is cut
into n-windows from its end, so that the last targets are the same at every length.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc_train.evaluation.answers import answers
from posenc_train.evaluation.measurement import LOGITS, TOKENS, Measurement, beyond
from posenc_train.model.transformer import Transformer
from posenc_train.positions.sampling import Consecutive, Sampling
from posenc_train.tasks.asked import Asked
from posenc_train.tasks.base import Task, digest


def protocol_label(name: str, settings: Mapping, train_length: int) -> str:
    """Name and settings in one string: "same_targets(k=64)". k None is half the training length."""
    if name == "same_targets":
        return f"same_targets(k={last_targets(settings, train_length)})"
    return name


def last_targets(settings: Mapping, train_length: int) -> int:
    k = settings.get("k")
    return max(1, train_length // 2) if k is None else k


def evaluate(
    model: Transformer,
    task: Task,
    lengths: Sequence[int],
    protocols: Mapping[str, Mapping],
    train_length: int,
    longest: int,
    tokens: int = TOKENS,
    sampling: Sampling | None = None,
) -> Iterator[Measurement]:
    """Measurements of the protocols (name -> settings) that apply to the task, at every length, in order.

    longest: the length of the evaluation windows. tokens: fed per forward. sampling: gives the positions (None:
    consecutive); where it draws them, every total is the mean of those under each of its draws. A length, or a
    position drawn for it, beyond the scheme's reach is reported as such and not run. The model is left as it was.
    """
    sampling = sampling or Consecutive()
    chosen = {name: settings for name, settings in protocols.items() if name in task.protocols}
    windows = None if isinstance(task, Asked) or not chosen else task.windows(longest)
    was_training = model.training
    model.eval()
    try:
        for length in lengths:
            draws = [sampling.at_evaluation(length, draw) for draw in range(sampling.draws)]
            if isinstance(task, Asked):
                yield from answers(model, task, length, chosen, tokens, draws)
            elif chosen:
                yield from next_token(model, task, windows, length, chosen, train_length, tokens, draws)
    finally:
        model.train(was_training)


def next_token(model, task, windows, length, protocols, train_length, tokens, draws) -> Iterator[Measurement]:
    common = {"length": length, "metric": "nll", "unit": task.unit, "eval_hash": digest(windows)}
    labels = {name: protocol_label(name, settings, train_length) for name, settings in protocols.items()}
    if beyond(model, length, draws):
        for label in labels.values():
            yield Measurement(protocol=label, total=None, count=0, status="beyond reach", **common)
        return
    # The mean loss of every target: each of the sums below is then the mean over draws of that sum.
    loss = sum(window_losses(model, windows, length, task.begin, tokens, pos) for pos in draws) / len(draws)
    pieces = loss.shape[1]
    targets = windows[:, -pieces * length :].reshape(loss.shape)

    def measured(label: str, part: np.ndarray, **more) -> Measurement:
        total = float(part.sum())
        if not math.isfinite(total):
            return Measurement(protocol=label, total=None, count=0, status="not finite", **common, **more)
        return Measurement(protocol=label, total=total, count=part.size, **common, **more)

    for name, label in labels.items():
        if name == "nonoverlapping":
            yield measured(label, loss)
            if task.unit != "byte":  # the same loss again, by the bytes that the targets stand for
                whole = measured(label, loss)
                spelt = int(task.bytes_per_id[targets].sum()) if whole.status == "ok" else 0
                yield replace(whole, count=spelt, unit="byte")
        elif name == "same_targets":
            k = last_targets(protocols[name], train_length)
            if k <= length:
                yield measured(label, loss[:, -1, length - k :])
        elif name == "per_position":
            for first, last in position_buckets(length):
                yield measured(label, loss[:, :, first : last + 1], slice={"position": [first, last]})


def window_losses(
    model, windows, length: int, begin: int | None, tokens: int, pos: Int[Tensor, "n"] | None = None
) -> Float[np.ndarray, "window piece n"]:
    """float64 losses in nats. windows is [window, longest + 1] ids; a window's last piece ends where it ends.

    begin: an id that is fed in place of every piece's first token (BOS), as in training. pos: the positions of every
    piece; None: consecutive.
    """
    pieces = (windows.shape[1] - 1) // length
    ids = torch.from_numpy(windows[:, -pieces * length - 1 :].astype(np.int64))
    inputs, targets = ids[:, :-1].reshape(-1, length).clone(), ids[:, 1:].reshape(-1, length)
    if begin is not None:
        inputs[:, 0] = begin
    device = next(model.parameters()).device
    pos = None if pos is None else pos.to(device)
    losses = [
        token_losses(model, part.to(device), wanted.to(device), pos)
        for part, wanted in zip(
            inputs.split(max(1, tokens // length)), targets.split(max(1, tokens // length)), strict=True
        )
    ]
    return torch.cat(losses).view(-1, pieces, length).numpy()


@torch.no_grad()
def token_losses(
    model: Transformer, inputs: Int[Tensor, "b n"], targets: Int[Tensor, "b n"], pos: Int[Tensor, "n"] | None = None
) -> Float[Tensor, "b n"]:
    """-ln p(target) in float64 on the CPU. The logits' log-sum-exp is float64 too: an untrained head that is all
    zero then gives exactly ln(vocab)."""
    hidden, flat = model.hidden(inputs, pos=pos).flatten(0, 1), targets.flatten()
    out = []
    for first in range(0, len(flat), LOGITS):
        logits = model.head(hidden[first : first + LOGITS]).float()
        wanted = logits.gather(1, flat[first : first + LOGITS, None])[:, 0]
        largest = logits.amax(-1, keepdim=True)
        # exp in float32 (float64's took a third of an evaluation), its sum and the logarithm in float64.
        sums = (logits - largest).exp_().sum(-1, dtype=torch.float64)
        out.append((sums.log() + (largest[:, 0] - wanted).double()).cpu())
    return torch.cat(out).view(targets.shape)


def position_buckets(length: int, single: int = 64, most: int = 256) -> list[tuple[int, int]]:
    """First and last position of each bucket: single ones up to 64, then 16 an octave, at most 256 of those.

    100 -> (0, 0) … (63, 63), (64, 66), (67, 69), …
    """
    edges = list(range(min(single, length)))
    if length > single:
        count = min(most, math.ceil(16 * math.log2(length / single)))
        edges += sorted({round(single * (length / single) ** (i / count)) for i in range(count)})
    return [(first, last - 1) for first, last in zip(edges, [*edges[1:], length], strict=True)]
