"""The configuration: what composes, what is refused and in which words, and the names that follow from it."""

import copy
import functools
import importlib
import inspect
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from running import interruptible

from posenc_train import checks, config
from posenc_train.config import UserError, cell_name, check, compose, expand, label, lengths, training_config

ROOT = Path(__file__).resolve().parents[1]


def composed(*overrides: str, name: str = "train") -> dict:
    """A checked configuration of one's own; each is composed once."""
    cfg = copy.deepcopy(_composed(name, overrides))
    check(cfg)
    return cfg


@functools.cache
def _composed(name: str, overrides: tuple[str, ...]) -> dict:
    return compose(name, overrides)


def with_value(cfg: dict, override: str) -> dict:
    """The configuration with a value set, in place, as Hydra reads it; far quicker than composing."""
    key, value = override.split("=")[0], config._parse(override).value()
    put(cfg, tuple(key.split(".")), getattr(value, "text", value))
    return checks.tidy(cfg)


def put(cfg: dict, path: tuple, value) -> None:
    """Sets a key; KeyError as the value deletes it."""
    for key in path[:-1]:
        cfg = cfg[key]
    if value is KeyError:
        del cfg[path[-1]]
    else:
        cfg[path[-1]] = value


def leaves(values: dict, path: tuple = (), inner: bool = False):
    """(path, value) of every value that is no dict; with `inner` of the dicts too."""
    for key, value in values.items():
        if inner or not isinstance(value, dict):
            yield (*path, key), value
        if isinstance(value, dict):
            yield from leaves(value, (*path, key), inner)


# ---------------------------------------------------------------- refused

# Overrides (after the entry point, if it is not train), and what the one line about them must hold.
WRONG = {
    # a wrong scheme, group or key: the nearest spelling, and what there is
    "position=rpoe": [
        "position=rpoe",
        "did you mean rope?",
        ", ".join(sorted(file.stem for file in Path(checks.CONF, "position").glob("*.yaml"))),
    ],
    "position=": ["position=''", "alibi, alibi_blockwise, alibi_rope"],
    "position=null": ["position=null", "alibi, alibi_blockwise, alibi_rope"],
    "position=[rope]": ["position=", "alibi, alibi_blockwise, alibi_rope"],
    "model=5": ["model=5", "base, hf, nano, small, tiny"],
    "protocol=[nonoverlaping]": ["nonoverlaping", "did you mean nonoverlapping?", "free_running"],
    "extension=[pj]": ["extension=pj", "choose one of abf, by_parts"],
    "optm.lr=3": ["optm.lr=3", "did you mean optim.lr?"],
    "trainer.max_steps=3": ["trainer.max_steps=3", "did you mean optim.steps?"],
    "seq_len=64": ["seq_len=64", "did you mean train_length?"],
    "++model.hedas=4": ["model.hedas=4", "did you mean model.heads?", "width, heads, layers"],
    "extension=[]": ["extension=[]", "at least one of abf, by_parts"],
    "protocol=[]": ["protocol=[]", "at least one of classified, free_running"],
    "positon=rope": ["positon=rope", "did you mean position?", "position, sampling, extension, task"],
    "model.hedas=4": ["model.hedas=4", "did you mean model.heads?", "width, heads, layers"],
    "position.bse=1": ["position.bse=1", "did you mean position.base?", "base, pairing"],
    "position=own": ["position._target_", "must be given", "wave.Wave"],
    "position=own position._target_=wave.Wave position.period=64": [
        "position.period=64",
        "+position.period=64",
    ],
    "position=own position._target_=wave": ["position._target_=wave", "must be a class", "wave.Wave"],
    "+position=rope": ["+position=rope", "write position=rope"],
    "~optim.lr": ["optim.lr", "missing"],
    "model=nano,tiny": ["model=nano,tiny", "-m"],
    "seed=0,1": ["seed=0,1", "-m", "seed=[0,1]"],
    "optim.lr": ["optim.lr", "must be key=value"],
    "init=epoch=3-step=10.ckpt": ["init=epoch=3-step=10.ckpt", "must be key=value"],
    "study=${nowhere}": ["study", "nowhere"],
    "protocol.same_targets=3": ["protocol.same_targets=3", "protocol.same_targets.<setting>=…"],
    # a wrong type or range
    "lengths=None": ["lengths=None", "or null"],
    "study=wandb": ["study=wandb", "not 'wandb'"],
    # keys that must agree
    "model.heads=5": ["model.heads=5", "model.width=64", "1, 2, 4, 8, 16, 32, 64"],
    "model.width=520 model.heads=8": ["model.heads=8", "head width 65", "even", "1, 2, 4, 5, 10"],
    "position=alibi model.width=130 model.heads=8": ["model.heads=8", "must divide model.width=130"],
    "task=copy train_length=4": ["train_length=4", "at least 5", "copy"],
    "task=copy protocol=[nonoverlapping]": ["protocol=[nonoverlapping]", "task=copy", "free_running"],
    "lengths=[32] protocol.same_targets.k=33": ["protocol.same_targets.k=33", "shortest evaluation length, 32"],
    "protocol=[free_running]": ["protocol=[free_running]", "task=text", "same_targets"],
    "model=hf model.path=x": ["model=hf", "scripts/evaluate.py"],
    "evaluate model=hf": ["model.path=???", "must be given"],
    "evaluate model=hf model.path=. task=text": ["model.path=.", "config.json"],
    "evaluate model=tiny task=text": ["model=tiny", "must be hf"],
    "evaluate run=. model=hf model.path=.": ["run=.", "no config.yaml"],
    "task.weights=[1]": ["task.weights=[1]", "one for each corpus"],
    "task.packed=reset task.contiguous=true": ["task.contiguous=true", "task.packed=reset"],
    "task.packed=reset sampling=shifted": ["sampling=shifted", "consecutive", "task.packed=joined"],
    "task.path=no/such/folder": ["task.path=no/such/folder", "no such file", "standard library"],
    # other entry points
    "evaluate": ["run", "must be given", "runs/<study>/<cell>"],
    "evaluate run=runs/x/y": ["run=runs/x/y", "no such run folder", "runs/<study>/<cell>"],
    "evaluate run=. protocol=[]": ["protocol=[]", "at least one of"],
    "compare gate=2": ["gate=2", "from 0 to 1"],
    "reproduce jobs=0": ["jobs=0", "at least 1"],
    "reproduce experiment=quick": ["experiment=quick", "did you mean quickstart?"],
}

# One wrong value in an otherwise right configuration (its groups are on the left).
WRONG_VALUES = {
    "": {
        "seed=-1": "an integer from 0 to",
        "seed=true": "an integer from 0 to",
        "seed=1.0": "an integer from 0 to",
        "train_length=0": "an integer of at least 1",
        "train_length=128.5": "an integer of at least 1",
        "lengths=0": "each an integer of at least 1",
        "lengths=[128,-1]": "each an integer of at least 1",
        "lengths=[]": "such as [128,512]",
        "lengths=": "a list, each an integer",
        "lengths=[128.5]": "a list, each an integer",
        "lengths=128.5": "a list, each an integer",
        "lengths='512'": "a list, each an integer",
        "lengths=on": "a list, each an integer",
        "factors=[1,true]": "each an integer",
        "factors=[0]": "each an integer of at least 1",
        "factors=[0.5]": "each an integer",
        "factors=null": "[1,2,4,8]",
        "study=a/b": "letters, digits",
        "study=.hidden": "not starting with '.'",
        "study=": "a name of letters",
        "init=runs/x/y": "runs/<study>/<cell>",
        "model.qk_norm=on": "true or false",
        "model.dropout=1": "below 1",
        "model.mlp=relu": "gelu, swiglu",
        "optim.lr=0": "above 0",
        "optim.lr=nan": "a number above 0",
        "optim.lr=fast": "a number above 0",
        "optim.steps=0": "at least 1",
        "optim.steps=10.0": "an integer",
        "optim.warmup=40": "from 0 to 1",
        "optim.betas=[0.9]": "[0.9,0.95]",
        "trainer.precision=16": "32, bf16",
        "trainer.threads=0": "at least 1, or null",
        "logger.mode=on": "offline, online, none",
        "position.base=-1": "above 1",
        "position.base=big": "a number",
        "position.pairing=both": "half, interleaved",
        "protocol.same_targets.k=0": "at least 1",
        "position.bse=1": "did you mean position.base? position has base, pairing",
        "model.hedas=4": "did you mean model.heads?",
        "lenghts=[64]": "did you mean lengths?",
        "task.path=None": "a path, or a list of several corpora, such as [books,code], or null",
        "task.hub=wikitext": "namespace/name",
        "task.longest=512": "at least the longest evaluation length, 1024",
    },
    "position=learned": {
        "position.beyond=warp": "refuse, clamp, wrap",
        "position.reach=64": "at least train_length=128",
    },
    "position=t5": {"position.shared=1": "true or false", "position.max_distance=16": "position.buckets=32"},
    "task=copy": {"task.alphabet=1": "at least 2", "lengths=[4]": "at least 5"},
}


def split(line: str) -> tuple[str, list[str]]:
    """The entry point, train unless it is named, and its overrides."""
    first, *rest = line.split()
    return (first, rest) if first in ("train", "evaluate", "compare", "reproduce") else ("train", line.split())


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_configuration_is_refused_in_one_line(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, overrides = split(line)
    with pytest.raises(UserError) as refusal:
        check(compose(name, overrides))
    message = str(refusal.value)
    assert "\n" not in message
    assert [part for part in WRONG[line] if part not in message] == [], message


@pytest.mark.parametrize("group, line", [(g, line) for g, lines in WRONG_VALUES.items() for line in lines])
def test_a_wrong_value_is_refused_with_its_key_and_what_is_allowed(group, line):
    cfg = with_value(composed(*group.split()), line)
    with pytest.raises(UserError) as refusal:
        check(cfg)
    message = str(refusal.value)
    key, _, value = line.partition("=")
    assert message.startswith(f"{key}="), message
    assert "\n" not in message
    assert WRONG_VALUES[group][line] in message
    assert value.strip("'[]") in message


def test_a_missing_run_names_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "default" / cell_name(composed())
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    with pytest.raises(UserError, match=f"did you mean runs/default/{folder.name}"):
        composed(f"run=runs/default/{folder.name[:-1]}", name="evaluate")


@pytest.mark.parametrize("line", ["train", "train task=copy position=t5", "evaluate run=.", "compare", "reproduce"])
def test_whatever_stands_in_a_configuration_check_answers(line):
    """A config.yaml may have been edited by hand: a value of any kind ends in a UserError, or is right."""
    name, overrides = split(line)
    cfg, refused = compose(name, overrides), 0
    junk = [None, True, -1, 10**400, 1.5, math.nan, "", "x", [], [None], {}, {"x": {}}, {1: 2}, KeyError]
    for (path, _), value in itertools.product(list(leaves(cfg, inner=True)), junk):
        changed = copy.deepcopy(cfg)
        put(changed, path, value)
        try:
            check(checks.tidy(changed))
        except UserError as refusal:
            refused += 1
            assert "\n" not in str(refusal)
    assert refused > 10


# ---------------------------------------------------------------- accepted


@pytest.mark.parametrize(
    "line",
    [
        "position=alibi model.width=132 model.heads=4",  # heads of width 33: only RoPE minds
        "position=t5 model.width=520 model.heads=8",
        "position=learned position.beyond=clamp position.reach=4096 lengths=[16] protocol.same_targets.k=16",
        "position=own position._target_=wave.Wave +position.period=64 +position.mode=on",
        "protocol=same_targets trainer.precision=bf16 study=a.b-c_d optim.clip=null task.path=.",
        "protocol=[per_position,per_position] factors=null lengths=[128]",
        "task=copy train_length=5 factors=1",
    ],
)
def test_what_looks_bad_but_is_fine_is_accepted(line):
    composed(*line.split())


def test_what_is_plainly_meant_is_taken():
    meant = "lengths=512 factors=2 trainer.precision=32 study=7 optim.lr=1 optim.betas=[0,.9] position.base=10000"
    cfg = composed(*meant.split())
    assert (cfg["lengths"], cfg["factors"]) == ([512], [2])
    assert (cfg["trainer"]["precision"], cfg["study"]) == ("32", "7")
    assert [type(x) for x in (cfg["optim"]["lr"], cfg["position"]["base"], cfg["optim"]["betas"][0])] == [float] * 3


def test_lengths_come_in_the_order_given_and_once():
    assert lengths({"factors": [8, 1, 8, 2], "lengths": None, "train_length": 128}) == [1024, 128, 256]
    assert lengths({"factors": [8, 1], "lengths": [300, 100, 300], "train_length": 128}) == [300, 100]


def test_every_file_of_every_group_composes_and_passes():
    single = [g for g in checks.GROUPS if g not in ("experiment", *checks.MULTIPLE)]
    columns = [[f"{g}={c}" for c in checks.choices(g) if c not in ("own", "hf")] for g in single]
    for overrides in itertools.zip_longest(*columns):
        composed(*filter(None, overrides), "model.layers=4")
    for group in checks.MULTIPLE:
        chosen = composed(f"{group}=[{','.join(checks.choices(group))}]")[group]
        assert set(chosen) - set(checks.AT) == set(checks.choices(group))


def test_the_settings_in_the_files_are_those_of_the_classes_with_the_same_defaults():
    """Else a class that is built without a configuration would be another than the one that is trained."""
    for group in checks.CLASS_GROUPS:
        for choice in [c for c in checks.choices(group) if c != "own"]:
            settings = dict(checks.file_settings(group, choice))
            module, _, name = settings.pop("_target_").rpartition(".")
            cls = getattr(importlib.import_module(module), name)
            parameters = inspect.signature(getattr(cls, "assemble", cls)).parameters
            defaults = {key: p.default for key, p in parameters.items() if key not in ("dims", "build", "parts")}
            settings.pop("parts", None)
            assert set(settings) <= set(defaults), (group, choice)
            if choice.replace("_", "") == name.lower():  # the class's own file, not a preset of it
                assert settings == defaults, (group, choice)


def test_what_is_checked_without_torch_is_what_the_tasks_say():
    for choice in checks.choices("task"):
        module, _, name = checks.file_settings("task", choice)["_target_"].rpartition(".")
        task = getattr(importlib.import_module(module), name)
        assert set(task.protocols) == set(checks.SCORES.get(name, checks.ASKED))


def test_a_file_has_the_settings_of_those_in_its_defaults_list(tmp_path, monkeypatch):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "text.yaml").write_text("_target_: a.B\nbos: false\nwindows: 64\n")
    (tmp_path / "task" / "wiki.yaml").write_text("defaults: [text, _self_]\nwindows: 8\n")
    monkeypatch.setattr(checks, "CONF", str(tmp_path))
    monkeypatch.setattr(checks, "file_settings", functools.cache(checks.file_settings.__wrapped__))
    assert dict(checks.file_settings("task", "wiki")) == {"_target_": "a.B", "bos": False, "windows": 8}


def test_an_own_class_by_name_or_from_an_own_folder(tmp_path):
    (tmp_path / "position").mkdir()
    (tmp_path / "position" / "wave.yaml").write_text("_target_: wave.Wave\nperiod: 64\n")
    named = composed("position=own", "position._target_=wave.Wave", "+position.period=64")
    filed = composed("position=wave", f"hydra.searchpath=[{tmp_path}]")
    assert named["position"] == filed["position"] == {"_target_": "wave.Wave", "period": 64}
    assert label(named, "position") == "wave.Wave(period=64)"
    assert label(filed, "position") == "wave(period=64)"
    assert cell_name(named).startswith("own-text-")
    assert cell_name(filed).startswith("wave-text-")
    with pytest.raises(UserError, match=r"did you mean position\.period\? position has period; write \+position"):
        composed("position=wave", f"hydra.searchpath=[{tmp_path}]", "position.perid=3")


# ---------------------------------------------------------------- names


def test_labels_tell_what_differs_from_the_file():
    line = "position.pairing=interleaved position.base=5e5 model.heads=2 task.path=. task.bos=true"
    cfg = composed(*line.split())
    assert label(cfg, "position") == "rope(base=500000.0, pairing=interleaved)"
    assert (label(cfg, "model"), label(cfg, "task")) == ("tiny(heads=2)", "text(bos=true)")
    assert label(cfg, "sampling") == "consecutive"
    assert {label(composed(), group) for group in checks.NAMED} == {"rope", "consecutive", "text", "tiny"}


CELL = re.compile(r"[A-Za-z0-9._-]{1,209}")


def another(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value * 2 + 1
    if isinstance(value, list):
        return [another(v) for v in value]
    return f"{value}/../x=1, [y]"


def test_two_training_configurations_never_share_a_folder():
    """Field bugs 51 and 56: every leaf that shapes the weights is swept, lists and paths too."""
    seen = {}
    for overrides in ([], ["task=copy", "position=t5"], ["position=learned"], ["position=sinusoidal"]):
        base = composed(*overrides)
        for path, value in leaves(training_config(base)):
            cfg = copy.deepcopy(base)
            put(cfg, path, another(value))
            assert training_config(cfg) != training_config(base)
            name = cell_name(cfg)
            assert CELL.fullmatch(name)
            assert seen.setdefault(name, training_config(cfg)) == training_config(cfg)
    assert len(seen) > 60


def test_what_does_not_shape_the_weights_shares_the_folder():
    for override in (
        "study=x", "lengths=[64]", "factors=[1]", "task.longest=4096", "task.eval_seed=1", "task.windows=3",
        "protocol.same_targets.k=3", "logger.mode=none", "trainer.threads=1", "trainer.checkpoint_every=7",
        "trainer.log_every=7", "trainer.workers=2", "optim.lr=0.002", "position.base=10000",
    ):  # fmt: skip
        assert cell_name(with_value(composed(), override)) == cell_name(composed())


@pytest.mark.parametrize("line", ["", "task=copy", "optim.lr=1e-5 optim.clip=null task.path=."])
def test_a_saved_configuration_is_the_same_and_its_folder_can_be_given_back(line, tmp_path, monkeypatch):
    cfg = composed(*line.split())
    again = yaml.safe_load(yaml.safe_dump(cfg))
    assert (again, cell_name(again)) == (cfg, cell_name(cfg))
    monkeypatch.chdir(tmp_path)
    folder = config.run_folder(cfg)
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    assert composed(f"run={folder}", name="evaluate")["run"] == folder.as_posix()


def test_a_strange_file_name_makes_a_plain_folder():
    cfg = composed()
    cfg["names"]["position"] = "my/own wave=1," + "x" * 300
    assert CELL.fullmatch(cell_name(cfg))


def test_a_sweep_is_expanded_by_hydras_grammar_and_an_extra_override_replaces():
    assert expand("position=nope,rope seed=0,1 task=text") == [
        [f"position={p}", f"seed={s}", "task=text"] for p in ("nope", "rope") for s in (0, 1)
    ]
    assert expand("seed=0 'lengths=[64, 128],[256]'", ["seed=range(2,4)", "model=nano"]) == [
        [f"seed={s}", f"lengths={n}", "model=nano"] for s in (2, 3) for n in ("[64,128]", "[256]")
    ]
    with pytest.raises(UserError, match=r"^optim\.lr: must be key=value"):
        expand("optim.lr")


# ---------------------------------------------------------------- commands

# Reports what it was given; seed 13 is a bug of ours, seed 14 waits for Ctrl-C.
APP = """
import json, sys, time
from posenc_train.config import cell_name, command_line, compose, entry

name = sys.argv.pop(1)

@entry(name, sweeps=name == "reproduce")
def main(cfg):
    cell = cell_name(compose("train", ["seed=1"]))  # as reproduce.py does, in the middle of a run
    print(json.dumps({"cfg": cfg, "cell": cell, "line": command_line()}), flush=True)
    if cfg.get("seed") == 13:
        raise RuntimeError("a bug of ours")
    if cfg.get("seed") == 14:
        time.sleep(60)

try:
    main()
finally:
    if "torch" in sys.modules:
        print("torch was imported")
"""


@pytest.fixture
def command(tmp_path):
    """Runs APP in an empty folder, which must be empty afterwards too."""
    (tmp_path / "app.py").write_text(APP)
    here = tmp_path / "here"
    here.mkdir()

    def run(line: str, folder: Path = here, package: Path = ROOT) -> subprocess.CompletedProcess:
        arguments = [sys.executable, "-W", "error", str(tmp_path / "app.py"), *line.split()]
        env = {**os.environ, "PYTHONPATH": str(package), "TMPDIR": str(tmp_path)}
        return subprocess.run(arguments, cwd=folder, env=env, capture_output=True, text=True, timeout=60)

    yield run
    assert list(here.iterdir()) == []
    assert list(tmp_path.glob("posenc-train-*")) == []  # where Hydra's multirun.yaml went


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Runs a command within this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # entry() sets these; monkeypatch puts back what was
    monkeypatch.setenv("POSENC_TRAIN_SCRATCH", "")

    def run(name: str, arguments: list[str]) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
        try:
            config.entry(name)(lambda cfg: print("ran"))()
            code = 0
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return run


def is_refused(code: int, stdout: str, stderr: str, line: str) -> None:
    assert (code, stdout) == (2, "")
    assert re.fullmatch(r"error: .+\n", stderr), stderr
    assert [part for part in WRONG.get(line, ()) if part not in stderr] == []


@pytest.mark.parametrize(
    "line",
    [
        "position=rpoe",
        "model.hedas=4",
        "model.heads=5",
        "evaluate",
        "train -m position=rpoe,rope optim.lrr=3",
    ],
)
def test_a_wrong_command_says_one_line_and_exits_with_2(line, command):
    name, overrides = split(line)
    result = command(" ".join([name, *overrides]))
    is_refused(result.returncode, result.stdout, result.stderr, line)  # stdout would tell of torch


@pytest.mark.parametrize(
    "line",
    [
        "positon=rope", "position=own", "lengths=None", "seed=0,1", "optim.lr", "study=wandb",
        "task.path=no/such/folder", "evaluate run=runs/x/y", "--model=nano", "--run --cfg job",
    ],
)  # fmt: skip
def test_more_wrong_commands(line, here):
    is_refused(*here(*split(line)), line)


def test_a_command_gets_plain_python_and_the_same_as_compose(command):
    line = "position=alibi lengths=512 optim.lr=1e-4"
    expected = composed(*line.split())
    assert {type(value) for _, value in leaves(expected)} <= {list, str, int, float, bool, type(None)}
    result = command(f"train {line}")
    assert (result.returncode, result.stderr) == (0, "")
    said = json.loads(result.stdout)
    assert said == {"cfg": expected, "cell": cell_name(composed("seed=1")), "line": line.split()}


def test_a_conf_beside_the_caller_is_not_picked_up_and_an_installed_one_is(command, tmp_path):
    """Field bug 57."""
    decoy, site = tmp_path / "decoy", tmp_path / "site"
    (decoy / "conf").mkdir(parents=True)
    (decoy / "conf" / "train.yaml").write_text("seed: 99\n")
    shutil.copytree(ROOT / "conf", site / "posenc_train" / "conf")
    for file in ("__init__.py", "config.py", "checks.py"):
        shutil.copy(ROOT / "posenc_train" / file, site / "posenc_train")
    result = command("train", folder=decoy, package=site)
    assert json.loads(result.stdout)["cfg"] == composed()
    assert [p.name for p in decoy.iterdir()] == ["conf"]


def test_a_sweep_runs_every_job_in_one_process_and_a_failing_job_does_not_stop_the_others(command):
    result = command("train -m seed=13,-1,1")
    assert result.returncode == 1
    assert [json.loads(line)["line"] for line in result.stdout.splitlines()] == [["seed=13"], ["seed=1"]]
    wrong = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert wrong == ["error: [seed=-1] seed=-1: must be an integer from 0 to 4294967295"]
    assert result.stderr.count("Traceback") == result.stderr.count("RuntimeError: a bug of ours") == 1


def test_a_sweep_without_a_failure_exits_with_0(here, tmp_path):
    assert here("train", ["-m", "seed=0,1"]) == (0, "ran\nran\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_bug_of_ours_keeps_its_traceback(command):
    result = command("train seed=13")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("RuntimeError: a bug of ours\n")


def test_ctrl_c_ends_with_130_and_one_line(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    arguments = [sys.executable, str(tmp_path / "app.py"), "train", "seed=14"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": interruptible}
    with subprocess.Popen(arguments, cwd=tmp_path, env=env, text=True, **pipes) as process:
        process.stdout.readline()  # it is inside main now
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "interrupted\n")


def test_an_entry_point_that_takes_sweeps_sees_the_first_and_can_ask_for_all(command):
    result = command("reproduce seed=3,4 model=nano,tiny optim.steps=5")
    assert result.stderr == ""
    said = json.loads(result.stdout)
    assert (said["cfg"]["seed"], said["cfg"]["names"]["model"]) == (3, "nano")
    assert said["line"] == ["seed=3,4", "model=nano,tiny", "optim.steps=5"]


def test_hydras_own_questions_are_answered(here):
    assert yaml.safe_load(here("train", ["--cfg", "job", "--resolve", "position=alibi"])[1]) == composed(
        "position=alibi"
    )
    assert "position: alibi" in here("train", ["--info", "defaults-tree", "position=alibi"])[1]
    code, helped, _ = here("train", ["--help"])
    assert code in (0, None)
    assert "position: alibi, alibi_blockwise, alibi_rope, blockwise, clipped, " in helped
