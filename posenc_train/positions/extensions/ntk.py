"""NTK-aware scaling (bloc97 2023; Peng et al. 2023, arXiv 2309.00071, Definition 1): a larger base."""

from jaxtyping import Float
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme
from posenc_train.positions.extensions.rotary import exponents, pairs, several, stretched, times
from posenc_train.positions.rope import Rope


def ratio(count: int, scale: float) -> Float[Tensor, "pairs"]:
    """s^(-2c/(d-2)): what the base b s^(d/(d-2)) makes of frequency c. The fastest stays, the slowest is divided by s.

    d = 64, b = 10,000, s = 4: as with the base 41,829.37. Six dimensions, s = 4: [1, 0.5, 0.25].
    """
    return scale ** -exponents(count)


def ntk(scheme: PositionScheme, dims: Dims, scale: float) -> PositionScheme:
    """Frequencies are multiplied, not the base replaced: so a frequency that is zero in training (p-RoPE) stays zero.

    At factor s it does not quite reach s times the trained length: the pairs in the middle leave what they were
    trained on. Raises ValueError for a single pair, and for one frequency for all pairs.
    """

    def stretch(rope: Rope):
        several(rope, "ntk")
        return times(ratio(pairs(rope), scale))

    return stretched(scheme, stretch)
