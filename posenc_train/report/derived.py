"""What follows from the numbers of two lengths: whether longer context helps, and how far a model can be used.

Of every scheme, per seed, against its plain self (no extension) at the trained length, 1x, under the same protocol:

    extrapolation ratio    value at the length / value at 1x, of perplexity and of accuracies
    longest usable length  up to which perplexity stays within 1 + tolerance, accuracy within 1 - tolerance, of 1x
    gain over window       same_targets: loss(1x) - loss(length), nats per target; positive: longer context helps

At 1x same_targets is the control that feeds each target at most the trained length of tokens. Where `window` was
measured too (l: the mean loss of targets with all of the trained length before them, fed alone), the fall of the
nonoverlapping loss from 1x to c x is split in two, both in nats per target, where both score the same targets (c x
divides the length of the texts):

    S = (nonoverlapping(1x) + (c - 1) l) / c     the loss at c x of a model that never looks past the trained length
    fewer starved tokens   nonoverlapping(1x) - S: fewer targets near a window's beginning
    longer context         S - nonoverlapping(c x): what the model makes of the rest
"""

from collections.abc import Iterable, Iterator
from typing import Any

Record = dict[str, Any]

WORTH = "what longer context is worth"  # the quantity of the tables that hold these
RATES = ("token accuracy", "exact match")
GAIN, STARVED, LONGER = "gain over window", "fewer starved tokens", "longer context"
SHORT = ("gain", "starved", "context")  # in this order before the others
RATIO, USABLE = "extrapolation ratio", "longest usable length"


def derived(scores: Iterable[Record], tolerance: float) -> Iterator[Record]:
    """scores: rows with `quantity`, `value`, `mean`. The records that come back have `of`, what they are in full;
    `slice`, the same in short; and `form`, how to show them: as a difference, ratio or length. A difference has
    `parts`: (factor, row) of the mean losses that add up to it."""
    series: dict[tuple, list[Record]] = {}
    for score in scores:
        if score["quantity"] in ("perplexity", *RATES):
            series.setdefault(_of(score), []).append(score)
    for key, line in series.items():
        if key[-1] == "byte" and (*key[:-1], "token") in series:
            continue  # the same losses by another unit
        plain = [*series.get(_of(line[0] | {"extension": "none"}), ()), *line]
        longer = sorted((score for score in line if score["length"] > score["train_length"]), key=lambda s: s["length"])
        made = []
        for base in _bases(plain):
            own = [score for score in longer if _comparable(base, score)]
            made += [_usable(base, own, tolerance)] if own else []
            for score in own:
                made.append(_ratio(base, score))
                if _bare(base) == "same_targets" and base["quantity"] == "perplexity":
                    made.append(_difference(score, base, GAIN, "gain", [(1, base), (-1, score)]))
                if _bare(base) == "nonoverlapping" and score["extension"] == "none" and base["count"] == score["count"]:
                    made += _split(base, _alone(series, base), score)
        yield from (record for record in made if record["status"] != "ok" or record["value"] is not None)


def _bases(rows: Iterable[Record]) -> list[Record]:
    """Those at 1x: of each text that was scored the first, or of rates, whose examples differ, the first of all."""
    found: dict[str | None, Record] = {}
    for row in rows:
        if row["length"] == row["train_length"]:
            found.setdefault(None if row["quantity"] in RATES else row["eval_hash"], row)
    return [*found.values()]


def _of(score: Record) -> tuple:
    names = ("study", "cell", "sampling", "checkpoint", "extension", "protocol", "quantity", "unit")
    return tuple(score[name] for name in names)


def _bare(score: Record) -> str:
    return score["protocol"].partition("(")[0]


def _comparable(base: Record, score: Record) -> bool:
    """Losses are of the same text; a task that is generated has other examples at each length."""
    return score["quantity"] in RATES or score["eval_hash"] == base["eval_hash"]


def _made(score: Record, base: Record, of: str, short: str, form: str, value: float | None) -> Record:
    status = next((each["status"] for each in (score, base) if each["status"] != "ok"), "ok")
    unit = "target" if score["quantity"] in RATES else score["unit"]
    made = {"quantity": WORTH, "of": of, "slice": short, "form": form, "unit": unit, "status": status}
    return score | made | {"value": value if status == "ok" else None, "examples": None}


def _ratio(base: Record, score: Record) -> Record:
    """Without a value where that of 1x is 0."""
    known = score["value"] is not None and base["value"]
    value = score["value"] / base["value"] if known else None
    return _made(score, base, f"{RATIO} of {base['quantity']}", f"{_short(base)}ratio", "ratio", value)


def _difference(score: Record, base: Record, of: str, short: str, parts: list[tuple[float, Record]]) -> Record:
    known = all(row["mean"] is not None for _, row in parts)
    value = sum(factor * row["mean"] for factor, row in parts) if known else None
    return _made(score, base, of, short, "difference", value) | {"parts": parts}


def _short(score: Record) -> str:
    return {"token accuracy": "token ", "exact match": "exact "}.get(score["quantity"], "")


def _usable(base: Record, line: list[Record], tolerance: float) -> Record:
    """Stands at the longest length that was measured. What has not been learned at 1x is usable nowhere; what has no
    number at some length is not usable from there on."""
    longest = base["length"]
    for score in line:
        if (score["status"], base["status"]) != ("ok", "ok") or not _within(base, score, tolerance):
            break
        longest = score["length"]
    unknown = [score["status"] for score in line if score["status"] in ("not learned", "1x not measured")]
    last = line[-1] | {"status": unknown[0] if unknown else "ok", "count": base["count"]}
    short = f"{_short(base)}usable to"
    return _made(last, base, f"{USABLE} by {base['quantity']}", short, "length", float(longest))


def _within(base: Record, score: Record, tolerance: float) -> bool:
    if base["quantity"] in RATES:
        return score["value"] >= (1 - tolerance) * base["value"] > 0
    return score["value"] <= (1 + tolerance) * base["value"]


def _alone(series: dict[tuple, list[Record]], base: Record) -> Record | None:
    """The `window` control of the trained length for the same model and text, of as many targets as there are."""
    same = base | {"protocol": ""}
    found = [
        score
        for line in series.values()
        for score in line
        if _bare(score) == "window" and _of(score | {"protocol": ""}) == _of(same)
        if (score["length"], score["eval_hash"]) == (base["length"], base["eval_hash"])
    ]
    return max(found, key=lambda score: score["count"], default=None)


def _split(base: Record, alone: Record | None, score: Record) -> list[Record]:
    if alone is None:
        return []
    c = score["length"] / base["length"]
    blind = [(1 / c, base), ((c - 1) / c, alone)]  # S
    worse = alone if base["status"] == "ok" else base
    return [
        _difference(score, worse, STARVED, "starved", [(1 - 1 / c, base), (1 / c - 1, alone)]),
        _difference(score, worse, LONGER, "context", [*blind, (-1, score)]),
    ]
