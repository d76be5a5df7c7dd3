"""Evaluates a model of `transformers` in a local folder: its configuration, its rows, its folder in runs/."""

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from posenc_train import runs
from posenc_train.build import build_task
from posenc_train.checks import UserError, check_foreign
from posenc_train.config import compose, run_folder
from posenc_train.evaluation.rows import Row
from posenc_train.evaluation.run import coordinates, evaluate_run
from posenc_train.lock import locked
from posenc_train.model import hf
from posenc_train.report import store
from posenc_train.tasks import corpus
from posenc_train.tasks.base import Task
from posenc_train.tasks.haystack import Haystack


def evaluated(cfg: Mapping[str, Any]) -> tuple[dict[str, Any], Path, str]:
    """The configuration of the evaluation, its folder and the label of the weights, with all rows asked for there."""
    path = cfg["model"]["path"]
    theirs = hf.described(path)
    config = configuration(cfg, theirs)
    check_foreign(config)
    folder, label = run_folder(config), f"weights {corpus.fingerprint(corpus.local(path))[:8]}"
    if (folder / "config.yaml").exists() and runs.evaluated(config, folder, label):
        print(f"{folder}: every row asked for is there already")
        return config, folder, label
    runs.prepare(config["trainer"])
    task = build_task(config)
    model = hf.load(path, cfg["model"]["dtype"], config["train_length"])
    check(config, model, task, theirs)
    if torch.cuda.is_available() and config["trainer"]["accelerator"] != "cpu":
        model.to("cuda")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        store.write_whole(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False).encode())
        documents = []
        made = evaluate_run(config, task, model, 0, label, folder, documents=documents)
        rows, added = runs.kept(folder, itertools.chain([size(config, task, model, label)], made), documents)
    print(f"{folder}: {added} of {len(rows)} rows are new")
    return config, folder, label


def configuration(cfg: Mapping[str, Any], theirs: Any) -> dict[str, Any]:
    """The configuration as of a run of ours. theirs: the model's own, which says how long its contexts were."""
    path = os.path.expanduser(cfg["model"]["path"])
    length = cfg["train_length"] or getattr(theirs, "max_position_embeddings", None)
    if not length:
        raise UserError(f"train_length=null: must be given, as the config.json of {cfg['model']['path']} names none")
    own = compose("train")
    own |= {key: cfg[key] for key in ("study", "seed", "task", "extension", "protocol", "logger")}
    own |= {"train_length": length, "trainer": own["trainer"] | cfg["trainer"], "position": {}}
    own |= {key: cfg[key] for key in ("factors", "lengths") if cfg[key] is not None}
    own["names"] = {
        "position": f"hf({theirs.model_type})",
        "sampling": "consecutive",
        "task": cfg["names"]["task"],
        "model": os.path.basename(os.path.abspath(path)),
    }
    dtype = cfg["model"]["dtype"]
    own["model"] = {"path": cfg["model"]["path"]} | ({} if dtype == "float32" else {"dtype": dtype})
    task = own["task"]
    if "tokenizer" in task and not (task["tokenizer"] or task["bpe"]):
        file = os.path.join(cfg["model"]["path"], "tokenizer.json")
        if not os.path.isfile(os.path.expanduser(file)):
            raise UserError(f"model.path={cfg['model']['path']}: has no tokenizer.json; give task.tokenizer=…")
        own["task"] = task | {"tokenizer": file}
    return own


def check(config: Mapping[str, Any], model: hf.Hf, task: Task, theirs: Any) -> None:
    """Raises UserError for what the model cannot do. Its own mark of a beginning takes the place of the task's,
    and ids of its own that of a needle's marks."""
    name, position = config["names"]["task"], config["names"]["position"]
    if task.pooled:
        raise UserError(
            f"task={name}: is answered from the mean over all tokens, for which the model has no head; choose another"
        )
    if getattr(task, "begin", None) is not None:
        if not isinstance(theirs.bos_token_id, int):
            raise UserError("task.bos=true: must be false, as the model's config.json names no bos_token_id")
        task.begin, task.marks = theirs.bos_token_id, 0
    if task.vocab + task.marks > model.vocab and isinstance(task, Haystack):
        task.mark_by_unused_ids()
    if task.vocab + task.marks > model.vocab:
        raise UserError(
            f"task={name}: feeds ids up to {task.vocab + task.marks - 1}, and {position} knows those below "
            f"{model.vocab}; take a smaller task, or the model's own tokenizer"
        )
    for extension in config["extension"]:
        if extension != "none" and not model.rotaries:
            raise UserError(f"extension={extension}: must be none; {position} has no rotary frequencies to change")
        if extension != "none" and model.rope_type != "default":
            raise UserError(
                f"extension={extension}: must be none; {position} was extended already, by rope_type={model.rope_type}"
            )


def size(config: Mapping[str, Any], task: Task, model: hf.Hf, label: str) -> Row:
    """The number of parameters, as of a training: the one cost that is known."""
    where = coordinates(config, task, 0, label) | {"extension": "none", "length": config["train_length"], "slice": {}}
    count = float(sum(p.numel() for p in model.parameters()))
    return Row(**where, protocol="training", metric="parameters", total=count, count=1, unit="parameter", eval_hash="")
