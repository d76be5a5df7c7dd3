"""Dynamic NTK scaling (emozilla 2023; Peng et al. 2023, arXiv 2309.00071, section 3.3, in the released code's form)."""

from jaxtyping import Float
from torch import Tensor

from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.extensions.rotary import exponents, pairs, several, stretched
from posenc_train.positions.rope import Rope


def dynamic_ntk(scheme: PositionScheme, dims: Dims, scale: float, factor: float = 1.0) -> PositionScheme:
    """The base becomes b (a l/L - (a - 1))^(d/(d-2)), l being the length of the call; up to l = L nothing changes.

    d = 64, b = 10,000, L = 512: 20,452.23 at l = 1,024, 41,829.37 at 2,048; with a = 2: 31,082.24 at 1,024.
    l is one more than the largest key position, of each row by itself; nothing is remembered between calls, and
    cached keys are rotated anew. The only extension that looks at the call and not at the evaluation's scale.
    So a token's output depends on how much follows it in the same call: a text scored in one piece uses the final l
    for all its tokens, while generation gives each the l of its time. factor: a, at least 1.
    Raises ValueError for a single pair, and for one frequency for all pairs.
    """
    if factor < 1:
        raise ValueError(f"extension.dynamic_ntk.factor={factor:g}: must be a number of at least 1")

    def stretch(rope: Rope):
        several(rope, "dynamic_ntk")
        exponent = exponents(pairs(rope))

        def frequency(trained: Float[Tensor, "pairs"], span: Span) -> Float[Tensor, "*b pairs"]:
            longest = span.k_pos.amax(-1).double() + 1
            growth = (factor * longest / dims.train_length - (factor - 1)).clamp(min=1)
            return trained * (growth[..., None] ** -exponent.to(growth.device)).to(trained)

        return frequency

    return stretched(scheme, stretch)
