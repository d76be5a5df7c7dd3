"""All runs of a study in one table and figures, written to runs/<study>/.

python scripts/compare.py study=default
"""

from pathlib import Path

from posenc_train.config import entry


@entry("compare")
def main(cfg: dict) -> None:
    from posenc_train import report

    folder = Path("runs", cfg["study"])
    files = report.write(folder, cfg["gate"])
    print(report.text(folder, cfg["gate"]))
    print("\n".join(f"wrote {file}" for file in files))


if __name__ == "__main__":
    main()
