"""What schemes there are: where each enters, what it learns, what it costs, and what it was verified against.

python scripts/schemes.py
python scripts/schemes.py only=[fire,yarn] model=base train_length=1024
"""

import shutil

from posenc_train.config import entry


@entry("schemes")
def main(cfg: dict) -> None:
    from posenc_train import catalogue
    from posenc_train.positions.base import Dims

    width, heads, layers = (cfg["model"][key] for key in ("width", "heads", "layers"))
    length = cfg["train_length"]
    found = catalogue.entries(Dims(width, heads, width // heads, layers, length))
    if cfg["format"] == "markdown":
        print(catalogue.markdown(found), end="")
    else:
        print(f"width {width}, {heads} heads, {layers} layers, trained on {length} tokens\n")
        print(catalogue.text(found, shutil.get_terminal_size().columns, cfg["only"]), end="")


if __name__ == "__main__":
    main()
