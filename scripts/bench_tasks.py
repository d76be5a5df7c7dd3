"""How fast the tasks that ask are written: 100,000 sequences of 256 tokens, in seconds of CPU on one core, and their
peak of memory, of which the result is 51 MB in 16 bits and half of that in 8.

python scripts/bench_tasks.py recall copy
Without names, all of them.
"""

import sys
import time
import tracemalloc

import numpy as np

from posenc_train.build import construct
from posenc_train.checks import choices, file_settings
from posenc_train.tasks.asked import Asked

LENGTH, COUNT = 256, 100_000


def main(names: list[str]) -> None:
    print(f"{'task':<20}{'seconds':>10}{'peak MB':>10}")
    for name in names or [name for name in choices("task") if not file_settings("task", name).get("hub")]:
        task = construct("task", file_settings("task", name))
        if isinstance(task, Asked):
            size = task.size(LENGTH)
            began = time.process_time()
            task.sequences(0, "training", 0, np.arange(COUNT), size)
            seconds = time.process_time() - began
            tracemalloc.start()
            task.sequences(0, "training", 0, np.arange(COUNT), size)
            megabytes = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
            print(f"{name:<20}{seconds:>10.2f}{megabytes:>10.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
