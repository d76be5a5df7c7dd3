"""Batches by number: which data step s sees is a function of (seed, s), never of workers, ranks or restarts."""

from collections.abc import Iterator

import lightning as L
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from posenc_train.tasks.base import Batch, Task


class Steps(IterableDataset):
    """This rank's rows of the batches of steps `first`, `first` + 1, … without end (the trainer stops)."""

    def __init__(self, task: Task, seed: int, first: int, rows: range, length: int):
        self.task, self.seed, self.first, self.rows, self.length = task, seed, first, rows, length

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        # The loader takes one batch of each worker in turn, so every n-th step is one worker's.
        step, stride = (self.first, 1) if worker is None else (self.first + worker.id, worker.num_workers)
        while True:
            yield self.task.batch(self.seed, step, self.rows, self.length)
            step += stride


class Batches(L.LightningDataModule):
    """batch_size is that of all ranks together; it must be divisible by their number."""

    def __init__(self, task: Task, seed: int, length: int, batch_size: int, workers: int = 0):
        super().__init__()
        self.task, self.seed, self.length = task, seed, length
        self.batch_size, self.workers = batch_size, workers

    def train_dataloader(self) -> DataLoader:
        share = self.batch_size // self.trainer.world_size
        rows = range(self.trainer.global_rank * share, (self.trainer.global_rank + 1) * share)
        # After a restart the loader begins where the restored trainer stands: nothing is read twice.
        steps = Steps(self.task, self.seed, self.trainer.global_step, rows, self.length)
        return DataLoader(steps, batch_size=None, num_workers=self.workers)
