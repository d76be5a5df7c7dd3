"""Solvers of the tasks that hide needles in text or count words."""

from collections import Counter

from solving import known, solver


def needles(fed: list[str | None]) -> list[str]:
    """What stands between ‹ and ›, in the order of the text."""
    found = []
    for place, symbol in enumerate(fed):
        if symbol == "‹":
            found.append("".join(fed[place + 1 : fed.index("›", place)]))
    return found


def questions(fed: list[str | None]) -> list[str]:
    """The key behind every ⁇."""
    return ["".join(fed[place + 1 : place + 3]) for place, symbol in enumerate(fed) if symbol == "⁇"]


@solver("passkey")
def passkey(task, fed):
    (number,) = needles(fed)
    return known(number)


@solver("needle", "multi_key", "multi_query")
def of_keys(task, fed):
    """A key with two numbers, or a number for no key, would be two answers or none."""
    return known("".join(_only(n[2:] for n in needles(fed) if n[:2] == key) for key in questions(fed)))


@solver("multi_value")
def values(task, fed):
    (key,) = questions(fed)
    assert all(needle[:2] == key for needle in needles(fed))
    return known("".join(needle[2:] for needle in needles(fed)))


@solver("variable_tracking")
def variables(task, fed):
    is_ = {}
    for assignment in needles(fed):
        name, value = assignment[:2], assignment[2:]
        assert name not in is_ and (value.isdecimal() or value in is_)  # once, and before it is used
        is_[name] = value
    way = questions(fed)
    assert not any(way[-1] in value for value in is_.values())  # the last of its chain
    while not way[-1].isdecimal():
        way.append(is_[way[-1]])
    return known("".join(way[1:] if task.way else way[-1:]))


@solver("common_words")
def common(task, fed):
    counts = Counter(fed[: fed.index("?")])
    most = max(counts.values())
    best = [word for word in counts if counts[word] == most]
    assert all(counts[word] * task.ratio <= most for word in counts if word not in best)
    return known(sorted(best))


@solver("frequent_words")
def frequent(task, fed):
    """At every place of the order whoever is as frequent as its holder may stand."""
    counts = Counter(fed[: fed.index("?")])
    order = sorted(counts, key=counts.get, reverse=True)
    return [{word for word in counts if counts[word] == counts[holder]} for holder in order[: fed.count(None)]]


def _only(found):
    (one,) = found
    return one
