"""Solvers of the copying, recall and algorithmic tasks."""

from solving import known, solver


def words(fed: list[str | None]) -> list[list[str]]:
    """What stands between the separators, as far as it is given."""
    text = [" " if symbol is None else symbol for symbol in fed]
    return [[s for s in part.split("\0") if s.strip()] for part in "\0".join(text).split("|")]


@solver("copy")
def copy(task, fed):
    return known([*words(fed)[1], "$"])


@solver("copy_twice")
def copy_twice(task, fed):
    return known([*words(fed)[1], ",", *words(fed)[1], "$"])


@solver("reverse")
def reverse(task, fed):
    return known([*reversed(words(fed)[1]), "$"])


@solver("reverse_and_copy")
def reverse_and_copy(task, fed):
    return known([*reversed(words(fed)[1]), ",", *words(fed)[1], "$"])


@solver("sorting")
def sorting(task, fed):
    return known([*sorted(words(fed)[1]), "$"])


@solver("repeat_copy")
def repeat_copy(task, fed):
    said, *seen = words(fed)[1]
    assert len(set(seen)) == 1 and said not in seen
    return known([said] * len(seen) + ["$"])


@solver("ngram", "ngram_prefix")
def ngram(task, fed):
    text, key = words(fed)[:2] if task.key == "suffix" else words(fed)[1::-1]
    after = [first + len(key) for first in range(len(text)) if text[first : first + len(key)] == key]
    assert len(after) == 1, "one place"
    return [{text[place + n] for place in after if place + n < len(text)} for n in range(fed.count(None))]


@solver("recall")
def recall(task, fed):
    pairs, queries = words(fed)
    keys = pairs[::2]
    assert sorted(queries) == sorted(task.times * keys)
    return [{value for key, value in zip(keys, pairs[1::2], strict=True) if key == query} for query in queries]


@solver("induction")
def induction(task, fed):
    assert fed[-1] is None and fed[-2] == "#"
    return [{after for mark, after in zip(fed[:-2], fed[1:-2], strict=False) if mark == "#"}]


@solver("kv_lookup")
def kv_lookup(task, fed):
    """Every pair and query is a mark and a key and a value of known widths."""
    width = 1 + task.key + task.value
    parts = [fed[first : first + width] for first in range(0, len(fed), width)]
    pairs = [part for part in parts if part[0] == ":"]
    answers = []
    for part in parts[len(pairs) :]:
        assert part[0] == "?" and part[1 + task.key :] == [None] * task.value
        values = [pair[1 + task.key :] for pair in pairs if pair[1 : 1 + task.key] == part[1 : 1 + task.key]]
        answers += [{value[digit] for value in values} for digit in range(task.value)]
    return answers


@solver("nth")
def nth(task, fed):
    return [{fed[1:-2][int(fed[-2]) - 1]}]


@solver("nth_from_end")
def nth_from_end(task, fed):
    return [{fed[1:-2][-int(fed[-2])]}]


@solver("modular_counting", "parity")
def modular_counting(task, fed):
    asked = [place for place, symbol in enumerate(fed) if symbol is None]
    width = len(str(task.vocab - 1))
    return [{str(fed[:place].count("x") % task.vocab).zfill(width)} for place in asked]


@solver("addition")
def addition(task, fed):
    """382 + 475 by Python's own integers."""
    if task.order == "columns":
        a, b = (int("".join(fed[first:-2:3][::-1])) for first in (0, 1))
        return known(list(str(a + b).zfill(fed.count(None))[::-1]))
    text = [symbol for symbol in fed if symbol is None or symbol.isdigit() or symbol in "+="]
    plus, equals = text.index("+"), text.index("=")
    turn = slice(None, None, -1 if task.order == "reversed" else 1)
    a, b = ("".join(number[turn]) for number in (text[:plus], text[plus + 1 : equals]))
    total = str(int(a) + int(b)).zfill(len(text) - equals - 1)
    return known(list(total[turn]))
