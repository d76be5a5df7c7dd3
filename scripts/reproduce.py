"""Run all cells of an experiment, side by side where that is faster, and compare them.

python scripts/reproduce.py experiment=quickstart
Any further override is handed to every cell: … experiment=quickstart model=nano optim.steps=5
"""

from pathlib import Path

from posenc_train.config import entry


@entry("reproduce", sweeps=True)
def main(cfg: dict) -> None:
    from posenc_train import report, runs, study

    cells = study.plan(cfg)
    failed = study.run(cells, cfg["jobs"])
    if following := study.second_act(cfg, [cell for cell in cells if cell.folder not in failed]):
        failed |= study.run(following, cfg["jobs"])
    done = [cell for cell in [*cells, *following] if cell.folder not in failed]
    folder = Path("runs", cells[0].config["study"])
    summary = report.of(folder)
    print(report.text(summary))
    for file in report.write(summary, folder):
        print(f"wrote {file}")
    study.tell(failed)
    runs.complain(row for cell in done for row in runs.measurements(cell.config, cell.folder))


if __name__ == "__main__":
    main()
