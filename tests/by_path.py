"""Single files of packages that come without their own dependencies (scripts/setup.sh)."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(file: str) -> ModuleType:
    """`load("torchscale/component/x.py")`: the package's own imports, which want more, do not run."""
    found = next(path for folder in sys.path if (path := Path(folder, file)).is_file())
    spec = importlib.util.spec_from_file_location(found.stem, found)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
