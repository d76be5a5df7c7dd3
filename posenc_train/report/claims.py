"""From rows to verdicts: whether what an experiment claims holds in its own rows.

The effect is left less right (posenc_train/experiments.py says what a claim is), seed by seed, in nats per target or in
shares. A claim holds when the t-interval of the effect over seeds lies beyond the margin, does not hold when it lies on
the other side of it, and is undecided otherwise: with one seed always, and wherever something cannot be compared, with
the reason. Holm's correction over the claims of a study is shown beside the verdicts and changes none of them.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from posenc_train.experiments import Claim, Side, bare, claims, matches, tokens
from posenc_train.report import statistics, tables
from posenc_train.report.statistics import RISK, Interval

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"
UNITS = {"nll": "nats", "regret": "nats"}  # of an effect; of the others it is a share
WIDTH = 80
# What is one line of a table: a side is one of these, at one length or several. What its weights are from (init) is
# another run for each seed; of what kind, the recipe says.
_ONE = ("scheme", "extension", "sampling", "task", "model", "train_length", "recipe", "checkpoint", "protocol")
_SEEDS_SHARE = ("data", "code")  # what the seeds of a side must have in common

Record = dict[str, Any]


class Undecided(Exception):
    """Why nothing can be said; `short`: in a word or two, for a cell of a table, "" where nothing was run."""

    def __init__(self, reason: str, short: str = ""):
        super().__init__(reason)
        self.short = short


@dataclass(frozen=True)
class Verdict:
    """`effects`: one for each of `seeds`. p: one-sided, for the side of the margin on which the effect lies; `holm`: as
    it stands after Holm's correction. Both are None where there is no interval, and all numbers where `reason` tells
    why there are none."""

    claim: Claim
    verdict: str
    reason: str = ""
    seeds: tuple[int, ...] = ()
    effects: tuple[float, ...] = ()
    interval: Interval | None = None
    p: float | None = None
    holm: float | None = None

    @property
    def corrected(self) -> bool:
        """Whether the verdict would stand after Holm's correction as well."""
        return self.verdict != OPEN and self.holm is not None and self.holm < RISK


def judge(frame: pd.DataFrame, experiment: Mapping[str, Any], gate: float = 0.95) -> list[Verdict]:
    """A verdict for every claim, in their order. frame: as of `store.read`, the rows of one study.

    gate: as of `tables.summary`.
    """
    scores = tables.final(frame, gate)
    verdicts = [_judged(claim, scores) for claim in claims(experiment)]
    known = [i for i, verdict in enumerate(verdicts) if verdict.p is not None]
    for i, p in zip(known, statistics.holm([verdicts[i].p for i in known]), strict=True):
        verdicts[i] = replace(verdicts[i], holm=p)
    return verdicts


def _judged(claim: Claim, scores: list[Record]) -> Verdict:
    try:
        left = picked(claim.left, claim.metric, claim.protocol, scores, claim.unit)
        right = picked(claim.right, claim.metric, claim.protocol, scores, claim.unit) if claim.right else None
        _comparable(claim, left, right)
    except Undecided as why:
        return Verdict(claim, OPEN, str(why))
    seeds = tuple(sorted(left if right is None else left.keys() & right.keys()))
    if not seeds:
        return Verdict(claim, OPEN, "no seed has both sides")
    effects = tuple(_mean(left[seed]) - (_mean(right[seed]) if right else 0.0) for seed in seeds)
    interval = statistics.interval(effects)
    if len(seeds) < 2:
        return Verdict(claim, OPEN, "one seed decides nothing", seeds, effects, interval)
    verdict = _verdict(claim, interval)
    reason = f"the interval holds {_margins(claim)}" if verdict == OPEN else ""
    return Verdict(claim, verdict, reason, seeds, effects, interval, _p(claim, effects, interval.mean))


def _verdict(claim: Claim, interval: Interval) -> str:
    m, low, high = claim.margin, interval.low, interval.high
    inside, outside = {
        "above": (low > m, high < m),
        "below": (high < m, low > m),
        "within": (-m < low and high < m, low > m or high < -m),
    }[claim.bound]
    return HOLDS if inside else FAILS if outside else OPEN


def _p(claim: Claim, effects: tuple[float, ...], mean: float) -> float:
    """Below RISK exactly where `_verdict` decides."""
    m = claim.margin
    above, below = statistics.p_above(effects, m), statistics.p_below(effects, m)
    if claim.bound != "within":
        return min(above, below)
    if abs(mean) <= m:
        return max(statistics.p_above(effects, -m), below)
    return min(above, statistics.p_below(effects, -m))


def _margins(claim: Claim) -> str:
    m = f"{claim.margin:g}"
    return f"-{m} or {m}" if claim.bound == "within" else m


# ---- the rows of a side ----------------------------------------------------------------------------------


def picked(side: Side, metric: str, protocol: str, scores: list[Record], unit: str = "") -> dict[int, list[Record]]:
    """The rows of a side, by seed, one for each of its lengths. unit: of nll, the same sums stand there by bytes
    and words again; "" for the task's own. Raises Undecided, in words, where it has none, where
    it has several of what cannot be averaged, and where a row has no number or says nothing."""
    rows = [row for row in scores if row["metric"] == metric and _meant(side, protocol, row)]
    if not rows:
        raise Undecided(f"{side.text()}: not run")
    if metric == "nll":
        own = sorted({row["unit"] for row in rows} - {"word"}, key=lambda name: name == "byte")
        unit = unit or (own[0] if own else "word")
        rows = [row for row in rows if row["unit"] == unit]
        if not rows:
            raise Undecided(f"{side.text()}: not measured per {unit}")
    for name in _ONE:
        if len(found := sorted({str(row[name]) for row in rows})) > 1:
            raise Undecided(f"{side.text()}: of several {name}s, {', '.join(found)}: name one", "several")
    for name in _SEEDS_SHARE:
        if len({row[name] for row in rows}) > 1:
            raise Undecided(f"{side.text()}: rows of different {name}: rerun=changed makes them one", "several")
    wanted = {tokens(length, rows[0]["train_length"]) for length in side.lengths}
    by_seed: dict[int, list[Record]] = {}
    for row in sorted(rows, key=lambda row: row["length"]):
        if row["status"] != "ok":
            said = f"{side.text()}: {row['status']} at {row['length']} (seed {row['seed']})"
            raise Undecided(said, row["status"])
        by_seed.setdefault(row["seed"], []).append(row)
    for seed, found in by_seed.items():
        if missing := sorted(wanted - {row["length"] for row in found}):
            raise Undecided(f"{side.text()}: not run at {', '.join(f'{n:g}' for n in missing)} (seed {seed})")
        if len(found) > len(wanted):
            raise Undecided(f"{side.text()}: several rows at {found[0]['length']} (seed {seed})", "several")
    return by_seed


def _meant(side: Side, protocol: str, row: Record) -> bool:
    names = {"extension": "none"} | side.names
    start = names.pop("init", None)
    return (
        protocol in (row["protocol"], bare(row["protocol"]))
        and all(matches(pattern, row[name]) for name, pattern in names.items())
        and (row["init"] == "" if start is None else row["init"] != "" and matches(start, row["init"]))
        and side.train_length in (None, row["train_length"])
        and row["length"] in {tokens(length, row["train_length"]) for length in side.lengths}
    )


def _comparable(claim: Claim, left: dict[int, list[Record]], right: dict[int, list[Record]] | None) -> None:
    """Raises Undecided unless both sides are of one model (or the claim names both) and were scored alike, by code that
    agrees but for what is a scheme's own, and on the same documents where they can be the same."""
    if right is None:
        return
    (one, *_), (other, *_) = next(iter(left.values())), next(iter(right.values()))
    named = "model" in claim.left.names and "model" in claim.right.names
    for name in ("protocol", "unit", *(["model"] if not named else [])):
        if one[name] != other[name]:
            raise Undecided(f"its sides have different {name}s, {one[name]} and {other[name]}")
    codes = {row["code"].partition("-")[0] for side in (left, right) for rows in side.values() for row in rows}
    if len(codes) > 1:
        raise Undecided("its sides are of different code: rerun=changed makes them one", "several")
    same = one["metric"] == "nll" or _lengths(left) == _lengths(right)  # a text is the same at all lengths
    for name, words in (("data", "training"), ("eval_hash", "evaluation")):
        hashes = [{row[name] for rows in side.values() for row in rows} for side in (left, right)]
        if one["task"] == other["task"] and (same or name == "data") and hashes[0] != hashes[1]:
            raise Undecided(f"its sides have different {words} data")


def _lengths(side: dict[int, list[Record]]) -> set[int]:
    return {row["length"] for rows in side.values() for row in rows}


def _mean(rows: list[Record]) -> float:
    """Over all that was scored at all lengths."""
    return sum(row["total"] for row in rows) / sum(row["count"] for row in rows)


# ---- what verdicts look like -----------------------------------------------------------------------------


def text(verdicts: list[Verdict]) -> str:
    """Plain text of at most 80 columns."""
    lines = []
    for verdict in verdicts:
        mark = _mark(verdict)
        lines += _wrapped(f"{mark:<15}", verdict.claim.say)
        lines += _wrapped(" " * 15, "; ".join(_details(verdict)))
    return "\n".join([*_wrapped("", _heading(verdicts)), *lines, *_wrapped("", _footnote(verdicts))]) + "\n"


def markdown(verdicts: list[Verdict]) -> str:
    from posenc_train.report.formats import _escaped

    head = ["verdict", "claim", "left less right", "effect", "claimed", "seeds", "p", "Holm"]
    body = [[_mark(v), v.claim.say, _sides(v.claim), *_numbers(v)] for v in verdicts]
    rows = [" | ".join(map(_escaped, row)) for row in [head, *body]]
    rows.insert(1, " | ".join(["---"] * len(head)))
    reasons = [f"- {_escaped(v.claim.say)}: {_escaped(v.reason)}" for v in verdicts if v.reason]
    notes = [_escaped(_footnote(verdicts))] if _footnote(verdicts) else []
    parts = [_escaped(_heading(verdicts)), "\n".join(f"| {row} |" for row in rows), "\n".join(reasons), *notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def csv(verdicts: list[Verdict]) -> str:
    """One line per claim, numbers in full."""
    return pd.DataFrame.from_records([_record(v) for v in verdicts]).to_csv(index=False, lineterminator="\n")


def _record(verdict: Verdict) -> Record:
    claim, interval = verdict.claim, verdict.interval or Interval(None, None, None, 0)
    return {
        "verdict": verdict.verdict, "claim": claim.say, "metric": claim.metric, "protocol": claim.protocol,
        "left": claim.left.text(), "right": claim.right.text() if claim.right else "",
        "bound": claim.bound, "margin": claim.margin, "unit": _unit(claim), "effect": interval.mean,
        "low": interval.low, "high": interval.high, "n": len(verdict.seeds),
        "seeds": " ".join(map(str, verdict.seeds)), "effects": " ".join(map(repr, verdict.effects)),
        "p": verdict.p, "holm": verdict.holm, "reason": verdict.reason,
    }  # fmt: skip


def _mark(verdict: Verdict) -> str:
    return verdict.verdict + "*" * (verdict.verdict != OPEN and not verdict.corrected)


def _heading(verdicts: list[Verdict]) -> str:
    counts = [sum(v.verdict == word for v in verdicts) for word in (HOLDS, FAILS, OPEN)]
    holds = f"{counts[0]} hold{'s' * (counts[0] == 1)}, {counts[1]} {'does' if counts[1] == 1 else 'do'} not hold"
    return f"{len(verdicts)} claim{'s' * (len(verdicts) != 1)}: {holds}, {counts[2]} undecided"


def _footnote(verdicts: list[Verdict]) -> str:
    tested = sum(v.p is not None for v in verdicts)
    said = []
    if tested:
        said.append("[ ]: the 95 % t-interval over seeds; p: one-sided, 0.025 where it touches the margin")
    if any(v.verdict != OPEN and not v.corrected for v in verdicts):
        said.append(f"*: not after Holm's correction for {tested} claims")
    return "; ".join(said)


def _details(verdict: Verdict) -> Iterator[str]:
    effect, claimed, seeds, p, holm = _numbers(verdict)
    claimed = f"claimed: {claimed}"
    if verdict.interval is None:
        yield from (verdict.reason, claimed)
        return
    yield f"{_sides(verdict.claim)}: {effect}"
    yield claimed
    yield from ([f"p {p}, Holm {holm}"] if p else [])
    yield from ([verdict.reason] if verdict.reason else [])
    yield f"seed{'s' * (len(verdict.seeds) > 1)} {seeds}"


def _numbers(verdict: Verdict) -> list[str]:
    """Effect, what is claimed of it, seeds, p, Holm's; empty where there is none."""
    claim, interval = verdict.claim, verdict.interval
    effect = "" if interval is None else f"{interval.mean:+.4f}"
    if interval is not None and interval.low is not None:
        effect += f" [{interval.low:.4f}, {interval.high:.4f}]"
    effect += f" {_unit(claim)}" * (interval is not None)
    ps = ["" if p is None else f"{p:.2g}" for p in (verdict.p, verdict.holm)]
    return [effect, f"{claim.bound} {claim.margin:g}", ", ".join(map(str, verdict.seeds)), *ps]


def _unit(claim: Claim) -> str:
    per = f" per {claim.unit}" if claim.unit else ""
    return UNITS.get(claim.metric, "share") + per


def _sides(claim: Claim) -> str:
    right = f" less {claim.right.text()}" if claim.right else ""
    return f"{claim.metric} of {claim.left.text()}{right}, {claim.protocol}"


def _wrapped(first: str, words: str) -> Iterable[str]:
    return (
        textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=" " * 15 if first else "") if words else []
    )
