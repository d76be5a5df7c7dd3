"""What holds for every test: no network, nothing of the user's, one thread, shapes and types checked."""

import logging
import os
import shutil
import socket
import tempfile
import zlib
from pathlib import Path

import pytest
import typed

SCRATCH = tempfile.mkdtemp(prefix="posenc-train-tests-")

# Set before torch, datasets and wandb are imported; processes that a test starts inherit it.
for name in [name for name in os.environ if name.startswith(("WANDB_", "HF_", "HYDRA_"))]:
    del os.environ[name]
os.environ |= {
    "OMP_NUM_THREADS": "1",  # sums do not depend on the machine's cores
    "MKL_NUM_THREADS": "1",
    "HF_HOME": f"{SCRATCH}/huggingface",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "WANDB_CONFIG_DIR": f"{SCRATCH}/wandb-config",
    "WANDB_CACHE_DIR": f"{SCRATCH}/wandb-cache",
    "WANDB_DATA_DIR": f"{SCRATCH}/wandb-data",
}

typed.install("posenc_train.positions", "posenc_train.model")

refused: list[str] = []  # hosts that were asked for during the current test
_connect, _getaddrinfo = socket.socket.connect, socket.getaddrinfo


def _local(host) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    return name in (None, "", "localhost", "::1") or name.startswith("127.")


def _refuse(host):
    refused.append(str(host))
    raise RuntimeError(f"tests do not use the network, and {host} was asked for")


def _guarded_connect(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and not _local(address[0]):
        _refuse(address[0])
    return _connect(self, address)


def _guarded_getaddrinfo(host, *args, **kwargs):
    if not _local(host):
        _refuse(host)
    return _getaddrinfo(host, *args, **kwargs)


socket.socket.connect, socket.getaddrinfo = _guarded_connect, _guarded_getaddrinfo


@pytest.fixture(autouse=True)
def no_network():
    """Fails a test that asked for the network, even where a library swallowed the refusal."""
    refused.clear()
    yield
    assert not refused, f"asked for {refused}"


@pytest.fixture(autouse=True)
def own_logging():
    """Takes back what Hydra's --info does to its process: debug logging, to a stream that pytest then closes."""
    root = logging.getLogger()
    before, level = set(root.handlers), root.level
    yield
    for handler in set(root.handlers) - before:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(level)


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the tests that take minutes as well")
    parser.addoption("--scheme", metavar="MODULE.CLASS", help="put this scheme on PYTHONPATH through all laws")


def pytest_configure(config):
    if scheme := config.getoption("--scheme"):
        from posenc_train.build import build_schemes
        from posenc_train.positions.base import Dims

        dims = Dims(width=32, heads=4, head_width=8, layers=4, train_length=24)
        try:
            build_schemes({"_target_": scheme}, dims)
        except Exception as error:
            raise pytest.UsageError(f"--scheme {scheme}: cannot be built: {type(error).__name__}: {error}") from error
        config.args = [str(Path(__file__).parent / "test_laws.py")]
        config.option.tbstyle, config.option.reportchars = "short", ""  # the verdict below is the last word


SLOW = ("test_readme.py", "test_study.py", "test_end_to_end.py")  # begun first: nobody waits for one of them at the end


@pytest.hookimpl(tryfirst=True)  # before xdist writes the groups into the names
def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: SLOW.index(item.path.name) if item.path.name in SLOW else len(SLOW))
    for item in items:
        # A file's tests stay in one process, which makes its fixtures once; the laws, the most, are spread.
        spread = zlib.crc32(item.nodeid.partition("[")[2].encode()) % 8 if item.path.name == "test_laws.py" else ""
        item.add_marker(pytest.mark.xdist_group(f"{item.path.name}{spread}"))
        if law := item.get_closest_marker("law"):
            item.user_properties.append(("law", (law.args[0], item.function.__doc__)))
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run with --long"))


def pytest_terminal_summary(terminalreporter):
    stats, say = terminalreporter.stats, terminalreporter.write_line
    skipped = stats.get("skipped", [])
    if long := [report for report in skipped if "run with --long" in str(report.longrepr)]:
        say(f"{len(long)} long tests were skipped: run them with --long")
    if blind := [report for report in skipped if "install chromium" in str(report.longrepr)]:
        say(f"{len(blind)} tests of report.html were skipped: they need a browser: apt-get install chromium")
    if scheme := terminalreporter.config.getoption("--scheme"):
        broken = {}
        for report in [*stats.get("failed", []), *stats.get("error", [])]:
            name, words = dict(getattr(report, "user_properties", [])).get("law", (report.nodeid, ""))
            broken.setdefault(name, {})[" ".join(words.split())] = None
        for name, laws in broken.items():
            say(f"{scheme} breaks {name}: {' '.join(laws)}")
        if stats.get("passed") and not broken:
            say(f"{scheme} obeys every law")


def pytest_sessionfinish():
    shutil.rmtree(SCRATCH, ignore_errors=True)
