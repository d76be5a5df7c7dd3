"""Evaluate a trained run again: at other lengths, under extensions, by another protocol; rows are added to its folder.

python scripts/evaluate.py run=runs/default/<cell> lengths=[128,4096]
python scripts/evaluate.py run=runs/default/<cell> 'extension=[none,pi,ntk,yarn]'
python scripts/evaluate.py model=hf model.path=<folder> task=text     # a model of transformers instead of a run
"""

from posenc_train.config import entry, lengths


@entry("evaluate")
def main(cfg: dict) -> None:
    from posenc_train import foreign, report, runs
    from posenc_train.build import build_model, build_task, rehearse
    from posenc_train.evaluation.evaluate import data_hash
    from posenc_train.evaluation.run import evaluate_run, longest
    from posenc_train.lock import locked
    from posenc_train.report import store
    from posenc_train.report.wandb import Run
    from posenc_train.training.checkpoint import load, read

    if cfg["run"] is None:
        trained, folder, label = foreign.evaluated(cfg)
        summary = report.of(folder)
        report.write(summary, folder)
        print(report.text(summary))
        runs.complain(runs.asked_for(trained, folder, label))
        return
    folder, trained = runs.reopened(cfg)
    saved = read(folder / "last.ckpt")
    if runs.finished(trained, folder, saved.label):
        print(f"{folder}: every row asked for is there already")
    else:
        rehearse(trained)
        runs.prepare(trained["trainer"])
        task = build_task(trained)
        model = build_model(trained, task)
        with locked(folder):
            saved = load(model, folder / "last.ckpt")  # which a training may have replaced since it was read above
            data = {data_hash(task, length, longest(trained)) for length in lengths(trained)}
            if (known := runs.texts(folder)) and not known & data:
                print(
                    "the texts are as long as the longest length, so they are others than those of the rows before: "
                    "what is to be compared must be asked for together, as lengths=[…]"
                )
            done = runs.done(trained, folder, saved.label)
            asked = {"code": saved.code, "done": done, "documents": (documents := [])}
            made = evaluate_run(trained, task, model, saved.step, saved.label, folder, **asked)
            rows, added = runs.kept(folder, made, documents)
            runs.remember(trained, folder, saved, data | {row.eval_hash for row in rows}, 0.0)
        print(f"{folder}: {added} rows are new")
        with Run(cfg["logger"]["mode"], folder.name, trained["study"], trained) as run:
            run.evaluation(store.load(folder / "rows.jsonl"))  # all of them: W&B shows the last table
    summary = report.of(folder)
    report.write(summary, folder)
    print(report.text(summary))
    runs.complain(runs.asked_for(trained, folder, saved.label))


if __name__ == "__main__":
    main()
