"""How to train runs again: from their configurations back to command lines."""

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from posenc_train.checks import CONF, file_settings, show
from posenc_train.config import flat

TOLD = ("position", "task", "model")  # the groups whose file is named even where it is the usual one
SEVERAL = ("extension", "protocol")  # the groups of which several files are chosen
BARE = re.compile(r"(?!(true|false|null|nan|inf)$)[A-Za-z_./][A-Za-z0-9_./-]*", re.IGNORECASE)


def commands(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """One command line for each training configuration, over all its seeds."""
    seeds: dict[tuple[str, ...], set[int]] = {}
    for config in configs:
        seeds.setdefault(tuple(overrides(config)), set()).add(config["seed"])
    return [_command(words, sorted(of)) for words, of in seeds.items()]


def _command(words: tuple[str, ...], seeds: list[int]) -> str:
    many = ["-m"] * (len(seeds) > 1)
    return shlex.join(["python", "scripts/train.py", *many, *words, f"seed={','.join(map(str, seeds))}"])


def overrides(config: Mapping[str, Any]) -> list[str]:
    """What scripts/train.py has to be told for this configuration, its seed aside: the files that it names, and every
    value that is not theirs. Of a file that is not this package's (hydra.searchpath), the name alone."""
    common = yaml.safe_load(Path(CONF, "train.yaml").read_text(encoding="utf-8"))
    usual = {group: name for part in common.pop("defaults") if isinstance(part, dict) for group, name in part.items()}
    names = {group: name for group, name in usual.items() if group not in SEVERAL} | dict(config["names"])
    names["logger"] = config["logger"]["mode"]
    words = [f"{group}={name}" for group, name in names.items() if group in TOLD or name != usual[group]]
    for group, name in names.items():
        if (file := file_settings(group, name)) is not None:
            words += _differences(group, config[group], file)
    for group in SEVERAL:
        words += _chosen(group, config[group], usual[group], common.get(group, {}))
    plain = {key: value for key, value in common.items() if key not in (*SEVERAL, "seed", "names", "rerun")}
    return words + [f"{key}={_value(config[key])}" for key in plain if config.get(key) != plain[key]]


def _chosen(group: str, settings: Mapping[str, Any], usual: list[str], beside: Mapping[str, Any]) -> list[str]:
    """beside: the settings of the group that are no file's, such as protocol.at."""
    names = [name for name in settings if name not in beside]
    words = [] if set(names) == set(usual) else [f"{group}=[{','.join(names)}]"]
    for name in names:
        words += _differences(f"{group}.{name}", settings[name], file_settings(group, name) or {})
    return words + _differences(group, {key: settings[key] for key in beside if key in settings}, beside)


def _differences(key: str, settings: Mapping[str, Any], file: Mapping[str, Any]) -> list[str]:
    ours, theirs = flat(settings), flat(file)
    return [
        f"{'' if name in theirs else '+'}{key}.{name}={_value(value)}"
        for name, value in ours.items()
        if name not in theirs or theirs[name] != value
    ]


def _value(value: Any) -> str:
    """As Hydra reads it: text that it would take for something else is in quotes."""
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_value(inner)}" for key, inner in value.items()) + "}"
    if not isinstance(value, str) or BARE.fullmatch(value):
        return show(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
