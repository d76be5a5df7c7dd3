"""Prints samples of a task: what is fed over what should come next (_: nothing is asked).

python scripts/show_task.py task=recall length=64
python scripts/show_task.py task=text task.path=README.md samples=1
"""

import sys
import textwrap

from posenc_train.config import entry


@entry("show_task")
def main(cfg: dict) -> None:
    from posenc_train.tasks import tables  # not above: a mistake in the command is told before torch is imported

    tables.ask(cfg["task"])
    from posenc_train.build import construct
    from posenc_train.tasks.drawing import drawn

    task = construct("task", cfg["task"])
    batch = task.batch(cfg["seed"], 0, range(cfg["samples"]), cfg["length"])
    what = (sys.modules[type(task).__module__].__doc__ or type(task).__name__).strip().split("\n\n")[0]
    print(textwrap.fill(" ".join(what.split()), 80))
    print(f"\n{cfg['samples']} training samples of task={cfg['names']['task']} in {cfg['length']} tokens:\n")
    print(drawn(batch, task.symbols))


if __name__ == "__main__":
    main()
