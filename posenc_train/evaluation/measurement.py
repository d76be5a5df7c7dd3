"""What evaluation yields, and what its parts share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc_train.model.transformer import Transformer

TOKENS = 4096  # fed per forward: bounds memory, changes no number
LOGITS = 4096  # positions whose logits exist at once
NO_MEMORY = ("not enough memory", "out of memory")  # how torch says so in a RuntimeError

Draws = Sequence[Int[Tensor, "n"] | None]  # positions of a row under each draw of a sampling; None: consecutive
T = TypeVar("T")


class Documents(NamedTuple):
    """The sums of a measurement by document: the number of each, the sum of its losses, how many they are."""

    document: Int[np.ndarray, "d"]
    total: Float[np.ndarray, "d"]
    count: Int[np.ndarray, "d"]


@dataclass(frozen=True)
class Measurement:
    """What evaluation knows of a row; the run adds where it comes from. `documents`: of losses of whole texts, and
    math.fsum of their totals is `total`."""

    length: int
    protocol: str
    metric: str
    total: float | None
    count: int
    unit: str
    eval_hash: str
    slice: dict = field(default_factory=dict)
    status: str = "ok"
    documents: Documents | None = field(default=None, compare=False)


def beyond(model: Transformer, length: int, draws: Draws) -> bool:
    """Whether the length, or under one of the draws a position, is more than the schemes can represent."""
    needed = max(length if pos is None else int(pos.max()) + 1 for pos in draws)
    return model.reach is not None and needed > model.reach


def attempted(work: Callable[[], T]) -> tuple[T | None, str]:
    """What the work returns and "ok", or None and why there is no number; what is no matter of memory or of numbers
    is raised."""
    try:
        return work(), "ok"
    except FloatingPointError:
        return None, "not finite"
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or any(words in str(error).lower() for words in NO_MEMORY)):
            raise
    # Behind the handler, where the frames that hold the tensors are gone.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None, "out of memory"
