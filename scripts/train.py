"""Train one model at a short context and evaluate it at longer ones.

python scripts/train.py position=alibi task=text model=tiny train_length=128 seed=0
python scripts/train.py -m position=nope,rope,alibi seed=0,1
"""

import time
from pathlib import Path

from posenc_train.config import entry, lengths, run_folder


@entry("train")
def main(cfg: dict) -> None:
    from posenc_train.tasks import tables  # not above: a mistake in the command is told before torch is imported

    tables.ask(cfg["task"])
    from posenc_train import report, runs
    from posenc_train.build import build_model, build_sampling, build_task, rehearse
    from posenc_train.evaluation.rows import ALONG
    from posenc_train.evaluation.run import cost_rows, evaluate_run, longest
    from posenc_train.report import store
    from posenc_train.report.wandb import Run
    from posenc_train.training.checkpoint import initialise, read
    from posenc_train.training.fit import fit

    folder, step = run_folder(cfg), cfg["optim"]["steps"]
    if runs.finished(cfg, folder, f"last@{step}"):
        print(f"{folder}: finished before, nothing is trained again")
        return runs.complain(runs.measurements(cfg, folder))
    rehearse(cfg)
    runs.prepare(cfg["trainer"])
    task = build_task(cfg)
    facts = task.report(cfg["train_length"], longest(cfg))  # or an error: there is nothing long enough
    model = build_model(cfg, task)
    start = initialise(model, cfg["position"], Path(cfg["init"]).expanduser()) if cfg["init"] else "fresh weights"
    with runs.opened(cfg, folder) as mode, Run(mode, folder.name, cfg["study"], cfg) as run:
        runs.log.info("%s from %s\n%s", folder, start, runs.describe(facts))

        def measure(step: int) -> None:
            rows = evaluate_run(cfg, task, model, step, f"{ALONG}{step}", folder, runs.log.info)
            store.append(folder / "rows.jsonl", rows)

        seconds = fit(cfg, task, model, build_sampling(cfg), folder, run, runs.steps_to_measure(cfg, folder), measure)
        if runs.RANK:
            return  # another process evaluates and writes
        runs.log.info("evaluating at %s tokens", ", ".join(map(str, lengths(cfg))))
        began = time.perf_counter()
        tell = runs.log.info
        label = read(folder / "last.ckpt").label  # weights that somebody edited since are not the trained ones
        rows = [*cost_rows(cfg, task, model, step, seconds), *evaluate_run(cfg, task, model, step, label, folder, tell)]
        runs.log.info("trained in %.1f s, evaluated in %.1f s", seconds, time.perf_counter() - began)
        store.append(folder / "rows.jsonl", rows)
        run.evaluation(rows)
        summary = report.of(folder)
        for file in report.write(summary, folder):
            if file.suffix == ".png":
                run.figure(file.stem, file)
        runs.log.info("%s\nrows, tables and figures are in %s", report.text(summary), folder)
    runs.complain(runs.measurements(cfg, folder))


if __name__ == "__main__":
    main()
