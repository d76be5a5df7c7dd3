"""Statistics over seeds, against tables of Student's t, computations by hand and brute force."""

import itertools
import math

import pytest

from posenc_train.report import statistics


@pytest.mark.parametrize("n, quantile", [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262), (31, 2.042)])
def test_the_interval_has_the_quantile_of_the_printed_table(n, quantile):
    """t(0.975) for n - 1 degrees of freedom, as printed in any table of Student's distribution."""
    values = [float(i * i % 7) for i in range(n)]
    mean = sum(values) / n
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) / math.sqrt(n)
    found = statistics.interval(values)
    assert found.n == n and found.mean == pytest.approx(mean)
    assert (found.high - mean) / error == pytest.approx(quantile, abs=6e-4)
    assert (mean - found.low) / error == pytest.approx(quantile, abs=6e-4)


def test_one_value_has_no_interval_and_equal_values_one_without_width():
    assert statistics.interval([3.0]) == (3.0, None, None, 1)
    assert statistics.interval([0.1, 0.1, 0.1]) == (0.1, 0.1, 0.1, 3)


def test_spread():
    sd = math.sqrt((0.4475**2 + 0.3425**2 + 0.3525**2 + 0.2475**2) / 3)  # about the mean, 0.6475
    assert statistics.spread([0.2, 0.99, 1.0, 0.4], bar=0.95) == pytest.approx((0.6475, sd, 0.695, 1.0, 0.5, 4))
    assert statistics.spread([2.5]) == (2.5, None, 2.5, 2.5, None, 1)
    assert statistics.spread([2.0, math.inf]) == (math.inf, None, math.inf, math.inf, None, 2)


def test_p_against_closed_forms():
    """With one degree of freedom Student's t is Cauchy's, whose tail is 1/2 - atan(t) / pi; with two it is
    1/2 - t / (2 sqrt(2 + t^2))."""
    two, three = [1.0, 2.0], [1.0, 2.0, 4.0]
    t = (1.5 - 0.25) / 0.5
    assert statistics.p_above(two, 0.25) == pytest.approx(0.5 - math.atan(t) / math.pi)
    t = (7 / 3 - 1) / math.sqrt((16 / 9 + 1 / 9 + 25 / 9) / 2 / 3)
    assert statistics.p_above(three, 1.0) == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)))
    assert statistics.p_below(three, 1.0) == pytest.approx(1 - statistics.p_above(three, 1.0))


def test_p_of_equal_values():
    assert [statistics.p_above([0.3, 0.3], margin) for margin in (0.2, 0.3, 0.4)] == [0.0, 0.5, 1.0]
    with pytest.raises(ValueError):
        statistics.p_above([1.0], 0.0)


def test_the_interval_lies_beyond_a_margin_when_p_is_below_its_risk():
    values = [0.31, 0.25, 0.4, 0.28]
    low = statistics.interval(values).low
    assert statistics.p_above(values, low - 1e-6) < statistics.RISK < statistics.p_above(values, low + 1e-6)


def test_holm_by_hand():
    """0.005 x 4, 0.01 x 3, then 0.03 x 2; 0.04 x 1 would fall below the one before and so becomes it."""
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    assert statistics.holm([]) == []


def test_kendall_by_brute_force():
    """Pairs in the same order less pairs in the other, over all pairs; p: the share of all orders of one column that
    agree or disagree at least as much."""
    ours, theirs = [1.0, 3.0, 2.0, 5.0, 4.0, 6.0], [1.0, 2.0, 3.0, 4.0, 6.0, 5.0]

    def score(a, b):
        return sum(math.copysign(1, (a[i] - a[j]) * (b[i] - b[j])) for i, j in itertools.combinations(range(len(a)), 2))

    s = score(ours, theirs)
    orders = list(itertools.permutations(theirs))
    p = sum(abs(score(ours, order)) >= abs(s) for order in orders) / len(orders)
    found = statistics.kendall(ours, theirs)
    assert found.tau == pytest.approx(s / 15) and found.p == pytest.approx(p) and found.n == 6
    assert found.verdict == ("same order" if p < 0.05 else "undecided")
    assert statistics.kendall([1, 2, 3, 4, 5], [5, 4, 3, 2, 1]).verdict == "opposite order"


def test_kendall_with_ties_is_tau_b():
    """Of six pairs one is tied in the first column: (5 - 0) / sqrt(5 x 6)."""
    assert statistics.kendall([1, 1, 2, 3], [1, 2, 3, 4]).tau == pytest.approx(5 / math.sqrt(30))


def test_no_verdict_on_an_order_of_few():
    assert statistics.kendall([1, 2, 3, 4], [1, 2, 3, 4]) == (pytest.approx(1.0), pytest.approx(1 / 12), 4,
                                                              "no verdict below 5 items")  # fmt: skip
    assert statistics.kendall([1], [2]).tau is None
    assert statistics.kendall([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]) == (None, None, 5, "no order: all equal")


def test_ties_with_the_best():
    seeds = {
        "a": {0: 2.0, 1: 2.1, 2: 1.9, 3: 2.0},
        "b": {0: 2.3, 1: 2.0, 2: 1.8, 3: 2.1},  # now better, now worse
        "c": {0: 3.0, 1: 3.1, 2: 2.9, 3: 3.0},  # always one more
        "d": {0: 9.0},  # one seed tells nothing apart
    }
    assert statistics.tied(seeds) == ("a", {"b", "d"})
    assert statistics.tied({name: seeds[name] for name in "ac"}, highest=True) == ("c", set())
    assert statistics.tied({}) == (None, set())


@pytest.mark.parametrize("behind, tied", [(2.47, {"b"}), (2.50, set())])
def test_a_tie_ends_where_the_interval_of_the_differences_leaves_zero(behind, tied):
    """Differences d - 1, d, d + 1 have sd 1: t = d sqrt(3), and the 95 % quantile of Student's t with 2 degrees of
    freedom is 4.3027 (tables), so d = 2.484."""
    assert statistics.tied({"a": {0: 0.0, 1: 0.0, 2: 0.0}, "b": {0: behind - 1, 1: behind, 2: behind + 1}}) == (
        "a",
        tied,
    )
