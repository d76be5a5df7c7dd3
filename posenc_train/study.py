"""A study: the cells of an experiment's grid, and of its second act. `launch` runs them, `estimate` says what they will
take, `choice` fixes what is chosen before (learning rates, budgets)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posenc_train.checks import SCALES, choose, show
from posenc_train.config import UserError, check, command_line, compose, expand, hydra_line, run_folder

# Keys of the study itself; every other override is the cells'.
OWN = ("experiment", "jobs", "scale", "seeds", "plan", "tune", "budget")


class Cell(NamedTuple):
    overrides: list[str]
    config: dict[str, Any]

    @property
    def folder(self) -> Path:
        return run_folder(self.config)

    @property
    def name(self) -> str:
        return "{position}-{task}".format(**self.config["names"])

    @property
    def tokens(self) -> int:
        """What the training will see; the measure of work."""
        return self.config["optim"]["steps"] * self.config["optim"]["batch_size"] * self.config["train_length"]

    def having(self, *overrides: str) -> "Cell":
        """The cell with other values of some keys."""
        said = {key_of(override) for override in overrides}
        return cell_of([*(override for override in self.overrides if key_of(override) not in said), *overrides])


def plan(cfg: Mapping[str, Any]) -> list[Cell]:
    """The cells of cfg.experiment.grid under the command line's own overrides, largest first, each checked.

    Largest first, so that the last ones to end are short. Raises UserError for the first that cannot be, and for cells
    of several studies, of which one table could not be made.
    """
    _check_line(cfg)
    extra = [*_extra(), *_seeds(cfg)]
    cells = unique(cell_of(overrides) for line in lines(cfg, "grid") for overrides in expand(line, extra))
    if not cells:
        raise UserError("experiment.grid=[]: must hold at least one line of overrides")
    if len(studies := sorted({cell.config["study"] for cell in cells})) > 1:
        raise UserError(f"study={','.join(studies)}: must be one study, with one table; give them one after another")
    return cells


def _check_line(cfg: Mapping[str, Any]) -> None:
    for override in command_line():
        key = key_of(override)
        if key.partition(".")[0] in OWN and len(expand("", [override])) > 1:
            lists = f"; write {key}=[…] for a list" if key == "tune.lr" else ""
            raise UserError(f"{override}: must be one value, as it is of the study and not of its cells{lists}")
        if key == "experiment" and override.partition("=")[2].startswith("["):
            raise UserError(f"{override}: must be one experiment; run them one after another")
        if key == "scale" and not isinstance(cfg["experiment"]["grid"], Mapping) and cfg["scale"] != "laptop":
            name = cfg["names"].get("experiment")
            raise UserError(f"{override}: experiment={name} has no scales, and is of the size of laptop; leave it out")


def second_act(cfg: Mapping[str, Any], finished: Sequence[Cell], planned: bool = False) -> list[Cell]:
    """The cells of cfg.experiment.then: each line once for every finished cell, from whose weights it starts (init=),
    and whose overrides hold where neither the line nor the command line says anything else; a sweep of the command line
    is of the first act. A line `position=rope -> position=nope` follows only the cells that have the overrides before
    the arrow. planned: the weights need not be there yet."""
    extra = [override for override in _extra() if len(expand("", [override])) == 1]
    acts = []
    for cell in finished:
        for line in lines(cfg, "then"):
            after, _, words = line.rpartition("->")
            for overrides in expand(words, extra) if set(after.split()) <= set(cell.overrides) else ():
                said = {key_of(override) for override in overrides}
                kept = [o for o in cell.overrides if not {key_of(o), key_of(o).partition(".")[0]} & said]
                acts.append([*kept, *overrides, f"init={cell.folder}"])
    return unique(cell_of(overrides, not planned) for overrides in acts)


def lines(cfg: Mapping[str, Any], key: str) -> list[str]:
    """The lines of a grid at the scale that is asked for; of one without scales, the lines."""
    found, scale = cfg["experiment"][key] or [], cfg["scale"]
    if isinstance(found, list):
        return found
    if scale not in found and key == "grid":
        there = choose([each for each in SCALES if each in found])
        raise UserError(f"scale={scale}: experiment={cfg['names'].get('experiment')} has no such scale; {there}")
    return found.get(scale, [])


def _seeds(cfg: Mapping[str, Any]) -> list[str]:
    if cfg["seeds"] is None:
        return []
    if told := [override for override in command_line() if key_of(override) == "seed"]:
        raise UserError(f"seeds={cfg['seeds']}: stands for seed=0 and so on; leave out {told[0]}, or seeds")
    return [f"seed={','.join(map(str, range(cfg['seeds'])))}"]


def _extra() -> list[str]:
    """What the command line says to the cells."""
    return [override for override in command_line() if key_of(override).partition(".")[0] not in OWN]


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def cell_of(overrides: list[str], checked: bool = True) -> Cell:
    """A user's own folder of YAML files holds for the cells too."""
    config = compose("train", [*overrides, *(text for text in hydra_line() if text.startswith("hydra.searchpath="))])
    if checked:
        check(config)
    return Cell(overrides, config)


def unique(cells: Iterable[Cell]) -> list[Cell]:
    """Each once, largest first."""
    return sorted({cell.folder: cell for cell in cells}.values(), key=lambda cell: -cell.tokens)


def title(cfg: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    """ "alibi_table5, scale=laptop, seeds=3, into runs/alibi_table5-laptop" """
    said = [cfg["names"].get("experiment") or "the study"]
    said += [f"scale={cfg['scale']}"] if isinstance(cfg["experiment"]["grid"], Mapping) else []
    said += [f"{key}={show(cfg[key])}" for key in ("seeds", "rerun") if cfg[key] is not None]
    said += [f"budget={cfg['budget']}"] if cfg["budget"] != "tokens" else []
    return f"{', '.join(said)}, into {', '.join(map(str, dict.fromkeys(cell.folder.parent for cell in cells)))}"


def tell(failed: Mapping[Path, str]) -> None:
    """Ends the program with what failed, if anything."""
    if failed:
        told = "; ".join(f"{folder}: {why}" for folder, why in failed.items())
        raise UserError(f"{len(failed)} cell{'s' * (len(failed) != 1)} failed: {told}")
