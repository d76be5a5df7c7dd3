"""DAPE: data-adaptive positions (Zheng et al. 2024, arXiv 2405.14722; version 2, arXiv 2410.04798)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.stack import Build, Composition


def along_keys(x: Float[Tensor, "b c q k"], weight: Float[Tensor, "o c taps"]) -> Float[Tensor, "b o q k"]:
    """A convolution of every query's row, zeros around it; of one tap, a linear map of every pair's channels.

    Every query has a copy of the weights: their gradient is summed over a query's keys first, most of which cancels
    (that of a softmax's row is 0 in all), and over queries in float64. In one float32 sum it was off by 1e-5.
    """
    keys, taps = x.shape[-1], weight.shape[-1]
    x = F.pad(x, (taps // 2, taps // 2)).transpose(1, 2)
    own = weight.double().expand(*x.shape[:2], *weight.shape).to(x.dtype)
    return sum(own[..., t] @ x[..., t : t + keys] for t in range(taps)).transpose(1, 2)


class Dape(Composition):
    """scores + B + f([scores; B]): B is the bias of the part `over`, f a network 2 heads -> hidden -> heads with
    LeakyReLU over the heads of every pair, one a layer, while `over` may be shared.

    kernel: 1, version 1; 3, version 2, both of whose maps convolve three neighbouring keys.
    Pairs that a query does not see are 0 before f, and masked after it, or the future would leak into it. So are their
    hidden units: in the authors' code they are not, and a query's neighbours after it come in as what the biases make
    of 0, except for the last query's, which has none; a row would depend on whether another follows it.
    f starts as torch's layers do, in the authors' code too, so not at 0; its last map has no bias, one number for all
    keys of a query. The hidden units of all pairs are in memory: several times what attention needs.
    Raises ValueError for parts other than one bias.
    """

    forwarded = ()
    shared = False

    def __init__(self, dims: Dims, parts: Mapping[str, PositionScheme], hidden: int = 32, kernel: int = 1):
        super().__init__(parts)
        self.shared = False
        if list(parts) != ["over"]:
            raise ValueError(f"position.parts: must be one scheme named over, not {', '.join(parts)}")
        over = parts["over"]
        others = [hook for hook in ("embed", "rotate", "visible", "refine", "mix") if getattr(over, hook) is not None]
        if others or (over.by_distance is None and over.bias is None):
            raise ValueError("position.parts.over: must be a bias and nothing else, such as kerple_log, alibi or fire")
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"position.kernel={kernel}: must be an odd integer of at least 1")
        self.hidden, self.kernel = hidden, kernel
        base = "" if self.parameters_formula == "0" else f"{self.parameters_formula} + "
        self.parameters_formula = base + "hidden x (3 x heads x kernel + 1)"

        def drawn(*shape: int, inputs: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape).uniform_(-(inputs**-0.5), inputs**-0.5))

        self.inner = drawn(hidden, 2 * dims.heads, kernel, inputs=2 * dims.heads * kernel)
        self.inner_bias = drawn(hidden, inputs=2 * dims.heads * kernel)
        self.outer = drawn(dims.heads, hidden, kernel, inputs=hidden * kernel)

    @classmethod
    def assemble(
        cls, dims: Dims, build: Build, parts: Mapping[str, Any], hidden: int = 32, kernel: int = 1
    ) -> list["Dape"]:
        """One per layer."""
        columns = {name: build(settings, dims) for name, settings in parts.items()}
        return [
            cls(dims, {name: column[i] for name, column in columns.items()}, hidden, kernel) for i in range(dims.layers)
        ]

    def refine(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b h k d"],
        seen: Bool[Tensor, "#b #h q k"],
        span: Span,
    ) -> Float[Tensor, "b h q k"]:
        base = self.parts["over"].added(replace(span, final=False)).expand_as(scores)
        pairs = torch.cat([x.masked_fill(~seen, 0.0) for x in (scores, base)], dim=1)
        units = along_keys(pairs, self.inner.float()) + self.inner_bias.float()[:, None, None]
        units = F.leaky_relu(units).masked_fill(~seen.any(dim=1, keepdim=True), 0.0)
        return scores + base + along_keys(units, self.outer.float())

    def uniform(self, length: int) -> dict[str, Bool[Tensor, "..."]]:
        return {}  # f sees it
