"""All runs of a study in one table, figures and a page to look at (report.html), written to runs/<study>/.

python scripts/compare.py study=default
"""

from pathlib import Path

from posenc_train.config import entry


@entry("compare")
def main(cfg: dict) -> None:
    from posenc_train import report

    folder = Path("runs", cfg["study"])
    summary = report.of(folder, cfg["gate"], cfg["tolerance"])
    print(report.text(summary))
    files = [*report.write(summary, folder), *report.for_paper(summary, folder), report.write_page(summary, folder)]
    for file in files:
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
