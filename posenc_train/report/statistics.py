"""What seeds say together, and what the documents of one training do: thin over scipy and statsmodels.

Seeds are the repetitions: a value is one seed's, and an interval is over seeds. Where there is one seed, its documents
are resampled: that interval is of other texts for the same weights, and says nothing of another training. LEVEL is that
of every interval here, and RISK what it leaves out on one side, which is the level of every one-sided p.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
RISK = (1 - LEVEL) / 2
ENOUGH = 5  # items below which an order says nothing: four have 24 orders, and the best is no rarer than 1 in 24
FEWEST = 10  # documents, below which an interval of resampled ones is too narrow
RESAMPLES = 9999


class Spread(NamedTuple):
    """sd: of the sample, None for one seed and where a value is infinite. success: the share of seeds from the bar on,
    None without a bar."""

    mean: float
    sd: float | None
    median: float
    max: float
    success: float | None
    n: int


class Interval(NamedTuple):
    """Student's t-interval of a mean; without ends for one value."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Order(NamedTuple):
    """Kendall's tau-b of two columns. tau is None where one of them is constant; `verdict` says why there is none."""

    tau: float | None
    p: float | None
    n: int
    verdict: str


def spread(values: Sequence[float], bar: float | None = None) -> Spread:
    """bar: the value from which a seed counts as a success."""
    values = np.asarray(values, float)
    sd = float(values.std(ddof=1)) if len(values) > 1 and np.isfinite(values).all() else None
    success = None if bar is None else float((values >= bar).mean())
    return Spread(float(values.mean()), sd, float(np.median(values)), float(values.max()), success, len(values))


def interval(values: Sequence[float]) -> Interval:
    """Over equal values it is that value alone."""
    from scipy import stats

    mean, error, n = _mean_and_error(values)
    if n < 2:
        return Interval(mean, None, None, n)
    half = float(stats.t.ppf(1 - RISK, n - 1)) * error
    return Interval(mean, mean - half, mean + half, n)


def over_documents(parts: Sequence[tuple[float, Sequence[float], Sequence[int]]]) -> tuple[float, float] | None:
    """The interval of the sum of factor * sum(totals) / sum(counts) over (factor, totals, counts), when documents are
    resampled, each with all that was scored on it (bootstrap, BCa; the same each time).

    totals: by document, such as sums of losses; counts: of how many targets. The documents of all parts are the same.
    None for fewer than FEWEST documents; of documents that are all alike it is their value alone.
    """
    from scipy import stats

    factors = [factor for factor, _, _ in parts]
    sums = [np.asarray(column, float) for _, totals, counts in parts for column in (totals, counts)]

    def value(*sums, axis):
        means = [totals.sum(axis) / counts.sum(axis) for totals, counts in zip(sums[::2], sums[1::2], strict=True)]
        return sum(factor * mean for factor, mean in zip(factors, means, strict=True))

    if len(sums[0]) < FEWEST:
        return None
    with np.errstate(invalid="ignore"):
        single = value(*(column[:, None] for column in sums), axis=1)  # of every document by itself
    if (single == single[0]).all():
        return float(single[0]), float(single[0])
    options = {"paired": True, "vectorized": True, "n_resamples": RESAMPLES, "confidence_level": LEVEL, "rng": 0}
    found = stats.bootstrap(sums, value, **options).confidence_interval
    return float(found.low), float(found.high)


def p_above(values: Sequence[float], margin: float) -> float:
    """One-sided p of Student's t: how often values whose mean is the margin would lie at least so far above it.

    Of equal values 0, 0.5 or 1. Raises ValueError for fewer than two.
    """
    from scipy import stats

    mean, error, n = _mean_and_error(values)
    if n < 2:
        raise ValueError("one value has no p")
    with np.errstate(divide="ignore"):
        t = 0.0 if mean == margin else np.divide(mean - margin, error)
    return float(stats.t.sf(t, n - 1))


def p_below(values: Sequence[float], margin: float) -> float:
    """As `p_above`, on the other side."""
    return p_above([-value for value in values], -margin)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float, int]:
    """Mean, its standard error (nan for one value), number."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), float("nan"), len(values)
    if (values == values[0]).all():  # rounding would give their mean and sd another last digit
        return float(values[0]), 0.0, len(values)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), len(values)


def holm(ps: Sequence[float]) -> list[float]:
    """p-values as they stand after Holm's correction for their number, in the same order."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(ps, method="holm")[1]] if len(ps) else []


def kendall(ours: Sequence[float], theirs: Sequence[float]) -> Order:
    """Whether two columns put their items into the same order."""
    from scipy import stats

    n = len(ours)
    found = stats.kendalltau(ours, theirs) if n > 1 else None
    if found is None or np.isnan(found.statistic):
        return Order(None, None, n, "no order: one item" if n == 1 else "no order: all equal" if n else "no items")
    tau, p = float(found.statistic), float(found.pvalue)
    if n < ENOUGH:
        return Order(tau, p, n, f"no verdict below {ENOUGH} items")
    if p >= 1 - LEVEL:
        return Order(tau, p, n, "undecided")
    return Order(tau, p, n, "same order" if tau > 0 else "opposite order")


def tied(values: Mapping[str, Mapping[int, float]], highest: bool = False) -> tuple[str | None, set[str]]:
    """The best of several (by its mean) and all that cannot be told from it, among them those with too few seeds.

    values: name -> seed -> value. Each is compared with the best by the t-test of their paired differences over the
    seeds that both have, Holm over the comparisons. highest: more is better.
    """
    if not values:
        return None, set()
    sign = 1 if highest else -1
    best = max(values, key=lambda name: sign * np.mean(list(values[name].values())))
    ps = {}
    for name in values:
        seeds = sorted(values[name].keys() & values[best].keys())
        if name != best and len(seeds) > 1:
            ps[name] = p_below([sign * (values[name][seed] - values[best][seed]) for seed in seeds], 0.0)
    apart = {name for name, p in zip(ps, holm(list(ps.values())), strict=True) if p < RISK}
    return best, set(values) - apart - {best}
