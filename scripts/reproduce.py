"""Run what is missing of an experiment, side by side where that is faster, evaluate it, and put it together.

python scripts/reproduce.py experiment=quickstart
python scripts/reproduce.py experiment=alibi_table5 scale=laptop seeds=3 plan=true     # what it would take, and no more
Any further override is handed to every cell: … experiment=quickstart model=nano optim.steps=5
"""

import shlex
import sys
from pathlib import Path

from posenc_train.config import entry


@entry("reproduce", sweeps=True)
def main(cfg: dict) -> None:
    from posenc_train import choice, estimate, launch, report, runs, study

    cells = study.plan(cfg)
    print(estimate.told(cfg, *choice.foreseen(cfg, cells)), file=sys.stdout if cfg["plan"] else sys.stderr)
    if cfg["plan"]:
        return
    cells, failed = choice.made(cfg, cells)
    failed |= launch.run(cells, cfg["jobs"])
    following = study.second_act(cfg, [cell for cell in cells if cell.folder not in failed])
    failed |= launch.run(following, cfg["jobs"])
    done = [cell for cell in [*cells, *following] if cell.folder not in failed]
    if not done:
        return study.tell(failed)
    folder = Path("runs", cells[0].config["study"])
    summary = report.of(folder)
    print(report.text(summary))
    command = shlex.join(["python", "scripts/reproduce.py", *study.command_line()])
    print(report.verdict(cfg["experiment"], folder, [cell.folder.name for cell in done], command))
    files = [*report.write(summary, folder), *report.for_paper(summary, folder), report.write_page(summary, folder)]
    for file in files:
        print(f"wrote {file}")
    study.tell(failed)
    runs.complain(row for cell in done for row in runs.measurements(cell.config, cell.folder))


if __name__ == "__main__":
    main()
