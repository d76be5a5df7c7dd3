"""Runs a training: checkpoints, metrics, progress. All state is in the run folder, so that it can be taken up again."""

import json
import logging
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from tqdm import tqdm

from posenc_train.checks import show
from posenc_train.config import UserError
from posenc_train.model.transformer import Transformer
from posenc_train.report.store import write_whole
from posenc_train.report.wandb import Run
from posenc_train.tasks.base import Task
from posenc_train.training.checkpoint import Saved, load
from posenc_train.training.data import Batches
from posenc_train.training.module import Training

PRECISION = {"32": "32-true", "bf16": "bf16-mixed"}
log = logging.getLogger("posenc_train")


class Recorder(L.Callback):
    """Every `log_every` steps a line of metrics.jsonl, which W&B gets too; a progress bar where there is a terminal.

    Loss is the mean over the steps since the line before, in nats a target.
    """

    def __init__(self, folder: Path, run: Run, config: dict[str, Any]):
        self.path, self.run = folder / "metrics.jsonl", run
        self.every, self.steps = config["trainer"]["log_every"], config["optim"]["steps"]
        self.tokens = config["optim"]["batch_size"] * config["train_length"]  # a step
        self.seconds = 0.0  # of all attempts, up to self.clock
        self.losses: list[torch.Tensor] = []  # since the last line

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds + time.perf_counter() - self.clock, "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.losses = state["seconds"], state["losses"]

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.since, self.clock = trainer.global_step, time.perf_counter()
        if not trainer.is_global_zero:
            return
        kept = lines_up_to(self.path, trainer.global_step)
        write_whole(self.path, "".join(kept).encode())
        self.bar = tqdm(total=self.steps, initial=trainer.global_step, unit="step", disable=not sys.stderr.isatty())

    def on_train_batch_end(self, trainer, module, outputs, batch, index) -> None:
        self.losses.append(outputs["loss"].detach())
        step = trainer.global_step
        if trainer.is_global_zero:
            self.bar.update(step - self.bar.n)
        if step % self.every and step != self.steps:
            return
        now = time.perf_counter()
        speed = (step - self.since) * self.tokens / (now - self.clock)
        self.seconds, self.clock, self.since = self.seconds + now - self.clock, now, step
        loss = trainer.strategy.reduce(torch.stack(self.losses).mean(), reduce_op="mean").item()
        self.losses = []
        if not trainer.is_global_zero:
            return
        line = {
            "step": step,
            "loss": loss,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "tokens": step * self.tokens,
            "tokens_per_second": speed,
            "seconds": self.seconds,
        }
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.run.train(step, line)
        self.bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s")

    def on_train_end(self, trainer, module) -> None:
        if trainer.is_global_zero:
            self.bar.close()


class Pauses(L.Callback):
    """Does something with the model after some of the steps, as if the training had not noticed: the clock stands, and
    the random numbers go on where they were.

    Before the checkpoints: a training that is taken up again does not repeat it, and has not left it out.
    """

    def __init__(self, steps: Sequence[int], work: Callable[[int], None], recorder: Recorder):
        self.steps, self.work, self.recorder = steps, work, recorder

    def on_train_batch_end(self, trainer: L.Trainer, module, outputs, batch, index) -> None:
        if trainer.global_step in self.steps and trainer.is_global_zero:
            began = time.perf_counter()
            with torch.random.fork_rng():
                self.work(trainer.global_step)
            self.recorder.clock += time.perf_counter() - began


class Checkpoints(L.Callback):
    """last.ckpt every so many steps and at the end; the one before stays as before.ckpt. Each appears whole.

    SIGTERM and SIGINT (Ctrl-C) end the training after the step that is running, with a checkpoint, by SystemExit of
    143 or 130; a second one ends it at once.
    """

    def __init__(self, folder: Path, every: int):
        self.folder, self.every, self.signal = folder, every, 0

    def on_train_start(self, trainer: L.Trainer, module) -> None:
        self.handlers = {number: signal.signal(number, self.stop) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop(self, number: int, frame) -> None:
        self.signal = number
        self.restore()

    def restore(self) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def on_train_batch_end(self, trainer: L.Trainer, module, outputs, batch, index) -> None:
        last = trainer.global_step == trainer.max_steps
        if last or self.signal or trainer.global_step % self.every == 0:
            self.save(trainer)
        if self.signal:
            name = signal.Signals(self.signal).name
            log.info("stopped by %s after step %d; the same command continues", name, trainer.global_step)
            raise SystemExit(128 + self.signal)

    def on_train_end(self, trainer: L.Trainer, module) -> None:
        self.restore()

    def save(self, trainer: L.Trainer) -> None:
        new, last = self.folder / "new.ckpt", self.folder / "last.ckpt"
        trainer.save_checkpoint(new)
        if trainer.is_global_zero:
            if last.exists():
                last.replace(self.folder / "before.ckpt")
            new.replace(last)


def lines_up_to(path: Path, step: int) -> list[str]:
    """The lines of metrics.jsonl up to a step: what an interrupted attempt wrote after its checkpoint is done again."""
    kept = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
        try:
            if json.loads(line)["step"] <= step and line.endswith(b"\n"):
                kept.append(line.decode())
        except (ValueError, TypeError, LookupError):
            log.info("%s: a line that is no measurement is left out", path)
    return kept


def fit(
    config: dict[str, Any],
    task: Task,
    model: Transformer,
    sampling: Any,
    folder: Path,
    run: Run,
    code: str,
    pauses: Sequence[int] = (),
    work: Callable[[int, str], None] = lambda step, code: None,
) -> float:
    """Trains the model in place to `optim.steps`, from the newest checkpoint where there is one. Returns the seconds
    it took, over all attempts, without those of the `work` that is done after the steps in `pauses`. code: the
    fingerprint of what trains, which is kept beside those of earlier attempts, and given to `work`. With several
    devices every one of them comes back from here. Raises UserError where a checkpoint is past one of these steps."""
    settings, optim = config["trainer"], config["optim"]
    checkpoint, saved = resume(model, folder)
    if saved and saved.data != task.fingerprint:
        raise UserError(
            f"{folder}: was trained on other data, up to step {saved.step}, than the task has now: "
            "restore the data, train again by rerun=changed, or train under another study="
        )
    if saved and (past := [step for step in pauses if step <= saved.step]):
        raise UserError(
            f"protocol.at={show(config['protocol']['at'])}: {folder} has been trained past step {past[0]} without "
            "measuring there, and its weights are gone: leave it out, or train again under another study="
        )
    if saved and saved.step == optim["steps"]:
        return saved.seconds
    if saved:
        code = saved.code if code in saved.code.split("+") else f"{saved.code}+{code}"
    recorder = Recorder(folder, run, config)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # advice on workers and loggers that we decline
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        trainer = L.Trainer(
            max_steps=optim["steps"],
            max_epochs=-1,
            precision=PRECISION[settings["precision"]],
            accelerator=settings["accelerator"],
            devices=settings["devices"],
            strategy="auto" if settings["devices"] == 1 else "ddp",
            gradient_clip_val=optim["clip"],
            callbacks=[
                recorder,
                Pauses(pauses, lambda step: work(step, code), recorder),
                Checkpoints(folder, settings["checkpoint_every"]),
            ],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=folder,
        )
        batches = Batches(task, config["seed"], config["train_length"], optim["batch_size"], settings["workers"])
        trainer.fit(Training(model, sampling, config, task.fingerprint, code), batches, ckpt_path=checkpoint)
    model.to("cpu")
    return recorder.seconds


def resume(model: Transformer, folder: Path) -> tuple[Path | None, Saved | None]:
    """The newest checkpoint that can be read, its weights put into the model; (None, None) without any.

    Raises UserError when there are some and none can be read.
    """
    damaged = []
    for path in (folder / "last.ckpt", folder / "before.ckpt"):
        if not path.exists():
            continue
        try:
            saved = load(model, path)
        except UserError as error:
            damaged.append(path)
            log.info("%s", error)
            continue
        for bad in damaged:
            bad.replace(bad.with_suffix(".damaged"))  # or the next checkpoint would push out the good one
        log.info("continuing from step %d", saved.step)
        return path, saved
    if damaged:
        raise UserError(f"{folder}: no checkpoint in it can be read: remove the folder to train again from the start")
    return None, None
