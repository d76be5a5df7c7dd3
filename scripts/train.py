"""Train one model at a short context and evaluate it at longer ones.

python scripts/train.py position=alibi task=text model=tiny train_length=128 seed=0
python scripts/train.py -m position=nope,rope,alibi seed=0,1
"""

import json
import time
from pathlib import Path

from posenc_train.config import entry, lengths, run_folder


@entry("train")
def main(cfg: dict) -> None:
    from posenc_train.tasks import tables  # not above: a mistake in the command is told before torch is imported

    tables.ask(cfg["task"])
    from posenc_train import report, runs
    from posenc_train.build import build_model, build_sampling, build_task, rehearse
    from posenc_train.evaluation.biases import biases
    from posenc_train.evaluation.evaluate import data_hash
    from posenc_train.evaluation.rows import ALONG
    from posenc_train.evaluation.run import cost_rows, evaluate_run, longest
    from posenc_train.report import store
    from posenc_train.report.wandb import Run
    from posenc_train.training.checkpoint import initialise, read
    from posenc_train.training.fit import fit

    folder, step = run_folder(cfg), cfg["optim"]["steps"]
    if not cfg["rerun"] and runs.finished(cfg, folder, f"last@{step}"):
        print(f"{folder}: finished before, nothing is trained again")
        return runs.complain(runs.measurements(cfg, folder))
    rehearse(cfg)
    runs.prepare(cfg["trainer"])
    task = build_task(cfg)
    if cfg["rerun"] and not runs.changed(cfg, folder, task.fingerprint) and runs.finished(cfg, folder, f"last@{step}"):
        print(f"{folder}: finished before, by the same code on the same data, nothing is trained again")
        return runs.complain(runs.measurements(cfg, folder))
    facts = task.report(cfg["train_length"], longest(cfg))  # or an error: there is nothing long enough
    model = build_model(cfg, task)
    start = initialise(model, cfg["position"], Path(cfg["init"]).expanduser()) if cfg["init"] else "fresh weights"
    with runs.opened(cfg, folder, task.fingerprint) as mode, Run(mode, folder.name, cfg["study"], cfg) as run:
        runs.log.info("%s from %s\n%s", folder, start, runs.describe(facts))
        tell = runs.log.info

        def measure(step: int, code: str) -> None:
            documents = []
            rows = evaluate_run(cfg, task, model, step, f"{ALONG}{step}", folder, tell, code, (), documents)
            runs.kept(folder, rows, documents)

        pauses = runs.steps_to_measure(cfg, folder)
        fit(cfg, task, model, build_sampling(cfg), folder, run, runs.training_code(cfg), pauses, measure)
        if runs.RANK:
            return  # another process evaluates and writes
        tell("evaluating at %s tokens", ", ".join(map(str, lengths(cfg))))
        began = time.perf_counter()
        saved = read(folder / "last.ckpt")
        label = saved.label  # weights that somebody edited since are not the trained ones
        done = runs.done(cfg, folder, label)
        documents = []
        store.append(folder / "rows.jsonl", cost_rows(cfg, task, model, step, saved.seconds, code=saved.code))
        made = evaluate_run(cfg, task, model, step, label, folder, tell, saved.code, done, documents)
        rows, _ = runs.kept(folder, made, documents)
        seconds = time.perf_counter() - began
        tell("trained in %.1f s, evaluated in %.1f s", saved.seconds, seconds)
        if added := biases(model, max(lengths(cfg))):
            store.write_whole(folder / store.BIASES, json.dumps(added).encode())
        run.evaluation(store.load(folder / "rows.jsonl"))  # all of them: W&B shows the last table
        summary = report.of(folder)
        for file in report.write(summary, folder):
            if file.suffix == ".png":
                run.figure(file.stem, file)
        data = {data_hash(task, length, longest(cfg)) for length in lengths(cfg)} | {row.eval_hash for row in rows}
        runs.remember(cfg, folder, saved, data, seconds)
        tell("%s\nrows, tables and figures are in\n%s", report.text(summary), folder)
    runs.complain(runs.measurements(cfg, folder))


if __name__ == "__main__":
    main()
