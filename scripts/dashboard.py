"""Build the W&B workspace of a study: loss by length, retrieval, training, costs, tables; not logged in, only its JSON.

python scripts/dashboard.py study=default
"""

from posenc_train.config import entry


@entry("dashboard")
def main(cfg: dict) -> None:
    from posenc_train.report import dashboard

    print(dashboard.build(cfg["study"]))


if __name__ == "__main__":
    main()
