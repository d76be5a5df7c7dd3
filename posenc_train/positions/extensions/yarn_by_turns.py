"""YaRN with the ramp of its paper (Peng et al. 2023, arXiv 2309.00071, Definitions 2 and 3)."""

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.extensions.by_parts import ramp
from posenc_train.positions.extensions.rotary import stretched
from posenc_train.positions.extensions.yarn import temperature


def yarn_by_turns(
    scheme: PositionScheme, dims: Dims, scale: float, alpha: float = 1.0, beta: float = 32.0
) -> PositionScheme:
    """The ramp is linear in the turns that a pair makes within the trained length; `yarn` is what the authors released,
    whose ramp is linear in the pair's index. Between them frequencies differ by up to 0.29 (d = 64, L = 512, s = 4)."""
    frequency = ramp("yarn_by_turns", dims, scale, alpha, beta)
    return stretched(scheme, lambda rope: frequency, temperature(scale))
