"""Running the entry points inside a test's own process, which has torch imported already."""

import runpy
from pathlib import Path

from posenc_train.config import check, compose

ROOT = Path(__file__).resolve().parent.parent
NANO = ["model=nano", "train_length=16", "optim.steps=12", "optim.batch_size=4", "task.windows=4", "trainer.log_every=4"]


def run(script: str, *overrides: str) -> dict:
    """Does what `python scripts/<script>.py <overrides>` does, in the current folder; returns the configuration."""
    config = compose(script, list(overrides))
    check(config)
    runpy.run_path(str(ROOT / "scripts" / f"{script}.py"))["main"].__wrapped__(config)
    return config
