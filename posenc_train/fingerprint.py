"""Fingerprints of code: the syntax trees of the modules that a cell uses, and of no others.

Comments, spacing and docstrings do not enter, nor do other schemes, tasks and extensions, the report, and what reads
the configuration (which is in a cell's name). A fingerprint is two parts, `1a2b3c4d-5e6f7a8b`: of the modules that
every cell uses, and of those that are its own. What stands side by side in a table should agree in the first; only what
agrees in both is averaged.

Found from files alone, by their import statements: what else was imported before does not matter.
"""

import ast
import functools
import hashlib
import importlib.util
import json
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from posenc_train.checks import PACKAGE, file_settings, under

TRAINING = ("posenc_train.build", "posenc_train.training.fit")
EVALUATION = ("posenc_train.build", "posenc_train.evaluation.run")
SEARCH = "posenc_train.evaluation.longrope"  # a part of evaluation for the extension of this name only
OUTSIDE = ("config", "checks", "experiments", "fingerprint", "report")  # rooms of the package that shape no number
INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}


def trained(cfg: Mapping[str, Any], start: str = "") -> str:
    """Of a training. start: the fingerprint of the training that its weights are from, if any. An extension to train
    under is named in a configuration with some of its settings; what its file says of the others enters here."""
    return _joined(TRAINING, _own(cfg), "", f"{start} {under(cfg)}")


def evaluated(cfg: Mapping[str, Any], extension: str, training: str) -> str:
    """Of an evaluation under an extension, by its name, of a model whose training has this fingerprint; that of several
    attempts by different code is those of all, with + between them."""
    target = cfg["extension"][extension]["_target_"] if extension in cfg["extension"] else ""
    own = {*_own(cfg), *([_module(target)] if target else [])}
    if target.rpartition(".")[0].endswith(".longrope"):
        own.add(SEARCH)
    parts = [part.partition("-") for part in training.split("+")]
    return _joined(EVALUATION, own, *("+".join(part[place] for part in parts) for place in (0, 2)))


def _joined(core: Iterable[str], own: Iterable[str], *before: str) -> str:
    return "-".join(
        _digest(earlier, *_trees(frozenset(roots))) for roots, earlier in zip((core, own), before, strict=True)
    )


def _own(cfg: Mapping[str, Any]) -> set[str]:
    """The modules of the classes that a training names."""
    settings = [cfg[group] for group in ("position", "sampling", "task")]
    settings += [file_settings("extension", name) for name in cfg.get("under") or ()]
    foreign = {"posenc_train.model.hf"} if "path" in cfg["model"] else set()
    return foreign | {_module(target) for part in settings for target in _targets(part)}


def _targets(settings: Any) -> Iterator[str]:
    if isinstance(settings, Mapping):
        if isinstance(settings.get("_target_"), str):
            yield settings["_target_"]
        for value in settings.values():
            yield from _targets(value)


def _module(target: str) -> str:
    return target.rpartition(".")[0]


def _digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def _trees(roots: frozenset[str]) -> list[str]:
    return [_tree(path, path.stat().st_mtime_ns) for _, path in sorted(modules(roots).items())]


def modules(roots: Iterable[str]) -> dict[str, Path]:
    """{name: file} of these modules, and of all that they import from the same package, or from the same folder where
    that is nobody's installation."""
    roots, found = set(roots), {}
    todo = [(name, _base(name)) for name in sorted(roots)]
    while todo:
        name, base = todo.pop()
        path = _file(name, base)
        if name in found or path is None or (name not in roots and _outside(name)):
            continue
        found[name] = path
        alone = base in INSTALLED
        for other in _imports(path, path.stat().st_mtime_ns, name):
            top = other.partition(".")[0]
            if top == "posenc_train":
                todo.append((other, PACKAGE.parent))
            elif not alone or top == name.partition(".")[0]:
                todo.append((other, base))
    return found


def _outside(name: str) -> bool:
    top, _, rest = name.partition(".")
    return top == "posenc_train" and (rest.partition(".")[0] in ("", *OUTSIDE) or name == SEARCH)


def _base(name: str) -> Path:
    """The folder in which a module's top package lies."""
    top = name.partition(".")[0]
    if top == "posenc_train":
        return PACKAGE.parent
    spec = importlib.util.find_spec(top)
    places = [*((spec and spec.submodule_search_locations) or ()), *([spec.origin] if spec and spec.origin else ())]
    return Path(places[0]).resolve().parent if places else Path()


def _file(name: str, base: Path) -> Path | None:
    path = base.joinpath(*name.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)


@functools.cache
def _imports(path: Path, changed: int, name: str) -> list[str]:
    """The modules that a file may import; of `from a import b`, both a and a.b."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


@functools.cache
def _tree(path: Path, changed: int) -> str:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:]
    return ast.dump(tree)
