"""The Forgetting Transformer's gate on the past (Lin et al. 2025, arXiv 2503.02130)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span


def forgotten(log_gate: Float[Tensor, "b h k"], start: int, queries: int) -> Float[Tensor, "b h q k"]:
    """ln f_(j+1) + … + ln f_i for the queries i = start … start + queries - 1: 0 at i = j, and for j > i the negative
    of what it is the other way round, which is masked.

    Gates .9, .5, .8, .99: exp of the last row is .396, .792, .99, 1.
    Sums over all keys so far, differences and, in the backward pass, sums over pairs are float64: at half a token of
    memory and 16,384 tokens neighbours differ by 0.7, and float32 sums of 11,000 are rounded to 0.001; the gradient of
    a gate is a sum over all pairs around it, most of which cancel.
    """
    total = log_gate.double().cumsum(-1)
    return (total[..., start : start + queries, None] - total[..., None, :]).float()


class Fox(PositionScheme):
    """bias = the sum of ln f over the tokens after the key up to the query, f = sigmoid(w_h x + b_h) of every token,
    per head and layer: what the query still remembers of the key. CABLE (axiomlab/Cable) is the same: its
    -softplus(-z) is ln sigmoid(z). Added after the scores are scaled. Sees tokens, never positions.

    gate: "data", f read from the layer's input; "fixed", f = sigmoid(b_h) for all tokens, b_h learned: ALiBi with
        learned slopes, in distances of positions.
    init: b_h of the data gate at first. The paper's 0 forgets half with every token; x-transformers has 5 (half after
        103). w_h starts from N(0, width^-1/2), as the other projections here; the authors have N(0, 0.02).
    t_min, t_max: the fixed gate's memory at first, f = e^(-1/T), T from t_min tokens (head 0) to t_max, evenly in its
        logarithm: b_h = -ln(e^(1/T) - 1). Their defaults here are unverified.
    The paper's "Pro" block (shifted keys and values, normalised q and k, output gate) is none of position's business.
    Raises ValueError for a bidirectional model: what comes after a query is no past of it.
    """

    paper = "Lin et al. 2025, arXiv 2503.02130"
    shared = False

    def __init__(self, dims: Dims, gate: str = "data", init: float = 0.0, t_min: float = 2.0, t_max: float = 128.0):
        super().__init__()
        if gate not in ("data", "fixed"):
            raise ValueError(f"position.gate={gate}: must be one of data, fixed")
        if not dims.causal:
            raise ValueError("position=fox model.causal=false: must be true; what comes after a query is not forgotten")
        self.reads_content = self.placeless = gate == "data"
        if self.reads_content:
            self.parameters_formula = "heads x (width + 1)"
            self.by_distance = None
            self.w = nn.Parameter(torch.empty(dims.heads, dims.width).normal_(std=dims.width**-0.5))
            self.b = nn.Parameter(torch.full((dims.heads,), float(init)))
        else:
            self.parameters_formula = "heads"
            self.bias = None
            memory = torch.linspace(math.log(t_min), math.log(t_max), dims.heads, dtype=torch.float64).exp()
            self.b = nn.Parameter(-torch.expm1(1 / memory).log().float())

    def bias(self, span: Span) -> Float[Tensor, "b h q k"]:
        gate = F.linear(span.x.float(), self.w.float(), self.b.float()).mT
        return forgotten(F.logsigmoid(gate), span.start, span.queries)

    def by_distance(self, distance: Int[Tensor, "*shape"]) -> Float[Tensor, "h *shape"]:
        past = distance.clamp(min=0).float()  # the future is masked
        return F.logsigmoid(self.b.float()).view(-1, *[1] * distance.ndim) * past

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "..."]]:
        """Of a single token nothing is forgotten."""
        return {} if length > 1 else {name: torch.ones_like(p, dtype=torch.bool) for name, p in self.named_parameters()}
