"""What there is: every scheme with its source, where it enters, its cost, and what it was verified against."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posenc_train.build import build_schemes, class_of
from posenc_train.checks import CONF, UserError, choices, choose, file_settings, join, nearest
from posenc_train.positions.base import Dims, PositionScheme, Span

TESTS = Path(CONF).parent / "tests"  # absent where the package is installed without its repository
# Packages with implementations of others, which a source names first.
PEERS = ("transformers", "x-transformers", "rotary-embedding-torch", "torchscale", "PoPE-pytorch", "fla-core")
HOOKS = {"embed": "embedding", "by_distance": "bias by distance", "bias": "bias", "visible": "mask"}
HOOKS |= {"refine": "scores", "mix": "sum of values"}
HEADINGS = {
    "name": "position=",
    "paper": "paper",
    "enters": "enters as",
    "learned": "learned parameters",
    "cost": "extra cost",
    "reach": "reach",
    "relative": "translation-equivariant",
    "backends": "backends",
    "verified": "verified against",
}
LEGEND = """\
enters as: where the scheme acts; several at once with +, layers that differ with /.
extra cost: beside plain fused attention. One vector a head: a bias or a mask by distance alone, for which no (query,
    key) matrix is built; else a mask for 256 queries at a time.
reach: the longest context that it can represent.
translation-equivariant: moving all positions by a constant changes nothing.
verified against: what the tests compare it with, read from them.
"""


class Entry(NamedTuple):
    """One scheme, in words; the fields are those of HEADINGS."""

    name: str
    paper: str
    enters: str
    learned: str
    cost: str
    reach: str
    relative: str
    backends: str
    verified: str


def entries(dims: Dims) -> list[Entry]:
    """One for every file of conf/position that names a class, at the size of dims; compositions come last."""
    tests = markers()
    every = {name: file_settings("position", name) for name in choices("position") if name != "own"}
    composed = [name for name in every if "parts" in every[name]]
    return [_entry(name, every[name], dims, tests) for name in [*(n for n in every if n not in composed), *composed]]


def _entry(name: str, settings: Mapping[str, Any], dims: Dims, tests: Mapping[str, list[str]]) -> Entry:
    composed, layers = "parts" in settings, max(dims.layers, len(settings.get("pattern", ())))
    schemes = list(dict.fromkeys(build_schemes(settings, replace(dims, layers=layers))))
    number = sum({id(p): p.numel() for scheme in schemes for p in scheme.parameters()}.values())
    formula = schemes[0].parameters_formula + ("" if schemes[0].shared else ", a layer")
    reaches = [scheme.reach for scheme in schemes if scheme.reach is not None]
    return Entry(
        name=name,
        paper=description(name) if composed else schemes[0].paper,
        enters=_joined(" + ".join(enters(scheme, dims)) or "nothing" for scheme in schemes),
        learned=f"{number:,} = {formula}" if number else "none",
        cost=_joined(cost(scheme, dims) for scheme in schemes),
        reach=f"{min(reaches):,} tokens" if reaches else "any",
        relative="yes" if all(scheme.relative for scheme in schemes) else "no",
        backends="reference, fused",
        verified="; ".join(
            (["its parts"] if composed and name not in tests else _sources(tests.get(name, []))) + _doubts(schemes[0])
        ),
    )


def _sources(sources: list[str]) -> list[str]:
    independent = any(source.startswith(PEERS) for source in sources)
    return sources if independent else [*sources, "no independent implementation"]


def _doubts(scheme: PositionScheme) -> list[str]:
    """Whether a scheme's documentation marks something as unverified."""
    documents = (type(scheme).__doc__ or "", importlib.import_module(type(scheme).__module__).__doc__ or "")
    return ["in part unverified, see its docstring"] if "unverified" in " ".join(documents).lower() else []


def _joined(words: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(words))


def enters(scheme: PositionScheme, dims: Dims) -> list[str]:
    words = [word for hook, word in HOOKS.items() if getattr(scheme, hook) is not None]
    if scheme.every_layer:
        words.append("every layer")
    if scheme.rotate is not None:
        q, k = _rotated(scheme, dims)
        words.append("q" if torch.equal(k, _ones(dims)) else "q and k")
    return words


def cost(scheme: PositionScheme, dims: Dims) -> str:
    """How the fused backend serves it (model/attend.py)."""
    if scheme.refine is not None or scheme.mix is not None:
        return "the scores of 256 queries at a time"
    if scheme.bias is not None or (scheme.visible is not None and not scheme.relative):
        return "a mask for 256 queries at a time"
    if scheme.by_distance is not None or scheme.visible is not None:
        return "one vector a head"
    wider = 1 if scheme.rotate is None else _rotated(scheme, dims)[0].shape[-1] // dims.head_width
    return f"q, k and v {wider} times as wide" if wider > 1 else "none"


def _ones(dims: Dims) -> Tensor:
    return torch.ones(1, dims.heads, 3, dims.head_width)


def _rotated(scheme: PositionScheme, dims: Dims) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return scheme.rotate(_ones(dims), _ones(dims), Span.of(3))


def markers() -> dict[str, list[str]]:
    """Scheme -> the sources that tests marked `verifies(scheme, source)` compare it with, read from their files."""
    found: dict[str, list[str]] = {}
    for file in sorted(TESTS.glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "verifies":
                scheme, source = (argument.value for argument in node.args)
                if source not in found.setdefault(scheme, []):
                    found[scheme].append(source)
    return found


def description(name: str) -> str:
    """The comment at the top of a scheme's file, which says what a composition is."""
    words = []
    for line in Path(CONF, "position", f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# "))
    return " ".join(words)


def others(group: str) -> list[tuple[str, str, str]]:
    """(name, what it is, what it was verified against) of every extension or sampling."""
    tests = markers()
    return [
        (name, _what(file_settings(group, name)["_target_"]), "; ".join(tests.get(name, ["–"])))
        for name in choices(group)
    ]


def _what(target: str) -> str:
    """The first sentence of what documents a class, or of its module where the module holds it alone."""
    found = class_of(target, "")
    module = importlib.import_module(found.__module__)
    text = inspect.getdoc(found if inspect.isclass(found) else module)
    return " ".join(text.split("\n\n")[0].split()).rstrip(".")


def markdown(found: Sequence[Entry]) -> str:
    """Tables for the README: schemes, extensions, samplings."""
    shown = [key for key in HEADINGS if key != "backends"]  # which are the same for all
    tables = [([HEADINGS[key] for key in shown], [[getattr(entry, key) for key in shown] for entry in found])]
    for group in ("extension", "sampling"):
        tables.append(([f"{group}=", "what it is", "verified against"], [list(row) for row in others(group)]))
    return "\n".join(_table(head, rows) for head, rows in tables)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| `{head[0]}` | " + " | ".join(head[1:]) + " |", "|" + " --- |" * len(head)]
    for name, *cells in rows:
        told = (cell.replace("|", "\\|").replace("_", "\\_").replace("*", "\\*") for cell in cells)
        lines.append(f"| `{name}` | " + " | ".join(told) + " |")
    return "\n".join(lines) + "\n"


def text(found: Sequence[Entry], columns: int, only: Sequence[str] | None = None) -> str:
    """A paragraph for each scheme, extension and sampling, or for those that `only` names, within the width of a
    terminal. Raises UserError for a name that is none of them."""
    width = 2 + max(map(len, HEADINGS.values())) + 2
    paragraphs = {entry.name: [(HEADINGS[key], getattr(entry, key)) for key in list(HEADINGS)[1:]] for entry in found}
    heads = {entry.name: f"position={entry.name}" for entry in found}
    for group in ("extension", "sampling"):
        for name, what, verified in others(group):
            paragraphs.setdefault(name, []).extend([("what it is", what), ("verified against", verified)])
            heads[name] = f"{heads[name]}, {group}={name}" if name in heads else f"{group}={name}"
    for name in only or ():
        if name not in paragraphs:
            raise UserError(join(f"only={name}: no such scheme;", nearest(name, paragraphs), choose(paragraphs)))
    out = []
    for name in only or paragraphs:
        out.append(heads[name])
        for head, words in paragraphs[name]:
            label = f"  {head + ':':<{width - 2}}"
            out += textwrap.wrap(words, columns, initial_indent=label, subsequent_indent=" " * width)
        out.append("")
    for line in LEGEND.replace("\n    ", " ").splitlines():
        out += textwrap.wrap(line, columns, subsequent_indent="  ")
    return "\n".join(out) + "\n"
