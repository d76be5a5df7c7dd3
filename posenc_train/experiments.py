"""What an experiment file holds: conf/experiment/<name>.yaml. Plain values in, one-line complaints out.

    title, source      what it is, and whose: paper, arXiv id, table
    matched            sentences on what is as in the source …
    not_matched        … and on what is not: data, size, tokens, protocol
    published          a file of posenc_train/data/published, or null: then the source says that there are no numbers
    every              if given, what lines have in common, as in `- ${experiment.every.laptop} train_length=64`
    grid               lines of overrides, or such lines for each scale
    then               null, or the lines of a second act (all after the first, or `position=rope -> position=nope`),
                       or these for each scale
    claims             predicates over the rows of one study

A claim compares two sides, in nats per target or in shares, seed by seed: left less right (left alone without a right).

    - say: ALiBi is flat to 8x
      metric: nll                              # nll | exact | token | stops | regret
      protocol: same_targets                   # with its settings where rows of several are there
      unit: word                               # of nll, where it is not to be the task's own: byte or word
      left: {scheme: alibi, length: 8x}
      right: {scheme: alibi, length: 1x}
      within: 0.02                             # or above: …, below: …

A side names what tells its rows from others: scheme, extension (without it: none), init (the run that its weights are
from; without it: fresh ones), sampling, task, model, train_length, length. Names are those of the tables, and * stands
for anything. A length is in tokens (562), in trained lengths (8x), beyond the trained length (L+50), or a list of
these, which are taken together.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posenc_train.checks import EXTENSIONS, PACKAGE, PROTOCOLS, UserError, choices, choose, join, nearest, show

PUBLISHED = PACKAGE / "data" / "published"
METRICS = ("nll", "exact", "token", "stops", "regret")
UNITS = ("byte", "word")
BOUNDS = ("above", "below", "within")
NAMES = ("scheme", "extension", "init", "sampling", "task", "model")
SIDE = (*NAMES, "train_length", "length")
NONE_GIVEN = "no numbers published"
_LENGTH = re.compile(r"(?P<factor>\d+(\.\d+)?)x|L\+(?P<beyond>\d+)|(?P<tokens>\d+)")


class Side(NamedTuple):
    """names: patterns of the names given. lengths: each as it was written."""

    names: dict[str, str]
    train_length: int | None
    lengths: tuple[str, ...]

    def text(self) -> str:
        """ "rope + pi at 8x" """
        names = dict(self.names)
        words = names.pop("scheme") + (f" + {names.pop('extension')}" if "extension" in names else "")
        words += f" from {names.pop('init').strip('*').strip('-')}" if "init" in names else ""
        words += "".join(f", {name}" for name in names.values())
        words += "" if self.train_length is None else f", L={self.train_length}"
        return f"{words} at {', '.join(self.lengths)}"


class Claim(NamedTuple):
    say: str
    metric: str
    protocol: str
    left: Side
    right: Side | None
    bound: str
    margin: float
    unit: str = ""


def check(experiment: Mapping[str, Any], name: str) -> None:
    """Raises UserError, in a line that begins with experiment=<name>, for the first thing that cannot be right."""
    grid, then = experiment["grid"], experiment["then"]
    scales = list(grid) if isinstance(grid, Mapping) else None
    if isinstance(then, Mapping) and not set(then) <= set(scales or ()):
        raise _error(name, "then", f"is given for {', '.join(then)}", f"must be given for scales of grid: {scales}")
    published = experiment["published"]
    if published is not None and published not in (known := [path.stem for path in PUBLISHED.glob("*.csv")]):
        raise _error(name, f"published={published}", "no such file", choose([*sorted(known), "null"]))
    if published is None and NONE_GIVEN not in experiment["source"].lower():
        raise _error(name, "source", f"must say '{NONE_GIVEN}' where published is null", "or name a file of numbers")
    claims(experiment, name)


def claims(experiment: Mapping[str, Any], name: str = "") -> list[Claim]:
    """The claims of an experiment. Raises UserError as `check` does."""
    words = " ".join(_lines(experiment["grid"])) + " " + " ".join(_lines(experiment["then"]))
    return [_claim(claim, f"claims[{i}]", name, words) for i, claim in enumerate(experiment["claims"])]


def _lines(grid: Any) -> Iterator[str]:
    if isinstance(grid, Mapping):
        for lines in grid.values():
            yield from lines or ()
    else:
        yield from grid or ()


def _claim(claim: Any, key: str, name: str, words: str) -> Claim:
    if not isinstance(claim, Mapping):
        raise _error(name, f"{key}={show(claim)}", "must be a claim", "as in posenc_train/experiments.py")
    required, known = (
        ("say", "metric", "protocol", "left"),
        ("say", "metric", "protocol", "unit", "left", "right", *BOUNDS),
    )
    for part in claim:
        if part not in known:
            raise _error(name, f"{key}.{part}", "no such key", join(nearest(part, known), choose(known)))
    for part in required:
        if part not in claim:
            raise _error(name, f"{key}.{part}", "is missing", f"a claim needs {', '.join(required)} and a bound")
    if not isinstance(claim["say"], str) or not claim["say"].strip():
        raise _error(name, f"{key}.say={show(claim['say'])}", "must be a sentence", "")
    bounds = [bound for bound in BOUNDS if bound in claim]
    if len(bounds) != 1:
        raise _error(name, key, f"has {' and '.join(bounds) or 'no bound'}", f"give one of {', '.join(BOUNDS)}")
    margin = claim[bounds[0]]
    if type(margin) not in (int, float) or not abs(margin) < 1e300 or (bounds[0] == "within" and margin <= 0):
        allowed = "a number above 0" if bounds[0] == "within" else "a number"
        raise _error(name, f"{key}.{bounds[0]}={show(margin)}", f"must be {allowed}", "in nats per target or a share")
    if claim["metric"] not in METRICS:
        raise _error(name, f"{key}.metric={show(claim['metric'])}", "no such metric", choose(METRICS))
    if bare(str(claim["protocol"])) not in PROTOCOLS:
        raise _error(name, f"{key}.protocol={show(claim['protocol'])}", "no such protocol", choose(PROTOCOLS))
    unit = claim.get("unit", "")
    if unit and (unit not in UNITS or claim["metric"] != "nll"):
        raise _error(name, f"{key}.unit={show(unit)}", "no such unit", f"{choose(UNITS)}, or none; of metric=nll alone")
    left = _side(claim["left"], f"{key}.left", name, words)
    right = None if claim.get("right") is None else _side(claim["right"], f"{key}.right", name, words)
    return Claim(claim["say"], claim["metric"], claim["protocol"], left, right, bounds[0], float(margin), unit)


def _side(side: Any, key: str, name: str, words: str) -> Side:
    if not isinstance(side, Mapping):
        raise _error(name, f"{key}={show(side)}", "must select rows", "such as {scheme: alibi, length: 8x}")
    for part in side:
        if part not in SIDE:
            raise _error(name, f"{key}.{part}", "no such key", join(nearest(part, SIDE), choose(SIDE)))
    for part in ("scheme", "length"):
        if part not in side:
            raise _error(name, f"{key}.{part}", "is missing", "a side needs scheme and length")
    for part, known in (("scheme", choices("position")), ("extension", list(EXTENSIONS)), ("task", choices("task"))):
        wanted = side.get(part)
        if wanted is not None and not _known(str(wanted), known, words):
            remedy = join(nearest(bare(str(wanted)), known), "or name one of the grid")
            raise _error(name, f"{key}.{part}={show(wanted)}", f"no such {part}", remedy)
    trained = side.get("train_length")
    if trained is not None and (type(trained) is not int or trained < 1):
        raise _error(name, f"{key}.train_length={show(trained)}", "must be an integer of at least 1", "")
    lengths = side["length"] if isinstance(side["length"], list) else [side["length"]]
    for length in lengths or [None]:
        if not isinstance(length, (int, str)) or not _LENGTH.fullmatch(str(length)):
            allowed = "must be tokens, trained lengths or beyond the trained length"
            raise _error(name, f"{key}.length={show(length)}", allowed, "such as 562, 8x or L+50, or a list of these")
    names = {part: str(side[part]) for part in NAMES if side.get(part) is not None}
    return Side(names, trained, tuple(map(str, lengths)))


def _known(pattern: str, known: Sequence[str], words: str) -> bool:
    """Whether a name is one of this package's, or stands in the grid, as a user's own does."""
    word = bare(pattern).rstrip("*")
    fits = any(matches(bare(pattern).rstrip("*") + "*" * ("*" in pattern), name) for name in known)
    return fits or (word != "" and re.search(rf"\b{re.escape(word)}\b", words) is not None)


def _error(name: str, what: str, wrong: str, remedy: str) -> UserError:
    return UserError(f"experiment={name}: {what}: {wrong}" + (f"; {remedy}" if remedy else ""))


# ---- names and lengths -----------------------------------------------------------------------------------


def matches(pattern: str, name: str) -> bool:
    """Whether a name of the tables is meant; * stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def tokens(length: str, train_length: int) -> float:
    """A claim's length in tokens; not a whole number where there is no such length."""
    found = _LENGTH.fullmatch(length)
    if found["factor"]:
        return float(found["factor"]) * train_length
    return train_length + int(found["beyond"]) if found["beyond"] else int(found["tokens"])


def bare(name: str) -> str:
    """A name without its settings: "rope(base=500.0) under pi" -> "rope" """
    return re.split(r"[( ]", name, maxsplit=1)[0]


def source_of(path: Path) -> str:
    """The first comment of a file of numbers."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = [line for line in lines if line.startswith("#")]
    return " ".join(line.lstrip("# ") for line in comment)
