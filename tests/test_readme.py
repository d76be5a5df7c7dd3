"""Every command of README.md is run, with overrides appended that only shrink it; those that need a cluster, a login
or a download stand in blocks marked so, and their configuration is composed and checked."""

import csv
import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import wandb.cli.cli
from running import ROOT

from posenc_train import catalogue
from posenc_train.checks import choices
from posenc_train.config import UserError, cell_name, check, compose
from posenc_train.positions.base import Dims

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)([^\n]*)\n(.*?)^```", README, re.M | re.S)
SMALL = "model=nano optim.steps=3 optim.batch_size=4 study=readme logger=none"
SHRINK = {  # the command up to its first override -> what is appended
    "bash scripts/quickstart.sh": f"{SMALL} train_length=16 position=nope,alibi",
    "bash scripts/test.sh": "tests/test_absolute.py",
    "bash scripts/test.sh --scheme": "-k test_prefix",
    "python scripts/train.py": f"{SMALL} train_length=16",
    "python scripts/train.py -m": f"{SMALL} train_length=16",
    "python scripts/evaluate.py": "lengths=[16,40]",
    "python scripts/compare.py": "study=readme",
    "python scripts/dashboard.py": "study=readme",
    "python scripts/schemes.py": "",
    "python scripts/show_task.py": "",
    "python scripts/reproduce.py experiment=drope": f"{SMALL} train_length=16 trainer.threads=1",
    "python scripts/reproduce.py experiment=alibi_table5": "scale=smoke seeds=1 study=readme trainer.threads=1",
    "python scripts/reproduce.py experiment=extrapolation": f"{SMALL} train_length=32 position=nope trainer.threads=1",
}


def commands(needs: bool) -> list[str]:
    return [
        line
        for language, marks, text in BLOCKS
        if language == "sh" and ("needs=" in marks) == needs
        for line in text.strip().splitlines()
    ]


def shrunk(command: str) -> str:
    words = [word for word in shlex.split(command) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    whole = words[1].endswith("reproduce.py") or (len(words) > 2 and "=" not in words[2])
    program = " ".join(words[:3] if whole else words[:2])
    assert program in SHRINK, f"README.md has a command that no test runs: {command}"
    return f"{command} {SHRINK[program]}"


def schemes_in_readme() -> dict[str, str]:
    """The Python blocks that define a scheme: file name -> text."""
    return {
        f"{m[1].lower()}.py": text
        for lang, _, text in BLOCKS
        if lang == "python" and (m := re.search(r"class (\w+)\(", text))
    }


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """A home folder with the README's scheme in it, and a PATH on which python is this one."""
    home = tmp_path_factory.mktemp("home")
    (home / "schemes").mkdir()
    for name, text in schemes_in_readme().items():
        (home / "schemes" / name).write_text(text)
    shutil.rmtree(ROOT / "runs" / "readme", ignore_errors=True)
    yield os.environ | {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shutil.rmtree(ROOT / "runs" / "readme", ignore_errors=True)


@pytest.mark.parametrize("command", commands(needs=False))
def test_command(command, newcomer):
    line = shrunk(command)
    if "scripts/evaluate.py" in line:
        scheme = re.search(r"run=runs/default/(\w+)-text-", line)[1]
        trained = next((ROOT / "runs" / "readme").glob(f"{scheme}-text-*"))
        line = f"{line} run={trained.relative_to(ROOT)}"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=newcomer, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("command", commands(needs=True))
def test_command_that_needs_more_is_composed(command, tmp_path):
    ready = {"model_type": "gpt_neox", "max_position_embeddings": 2048}
    (tmp_path / "config.json").write_text(json.dumps(ready))  # for the folder of a model that the README names
    words = [re.sub(r"^model\.path=.*", f"model.path={tmp_path}", word) for word in shlex.split(command)]
    scripts = [i for i, word in enumerate(words) if re.fullmatch(r"scripts/(train|evaluate|reproduce)\.py", word)]
    for i in scripts:
        name, overrides = Path(words[i]).stem, words[i + 1 :]
        if "hydra/launcher=ray" in overrides and not importlib.util.find_spec("ray"):
            with pytest.raises(UserError, match="^hydra/launcher=ray: is not installed; pip install"):
                compose(name, overrides)
            overrides = [word for word in overrides if "launcher" not in word]
        check(compose(name, overrides))
    assert scripts or words[0] == "wandb" or words[-2:] == ["bash", "scripts/setup.sh"]
    if words[0] == "wandb":
        assert words[1] in wandb.cli.cli.cli.commands
        assert all(Path(ROOT, word).is_file() for word in words if word.endswith(".yaml"))


def test_the_notebook_of_the_readme(newcomer):
    """The Python that defines no scheme, of the study that the commands have trained."""
    (code,) = [text for language, _, text in BLOCKS if language == "python" and "class " not in text]
    assert "runs/default" in code
    code = code.replace("runs/default", "runs/readme")
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=newcomer, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and re.search(r"^alibi .*last@\d+ .*\d+\.\d+", done.stdout, re.M), (
        done.stdout + done.stderr
    )


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs them all")
def test_one_process_runs_the_commands(request):
    """Two at once would train the same cells."""
    assert request.node.nodeid.endswith("@test_readme.py")


def test_the_two_commands_come_first():
    assert commands(needs=False)[:2] == ["bash scripts/quickstart.sh", "bash scripts/test.sh"]
    assert README.index("```sh") < 600


@pytest.mark.parametrize("words", ["position=alibi task=text model=tiny train_length=128 seed=0", "position=rope"])
def test_the_run_folders_named_are_those_that_are_made(words):
    cell = cell_name(compose("train", words.split()))
    assert f"run=runs/default/{cell} " in README


def test_the_table_of_schemes_is_the_catalogue():
    cfg = compose("schemes", ["model=tiny", "train_length=128"])
    found = catalogue.entries(Dims(64, 4, 16, 3, cfg["train_length"]))
    shown = README.split("<!-- schemes -->\n")[1].split("<!-- /schemes -->")[0]
    assert shown == catalogue.markdown(found), "python scripts/schemes.py format=markdown prints it"


def test_every_experiment_is_named():
    named = set(re.findall(r"`(\w+)`", README.split("| `experiment=` |")[1].split("\n\n")[0]))
    assert named == set(choices("experiment"))


def test_what_it_shows_is_there():
    assert all((ROOT / path).is_file() for path in re.findall(r"\]\(([\w/.-]+)\)", README))
    for name in re.findall(r"^  (\w+(?:\.py|/))", README, re.M):  # the layout
        assert (ROOT / "posenc_train" / name).exists(), name


def test_the_tables_are_of_the_committed_rows():
    """Every number between the quickstart marks, computed again from posenc_train/data/quickstart.jsonl."""
    rows = [json.loads(line) for line in (ROOT / "posenc_train/data/quickstart.jsonl").read_text().splitlines()]
    scores = {(r["task"], r["protocol"], r["metric"], r["scheme"], r["length"]): r for r in rows}
    shown = README.split("<!-- quickstart -->")[1].split("<!-- /quickstart -->")[0]
    checked = 0
    for task, protocol, metric, value in (
        ("text", "same_targets(k=64)", "nll", lambda r: math.exp(r["total"] / r["count"])),
        ("copy", "free_running", "token", lambda r: r["total"] / r["count"]),
    ):
        part = next(p for p in shown.split("### ") if p.startswith(task))
        lines = [[c.strip() for c in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("|")]
        lengths = [int(re.search(r"x (\d+)", head)[1]) for head in lines[0][1:5]]
        for name, *cells in lines[2:]:
            for length, cell in zip(lengths, cells, strict=False):
                row = scores[task, protocol, metric, name, length]
                if row["status"] != "ok":
                    assert cell == row["status"]
                elif cell == "not learned":
                    assert value(scores[task, protocol, metric, name, lengths[0]]) < 0.95
                else:
                    cell = cell.split()[0]  # behind it a rate has its interval
                    digits = len(cell.partition(".")[2])
                    assert float(cell) == pytest.approx(value(row), abs=0.51 * 10**-digits)
                checked += 1
    assert checked == 4 * (6 + 4)


def test_the_table_of_five_tasks_is_of_the_committed_rows():
    rows = [json.loads(line) for line in (ROOT / "posenc_train/data/extrapolation.jsonl").read_text().splitlines()]
    whole = {(r["task"], r["scheme"], r["length"]): r for r in rows if "depth" not in r["slice"]}
    mean = {key: r["total"] / r["count"] for key, r in whole.items() if r["status"] == "ok"}
    shown = README.split("<!-- extrapolation -->\n")[1].split("<!-- /extrapolation -->")[0].splitlines()[2:]
    for scheme, gain, *rates, regret in ([c.strip() for c in line.split("|")[1:-1]] for line in shown):
        assert float(gain) == pytest.approx(mean["text", scheme, 128] - mean["text", scheme, 1024], abs=5.1e-4)
        for task, lengths, cell in zip(
            ("copy", "recall", "needle"), ((51, 102), (64, 128), (64, 128, 512)), rates, strict=True
        ):
            first, *others = cell.split(", ")
            wanted = [mean[task, scheme, length] for length in lengths]
            assert float(first) == pytest.approx(wanted[0], abs=5.1e-4)
            if wanted[0] < 0.95:
                assert others == ["not learned"]
            else:
                assert list(map(float, others)) == pytest.approx(wanted[1:], abs=5.1e-4)
        wanted = [mean["markov", scheme, length] for length in (64, 512)]
        assert list(map(float, regret.split(", "))) == pytest.approx(wanted, abs=5.1e-4)
    assert len(shown) == 5


def commented(path: str) -> list[dict[str, str]]:
    """The lines of a CSV file with comments at its top."""
    lines = (ROOT / "posenc_train" / "data" / path).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_the_verdicts_of_table_5_follow_from_the_committed_sums():
    """Means, effects and t-intervals over three seeds, by scipy alone."""
    loss = {
        (r["scheme"], int(r["train_length"]), int(r["length"]), r["protocol"], r["unit"], int(r["seed"])): r
        for r in commented("alibi_table5.csv")
    }
    loss = {key: float(r["total"]) / int(r["count"]) for key, r in loss.items()}
    theirs = {
        (r["scheme"], r["train_length"], r["length"]): r["value"] for r in commented("published/alibi_table5.csv")
    }

    def seeds(scheme, trained, length, protocol, unit):
        return [loss[scheme, trained, length, protocol, unit, seed] for seed in range(3)]

    block = README.split("<!-- alibi_table5 -->")[1].split("<!-- /alibi_table5 -->")[0]
    parts = [part.strip().splitlines() for part in block.split("\n\n") if part.strip().startswith("|")]
    grid, claims = ([[c.strip() for c in line.split("|")[1:-1]] for line in part] for part in parts)
    lengths = [int(head.replace(",", "")) for head in grid[0][1:]]
    checked = 0
    for name, *cells in grid[2:]:
        scheme, trained = ("sinusoidal", None) if "each" in name else ("alibi", int(name[7:].replace(",", "")))
        for length, cell in zip(lengths, cells, strict=True):
            if (scheme, str(trained or length), str(length)) not in theirs:
                assert cell == ""
                continue
            ours, shown = cell.split(" / ")
            mean = statistics.mean(seeds(scheme, trained or length, length, "nonoverlapping", "byte"))
            assert float(ours) == pytest.approx(math.exp(mean), abs=5.1e-3)
            assert shown == theirs[scheme, str(trained or length), str(length)]
            checked += 1
    assert checked == 30 + 8
    whole, same = ("nonoverlapping", "word"), ("same_targets(k=32)", "byte")
    sides = [
        (("alibi", 64, 3072, *whole), ("alibi", 64, 64, *whole)),
        (("alibi", 512, 3072, *whole), ("alibi", 64, 3072, *whole)),
        (("alibi", 512, 3072, *whole), ("sinusoidal", 3072, 3072, *whole)),
        (("alibi", 1024, 1024, *whole), ("sinusoidal", 1024, 1024, *whole)),
        (("alibi", 64, 3072, *same), ("alibi", 64, 64, *same)),
    ]
    for (verdict, _, effect, claimed), (left, right) in zip(claims[2:], sides, strict=True):
        differences = [a - b for a, b in zip(seeds(*left), seeds(*right), strict=True)]
        mean, half = statistics.mean(differences), 4.302653 * statistics.stdev(differences) / 3**0.5
        shown = list(map(float, re.findall(r"[+-]?\d+\.\d+", effect)))
        assert shown == pytest.approx([mean, mean - half, mean + half], abs=5.1e-5)
        side, margin = claimed.split()[0], float(claimed.split()[1])
        least, most = (mean - half, mean + half) if side == "above" else (-mean - half, half - mean)
        margin = margin if side == "above" else -margin
        assert verdict == ("holds" if least > margin else "does not hold" if most < margin else "undecided")


def test_the_results_show_what_the_literature_says():
    """The claims about the committed run: effects with a margin, on the same targets at 8x and on copying at 2x."""
    rows = [json.loads(line) for line in (ROOT / "posenc_train/data/quickstart.jsonl").read_text().splitlines()]
    nll = {(r["scheme"], r["length"]): r for r in rows if r["protocol"] == "same_targets(k=64)"}
    perplexity = {key: math.exp(r["total"] / r["count"]) for key, r in nll.items() if r["status"] == "ok"}
    ratio = {scheme: perplexity[scheme, 1024] / perplexity[scheme, 128] for scheme, n in perplexity if n == 1024}
    assert ratio["sinusoidal"] >= 1.5 and ratio["rope"] >= 1.5 and ratio["alibi"] <= 1.05 and ratio["t5"] >= 1.03
    assert perplexity["t5", 1024] < perplexity["sinusoidal", 1024]
    assert nll["learned", 256]["status"] == "beyond reach"
    copied = {(r["scheme"], r["length"]): r["total"] / r["count"] for r in rows if r["metric"] == "token"}
    assert copied["alibi", 51] >= 0.95 and copied["rope", 51] >= 0.95
    assert copied["alibi", 102] >= copied["rope", 102] + 0.3
