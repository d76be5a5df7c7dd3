"""Scores a trained model: a pure function from (model, task, lengths, protocols) to measurements.

Sums and counts in float64; dividing is the report's business. Every window of the evaluation text that some protocol
asks for is fed once, whatever the number of protocols. The evaluation text is N texts of the longest length, so that
the last targets are the same at every length.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posenc_train.evaluation.answers import answers
from posenc_train.evaluation.classified import classified
from posenc_train.evaluation.measurement import LOGITS, TOKENS, Documents, Draws, Measurement, attempted, beyond
from posenc_train.evaluation.protocols import Cuts, applies, cuts, protocol_label, resolved, where
from posenc_train.evaluation.recurrence import distances, slices
from posenc_train.model.transformer import Transformer
from posenc_train.positions.sampling import Consecutive, Sampling
from posenc_train.positions.stack import Stack
from posenc_train.positions.window import Window
from posenc_train.tasks.asked import Asked
from posenc_train.tasks.base import Layout, Task, digest
from posenc_train.tasks.judged import Judged
from posenc_train.tasks.packing import within

WHOLE = ("nonoverlapping", "sliding")  # protocols that score whole texts: their loss is told by byte and word as well


def evaluate(
    model: Transformer,
    task: Task,
    lengths: Sequence[int],
    protocols: Mapping[str, Mapping],
    train_length: int,
    longest: int,
    tokens: int = TOKENS,
    sampling: Sampling | None = None,
    status: str | None = None,
) -> Iterator[Measurement]:
    """Measurements of the protocols (name -> settings) that apply to the task, at every length, in order.

    longest: the length of the evaluation texts. tokens: fed per forward. sampling: gives the positions (None:
    consecutive); where it draws them, every total is the mean of those under each of its draws. A length, or a
    position drawn for it, beyond the scheme's reach is reported as such and not run; so is what needs more memory than
    there is, and the rest is measured. status: for all of them, where it is known beforehand; nothing is run.
    The model is left as it was.
    """
    sampling = sampling or Consecutive()
    chosen = {name: settings for name, settings in protocols.items() if name in task.protocols}
    windows = None if isinstance(task, (Asked, Judged)) or not chosen else task.windows(longest)
    layout = None if windows is None else task.layout(longest)
    was_training = model.training
    model.eval()
    try:
        for length in lengths:
            draws = [sampling.at_evaluation(length, draw) for draw in range(sampling.draws)]
            why = status or ("beyond reach" if beyond(model, length, draws) else None)
            if isinstance(task, Asked):
                yield from answers(model, task, length, chosen, tokens, draws, why)
            elif chosen and isinstance(task, Judged):
                yield from classified(model, task, length, tokens, draws, why)
            elif chosen:
                yield from next_token(model, task, windows, layout, length, chosen, train_length, tokens, draws, why)
    finally:
        model.train(was_training)


def data_hash(task: Task, length: int, longest: int) -> str:
    """The eval_hash of what `evaluate` measures at a length, without measuring it."""
    asks = isinstance(task, (Asked, Judged))
    return task.examples(length).fingerprint if asks else digest(task.windows(longest))


def next_token(
    model: Transformer,
    task: Task,
    windows: Int[np.ndarray, "text t"],
    layout: Layout | None,
    length: int,
    protocols: Mapping[str, Mapping],
    train_length: int,
    tokens: int,
    draws: Draws,
    status: str | None,
) -> Iterator[Measurement]:
    """windows: ids [N, longest + 1]. status: why nothing is run, if so."""
    texts, longest = len(windows), windows.shape[1] - 1
    common = {"length": length, "metric": "nll", "unit": task.unit, "eval_hash": digest(windows)}
    asked = {name: own for name, own in protocols.items() if applies(name, own, length, train_length)}
    labels = {name: protocol_label(name, own, train_length) for name, own in asked.items()}
    plan = {name: cuts(name, own, texts, longest, length, train_length) for name, own in asked.items()}
    for apart in (False, True):  # a mask makes it another model
        together = {name: own for name, own in plan.items() if (name == "masked_window") == apart}
        losses, why = None, status
        if together and status is None:
            last = resolved("masked_window", asked["masked_window"], train_length)["L"] if apart else None
            run = partial(text_losses, model if last is None else masked(model, last))
            losses, why = attempted(partial(run, windows, together, length, task.begin, tokens, draws, layout))
        for name in together:
            common["metric"] = "regret" if name == "regret" else "nll"
            if losses is None:
                nothing = Measurement(protocol=labels[name], total=None, count=0, status=why, **common)
                parts = [{name: part} for part in slices(train_length, longest)] if name == "recurrence" else [{}]
                yield from (replace(nothing, slice=part) for part in parts)
                yield from (replace(nothing, unit=unit) for unit in units(task, windows) if name in WHOLE)
                continue
            scored = where(plan[name], length, texts, longest)
            if layout is not None:
                scored &= layout.asked
            if name == "recurrence":
                context = resolved(name, asked[name], train_length)["bytes"]
                back = distances(windows, task.bytes_per_id, context, layout and layout.doc)
                yield from recurring(back, train_length, losses[name], scored, protocol=labels[name], **common)
                continue
            yield from measured(task, windows, name, losses[name], scored, protocol=labels[name], **common)


def measured(
    task: Task,
    windows: Int[np.ndarray, "text t"],
    name: str,
    loss: Float[np.ndarray, "text target"],
    scored: Bool[np.ndarray, "text target"],
    **common,
) -> Iterator[Measurement]:
    """What a protocol says of the losses of the targets that it scores; target t of a text is windows[:, t + 1]."""
    if name == "per_position":
        length, longest = common["length"], scored.shape[1]
        position = (np.arange(longest) - longest) % length
        for first, last in position_buckets(length):
            here = scored & (first <= position) & (position <= last)
            if here.any():
                yield total(loss[here], slice={"position": [first, last]}, **common)
        return
    if name == "regret":
        yield from above(task, windows, loss, **common)
        return
    if not scored.any():
        return
    parts = [(by_document(task, loss, scored, slice={}, **common), scored)]
    for key, values in task.window_slices(scored.shape[1]).items():
        for value in np.unique(values):
            here = scored & (values == value)[:, None]
            if here.any():
                parts.append((total(loss[here], slice={key: value.item()}, **common), here))
    for whole, here in parts:
        yield whole
        if name not in WHOLE:
            continue
        for unit, count in units(task, windows).items():
            number = int(count[:, 1:][here].sum()) if whole.status == "ok" else 0
            if number or whole.status != "ok":
                yield replace(whole, count=number, unit=unit, documents=None)


def units(task: Task, windows: Int[np.ndarray, "text t"]) -> dict[str, Int[np.ndarray, "text t"]]:
    """By what a loss is told again: the bytes that every id stands for, the words that begin in it."""
    counts = {} if task.unit == "byte" or task.bytes_per_id is None else {"byte": task.bytes_per_id[windows]}
    words = task.words(windows)
    return counts if words is None else counts | {"word": words}


def recurring(
    back: Int[np.ndarray, "text target"],
    train_length: int,
    loss: Float[np.ndarray, "text target"],
    scored: Bool[np.ndarray, "text target"],
    **common,
) -> Iterator[Measurement]:
    """The losses by how far back the context of a target last occurred; they add up to those of nonoverlapping."""
    for name, (least, greatest) in slices(train_length, scored.shape[1]).items():
        here = scored & (least <= back) & (back <= greatest)
        if here.any():
            yield total(loss[here], slice={"recurrence": name}, **common)


def above(
    task: Task, windows: Int[np.ndarray, "text t"], loss: Float[np.ndarray, "text target"], **common
) -> Iterator[Measurement]:
    """The loss less that of the best predictor of the same targets, the first of every text: as a whole, and by
    position beside the loss itself."""
    length = common["length"]
    loss = loss[:, :length]
    excess = loss - task.optimum(windows[:, : length + 1])
    yield total(excess, **common)
    for first, last in position_buckets(length):
        here = {**common, "slice": {"position": [first, last]}}
        yield total(excess[:, first : last + 1], **here)
        yield total(loss[:, first : last + 1], **here | {"metric": "nll"})


def by_document(
    task: Task,
    loss: Float[np.ndarray, "text target"],
    scored: Bool[np.ndarray, "text target"],
    **common,
) -> Measurement:
    """All that is scored, as the sum of sums by document, exact up to one rounding and so the same in any order."""
    number = task.documents(scored.shape[1])
    number, which = np.unique(np.arange(len(scored)) if number is None else number, return_inverse=True)
    count = np.bincount(which, scored.sum(axis=1)).astype(np.int64)
    sums = np.bincount(which, np.where(scored, loss, 0.0).sum(axis=1))
    if not np.isfinite(sums).all():
        return Measurement(total=None, count=0, status="not finite", **common)
    asked = count > 0
    documents = Documents(number[asked], sums[asked], count[asked])
    return Measurement(total=math.fsum(documents.total), count=int(count.sum()), documents=documents, **common)


def total(losses: Float[np.ndarray, "*m"], **common) -> Measurement:
    found = float(losses.sum())
    if not math.isfinite(found):
        return Measurement(total=None, count=0, status="not finite", **common)
    return Measurement(total=found, count=losses.size, **common)


def masked(model: Transformer, last: int) -> Transformer:
    """The model with a mask under which every query sees the last `last` keys only, itself included."""
    of = {id(scheme): scheme for scheme in model.positions}
    under = {
        key: Stack({"scheme": scheme, "masked_window": Window(model.dims, last)}).eval() for key, scheme in of.items()
    }
    return model.under([under[id(scheme)] for scheme in model.positions])


def text_losses(
    model: Transformer,
    windows: Int[np.ndarray, "text t"],
    plan: Mapping[str, Cuts],
    length: int,
    begin: int | None,
    tokens: int,
    draws: Draws,
    layout: Layout | None = None,
) -> dict[str, Float[np.ndarray, "text target"]]:
    """For each protocol the loss in nats, float64, of the targets that its windows score (0 elsewhere), each the mean
    over the draws of positions.

    begin: an id that is fed in place of the first token (BOS) of every window, and of every document in it, as in
    training. layout: of several documents in a text, whose positions go from 0 where none are drawn. A window that
    several protocols ask for is fed once; no more than `tokens` at a time, and one number a target is kept.
    """
    texts, size = windows.shape
    device = next(model.parameters()).device
    keys = {name: own[:, 0] * size + own[:, 1] for name, own in plan.items()}
    every = np.unique(np.concatenate(list(keys.values())))
    scored = {name: np.zeros(len(every), np.int64) for name in plan}
    for name, own in plan.items():
        scored[name][np.searchsorted(every, keys[name])] = own[:, 2]
    losses = {name: np.zeros((texts, size - 1)) for name in plan}
    rows, at_once = np.arange(length), max(1, tokens // length)
    for pos in draws:
        pos = None if pos is None else pos.to(device)
        for first in range(0, len(every), at_once):
            part = slice(first, first + at_once)
            text, start = np.divmod(every[part, None], size)
            inputs = torch.from_numpy(windows[text, start + rows].astype(np.int64))
            targets = torch.from_numpy(windows[text, start + rows + 1].astype(np.int64))
            if begin is not None:
                inputs[:, 0] = begin
            here, doc = pos, None
            if layout is not None:
                if begin is not None:
                    inputs[:, 1:][torch.from_numpy(~layout.asked[text, start + rows[:-1]])] = begin
                doc = layout.doc[text, start + rows]
                one = (doc >= 0).all() and (doc == doc[:, :1]).all()  # then there are faster ways
                if not one and pos is None:
                    here = torch.from_numpy(within(doc)).to(device)
                doc = None if one else torch.from_numpy(doc).to(device)
            found = token_losses(model, inputs.to(device), targets.to(device), here, doc).numpy() / len(draws)
            for name in plan:
                for last in np.unique(scored[name][part]):
                    if last:
                        these = scored[name][part] == last
                        losses[name][text[these], start[these] + rows[-last:]] += found[these, -last:]
    return losses


@torch.no_grad()
def token_losses(
    model: Transformer,
    inputs: Int[Tensor, "b n"],
    targets: Int[Tensor, "b n"],
    pos: Int[Tensor, "*b n"] | None = None,
    doc: Int[Tensor, "b n"] | None = None,
) -> Float[Tensor, "b n"]:
    """-ln p(target) in float64 on the CPU. The logits' log-sum-exp is float64 too: an untrained head that is all
    zero then gives exactly ln(vocab)."""
    hidden, flat = model.read(model.hidden(inputs, pos=pos, doc=doc)).flatten(0, 1), targets.flatten()
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
