"""Learned numbers that must stay within an interval."""

from jaxtyping import Float
from torch import Tensor


def within(
    parameter: Float[Tensor, "*shape"], low: float | None = None, high: float | None = None
) -> Float[Tensor, "*shape"]:
    """The parameter clamped, in float32, with the gradient of the unclamped one: it can come back from outside.

    What others do to the stored weights after every step (projected gradient) is done here on reading them, so that
    optimizers and checkpoints of any precision see a plain parameter.
    """
    value = parameter.float()
    return value + (value.clamp(low, high) - value).detach()
