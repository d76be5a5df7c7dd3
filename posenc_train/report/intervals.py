"""Intervals of rates."""

import math

SURE = 0.95


def wilson(share: float, examples: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate seen in so many independent examples.

    A share that is no whole number of examples (of answer tokens, of which an example has several that go together; or
    a mean over seeds, which were all asked the same) is taken down to the next whole number for the lower end, up for
    the upper end. No distribution of shares over examples with this mean varies more than one of wholly right and
    wholly wrong ones, so the interval is not too narrow.
    """
    from scipy.stats import binomtest

    hits = share * examples
    ends = math.floor(hits + 1e-9), math.ceil(hits - 1e-9)
    low, high = (binomtest(end, examples).proportion_ci(SURE, method="wilson") for end in ends)
    return float(low.low), float(high.high)
