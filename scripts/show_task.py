"""Prints what a task is, and samples: what is fed over what should come next (_: nothing is asked).

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
    from posenc_train.tasks.asked import Asked
    from posenc_train.tasks.drawing import drawn, folded

    task = construct("task", cfg["task"])
    batch = task.batch(cfg["seed"], 0, range(cfg["samples"]), cfg["length"])
    for paragraph in (sys.modules[type(task).__module__].__doc__ or type(task).__name__).strip().split("\n\n"):
        print(folded(paragraph), end="\n\n")
    told = f"{cfg['samples']} training sample{'s' * (cfg['samples'] > 1)} of task={cfg['names']['task']}, length"
    told += f" {cfg['length']}; fed over targets, where _ is none"
    if isinstance(task, Asked):
        told += f". Sizes vary in training; {task.symbols[task.filler]} fills what is left of the length"
    print(textwrap.fill(f"{told}:", 80), end="\n\n")
    print(drawn(batch, task.symbols))


if __name__ == "__main__":
    main()
