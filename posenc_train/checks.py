"""What a configuration may hold. Plain dicts in, one-line complaints out; imports no torch and no Hydra.

`check(cfg)` looks at every key by itself (RULES, CLASSES, PROTOCOLS), then at the keys that must agree.
The settings of a scheme, sampling or task of this package must be those of its YAML file, with values of the
same type; the settings of a user's own class are that class's business.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parent
# An installed wheel carries conf/ inside the package; in a checkout it stands beside it.
CONF = str(PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parent / "conf")

NAMED = ("position", "sampling", "task", "model")  # groups whose choice is in cfg["names"]
CLASS_GROUPS = ("position", "sampling", "task")  # groups whose settings go to a class
MULTIPLE = ("extension", "protocol")  # groups of which several files can be chosen at once
GROUPS = (*NAMED, *MULTIPLE, "optim", "trainer", "logger", "experiment")
SCALES = ("smoke", "laptop", "paper")  # of an experiment: does it run; what two cores can; the paper's own
# What a training configuration need not have.
OPTIONAL = ("run", "trust", "gate", "tolerance", "jobs", "experiment", "format", "only", "length", "samples")
OPTIONAL += ("scale", "seeds", "plan", "rerun", "tune", "budget")
NOT_ALWAYS = ("experiment.every",)  # nor does a section of it


class UserError(Exception):
    """A mistake of the person at the keyboard, in one line: `key=value: what is allowed; remedy`."""


# ---------------------------------------------------------------- rules for one value


class Rule(NamedTuple):
    allowed: str  # completes "must be …"
    test: Callable[[Any], bool]
    meant: Callable[[Any], Any] = lambda v: v  # the value that one of another type plainly stands for


def whole(low: int, high: int | None = None) -> Rule:
    """An integer in low … high, both included. true and 1.0 are not integers here."""
    text = f"an integer of at least {low}" if high is None else f"an integer from {low} to {high}"
    return Rule(text, lambda v: type(v) is int and low <= v and (high is None or v <= high))


def number(text: str, test: Callable[[float], bool]) -> Rule:
    """A finite number; 1 stands for 1.0, so that the two spellings are one configuration."""

    def finite(v: Any) -> bool:
        return type(v) in (int, float) and abs(v) < 1e300

    def meant(v: Any) -> Any:
        return float(v) if finite(v) else v

    return Rule(f"a number {text}".strip(), lambda v: finite(v) and test(v), meant)


def one_of(*choices: str) -> Rule:
    return Rule("one of " + ", ".join(choices), lambda v: v in choices, _as_text)


def maybe(rule: Rule) -> Rule:
    return Rule(f"{rule.allowed}, or null", lambda v: v is None or rule.test(v), rule.meant)


def list_of(rule: Rule, example: str) -> Rule:
    """A list of at least one; a single value stands for a list of one."""

    def test(v: Any) -> bool:
        return isinstance(v, list) and len(v) > 0 and all(map(rule.test, v))

    return Rule(f"a list, each {rule.allowed}, such as {example}", test, lambda v: [v] if rule.test(v) else v)


def by_scale(rule: Rule) -> Rule:
    """One value, or one for each scale."""
    each = f"; or one for each of {', '.join(SCALES)}"

    def scales(v: Any) -> bool:
        return isinstance(v, Mapping) and len(v) > 0 and set(v) <= set(SCALES)

    def meant(v: Any) -> Any:
        return {key: rule.meant(x) for key, x in v.items()} if scales(v) else rule.meant(v)

    return Rule(rule.allowed + each, lambda v: all(map(rule.test, v.values())) if scales(v) else rule.test(v), meant)


def pair_of(rule: Rule, example: str) -> Rule:
    def test(v: Any) -> bool:
        return isinstance(v, list) and len(v) == 2 and all(map(rule.test, v))

    def meant(v: Any) -> Any:
        return list(map(rule.meant, v)) if isinstance(v, list) else v

    return Rule(f"a list of two, each {rule.allowed}, such as {example}", test, meant)


def from_home(path: Any) -> Any:
    """A path below the home folder begins with ~: a configuration tells nobody who made it."""
    home = str(Path.home())
    inside = isinstance(path, str) and len(home) > 1 and (path == home or path.startswith(home + "/"))
    return "~" + path[len(home) :] if inside else path


def _scale(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() else value  # 8.0 and 8 are one scale


def _factors(value: Any) -> bool:
    number = all(type(v) in (int, float) and 1 <= v < 1e300 for v in value) if isinstance(value, list) else False
    return value == "search" or (number and len(value) > 0 and sorted(value) == value)


def _as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value  # Hydra reads precision=32 and study=2026 as integers


def _same_type(example: Any) -> Rule:
    if isinstance(example, bool):
        return FLAG
    if isinstance(example, int):
        return Rule("an integer", lambda v: type(v) is int)
    if isinstance(example, float):
        return number("", lambda v: True)
    return TEXT if isinstance(example, str) else Rule("anything", lambda v: True)


STUDY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
POSITIVE = number("above 0", lambda v: v > 0)
AT_LEAST_ZERO = number("of at least 0", lambda v: v >= 0)
FRACTION = number("from 0 to 1", lambda v: 0 <= v <= 1)
ABOVE_ZERO_TO_ONE = number("above 0 and at most 1", lambda v: 0 < v <= 1)
BELOW_ONE = number("of at least 0 and below 1", lambda v: 0 <= v < 1)
FLAG = Rule("true or false", lambda v: type(v) is bool)
ANY = Rule("anything", lambda v: True)
TEXT = Rule("a text", lambda v: type(v) is str and v != "")
PATH = Rule("a path", lambda v: type(v) is str and v not in ("", "None"))  # None was meant to be null
KEPT_PATH = Rule(PATH.allowed, PATH.test, lambda v: from_home(v))  # written into configurations that are shared
KEPT_PATHS = Rule(
    "a path, or a list of several corpora, such as [books,code]",
    lambda v: KEPT_PATH.test(v) or (isinstance(v, list) and len(v) > 0 and all(map(KEPT_PATH.test, v))),
    lambda v: [from_home(path) for path in v] if isinstance(v, list) else from_home(v),
)
HUB = Rule("namespace/name", lambda v: type(v) is str and re.fullmatch(r"[\w.-]+/[\w.-]+", v) is not None)
NAME = Rule(  # runs/wandb holds W&B's own files, and a leading dot would hide the folder
    "a name of letters, digits, '.', '_' and '-', not starting with '.', and not 'wandb'",
    lambda v: type(v) is str and STUDY.fullmatch(v) is not None and v.lower() != "wandb",
    _as_text,
)


def _one_extension(value: Any) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and isinstance(next(iter(value.values())), Mapping)


def _meant_extension(value: Any) -> Any:
    """Settings as those of a chosen extension: 4.0 and 4 are one scale here too."""
    if not _one_extension(value):
        return value
    ((name, settings),) = value.items()
    rules = EXTENSIONS.get(name, {})
    return {name: {key: rules[key].meant(v) if key in rules else v for key, v in settings.items()}}


UNDER = Rule("one extension with a number as its scale, such as {pi: {scale: 4}}", _one_extension, _meant_extension)
# Every key outside scheme, sampling, task and protocol. "" holds the keys at the top.
RULES: dict[str, dict[str, Rule]] = {
    "": {
        "study": NAME,
        "seed": whole(0, 2**32 - 1),
        "train_length": whole(1),
        "factors": maybe(list_of(whole(1), "[1,2,4,8]")),
        "lengths": maybe(list_of(whole(1), "[128,512]")),
        "init": maybe(KEPT_PATH),
        "under": maybe(UNDER),
        "run": maybe(PATH),
        "trust": FLAG,
        "gate": FRACTION,
        "tolerance": FRACTION,
        "jobs": maybe(whole(1)),
        "scale": one_of(*SCALES),
        "seeds": maybe(whole(1)),
        "plan": FLAG,
        "rerun": maybe(one_of("changed")),
        "budget": one_of("tokens", "flops", "time"),
        "format": one_of("text", "markdown"),
        "only": maybe(list_of(TEXT, "[fire,yarn]")),
        "length": whole(1),
        "samples": whole(1),
    },
    "model": {
        "width": whole(1),
        "heads": whole(1),
        "layers": whole(1),
        "causal": FLAG,
        "mlp": one_of("gelu", "swiglu"),
        "qk_norm": FLAG,
        "dropout": BELOW_ONE,
        "attention": one_of("auto", "reference", "fused"),
    },
    "optim": {
        "lr": POSITIVE,
        "steps": whole(1),
        "batch_size": whole(1),
        "warmup": FRACTION,
        "weight_decay": AT_LEAST_ZERO,
        "betas": pair_of(BELOW_ONE, "[0.9,0.95]"),
        "clip": maybe(POSITIVE),
        "decay_to": FRACTION,
    },
    "trainer": {
        "precision": one_of("32", "bf16"),
        "threads": maybe(whole(1)),
        "checkpoint_every": whole(1),
        "log_every": whole(1),
        "accelerator": one_of("auto", "cpu", "gpu"),
        "devices": whole(1),
        "workers": whole(0),
    },
    "tune": {"lr": maybe(list_of(POSITIVE, "[1e-3,2e-3,4e-3]"))},
    "logger": {"mode": one_of("offline", "online", "none")},
    "experiment": {  # posenc_train/experiments.py says more
        "title": TEXT,
        "source": TEXT,
        "matched": Rule("a list of sentences", lambda v: isinstance(v, list) and all(map(TEXT.test, v))),
        "not_matched": Rule("a list of sentences", lambda v: isinstance(v, list) and all(map(TEXT.test, v))),
        "published": maybe(TEXT),
        "every": by_scale(TEXT),
        "grid": by_scale(list_of(TEXT, "['position=nope,rope seed=0']")),
        "then": maybe(by_scale(list_of(TEXT, "['position=nope optim.steps=50']"))),
        "claims": Rule("a list", lambda v: isinstance(v, list)),
    },
}

HF = {"path": KEPT_PATH, "dtype": one_of("float32", "bfloat16")}  # of model=hf
HF_EXTENSIONS = ("none", "pi", "ntk", "by_parts", "yarn", "yarn_by_turns", "longrope", "abf")
# Ranges for settings of classes of this package. A setting that is not here keeps the type of its YAML file.
LONGEST = {"longest": maybe(whole(1)), "eval_seed": whole(0)}
EXAMPLES = {"examples": whole(1), **LONGEST}  # of every task that asks
EVALUATED = (*EXAMPLES, "windows")  # settings of a task that only an evaluation has
ALPHABET = {"alphabet": whole(2), **EXAMPLES}
SOURCE = ("path", "field", "hub", "subset", "files", "revision", "tokenizer", "bpe", "processes")
DEPTH = {"depth": list_of(FRACTION, "[0,0.5,1]")}  # of needles in text
KEYED = {"letters": whole(1, 26), "digits": whole(1, 9)}
PARTS = Rule(
    "schemes by name, each with its _target_, as in conf/position/rope_window.yaml",
    lambda v: isinstance(v, Mapping) and len(v) > 0 and all("_target_" in _as_mapping(part) for part in v.values()),
)
ABOVE_ONE = number("above 1", lambda v: v > 1)
TURNING = {"base": ABOVE_ONE, "pairing": one_of("half", "interleaved")}
FUSED = {
    "scale": POSITIVE,
    "fuse": one_of("add", "scaled_add", "concat", "gated"),
    "every_layer": FLAG,
    "position_width": maybe(whole(1)),
}
CLASSES: dict[str, dict[str, Rule]] = {
    "Sinusoidal": {"base": POSITIVE, **FUSED},
    "Learned": {"reach": maybe(whole(1)), "beyond": one_of("refuse", "clamp", "wrap"), **FUSED},
    "Integer": {"by_train_length": FLAG, **FUSED},
    "Clipped": {"clip": whole(1), "shared": FLAG},
    "Log2": {"buckets": whole(2, 60)},
    "Shaw": {"clip": whole(1), "sides": one_of("both", "key", "value"), "tied": FLAG},
    "TransformerXl": {"untied": FLAG, "clamp": maybe(whole(1)), "memory": whole(0)},
    "Alibi": {"learned": FLAG},
    "Sandwich": {"width": whole(2), "first": whole(0, 1)},
    "Fire": {"hidden": whole(1), "init_c": POSITIVE, "init_l": maybe(whole(1)), "shared": FLAG},
    "Fox": {"gate": one_of("data", "fixed"), "init": number("", lambda v: True), "t_min": POSITIVE, "t_max": POSITIVE},
    "Cope": {"positions": whole(1), "divide": FLAG},
    "PaTH": {"rank": whole(1), "taps": whole(1)},
    "Dape": {
        "parts": PARTS,
        "hidden": whole(1),
        "kernel": Rule("an odd integer of at least 1", lambda v: type(v) is int and v >= 1 and v % 2 == 1),
    },
    "Stack": {"parts": PARTS},
    "Heads": {
        "parts": PARTS,
        "share": Rule(
            "a fraction above 0 for each part, such as {alibi: 0.5, rope: 0.5}",
            lambda v: isinstance(v, Mapping) and len(v) > 0 and all(map(ABOVE_ZERO_TO_ONE.test, v.values())),
            lambda v: {key: ABOVE_ZERO_TO_ONE.meant(x) for key, x in v.items()} if isinstance(v, Mapping) else v,
        ),
    },
    "Layers": {"parts": PARTS, "pattern": list_of(TEXT, "[local,local,local,global]")},
    "Rope": {**TURNING, "fraction": ABOVE_ZERO_TO_ONE, "single": maybe(POSITIVE)},
    "PRope": {**TURNING, "fraction": FRACTION},
    "Xpos": {**TURNING, "gamma": POSITIVE, "scale_base": POSITIVE},
    "Fope": {**TURNING, "noise": AT_LEAST_ZERO, "floor": FLAG, "learned": FLAG},
    "Pope": {"base": ABOVE_ONE},
    "Ssmax": {"init": maybe(POSITIVE)},
    "Window": {"window": whole(1), "sinks": whole(0)},
    "Blockwise": {"block": maybe(whole(1))},
    "HardAlibi": {"masked": maybe(whole(0))},
    "T5": {"buckets": whole(2), "max_distance": whole(2), "shared": FLAG, "by_root_d": FLAG},
    "Shifted": {"longest": whole(1)},
    "Randomized": {"longest": whole(1), "draws": whole(1)},
    "Pose": {"longest": whole(1)},
    "Text": {
        "path": maybe(KEPT_PATHS),
        "field": maybe(TEXT),
        "hub": maybe(HUB),
        "subset": maybe(TEXT),
        "files": maybe(TEXT),
        "revision": maybe(TEXT),
        "tokenizer": maybe(KEPT_PATH),
        "bpe": maybe(whole(257)),
        "processes": whole(1),
        "weights": maybe(list_of(POSITIVE, "[2,1]")),
        "bos": FLAG,
        "packed": maybe(one_of("reset", "joined")),
        "contiguous": FLAG,
        "windows": whole(1),
        **LONGEST,
    },
    **dict.fromkeys(("Copy", "CopyTwice", "Reverse", "ReverseAndCopy", "Sorting", "Induction"), ALPHABET),
    "RepeatCopy": {"varied": FLAG, **ALPHABET},
    "Ngram": {"key_letters": whole(1), "answer": whole(1), "key": one_of("suffix", "prefix"), **ALPHABET},
    "Recall": {"keys": whole(2), "values": whole(2), "times": whole(1), **EXAMPLES},
    "KvLookup": {"key": whole(1), "value": whole(1), "queries": whole(1), **ALPHABET},
    "Nth": {"frame": one_of("start", "end"), "indices": whole(1), **ALPHABET},
    "ModularCounting": {"modulus": whole(2), "running": FLAG, **EXAMPLES},
    "Parity": {"running": FLAG, **EXAMPLES},
    "Addition": {"order": one_of("columns", "reversed", "plain"), "hints": whole(0), **EXAMPLES},
    "Markov": {"symbols": whole(2), "alpha": POSITIVE, "windows": whole(1), **LONGEST},
    "FarCopy": {"distance": whole(1), "probability": BELOW_ONE, "symbols": whole(2), "windows": whole(1), **LONGEST},
    "Order": {"direction": FLAG, "animals": whole(1), "verbs": whole(1), "fillers": whole(1), **LONGEST}
    | {"examples": Rule("an even integer of at least 2", lambda v: type(v) is int and v >= 2 and v % 2 == 0)},
    "Majority": {"animals": whole(1), "fillers": whole(1), **EXAMPLES},
    "Passkey": {**DEPTH, "digits": whole(1, 9), **EXAMPLES},
    "Needle": {**DEPTH, "digits": whole(1, 9), **EXAMPLES},
    "MultiKey": {"keys": list_of(whole(1), "[2,3]"), "queries": whole(1), **KEYED, **EXAMPLES},
    "MultiValue": {"values": whole(1), "digits": whole(1, 9), **EXAMPLES},
    "MultiQuery": {"queries": whole(1), **KEYED, **EXAMPLES},
    "VariableTracking": {
        "chains": whole(1),
        "hops": whole(1),
        "ask": one_of("way", "number"),
        **KEYED,
        **EXAMPLES,
    },
    "CommonWords": {"words": whole(2), "asked": whole(1), "ratio": whole(2), **EXAMPLES},
    "FrequentWords": {"words": whole(2), "asked": whole(1), "exponent": POSITIVE, **EXAMPLES},
}
for _name in ("Passkey", "Needle", "MultiKey", "MultiValue", "MultiQuery", "VariableTracking"):  # which stand in text
    CLASSES[_name] |= {_key: CLASSES["Text"][_key] for _key in SOURCE}
PROTOCOLS: dict[str, dict[str, Rule]] = {
    "nonoverlapping": {},
    "same_targets": {"k": maybe(whole(1))},
    "per_position": {},
    "recurrence": {"bytes": whole(1)},
    "sliding": {"stride": maybe(whole(1))},
    "masked_window": {"L": maybe(whole(1))},
    "window": {"L": maybe(whole(1)), "targets": maybe(whole(1))},
    "regret": {},
    "classified": {},
    "free_running": {},
    "teacher_forced": {},
    "validation": {},
}
AT = {"at": list_of(ABOVE_ZERO_TO_ONE, "[0.25,0.5,1]")}  # stands beside the protocols: when they are measured
SCALE = Rule(
    "a number of at least 1, or auto",
    lambda v: v == "auto" or (type(v) in (int, float) and 1 <= v < 1e300),
    _scale,
)
FACTORS = Rule(
    "search, or a list of numbers of at least 1 that do not decrease, one per pair of dimensions, such as [1,1.5,4,8]",
    _factors,
    lambda v: list(map(float, v)) if isinstance(v, list) and _factors(v) else v,
)
EXTENSIONS: dict[str, dict[str, Rule]] = {  # a setting that is not here keeps the type of its YAML file
    "none": {},
    "pi": {"scale": SCALE},
    "ntk": {"scale": SCALE},
    "by_parts": {"scale": SCALE, "alpha": POSITIVE, "beta": POSITIVE},
    "dynamic_ntk": {"factor": number("of at least 1", lambda v: v >= 1)},
    "yarn": {"scale": SCALE, "beta_fast": POSITIVE, "beta_slow": POSITIVE},
    "yarn_by_turns": {"scale": SCALE, "alpha": POSITIVE, "beta": POSITIVE},
    "longrope": {
        "scale": SCALE,
        "factors": FACTORS,
        "population": whole(2),
        "generations": whole(0),
        "tokens": whole(1),
    },
    "abf": {"base": ABOVE_ONE},
    "logn": {},
    "drope": {"scale": SCALE, "slope": AT_LEAST_ZERO},
    "rerope": {"scale": SCALE, "window": maybe(whole(1)), "logn": FLAG},
    "self_extend": {"scale": SCALE, "window": maybe(whole(1)), "group": maybe(whole(1))},
    "lm_infinite": {"scale": SCALE, "first": whole(0), "local": maybe(whole(1))},
    "sinks": {"scale": SCALE, "sinks": whole(0), "window": maybe(whole(1))},
}
ANYTHING = ("none", "logn", "drope")  # extensions that need no rotary positions
TWO_SPAN = ("rerope", "self_extend", "lm_infinite", "sinks")  # which give far pairs of tokens other positions
MASKING = ("lm_infinite", "sinks")  # those of them that hide keys as well, and so need no positions
EMBEDDED = ("Sinusoidal", "Learned", "Integer")
# Schemes that know no distance, or only to hide a pair.
PLACELESS = ("Nope", "Logn", "Ssmax", "Window", "Blockwise", "HardAlibi", "Cope", "PaTH")
ABOVE = {  # extension -> (a setting, the one that it must be above)
    "by_parts": ("beta", "alpha"),
    "yarn": ("beta_fast", "beta_slow"),
    "yarn_by_turns": ("beta", "alpha"),
}
NEXT_TOKEN = ("nonoverlapping", "same_targets", "per_position", "sliding", "masked_window", "window")
SCORES = {"Text": (*NEXT_TOKEN, "recurrence")}  # task -> its protocols; the others':
SCORES |= dict.fromkeys(("Markov", "FarCopy"), (*NEXT_TOKEN, "regret"))
SCORES |= dict.fromkeys(("Order", "Majority"), ("classified",))
ASKED = ("free_running", "teacher_forced")
ONE_SIDED = {  # schemes for which nothing may come after the query
    "Xpos": "xPos, which would grow towards the future",
    "Fox": "FoX, which forgets the past and nothing else",
    "Cope": "CoPE, which counts from a key on to the query",
    "PaTH": "PaTH, which multiplies from a key on to the query",
}
ROTARY = ("Rope", "PRope", "Xpos", "Fope", "Pope")  # schemes that an extension can stretch
SHORTEST = {  # tokens fed, by class, at the settings of its file; a task says at which it has another
    "Copy": 5,  # for one letter: (5 - 3) // 2
    "CopyTwice": 10,
    "Reverse": 5,
    "ReverseAndCopy": 10,
    "Sorting": 11,
    "RepeatCopy": 6,
    "Ngram": 14,
    "Recall": 9,
    "Induction": 5,
    "KvLookup": 10,
    "Nth": 7,
    "ModularCounting": 16,
    "Parity": 16,
    "Addition": 5,
    "FarCopy": 32,  # up to the first target that has a source
    "Order": 4,
    "Majority": 4,
    "Passkey": 10,  # one token of text beside 9 of needle, question and answer
    "Needle": 14,
    "MultiKey": 34,
    "MultiValue": 24,
    "MultiQuery": 27,
    "VariableTracking": 35,
    "CommonWords": 17,
    "FrequentWords": 37,
}


# ---------------------------------------------------------------- a whole configuration


def check(cfg: Mapping[str, Any]) -> None:
    """Raise UserError for the first thing in a configuration that cannot be right.

    Takes the configuration of any entry point; one that trains (has a model or a train_length) must be whole.
    """
    training = "run" not in cfg and ("train_length" in cfg or "model" in cfg)
    known = [*RULES[""], *GROUPS, "tune", "names"]
    _refuse_unknown("", cfg, known)
    _check_choices(cfg, training)
    if training:
        if _as_mapping(cfg.get("names")).get("model") == "hf":
            raise UserError(
                "model=hf: is evaluated, not trained: python scripts/evaluate.py model=hf model.path=<folder>"
            )
        _refuse_missing("", cfg, [key for key in known if key not in OPTIONAL])
        _check_names(cfg["names"])
    for section, values, rules in sections(cfg):
        _must_be_settings(section, values)
        if section:
            _refuse_unknown(section, values, rules)
        if section and section != "protocol" and training:
            _refuse_missing(section, values, [key for key in rules if dotted(section, key) not in NOT_ALWAYS])
        _check_values(section, values, rules)
    _check_paths(cfg)
    if training:
        _check_agreement(cfg)
    elif "run" in cfg:
        _check_evaluated(cfg)
    if "experiment" in cfg:
        from posenc_train import experiments  # which is made of what is here

        experiments.check(cfg["experiment"], _as_mapping(cfg.get("names")).get("experiment", ""))


def tidy(cfg: dict[str, Any]) -> dict[str, Any]:
    """Put what is plainly meant in place of a value of another type (RULES say what); returns cfg."""
    for _, values, rules in sections(cfg):
        if isinstance(values, dict):
            values |= {key: rule.meant(values[key]) for key, rule in rules.items() if key in values}
    return cfg


def lengths(cfg: Mapping[str, Any]) -> list[int]:
    """Evaluation lengths in tokens fed, in the order given, each once."""
    given = cfg["lengths"] or [factor * cfg["train_length"] for factor in cfg["factors"]]
    return list(dict.fromkeys(given))


def longest(cfg: Mapping[str, Any]) -> int:
    """The length of the evaluation texts, in tokens fed."""
    return cfg["task"].get("longest") or max(8 * cfg["train_length"], *lengths(cfg))


def protocols(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Name -> settings of the chosen protocols: all that stands in their group but `at`."""
    return {name: own for name, own in _as_mapping(cfg.get("protocol")).items() if name not in AT}


def steps_along(cfg: Mapping[str, Any]) -> list[int]:
    """The steps of the training, its last one aside, after which the protocols are measured too."""
    steps = cfg["optim"]["steps"]
    return sorted({max(1, round(part * steps)) for part in cfg["protocol"].get("at", ())} - {steps})


def sections(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Rule]]]:
    """(name, settings, rules) of every part of a configuration that has rules."""
    for section, rules in RULES.items():
        if section == "model" and _as_mapping(cfg.get("names")).get("model") == "hf":
            rules = HF
        if not section and "run" in cfg:
            rules = rules | {"train_length": maybe(rules["train_length"])}
        if not section or section in cfg:
            yield section, cfg[section] if section else cfg, rules
    for group in CLASS_GROUPS:
        for key, settings, file in _classes(cfg, group):
            known = CLASSES.get(_class_name(file["_target_"]), {})
            yield key, settings, {name: known.get(name) or _same_type(value) for name, value in file.items()}
    for name, settings in protocols(cfg).items():
        if name in PROTOCOLS:
            yield f"protocol.{name}", settings, PROTOCOLS[name]
    if "at" in _as_mapping(cfg.get("protocol")):
        yield "protocol", cfg["protocol"], AT | dict.fromkeys(PROTOCOLS, ANY)
    for name, settings in _as_mapping(cfg.get("extension")).items():
        file = file_settings("extension", name)
        if file is not None and _as_mapping(settings).get("_target_", file["_target_"]) == file["_target_"]:
            known = EXTENSIONS.get(name, {})
            yield f"extension.{name}", settings, {key: known.get(key) or _same_type(file[key]) for key in file}


def _classes(cfg: Mapping[str, Any], group: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(key, settings, those of its file) of every class of this package that a group names; a scheme may have parts,
    at any depth. A class is its file's if their _target_ is the same; any other is its author's business."""
    name = _as_mapping(cfg.get("names")).get(group)
    todo = [(group, cfg.get(group), file_settings(group, name) if isinstance(name, str) else None)]
    while todo:
        key, settings, file = todo.pop(0)
        target = _as_mapping(settings).get("_target_")
        if file is not None and file.get("_target_") == target:
            yield key, settings, file
        for part, inner in _as_mapping(_as_mapping(settings).get("parts")).items():
            todo.append((f"{key}.parts.{part}", inner, _by_target(group).get(_as_mapping(inner).get("_target_"))))


@functools.cache
def _by_target(group: str) -> Mapping[str, Mapping[str, Any]]:
    """The file of every class of a group; of a class with several files (stacks), the first."""
    files = [file_settings(group, name) for name in choices(group)]
    return {file["_target_"]: file for file in reversed(files)}


def kind(cfg: Mapping[str, Any], group: str) -> str:
    """The class of a scheme, sampling or task if it is one of this package with its own file, or ''."""
    return next((_class_name(file["_target_"]) for key, _, file in _classes(cfg, group) if key == group), "")


def schemes(cfg: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(key, class, settings) of the scheme and all of its parts, as far as their classes are of this package."""
    return [(key, _class_name(file["_target_"]), settings) for key, settings, file in _classes(cfg, "position")]


def _class_name(target: str) -> str:
    return target.rpartition(".")[2]


# ---------------------------------------------------------------- one key at a time


def _check_choices(cfg: Mapping[str, Any], training: bool) -> None:
    for group in [g for g in CLASS_GROUPS if g in cfg]:
        _must_be_settings(group, cfg[group])
        target = cfg[group].get("_target_")
        if not isinstance(target, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", target):
            raise UserError(f"{group}._target_={show(target)}: must be a class, such as wave.Wave in wave.py")
    for group in MULTIPLE if training or "run" in cfg else ():
        if not (protocols(cfg) if group == "protocol" else cfg.get(group)):
            raise UserError(f"{group}=[]: needs at least one of {', '.join(choices(group))}")
        _must_be_settings(group, cfg[group])
    _refuse_unknown("protocol", cfg.get("protocol", {}), [*PROTOCOLS, *AT])


def _check_names(names: Any) -> None:
    _must_be_settings("names", names)
    for group in NAMED:
        if not isinstance(names.get(group), str):
            raise UserError(f"{group}={show(names.get(group))}: must be one of {', '.join(choices(group))}")


def _check_values(section: str, values: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    for key, rule in rules.items():
        if key in values and not rule.test(values[key]):
            raise UserError(f"{dotted(section, key)}={show(values[key])}: must be {rule.allowed}")


def _must_be_settings(key: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise UserError(f"{key}={show(value)}: is a group; set one of its settings as {key}.<setting>=…")


def _refuse_unknown(section: str, values: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in values:
        if key not in known:
            raise UserError(unknown_key(f"{dotted(section, key)}={show(values[key])}", section, known))


def _refuse_missing(section: str, values: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in known:
        if key not in values:
            raise UserError(f"{dotted(section, key)}: is missing; take back what deleted it")


def _check_paths(cfg: Mapping[str, Any]) -> None:
    for key in ("run", "init"):
        if cfg.get(key) is not None:
            run_exists(key, cfg[key])
    remedies = {
        "path": "leave it out for the source of Python's standard library",
        "tokenizer": "leave it out for bytes",
    }
    for key, remedy in remedies.items():
        given = cfg["task"].get(key) if kind(cfg, "task") else None
        for path in given if isinstance(given, list) else [given]:
            if path is not None and not Path(path).expanduser().exists():
                raise UserError(f"task.{key}={path}: no such file or folder{_here(path)}; {remedy}")


def _check_evaluated(cfg: Mapping[str, Any]) -> None:
    """What an evaluation is of: a run of ours, or a model of transformers and a task."""
    names = _as_mapping(cfg.get("names"))
    if cfg["run"] is None and "model" not in cfg:
        raise UserError("run=null: must be given, as run=runs/<study>/<cell>, or model=hf model.path=<folder>")
    if "model" in cfg and names.get("model") != "hf":
        raise UserError(f"model={show(names.get('model'))}: must be hf here; a run has its own model")
    if cfg["run"] is not None:
        if extra := [key for key in ("model", "task") if key in cfg]:
            raise UserError(f"{extra[0]}={names[extra[0]]}: must be left out with run={cfg['run']}, which has its own")
        return
    path = cfg["model"]["path"]
    if not Path(path).expanduser().joinpath("config.json").is_file():
        raise UserError(f"model.path={path}: must be a folder with the config.json of a model of transformers")
    if "task" not in cfg:
        raise UserError("task=null: must be given with model=hf, such as task=text")


def check_foreign(cfg: Mapping[str, Any]) -> None:
    """What a model of transformers can be asked, of its configuration as one of a run of ours."""
    _check_task(cfg)
    _check_protocol(cfg)
    for name in cfg["extension"]:
        if name not in HF_EXTENSIONS:
            raise UserError(f"extension={name}: must be one of {', '.join(HF_EXTENSIONS)} with model=hf")
    if "masked_window" in cfg["protocol"]:
        raise UserError("protocol=masked_window: must be left out with model=hf, whose attention takes no other mask")
    if (packed := cfg["task"].get("packed")) is not None:
        raise UserError(f"task.packed={packed}: must be null with model=hf, which takes one document a row")
    if _class_name(cfg["task"]["_target_"]) in ("Order", "Majority"):
        raise UserError(f"task={cfg['names']['task']}: must be one of next tokens or answers with model=hf")


def run_exists(key: str, path: str) -> Path:
    """The run folder at `path`, or a UserError that names the nearest one."""
    folder = Path(path).expanduser()
    if (folder / "config.yaml").is_file():
        return folder
    what = "has no config.yaml, so it is no run folder" if folder.is_dir() else "no such run folder"
    runs = sorted(p.parent.as_posix() for p in Path("runs").glob("*/*/config.yaml"))
    remedy = nearest(path, runs) or "must be runs/<study>/<cell>" + ("" if runs else ", and there is none yet")
    raise UserError(f"{key}={path}: {what}{_here(path)}; {remedy}")


def _here(path: str) -> str:
    return "" if Path(path).is_absolute() else " in the current folder"


# ---------------------------------------------------------------- keys that must agree


def _check_agreement(cfg: Mapping[str, Any]) -> None:
    if cfg["lengths"] is None and cfg["factors"] is None:
        raise UserError("factors=null: must be a list of integers, such as [1,2,4,8], where lengths=null")
    _check_heads(cfg)
    batch, devices = cfg["optim"]["batch_size"], cfg["trainer"].get("devices", 1)
    if batch % devices:
        raise UserError(f"trainer.devices={devices}: must divide optim.batch_size={batch}; "
                        f"choose one of {_divisors(batch)}")  # fmt: skip
    _check_scheme(cfg)
    _check_sampling(cfg)
    _check_extensions(cfg)
    _check_task(cfg)
    _check_memory(cfg)
    _check_under(cfg)
    _check_protocol(cfg)


def _check_heads(cfg: Mapping[str, Any]) -> None:
    width, heads = cfg["model"]["width"], cfg["model"]["heads"]
    if width % heads:
        raise UserError(f"model.heads={heads}: must divide model.width={width}; {choose(_divisors(width))}")
    if any(scheme in ROTARY for _, scheme, _ in schemes(cfg)) and width // heads % 2:
        head = f"makes the head width {width // heads} with model.width={width}"
        even = f"position={cfg['names']['position']} rotates pairs and must have an even one"
        remedy = choose(_divisors(width // 2)) if width % 2 == 0 else "choose an even model.width"
        raise UserError(f"model.heads={heads}: {head}, but {even}; {remedy}")


def _divisors(n: int) -> list[str]:
    return [str(d) for d in range(1, min(n, 1024) + 1) if n % d == 0]  # nobody wants more heads


def _check_scheme(cfg: Mapping[str, Any]) -> None:
    train_length = cfg["train_length"]
    for key, scheme, settings in schemes(cfg):
        if scheme == "T5":
            exact = settings["buckets"] // (2 if cfg["model"]["causal"] else 4)
            if exact < 1 or settings["max_distance"] <= exact:
                least = f"more than {exact}, the number of exact buckets that {key}.buckets={settings['buckets']} gives"
                raise UserError(f"{key}.max_distance={settings['max_distance']}: must be {least}, and those at least 1")
        if scheme == "Learned" and (settings["reach"] or train_length) < train_length:
            least = f"at least train_length={train_length}, or null for exactly that"
            raise UserError(f"{key}.reach={settings['reach']}: must be {least}")
        if (
            scheme == "Rope"
            and settings["single"] is not None
            and settings["base"] != file_settings("position", "rope")["base"]
        ):
            one = f"{key}.single={show(settings['single'])} is the frequency of all pairs"
            raise UserError(f"{key}.base={show(settings['base'])}: must be left out, since {one}")
        if scheme in ("Heads", "Layers"):
            _check_parts(cfg, key, settings)
        if scheme in ONE_SIDED and not cfg["model"]["causal"]:
            raise UserError(
                f"model.causal=false: {key} is {ONE_SIDED[scheme]}; choose another scheme or model.causal=true"
            )
        if scheme == "Fox":
            _check_fox(key, settings)


def _check_fox(key: str, settings: Mapping[str, Any]) -> None:
    """Each gate has settings of its own."""
    file = file_settings("position", "fox")
    for name in ("init",) if settings["gate"] == "fixed" else ("t_min", "t_max"):
        if settings[name] != file[name]:
            other = "data" if settings["gate"] == "fixed" else "fixed"
            told = f"is a setting of {key}.gate={other}, and the gate is {settings['gate']}"
            raise UserError(f"{key}.{name}={show(settings[name])}: must be left out; it {told}")
    if settings["t_max"] < settings["t_min"]:
        raise UserError(
            f"{key}.t_max={show(settings['t_max'])}: must be at least {key}.t_min={show(settings['t_min'])}"
        )


def _check_parts(cfg: Mapping[str, Any], key: str, settings: Mapping[str, Any]) -> None:
    """What the heads or the layers of a model are given to."""
    parts, heads, layers = settings["parts"], cfg["model"]["heads"], cfg["model"]["layers"]
    if (pattern := settings.get("pattern")) is not None:
        if set(pattern) != set(parts):
            raise UserError(f"{key}.pattern={show(pattern)}: must be made of all the parts, {', '.join(parts)}")
        if len(pattern) > layers:
            raise UserError(f"model.layers={layers}: must be at least {len(pattern)}, as {key}.pattern={show(pattern)}")
    if (share := settings.get("share")) is not None:
        told = "{" + ", ".join(f"{name}: {show(value)}" for name, value in share.items()) + "}"
        counts = [value * heads for value in share.values()]
        if set(share) != set(parts):
            raise UserError(f"{key}.share={told}: must name the parts, {', '.join(parts)}, and no others")
        if any(abs(count - round(count)) > 1e-6 for count in counts) or round(sum(counts)) != heads:
            whole_heads = f"fractions of model.heads={heads} that make whole heads, together all of them"
            raise UserError(f"{key}.share={told}: must be {whole_heads}")


def _check_sampling(cfg: Mapping[str, Any]) -> None:
    sampling, longest = cfg["names"]["sampling"], cfg["sampling"].get("longest")
    if not kind(cfg, "sampling") or longest is None:
        return
    must = f"sampling.longest={longest}: must be at least"
    if longest < cfg["train_length"]:
        raise UserError(f"{must} train_length={cfg['train_length']}: each of its tokens has a position below it")
    if kind(cfg, "sampling") == "Randomized" and longest < max(lengths(cfg)):
        most = f"the longest evaluation length, {max(lengths(cfg))}, with sampling={sampling}"
        raise UserError(f"{must} {most}; raise it or evaluate at shorter lengths")
    tables = [(key, settings) for key, scheme, settings in schemes(cfg) if scheme == "Learned"]
    for key, settings in tables:
        if settings["beyond"] == "refuse" and (settings["reach"] or cfg["train_length"]) < longest:
            least = f"at least sampling.longest={longest} with sampling={sampling}"
            raise UserError(f"{key}.reach={show(settings['reach'])}: must be {least}; or choose {key}.beyond=clamp")


def _check_extensions(cfg: Mapping[str, Any]) -> None:
    """Of classes that are not of this package nobody knows here what is in them: building the model asks them."""
    for name, settings in cfg["extension"].items():
        if name not in EXTENSIONS or settings["_target_"] != file_settings("extension", name)["_target_"]:
            continue
        upper, lower = ABOVE.get(name, ("", ""))
        if upper and not settings[upper] > settings[lower]:
            least = f"above extension.{name}.{lower}={show(settings[lower])}"
            raise UserError(f"extension.{name}.{upper}={show(settings[upper])}: must be a number {least}")
        able = ROTARY + ("Learned",) * (name == "pi")
        targets = list(_targets(cfg["position"]))
        ours = all(target in _by_target("position") for target in targets)
        if name in TWO_SPAN:
            _check_two_span(cfg, name, [_class_name(target) for target in targets] if ours else [])
        elif name not in ANYTHING and ours and not any(_class_name(target) in able for target in targets):
            raise UserError(nothing_to_extend(name, cfg["names"]["position"]))


def _check_two_span(cfg: Mapping[str, Any], name: str, classes: list[str]) -> None:
    position = cfg["names"]["position"]
    if not cfg["model"]["causal"]:
        raise UserError(f"model.causal=false: must be true with extension={name}, which is for distances to the past")
    if set(classes) & set(EMBEDDED):
        raise UserError(
            f"extension={name}: position={position} enters the embedding, where positions cannot differ from pair to "
            f"pair; choose one of {', '.join(ANYTHING)}, or a position that enters attention, such as rope or alibi"
        )
    if name not in MASKING and classes and not set(classes) - {*PLACELESS, "Stack", "Heads", "Layers"}:
        raise UserError(nothing_to_extend(name, position))


def nothing_to_extend(extension: str, position: str) -> str:
    if extension in TWO_SPAN:
        return (
            f"extension={extension}: position={position} has no distances to change; "
            f"choose one of {', '.join((*ANYTHING, *MASKING))}, or a position such as rope or alibi"
        )
    return (
        f"extension={extension}: position={position} has no rotary positions to extend; "
        f"choose one of {', '.join(ANYTHING)}, or a rotary position such as rope"
    )


def _targets(position: Any) -> Iterator[Any]:
    """The class of a scheme and of all of its parts, at any depth."""
    yield _as_mapping(position).get("_target_")
    for part in _as_mapping(_as_mapping(position).get("parts")).values():
        yield from _targets(part)


def _check_task(cfg: Mapping[str, Any]) -> None:
    task, asked = cfg["names"]["task"], lengths(cfg)
    shortest = _shortest(cfg)
    for key, value in {"train_length": [cfg["train_length"]], "lengths": asked}.items():
        if min(value) < shortest:
            raise UserError(f"{key}={min(value)}: must be at least {shortest}, the least of task={task}")
    for one, other in ("path", "hub"), ("tokenizer", "bpe"):
        if kind(cfg, "task") and None not in (cfg["task"].get(one), cfg["task"].get(other)):
            raise UserError(f"task.{one}={cfg['task'][one]}: must be null where task.{other} is given")
    if kind(cfg, "task") == "Text":
        _check_text(cfg)
    longest = cfg["task"].get("longest")
    if kind(cfg, "task") and longest is not None and longest < max(asked):
        least = f"at least the longest evaluation length, {max(asked)}, or null for that"
        raise UserError(f"task.longest={longest}: must be {least}")


def _check_text(cfg: Mapping[str, Any]) -> None:
    task = cfg["task"]
    several = len(task["path"]) if isinstance(task["path"], list) else 1
    if task["weights"] is not None and (several == 1 or len(task["weights"]) != several):
        raise UserError(
            f"task.weights={show(task['weights'])}: must be null, or one for each corpus of a list task.path=[…]"
        )
    if task["packed"] is not None and task["contiguous"]:
        raise UserError(f"task.contiguous=true: must be false with task.packed={task['packed']}")
    sampling = cfg["names"]["sampling"]
    if task["packed"] == "reset" and kind(cfg, "sampling") and sampling != "consecutive":
        told = "which gives every document the positions from 0; or choose task.packed=joined"
        raise UserError(f"sampling={sampling}: must be consecutive with task.packed=reset, {told}")


def _shortest(cfg: Mapping[str, Any]) -> int:
    """Of a task at the settings of its file. At others it may be another, and the task itself refuses what is less."""
    file = file_settings("task", cfg["names"]["task"]) or {}
    same = all(cfg["task"].get(key) == value for key, value in file.items() if key not in EVALUATED)
    return SHORTEST.get(kind(cfg, "task"), 1) if same else 1


def under(cfg: Mapping[str, Any]) -> tuple[str, dict[str, Any], int] | None:
    """The extension that a model trains under, its settings with those of its file, and the trained length that it
    extends; None: none."""
    if cfg.get("under") is None:
        return None
    ((name, settings),) = cfg["under"].items()
    whole = dict(file_settings("extension", name)) | settings
    return name, whole, whole.pop("trained", cfg["train_length"])


def _check_under(cfg: Mapping[str, Any]) -> None:
    if cfg.get("under") is None:
        return
    ((name, settings),) = cfg["under"].items()
    if name not in EXTENSIONS or name == "none":
        others = [choice for choice in EXTENSIONS if choice != "none"]
        raise UserError(join(f"under.{name}: no such extension;", nearest(name, others), choose(others)))
    rules = EXTENSIONS[name] | {"trained": whole(1)}
    _refuse_unknown(f"under.{name}", settings, rules)
    _check_values(f"under.{name}", settings, rules)
    if "scale" in EXTENSIONS[name] and settings.get("scale", "auto") == "auto":
        raise UserError(f"under.{name}.scale=auto: must be a number of at least 1: a training has one scale")


def _check_memory(cfg: Mapping[str, Any]) -> None:
    """Segment recurrence: what comes before a segment must be what came before it in the text."""
    key, memory = max(
        ((key, s.get("memory") or 0) for key, _, s in schemes(cfg)), key=lambda pair: pair[1], default=("", 0)
    )
    if not memory:
        return
    told = f"{key}.memory={memory}; or {key}.memory=0"
    for key, value, wanted in (
        ("task.contiguous", cfg["task"].get("contiguous", kind(cfg, "task") == ""), True),
        ("task.bos", cfg["task"].get("bos", False), False),
        ("sampling", cfg["names"]["sampling"] if kind(cfg, "sampling") else "consecutive", "consecutive"),
        ("model.causal", cfg["model"]["causal"], True),
        ("trainer.devices", cfg["trainer"].get("devices", 1), 1),
    ):
        if value != wanted:
            raise UserError(f"{key}={show(value)}: must be {show(wanted)} with {told}")


def _check_protocol(cfg: Mapping[str, Any]) -> None:
    task, chosen = cfg["names"]["task"], protocols(cfg)
    own = kind(cfg, "task")
    scores = (*SCORES.get(own, ASKED if own else chosen), "validation")
    if not set(scores) & set(chosen):
        raise UserError(f"protocol=[{','.join(chosen)}]: does not score task={task}; {choose(scores)}")
    shortest = min(lengths(cfg))
    for name, key in (("same_targets", "k"), ("sliding", "stride")):
        value = chosen.get(name, {}).get(key)
        if name in scores and value and value > shortest:  # the default, null, is left out at lengths shorter than it
            least = f"at most the shortest evaluation length, {shortest}, or null"
            raise UserError(f"protocol.{name}.{key}={show(value)}: must be {least}")
    alone = chosen.get("window", {}).get("L") or cfg["train_length"]
    if "window" in chosen and "window" in scores and alone > longest(cfg):
        most = f"at most the length of the evaluation texts, {longest(cfg)}; or give task.longest={alone}"
        raise UserError(f"protocol.window.L={alone}: must be {most}")


# ---------------------------------------------------------------- what the files say


def choices(group: str) -> list[str]:
    """The files of a group of this package."""
    return sorted(file.stem for file in Path(CONF, group).glob("*.yaml"))


@functools.cache
def file_settings(group: str, name: str) -> Mapping[str, Any] | None:
    """conf/<group>/<name>.yaml as plain values, with those of the files that its defaults list names, each at the place
    that the list gives (`rope@parts.rope`).

    None if there is no such file (a user's own, in another folder).
    """
    from omegaconf import OmegaConf

    if name not in choices(group):
        return None
    own = OmegaConf.to_container(OmegaConf.load(Path(CONF, group, f"{name}.yaml")))
    layers = []
    for item in own.pop("defaults", []):
        if item != "_self_":
            other, _, place = item.partition("@")
            inherited = dict(file_settings(group, other))
            for key in reversed(place.split(".")) if place else ():
                inherited = {key: inherited}
            layers.append(inherited)
    return MappingProxyType(OmegaConf.to_container(OmegaConf.merge(*layers, own)))


# ---------------------------------------------------------------- wording


def dotted(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key


def show(value: Any) -> str:
    """A value as one would type it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(show, value)) + "]"
    return str(value) if value != "" else "''"


def choose(options: Iterable[str]) -> str:
    return f"choose one of {', '.join(options)}"


def nearest(word: str, known: Iterable[str]) -> str:
    """'did you mean …?' or ''."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}?" if close else ""


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


CALLED = {  # what others call a setting -> ours
    **dict.fromkeys(("max_steps", "train_steps", "num_steps", "epochs", "max_epochs"), "optim.steps"),
    **dict.fromkeys(("learning_rate", "max_lr"), "optim.lr"),
    **dict.fromkeys(("seq_len", "seq_length", "context_length", "block_size", "max_length"), "train_length"),
}


def unknown_key(override: str, section: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """The line for `key=value` whose key is not among the `known` ones of its section."""
    allowed = [key for key in known if key not in ("_target_", "names")]
    key = override.partition("=")[0].lstrip("+~")
    guess = nearest(key, [*(dotted(section, key) for key in allowed), *elsewhere])
    if ours := CALLED.get(key.rpartition(".")[2]):
        guess = f"did you mean {ours}?"
    has = f"has {', '.join(allowed)}" if allowed else "has no settings"
    return join(f"{override}: no such key;", guess, section or "the configuration", has)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
