"""The set-up, the scripts around it, and what holds for the repository as a whole."""

import ast
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import conftest
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): version
    for name, version in (line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
}


# The scripts, with a Python and a uv that note down what they are asked and install nothing

FAKE_PYTHON = """#!/usr/bin/env bash
case "$*" in
  *_base_executable*) echo "$BIN/python3.11" ;;
  *"-m venv"*) echo "venv $*" >>"$CALLS"; mkdir -p .venv/bin; cp "$BIN/python3.11" .venv/bin/python ;;
  *"-m pip install"*) echo "pip $*" >>"$CALLS"; sleep "${SLOW:-0}"; echo "${FAILS:-}"; [ -z "${FAILS:-}" ] ;;
  *"import datasets"*) echo "import $*" >>"$CALLS" ;;
  *"-m pytest"* | *scripts/*.py*) printf "<%s> " run "$@" >>"$CALLS" ;;
  *) exec "$REAL_PYTHON" "$@" ;;
esac
"""
FAKE_UV = """#!/usr/bin/env bash
[ "$*" = --version ] && exit
echo "uv $*" >>"$CALLS"
env | grep -E '^(UV_|SSL_)' | sort >"$CALLS.uv"
"""


class Checkout:
    """A copy of the scripts in a folder of its own, with only the fakes and the system's tools on PATH."""

    def __init__(self, folder: Path, uv: bool):
        self.root, self.bin, self.calls_file = folder / "checkout", folder / "bin", folder / "calls"
        (self.root / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        for name in (
            "pyproject.toml",
            "constraints.txt",
            *(f"scripts/{n}.sh" for n in ("setup", "test", "quickstart")),
        ):
            shutil.copy(ROOT / name, self.root / name)
        self.executable("python3.11", FAKE_PYTHON)
        if uv:
            self.executable("uv", FAKE_UV)
        real = Path(sys.executable).resolve()
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder),
            "CALLS": str(self.calls_file),
        }
        self.environment |= {"BIN": str(self.bin), "REAL_PYTHON": str(real), "PIP_CONFIG_FILE": "/dev/null"}

    def executable(self, name: str, text: str):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, script: str, *args: str, **environment: str) -> subprocess.Popen:
        command = ["bash", self.root / "scripts" / f"{script}.sh", *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(command, cwd="/", env=self.environment | environment, text=True, **pipes)

    def run(self, script: str = "setup", *args: str, **environment: str) -> tuple[int, str, list[str]]:
        """Exit code, what it printed, and the first word of each call that the fakes got."""
        self.calls_file.write_text("")
        process = self.start(script, *args, **environment)
        printed = "".join(process.communicate())
        return process.returncode, printed, [line.split()[0] for line in self.calls()]

    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines()


@pytest.fixture(params=["pip", "uv"])
def checkout(request, tmp_path) -> Checkout:
    return Checkout(tmp_path, uv=request.param == "uv")


@pytest.fixture
def with_pip(tmp_path) -> Checkout:
    return Checkout(tmp_path, uv=False)


def test_the_second_set_up_does_nothing_and_says_nothing(checkout):
    installer = "uv" if (checkout.bin / "uv").exists() else "pip"
    code, printed, calls = checkout.run()
    assert (code, calls) == (0, ["venv", installer, installer, "import"]), printed
    assert checkout.calls()[1].endswith("-c constraints.txt -e .[dev]")
    assert checkout.run() == (0, "", [])


def test_changed_pins_are_installed_into_the_same_environment(with_pip):
    with_pip.run()
    with (with_pip.root / "constraints.txt").open("a") as pins:
        pins.write("more==1\n")
    assert with_pip.run()[2] == ["pip", "pip", "import"]
    assert with_pip.run()[2] == []


@pytest.mark.parametrize(
    ("says", "remedy"),
    [("ERROR: [Errno 28] No space left on device", "disk is full"), ("no route to host", "PIP_INDEX_URL")],
)
def test_a_failed_set_up_ends_in_a_remedy_and_is_begun_again(with_pip, says, remedy):
    code, printed, calls = with_pip.run(FAILS=says)
    assert (code, calls) == (1, ["venv", "pip"])
    assert says in printed and remedy in printed.splitlines()[-1] and "done" not in printed
    assert with_pip.run()[2] == ["venv", "pip", "pip", "import"]


def test_a_failure_keeps_the_tests_and_the_quickstart_from_running(with_pip):
    assert with_pip.run("test", FAILS="no")[::2] == (1, ["venv", "pip"])
    assert with_pip.run("quickstart", FAILS="no")[::2] == (1, ["venv", "pip"])


def test_a_moved_checkout_is_set_up_anew(with_pip):
    with_pip.run()
    with_pip.root = with_pip.root.rename(with_pip.root.with_name("a place with spaces"))
    assert with_pip.run()[2] == ["venv", "pip", "pip", "import"]


def test_an_environment_whose_python_is_gone_is_made_anew(with_pip):
    with_pip.run()
    (with_pip.root / ".venv/bin/python").unlink()
    assert with_pip.run()[2] == ["venv", "pip", "pip", "import"]


def test_another_python_makes_another_environment(with_pip):
    with_pip.run()
    newer = FAKE_PYTHON.replace('case "$*" in', 'case "$*" in\n  *"python %d.%d"*) echo python 3.12 ;;')
    with_pip.executable("newer", newer)
    assert with_pip.run(PYTHON=str(with_pip.bin / "newer"))[2] == ["venv", "pip", "pip", "import"]
    assert with_pip.run(PYTHON=str(with_pip.bin / "python3.11"))[2] == []


def test_an_environment_of_someone_else_is_left_alone(with_pip):
    (with_pip.root / ".venv/bin").mkdir(parents=True)
    (with_pip.root / ".venv/bin/mine").touch()
    code, printed, calls = with_pip.run()
    assert code == 1 and calls == [] and "was not made by this script" in printed and printed.count("\n") == 1
    assert (with_pip.root / ".venv/bin/mine").exists()


def test_without_a_fitting_python_one_line_says_what_is_needed(with_pip):
    for python in ("/nowhere/python", "/bin/true"):
        code, printed, calls = with_pip.run(PYTHON=python)
        assert code == 1 and calls == [] and printed.count("\n") == 1
        assert "Python 3.11 to 3.14" in printed and python in printed and "PYTHON=" in printed


@pytest.mark.skipif(not shutil.which("flock"), reason="two set-ups at once wait for each other only where flock exists")
def test_two_set_ups_at_once_install_once(with_pip):
    with_pip.calls_file.write_text("")
    both = [with_pip.start("setup", SLOW="0.5") for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert [line.split()[0] for line in with_pip.calls()] == ["venv", "pip", "pip", "import"]
    for process in both:
        process.communicate()


def test_uv_gets_the_settings_of_pip_in_its_own_words(tmp_path):
    checkout = Checkout(tmp_path, uv=True)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://a.example/simple\nextra-index-url = https://b.example/x\n  file:///c\n"
        "find-links = /not/these\nno-index = false\n[install]\ncert = /ca.pem\n"
    )
    settings = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_FIND_LINKS": "/wheels ~/more"}
    assert checkout.run(**settings)[0] == 0
    assert Path(f"{checkout.calls_file}.uv").read_text().splitlines() == [
        "SSL_CERT_FILE=/ca.pem",
        "UV_DEFAULT_INDEX=https://a.example/simple",
        f"UV_FIND_LINKS=/wheels,{tmp_path}/more",
        "UV_INDEX=https://b.example/x file:///c",
        "UV_INDEX_STRATEGY=unsafe-best-match",
    ]
    shutil.rmtree(checkout.root / ".venv")
    checkout.run(**settings, UV_INDEX_URL="https://own.example", UV_FIND_LINKS="/own", PIP_NO_INDEX="1")
    told = Path(f"{checkout.calls_file}.uv").read_text()
    assert "UV_DEFAULT_INDEX" not in told and "UV_FIND_LINKS=/own\n" in told and "--no-index" in checkout.calls()[1]


def test_arguments_are_handed_on(with_pip):
    with_pip.run()
    with_pip.run("test", "--long", "tests/test_copy.py", "-k", "a b")
    assert with_pip.calls() == ["<run> <-m> <pytest> <--long> <tests/test_copy.py> <-k> <a b> "]
    with_pip.run("quickstart", "model=nano", "optim.steps=5")
    wanted = "<run> <scripts/reproduce.py> <experiment=quickstart> <model=nano> <optim.steps=5> "
    assert with_pip.calls() == [wanted]


def test_ci_runs_the_test_command_of_the_readme():
    assert (ROOT / ".ci/run").read_text().endswith("\nexec bash scripts/test.sh\n")
    assert "bash scripts/test.sh\n" in (ROOT / "README.md").read_text()


# Packages


def environment_of(asked: set[str]) -> set[str]:
    """All distributions that these requirements bring in, but what torch pins itself (the CUDA libraries)."""
    waiting, seen = [Requirement(text) for text in asked], set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, *wanted.extras) in seen:
            continue
        seen.add((name, *wanted.extras))
        for need in map(Requirement, importlib.metadata.requires(name) or []):
            applies = any(not need.marker or need.marker.evaluate({"extra": e}) for e in {"", *wanted.extras})
            if applies and not (name == "torch" and str(need.specifier).startswith("==")):
                waiting.append(need)
    return {name for name, *_ in seen}


def test_every_package_is_pinned_and_none_besides():
    extras = PROJECT["optional-dependencies"]
    ours = [*PROJECT["dependencies"], *(text for name in ("dev", "peers", "dashboard") for text in extras[name])]
    asked = {text for text in ours if not text.startswith("posenc-train[")}
    assert environment_of(asked) | {"torchscale", "fla-core"} == PINS.keys()  # which come without their dependencies
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)]), requirement


def test_the_pins_are_what_is_installed():
    installed = {name: importlib.metadata.version(name).partition("+")[0] for name in PINS}
    assert installed == PINS


def imported(path: Path) -> set[str]:
    """The first part of every module that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.partition(".")[0] for name in names}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported():
    files = [*(ROOT / "posenc_train").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
    modules = set().union(*map(imported, files)) - sys.stdlib_module_names - {"posenc_train"}
    distributions = importlib.metadata.packages_distributions()
    used = {canonicalize_name(distributions[module][0]) for module in modules}
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *extras["hf"], *extras["dashboard"]]
    assert used == {canonicalize_name(Requirement(text).name) for text in asked}


def test_no_script_hides_a_module_that_python_or_a_package_needs():
    names = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    assert names and not names & (sys.stdlib_module_names | importlib.metadata.packages_distributions().keys())


def test_the_wheel_holds_configuration_and_data(tmp_path):
    from hatchling.builders.wheel import WheelBuilder

    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    names = set(zipfile.ZipFile(wheel).namelist())
    conf = {f"posenc_train/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    own = {str(path.relative_to(ROOT)) for path in (ROOT / "posenc_train").rglob("*") if path.is_file()}
    own = {name for name in own if "__pycache__" not in name}
    assert conf | own == {name for name in names if name.startswith("posenc_train/")} and conf
    assert any(name.endswith("licenses/LICENSE") for name in names)


# The code as a whole


def test_the_code_is_clean():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_point_downwards():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and " 0 broken" in done.stdout, done.stdout + done.stderr


def test_positions_know_torch_only():
    for path in (ROOT / "posenc_train/positions").rglob("*.py"):
        foreign = imported(path) - sys.stdlib_module_names - {"torch", "jaxtyping"}
        assert foreign <= {"posenc_train"}, path
        assert not re.search(r"posenc_train\.(?!positions\b)", path.read_text()), path


def test_configuration_and_report_are_loaded_without_torch():
    modules = [p.stem for p in (ROOT / "posenc_train/report").glob("*.py") if p.stem != "__init__"]
    names = ["config", "evaluation.rows", *(f"report.{module}" for module in modules)]
    code = f"import sys, {', '.join(f'posenc_train.{name}' for name in names)}; "
    code += "assert not {'torch', 'lightning'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_licence_is_whole():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0" in text and "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["license"] == "Apache-2.0"


def committed() -> list[Path]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout, so what is committed is not known")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_place_of_one_machine():
    place = re.compile(rb"/(home|Users)/\w|/root/|\b[A-Z]:\\Users")
    found = [f"{path}: {match[0]!r}" for path in committed() if (match := place.search(path.read_bytes()))]
    assert [line for line in found if not line.startswith(str(Path(__file__)))] == []


def test_tests_have_no_network_and_a_home_of_their_own():
    with pytest.raises(RuntimeError, match=re.escape("192.0.2.1")):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(RuntimeError, match="example.org"):
        socket.getaddrinfo("example.org", 80)
    assert conftest.refused == ["192.0.2.1", "example.org"]
    conftest.refused.clear()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    assert Path(os.environ["HF_HOME"]).is_relative_to(conftest.SCRATCH) and os.environ["WANDB_MODE"] == "offline"
