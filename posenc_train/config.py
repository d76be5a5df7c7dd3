"""The configuration: composed by Hydra, checked, and handed to a script as one plain dict.

A script reads

    @entry("train")
    def main(cfg: dict) -> None: ...

What goes wrong before or inside it is one line on stderr if it is the person's mistake (UserError), and a
traceback if it is ours. The names that follow from a configuration (label, cell, run folder) are here too.

Hydra is imported inside the functions that need it: positions and model import UserError from here, and must
work where there is no Hydra. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import re
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checks import (
    CONF,
    GROUPS,
    MULTIPLE,
    UserError,
    check,
    choices,
    choose,
    dotted,
    file_settings,
    join,
    lengths,
    longest,
    nearest,
    protocols,
    run_exists,
    show,
    steps_along,
    tidy,
    under,
    unknown_key,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["CONF", "UserError", "cell_name", "check", "command_line", "compose", "entry", "expand", "extension_label"]
__all__ += ["Unmeasured", "label", "lengths", "longest", "protocols", "run_exists", "run_folder", "steps_along"]
__all__ += ["training_config"]

Config = dict[str, Any]
LAUNCHERS = ("joblib", "submitit", "ray")  # plugins of Hydra in the extra [launchers]


class Unmeasured(Exception):
    """What was asked for, done and written, but for cells that have no number: in one line, which and why."""


# ---------------------------------------------------------------- names that follow from a configuration

# Settings of a task and of a sampling that change no weight.
UNTRAINED = {"task": ("longest", "eval_seed", "windows", "examples", "processes"), "sampling": ("draws",)}
# What rows tell otherwise: by fingerprints of the training and the evaluation data, and by the scheme's memory.
UNLABELLED = {("task", key) for key in (*UNTRAINED["task"], "path", "tokenizer", "contiguous")} | {("model", "path")}


def training_config(cfg: Config) -> Config:
    """The part of a configuration that decides the trained weights."""
    keys = ("position", "sampling", "model", "optim", "train_length", "seed", "init", "task")
    part = {key: cfg[key] for key in keys}
    for group, left_out in UNTRAINED.items():
        part[group] = {key: value for key, value in cfg[group].items() if key not in left_out}
    part["trainer"] = {"precision": cfg["trainer"]["precision"]}
    return part if cfg.get("under") is None else part | {"under": cfg["under"]}


def cell_name(cfg: Config) -> str:
    """`rope-text-tiny-L128-s0-1a2b3c4d`: readable, one for every training configuration, safe unquoted."""
    order = [key for key in flat(cfg["position"]) if key.startswith("parts.")]  # of heads: sorted keys would lose it
    whole = json.dumps([training_config(cfg), *order], sort_keys=True)
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    words = [cfg["names"][group] for group in ("position", "task", "model")]
    readable = "-".join([*words, f"L{cfg['train_length']}", f"s{cfg['seed']}"])
    return re.sub(r"[^A-Za-z0-9._-]", "_", readable)[:200] + f"-{digest}"


def run_folder(cfg: Config) -> Path:
    """`runs/<study>/<cell>`, relative to the caller's folder."""
    return Path("runs", cfg["study"], cell_name(cfg))


def label(cfg: Config, group: str) -> str:
    """`rope`, or `rope(base=500000.0)` where settings differ from the file's.

    A user's own class states all of its settings, `wave.Wave(period=64)`: a reader of the table does not have
    the file that would tell the defaults. Paths and the size of the evaluation are left out: rows carry
    fingerprints of the data.
    """
    name, settings = cfg["names"][group], flat(cfg[group])
    file, target = flat(file_settings(group, name) or {}), settings.pop("_target_", None)
    if target != file.get("_target_"):
        name, file = (target if file else name), {}
    changed = [k for k in sorted(settings) if k not in file or file[k] != settings[k]]
    told = [f"{k}={show(settings[k])}" for k in changed if (group, k) not in UNLABELLED]
    parts = list(cfg[group].get("parts", ()))
    if file and parts != list((file_settings(group, cfg["names"][group]) or {}).get("parts", ())):
        told.insert(0, f"parts={show(parts)}")  # others, or in another order
    whole = f"{name}({', '.join(told)})" if told else name
    if group == "position" and (trained := under(cfg)):
        end, settings, length = trained
        other = {} if length == cfg["train_length"] else {"trained": length}
        whole += f" under {extension_label(end, settings | other)}"
    return whole


def extension_label(name: str, settings: Mapping[str, Any]) -> str:
    """`pi`, or `pi(scale=8)` where settings differ from the file's. More than four numbers become eight hex digits of
    them, `longrope(factors=#1a2b3c4d)`: a run's longrope.json says which they are."""
    own, file = flat(settings), flat(file_settings("extension", name) or {})
    if own.pop("_target_", None) != file.get("_target_"):
        file = {}
    told = ", ".join(f"{k}={_brief(own[k])}" for k in sorted(own) if k not in file or file[k] != own[k])
    return f"{name}({told})" if told else name


def _brief(value: Any) -> str:
    if not isinstance(value, list) or len(value) <= 4:
        return show(value)
    return "#" + hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]


def flat(settings: Mapping[str, Any]) -> Config:
    """{"parts": {"window": {"window": 64}}} -> {"parts.window.window": 64}"""
    out: Config = {}
    for key, value in settings.items():
        inner = flat(value) if isinstance(value, Mapping) else None
        out |= {key: value} if inner is None else {f"{key}.{name}": v for name, v in inner.items()}
    return out


# ---------------------------------------------------------------- composing


@contextlib.contextmanager
def composer(name: str, overrides: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """(Hydra's loader of configurations, the whole configuration of `name` with Hydra's own part), for a launcher."""
    from hydra import compose as hydra_compose
    from hydra.core.global_hydra import GlobalHydra

    with _one_line(name, overrides), _hydra():
        cfg = hydra_compose(name, list(overrides), return_hydra_config=True)
        yield GlobalHydra.instance().hydra.config_loader, cfg


def compose(name: str, overrides: Sequence[str] = ()) -> Config:
    """The dict that `entry(name)` makes of these overrides, not yet checked. Works inside an entry point too.

    Raises UserError for overrides that do not fit.
    """
    from hydra import compose as hydra_compose
    from hydra.core.hydra_config import HydraConfig

    with _one_line(name, overrides), _hydra():
        cfg = hydra_compose(name, list(overrides), return_hydra_config=True)
        HydraConfig.instance().set_config(cfg)  # what ${hydra:runtime.choices.…} reads
        return plain(cfg)


@contextlib.contextmanager
def _hydra() -> Iterator[None]:
    """Hydra made ready to compose; afterwards it is what it was, within a running entry point too."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    before = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(CONF, version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra, HydraConfig.instance().cfg = before


def expand(line: str, extra: Sequence[str] = ()) -> list[list[str]]:
    """All jobs of a sweep, each a list of overrides, by Hydra's own grammar.

    `expand("position=nope,rope seed=0", ["seed=0,1"])` has four jobs: the line is split as a shell would, and
    an extra override takes the place of one with the same key.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    overrides = [*shlex.split(line), *extra]
    with _one_line("", overrides):
        return BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(overrides), None)[0]


def plain(cfg: DictConfig) -> Config:
    """A composed configuration as plain resolved values, without Hydra's own part."""
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    try:
        own = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "hydra"])
        return tidy(OmegaConf.to_container(own, resolve=True, throw_on_missing=True))
    except MissingMandatoryValue as e:
        examples = {"run": "runs/<study>/<cell>", "position._target_": "wave.Wave for class Wave in wave.py"}
        examples["model.path"] = "<the folder of a model of transformers>"
        example = f"{e.full_key}={examples.get(e.full_key, '…')}"
        raise UserError(f"{e.full_key}=???: must be given, as {example}") from None
    except OmegaConfBaseException as e:  # a ${reference} to what is not there
        raise UserError(f"{e.full_key}: {str(e).splitlines()[0]}") from None


# ---------------------------------------------------------------- Hydra's complaints, each in one line


@contextlib.contextmanager
def _one_line(name: str, overrides: Sequence[str]) -> Iterator[None]:
    """Turn what Hydra says of overrides that do not fit configuration `name` into a UserError."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException) as e:
        raise UserError(_explain(e, name, overrides)) from e
    except ValueError as e:  # Hydra's word for model=5, position=null and for flags that exclude each other
        if "group override" not in str(e) and "--" not in str(e):
            raise
        raise UserError(_explain(e, name, overrides)) from e


def _explain(error: Exception, name: str, overrides: Sequence[str]) -> str:
    """One line for an exception of Hydra's; where its wording is not known here, the whole of it."""
    if unreadable := [text for text in overrides if _parse(text) is None]:
        return f"{unreadable[0]}: must be key=value, with quotes around a value that has special characters"
    message = " ".join((str(error) or str(error.__cause__)).split())
    if "/" in (getattr(error, "missing_cfg_file", None) or ""):
        group, _, choice = error.missing_cfg_file.rpartition("/")
        if group == "hydra/launcher" and choice.partition("_")[0] in LAUNCHERS:
            return f"hydra/launcher={choice}: is not installed; pip install -e '.[launchers]'"
        options = error.options or choices(group)  # Hydra lists them only for groups of a single choice
        return join(f"{group}={show(choice)}: no such choice;", nearest(choice, options), choose(options))
    if "group override must be" in message:
        wrong = (t for t in overrides if not isinstance(_parse(t).value(), (str, list)))
        text, group = next((t, _parse(t).key_or_group) for t in wrong if _parse(t).key_or_group in GROUPS)
        return f"{text}: no such choice; {choose(choices(group))}"
    if match := re.match(r"Ambiguous value for argument '(.+)' 1\. To use", message):
        key, _, values = match[1].partition("=")
        return f"{match[1]}: is a sweep; put -m before it to run each, or write {key}=[{values}] for one list"
    if match := re.match(r"Sweep parameters '(.+)' requires --multirun", message):
        return f"{match[1]}: is a sweep; put -m before it to run each"
    if match := re.match(r"Could not override '((?!hydra\.).+?)'\.", message):
        return _explain_key(match[1], name, overrides)
    if re.search(r"^Multiple values for |appears more than once|An item is already at ", message):
        text = next(t for t in overrides if t.startswith("+"))
        return f"{text}: is there already; write {text.lstrip('+')}"
    return message


def _explain_key(key: str, name: str, overrides: Sequence[str]) -> str:
    """The line for a key that is not in the configuration as the groups chosen in one of the jobs make it."""
    text = next((t for t in overrides if _parse(t).key_or_group == key), key)
    group, _, rest = key.partition(".")
    if key in GROUPS:
        return unknown_key(text, "", _chosen_groups(name, []))
    choice = rest.partition(".")[0]
    if group in MULTIPLE and choice in set(choices(group)).difference(
        *(_chosen_groups(name, job)[group] for job in expand("", overrides))
    ):
        return f"{text}: is a setting of {group}={choice}, which is not chosen; add it, as {group}=[{choice}]"
    parent, _, last = key.rpartition(".")
    for job in expand("", overrides):
        cfg = _chosen_groups(name, job)
        section, known = "", cfg
        for part in parent.split(".") if parent else []:
            if not isinstance(known.get(part), dict):
                break
            section, known = dotted(section, part), known[part]
        if section != parent or last not in known:
            break
    if "_target_" in known and not known["_target_"].startswith("posenc_train."):
        return unknown_key(text, section, known) + f"; write +{text} if your own class has that setting"
    return unknown_key(text, section, known, _keys(cfg))


def _chosen_groups(name: str, job: Sequence[str]) -> Config:
    """The configuration with the groups that a job chooses and none of its other overrides."""
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf

    chosen = [t for t in job if _parse(t).key_or_group in GROUPS or _parse(t).is_hydra_override()]
    with _one_line(name, chosen), _hydra():
        return OmegaConf.to_container(hydra_compose(name, chosen))


def _keys(cfg: Config, section: str = "") -> Iterator[str]:
    for key, value in cfg.items():
        yield dotted(section, key)
        if isinstance(value, dict):
            yield from _keys(value, dotted(section, key))


def _parse(text: str) -> Any:
    """Hydra's Override, or None if the text is none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException:
        return None


# ---------------------------------------------------------------- entry points


def entry(name: str, sweeps: bool = False) -> Callable[[Callable[[Config], None]], Callable[[], None]]:
    """Make a function of a checked configuration a command: conf/<name>.yaml with the command line on top.

    Exit codes: 2 for a mistake of the person (one line on stderr, `error: key=value: …`); 1 for a fault of
    ours (a traceback), for measurements that have no number although all else is done (Unmeasured, one line), and
    for a sweep (-m) with a job that failed, after the other jobs have run; 130 after Ctrl-C. With `sweeps` the
    command line may hold sweeps without -m: the function sees the first value of each, and `command_line()` what
    was written.
    """

    def decorate(main: Callable[[Config], None]) -> Callable[[], None]:
        @functools.wraps(main)
        def command() -> None:
            if code := _run(name, main, sweeps):
                sys.exit(code)

        return command

    return decorate


def _run(name: str, main: Callable[[Config], None], sweeps: bool) -> int:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    codes: list[int] = []

    @functools.wraps(main)  # Hydra names its application after the file that defines the function
    def job(cfg: DictConfig) -> None:
        sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        code = _attempt(lambda: _checked(cfg, main), f"[{' '.join(command_line())}] " if sweep else "")
        codes.append(min(code, 1) if sweep else code)

    def application() -> None:
        arguments = _read_arguments(sweeps)
        with _scratch(), _one_line(arguments.config_name or name, arguments.overrides):
            hydra.main(config_path=CONF, config_name=name, version_base="1.3")(job)()

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its exceptions instead of printing them
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    return _attempt(application) or max(codes, default=0)


def _interrupted(number: int, frame: Any) -> None:
    """Ctrl-C where there is nothing to save: at once, since an exception within an import of torch aborts."""
    print("interrupted", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _checked(cfg: DictConfig, main: Callable[[Config], None]) -> None:
    settings = plain(cfg)
    check(settings)
    main(settings)


def _attempt(work: Callable[[], None], where: str = "") -> int:
    """Do the work and return an exit code. Ctrl-C and sys.exit pass through."""
    try:
        work()
        return 0
    except UserError as e:
        print(f"error: {where}{' '.join(str(e).splitlines())}", file=sys.stderr)
        return 2
    except Unmeasured as e:
        print(f"error: {where}{e}", file=sys.stderr)
        return 1
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        print(f"error: {where}{e.strerror}: make room; the same command continues", file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1


_first_of: dict[str, str] = {}  # `seed=0` -> `seed=0,1`, where an entry point takes sweeps


def command_line() -> list[str]:
    """The running job's overrides as they were written, Hydra's own aside. Only within an entry point."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    return [_first_of.get(text, text) for text in OmegaConf.to_container(HydraConfig.get().overrides.task)]


def hydra_line() -> list[str]:
    """The running job's overrides of Hydra's own settings, such as hydra/launcher=joblib; as `command_line`."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    own = OmegaConf.to_container(HydraConfig.get().overrides.hydra) if HydraConfig.initialized() else []
    return [text for text in own if not text.startswith("hydra.mode=")]


def _read_arguments(sweeps: bool) -> Any:
    """The parsed command line; where the entry point takes sweeps, sys.argv keeps the first value of each."""
    from hydra._internal.utils import get_args_parser

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            arguments = get_args_parser().parse_args()
    except SystemExit as e:
        if not e.code:
            raise
        complaint = " ".join(said.getvalue().rpartition("error: ")[2].split())
        raise UserError(f"{complaint}; must be options such as -m, then overrides as key=value") from None
    if sweeps and arguments.multirun:
        raise UserError("-m: must be left out: the values of a sweep are cells of one study here")
    for text in arguments.overrides if sweeps else []:
        override = _parse(text)
        if override is not None and override.is_sweep_override():
            first = f"{override.get_key_element()}={next(iter(override.sweep_string_iterator()))}"
            _first_of[first] = text
            sys.argv[sys.argv.index(text)] = first
    return arguments


@contextlib.contextmanager
def _scratch() -> Iterator[None]:
    """A folder for what Hydra insists on writing in a sweep; conf/hydra_quiet.yaml reads the variable."""
    with tempfile.TemporaryDirectory(prefix="posenc-train-") as folder:
        os.environ["POSENC_TRAIN_SCRATCH"] = folder
        yield
