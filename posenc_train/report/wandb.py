"""One W&B run per training, made from plain dicts and rows. No torch, and no wandb until a run is opened.

    with Run("offline", cell, study, cfg) as run:
        run.train(20, {"loss": 3.1, "lr": 1e-3, "tokens": 81920, "tokens_per_second": 4e4})
        run.evaluation(rows)
        run.figure("perplexity", folder / "perplexity.png")

Lightning's own WandbLogger is not used: it plots everything against trainer/global_step by a glob that beats
ours, keeps its run open between the jobs of a multirun, and has folders of its own.

What a reader would get wrong:
* The mode. `logger=` decides; WANDB_MODE can only make it quieter (online > offline > disabled), not louder:
  `WANDB_MODE=offline` on a cluster node keeps `logger=online` from uploading, and the closing line says so;
  `WANDB_MODE=online` alone sends nothing anywhere.
* The axes. Training is against train/step (optimizer steps), evaluation against eval/length (tokens fed).
  W&B's own step runs through both: the number of the training step, then one for each further call.
* What cannot be drawn. W&B shows NaN and infinity as nothing. Rows that are not "ok" stand in the table with
  their status and have no point in a curve.
* The folder. Everything of W&B's own lies under `<root>/wandb`, its caches included.
  `wandb leet <root>/wandb` shows all runs in the terminal.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from posenc_train.config import UserError, label, training_config
from posenc_train.evaluation.rows import ALONG, FIELDS, Row
from posenc_train.report import store
from posenc_train.report.wandb_segments import ended, segments, settle

MODES = {"none": 0, "offline": 1, "online": 2}
QUIETER = {"disabled": "none", "offline": "offline", "dryrun": "offline"}  # WANDB_MODE; others mean online
TRAINING = ("loss", "lr", "tokens_per_second", "tokens")
NO_CURVE = ("per_position", "training")  # protocols
PATIENCE = 8  # seconds to wait for a server: once to begin, once for the table, once to end
LOG_2 = math.log(2)


class Run:
    """A W&B run for one training; a context manager.

    mode: "offline" | "online" | "none". cell, study: the run's name and group. config: the resolved
    configuration as plain values. root: the folder of the studies; W&B's files go to root/wandb.

    Nothing in here may cost the user a training. What W&B raises is said in one line on stderr and no more; a
    server that refuses the key or is not reached within PATIENCE seconds makes the run an offline one; one
    that dies later holds up the end of the run by at most twice that.

    A training that is resumed is a further segment of the same run: root/study/cell/wandb.id says which run.
    A segment begins with what metrics.jsonl beside it has and no earlier segment (online: the server) has,
    and passes over steps that are logged already, so that each step is sent once however often the training
    was killed. A folder that was deleted and trained anew is another run. id: in place of the one in the file.

    Leaving by an exception (KeyboardInterrupt, and SystemExit unless its code is 0) marks the run failed.
    """

    def __init__(
        self,
        mode: str,
        cell: str,
        study: str,
        config: dict,
        root: Path | str = Path("runs"),
        id: str | None = None,
    ):
        self.mode, self.why_quieter = _mode(mode)
        self.cell, self.study, self.root = cell, study, Path(root)
        self.config, self.tags, self.line = plain(config), tags(config), line(config, self.root / study)
        self.project = project()
        self.id = id
        self.step = 0  # the first step that is not logged yet
        self._run: Any = None
        self._failed = False

    def __enter__(self) -> Run:
        if self.mode != "none":
            self._open()
            self._try(self._catch_up)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _) -> None:
        if self._run is None:
            return
        failed = kind is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))
        self._try(lambda: self._finish(int(failed)))
        folder = self.root / "wandb"
        if self.mode == "offline":
            why = f" ({self.why_quieter})" if self.why_quieter else ""
            _say(f"offline{why}; to upload: wandb sync {folder}/offline-run-*-{self.id}")
        elif self._failed:
            _say(f"not all is uploaded; later: wandb sync --include-online {folder}/run-*-{self.id}")
        self._run = None

    def train(self, step: int, values: dict[str, float]) -> None:
        """What is known after `step` updates: any of "loss", "lr", "tokens_per_second", "tokens"."""
        if step >= self.step:
            found = {f"train/{name}": values[name] for name in TRAINING if name in values}
            self._log({"train/step": step} | found, step)

    def evaluation(self, rows: Iterable[Row]) -> None:
        """The curves against length, what the training cost as numbers of the summary, and every row in a table, where
        alone loss by position is found."""
        if self._run is None:
            return
        rows = list(rows)
        curves = list(points(rows))
        for name in sorted({name for _, values in curves for name in values}):
            self._try(lambda name=name: self._run.define_metric(name, step_metric="eval/length"))
        for length, values in curves:
            self._log({"eval/length": length} | values)
        self._try(lambda: self._run.summary.update(costs(rows)))
        self._patiently(lambda: self._log({"eval/rows": _table(rows)}))

    def figure(self, name: str, path: Path | str) -> None:
        """A PNG, shown as figures/<name>. The file is copied, so it may be overwritten afterwards."""
        if self._run is not None:
            self._try(lambda: self._log({f"figures/{short(name)}": _image(path)}))

    def _open(self) -> None:
        """Open the run this is; if that fails, open it offline; if that fails too, do without."""
        for mode in ("online", "offline") if self.mode == "online" else ("offline",):
            try:
                self._run = self._start(mode)
                self.mode = mode
                return
            except Exception as error:
                rest = "offline instead" if mode == "online" else "nothing is logged to W&B"
                _say(f"not {mode}, {rest}: {first_line(error)}")

    def _start(self, mode: str) -> Any:
        _keep_to(self.root / "wandb")
        import wandb

        if mode == "online" and not wandb.login(prompt=False, verify=False):
            raise UserError("no API key: set WANDB_API_KEY, or call `wandb login` once")
        earlier = self._identify()
        try:
            run = wandb.init(
                mode=mode,
                project=self.project,
                id=self.id,
                name=short(self.cell, 128),
                group=short(self.study, 128),
                job_type=self.line,
                tags=self.tags,
                config=self.config,
                dir=str(self.root.absolute()),  # its process keeps the working folder of the first run
                resume="allow" if earlier else None,
                settings=_settings(wandb),
            )
        except Exception:
            wandb.teardown()  # which else keeps the id in use, and leaves a segment with nothing in it
            for log in set(segments(self.root / "wandb", self.id)) - set(earlier):
                shutil.rmtree(log.parent)
            raise
        self.id = run.id  # in a W&B sweep its agent decides
        if mode == "online" and earlier:
            self.step = run.step  # what has arrived there may be less than what earlier segments hold
        run.define_metric("train/step", hidden=True)
        run.define_metric("eval/length", hidden=True)
        for name in TRAINING:
            run.define_metric(f"train/{name}", step_metric="train/step")
        return run

    def _identify(self) -> list[Path]:
        """Set the run's id and the first step to log; returns the earlier segments."""
        file = self.root / self.study / self.cell / "wandb.id"
        text = file.read_text().strip() if file.exists() else ""
        known = self.id or (text if re.fullmatch("[0-9a-f]{16}", text) else None)
        earlier = segments(self.root / "wandb", known) if known else []
        if earlier:
            self.id, self.step = known, 1 + max(settle(log) for log in earlier)
        elif self.id is None:  # new, or nobody knows any more what was sent: a run of its own, with all steps
            self.id = run_id(self.study, self.cell)
            if file.parent.is_dir():
                file.write_text(self.id + "\n")
        return earlier

    def _finish(self, exit_code: int) -> None:
        """finish() may return some milliseconds before the end is on disk; here it is waited for."""
        self._run.finish(exit_code=exit_code)
        log = Path(self._run.settings.sync_file)
        deadline = time.monotonic() + 1
        while not ended(log) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _catch_up(self) -> None:
        """Log what earlier attempts have left in metrics.jsonl; its last line may be cut short."""
        path = self.root / self.study / self.cell / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        for line in map(json.loads, lines):
            self.train(line["step"], line)

    def _log(self, values: dict[str, Any], step: int | None = None) -> None:
        """At W&B's own step `step`, or the next. Training steps keep their number, so that segments fit."""
        step = self.step if step is None else step
        self._try(lambda: self._run.log(values, step=step, commit=True))
        self.step = step + 1

    def _try(self, work: Callable[[], Any]) -> None:
        """work(), which may not raise: a full disk costs what it would have logged, and one line."""
        if self._run is None:
            return
        try:
            work()
        except Exception as error:
            self._fail(first_line(error))

    def _fail(self, why: str) -> None:
        if not self._failed:
            _say(f"not everything is logged, but the run folder has it: {why}")
        self._failed = True

    def _patiently(self, work: Callable[[], Any]) -> None:
        """_try, for the one call that waits for the server: online, W&B looks a table up first."""
        if self.mode == "offline":
            return self._try(work)
        thread = threading.Thread(target=self._try, args=(work,), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if thread.is_alive():
            self._fail("the server does not answer")


def points(rows: Iterable[Row]) -> Iterator[tuple[int, dict[str, float]]]:
    """(length, {name: value}), shortest first: W&B's summary of a run is the last value, here the longest's.

    Names are eval/<protocol>/<metric>, and the extension at the end if there is one, as in
    eval/same_targets/nll/pi_scale_8. A protocol's settings are left out unless two settings of it are among
    the rows. nll gives nll (nats) and perplexity, both per target, and bits_per_byte and word_perplexity where the
    same losses are told by byte and by word; the other metrics are shares. Of two rows with the same name and length
    the later counts.
    """
    rows = [row for row in rows if row.status == "ok" and _protocol(row) not in NO_CURVE]
    rows = [row for row in rows if set(row.slice) <= {"size"}]  # the whole, and no part by depth or position
    rows = [row for row in rows if not row.checkpoint.startswith(ALONG)]  # of the trained model alone
    settings: dict[str, set[str]] = {}
    for row in rows:
        settings.setdefault(_protocol(row), set()).add(row.protocol)
    found: dict[int, dict[str, float]] = {}
    units: dict[tuple, str] = {}  # what a target is: the first unit in which its loss is told
    for row in rows:
        unit = units.setdefault((row.protocol, row.extension, row.length, row.metric), row.unit)
        protocol = _protocol(row) if len(settings[_protocol(row)]) == 1 else _word(row.protocol)
        end = "" if row.extension == "none" else f"/{_word(row.extension)}"
        for metric, value in _values(row, unit).items():
            if math.isfinite(value):
                found.setdefault(row.length, {})[f"eval/{protocol}/{metric}{end}"] = value
    yield from sorted(found.items())


def costs(rows: Iterable[Row]) -> dict[str, float]:
    """cost/seconds, cost/bytes (of memory, at its peak), cost/parameters."""
    return {f"cost/{row.metric}": row.total for row in rows if row.protocol == "training" and row.status == "ok"}


def _protocol(row: Row) -> str:
    return row.protocol.partition("(")[0]


def _values(row: Row, unit: str) -> dict[str, float]:
    mean = row.total / row.count
    if row.metric != "nll":
        return {row.metric: mean}
    perplexity = math.exp(mean) if mean < 709 else math.inf  # float64 ends at e^709.78
    values = {"nll": mean, "perplexity": perplexity} if row.unit == unit else {}
    if row.unit == "word" != unit:
        values["word_perplexity"] = perplexity
    return values | {"bits_per_byte": mean / LOG_2} if row.unit == "byte" else values


def _table(rows: list[Row]) -> Any:
    import wandb

    cells = [[_cell(getattr(row, name)) for name in FIELDS] for row in rows]
    return wandb.Table(columns=list(FIELDS), data=cells, allow_mixed_types=True)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _image(path: Path | str) -> Any:
    import wandb

    return wandb.Image(str(path))


def run_id(study: str, cell: str) -> str:
    """16 hex digits, which W&B takes whatever study and cell are made of: 8 of theirs, 8 of this training."""
    return hashlib.sha256(f"{study}\0{cell}".encode()).hexdigest()[:8] + secrets.token_hex(4)


def tags(config: dict) -> list[str]:
    """Scheme, task and model as the table names them, each once."""
    return list(dict.fromkeys(short(label(config, group)) for group in ("position", "task", "model")))


def line(config: dict, study: Path) -> str:
    """What runs of one line of a table have in common, and no others: all but the seed. W&B's job type."""
    names = ", ".join(label(config, group) for group in ("position", "task", "model"))
    known = store.recipe(training_config(config), study)
    return f"{short(names, 44)}, L{config['train_length']} #{known}"


def short(text: str, limit: int = 64) -> str:
    """text, or its beginning and a hash of all of it: W&B refuses long tags at once, long names at upload."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def plain(value: Any) -> Any:
    """Nested dicts, lists and scalars, by which W&B can filter; the home folder is written ~."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text, home = str(value), str(Path.home())
    return "~" + text[len(home) :] if text == home or text.startswith(home.rstrip(os.sep) + os.sep) else text


def _mode(mode: str) -> tuple[str, str | None]:
    """The mode to run in, and what made it quieter than the one asked for."""
    if mode not in MODES:
        raise UserError(f"logger.mode={mode}: offline, online or none; choose logger=offline")
    variable = os.environ.get("WANDB_MODE", "")
    limit = QUIETER.get(variable, "online")
    return (limit, f"WANDB_MODE={variable}") if MODES[limit] < MODES[mode] else (mode, None)


def project() -> str:
    project = os.environ.get("WANDB_PROJECT") or "posenc-train"
    if len(project) > 128 or re.search(r"[/\\#?%:]", project):
        raise UserError(f"WANDB_PROJECT={project}: at most 128 characters, none of / \\ # ? % :; unset it")
    return project


def offline_because(root: Path) -> str | None:
    """Why nothing goes to W&B's server, in words; None for whoever is logged in and has not made it quieter."""
    mode, quieter = _mode("online")
    if mode != "online":
        return quieter
    _keep_to(root / "wandb")
    import wandb

    try:
        return None if wandb.login(prompt=False, verify=False) else "not logged in: `wandb login`"
    except Exception as error:
        return first_line(error)


def _keep_to(folder: Path) -> None:
    """W&B's caches go to the home folder otherwise. The folder is made: W&B moves to /tmp if it cannot write.

    W&B's reports on itself to its makers are off: they would hold up the end of a run whose server is gone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["WANDB_CACHE_DIR"] = str(folder.absolute() / "cache")
    os.environ["WANDB_DATA_DIR"] = str(folder.absolute() / "data")
    os.environ["WANDB_SILENT"] = "true"
    os.environ["WANDB_ERROR_REPORTING"] = "false"


def _settings(wandb) -> Any:
    """Quiet, quick to start and end, and nothing about the machine, its user or the code around it."""
    return wandb.Settings(
        silent=True,
        console="off",
        use_dot_wandb=False,
        symlink=False,
        init_timeout=PATIENCE,
        finish_timeout=PATIENCE,
        finish_timeout_raises=True,
        x_transaction_log_flush_interval=1,  # seconds of logging that a SIGKILL can take from W&B's file
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        save_code=False,
        table_raise_on_max_row_limit_exceeded=True,  # 200,000; W&B would cut the table and tell nobody
        host="",
        program="",
    )


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_")


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _say(text: str) -> None:
    print(f"W&B: {text}", file=sys.stderr, flush=True)
