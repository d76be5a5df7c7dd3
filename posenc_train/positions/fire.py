"""FIRE: functional interpolation for relative positions (Li et al. 2023, arXiv 2310.04418)."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span

EPS = 1e-6  # of the authors' code: at c = 0 the progress is 0, not 0/0
PAIRS = 2**16  # whose hidden units are in memory at once where no gradient keeps them all; more are not faster


def progress(
    distance: Int[Tensor, "*b q k"],
    q_pos: Int[Tensor, "*b q"],
    c: Float[Tensor, ""],
    threshold: Float[Tensor, ""],
) -> Float[Tensor, "*b q k"]:
    """psi(|distance|) / (psi(max(q_pos, threshold)) + eps), where psi(x) = ln(|c x| + 1).

    c = 0.1, threshold 512: key 0 of queries 10, 511, 1023: 0.175255, 0.999515, 1; key 4094 of query 4095: 0.015839.
    """
    scale = torch.log1p((c * torch.maximum(q_pos.float(), threshold)).abs()) + EPS
    return torch.log1p((c * distance.float()).abs()) / scale[..., :, None]


class Fire(PositionScheme):
    """bias = f(progress), f a learned network 1 -> hidden -> heads with ReLU, c and the threshold |m init_l| learned.

    Up to the threshold the bias is a function of the distance; a query beyond it has its whole past squeezed into
    [0, 1], so that moving all positions changes it. The position of the query counts, in a cache too, never a length.
    init_c: c at first. m starts at 1.
    init_l: None: train_length. The paper's 512 is fixed: shorter training would use a part of [0, 1] only.
    shared: one copy for all layers, or one per layer (the default).
    f starts as a torch.nn.Linear does, except that its last layer has no bias: one more number for all keys of a
    query is nothing to softmax, and nothing would teach it. Bidirectional models (the paper has none) take
    |distance|, which after the query can exceed max(q_pos, threshold), so progress can exceed 1.
    """

    paper = "Li et al. 2023, arXiv 2310.04418"
    parameters_formula = "hidden x (heads + 2) + 2"
    relative = False

    def __init__(
        self,
        dims: Dims,
        hidden: int = 32,
        init_c: float = 0.1,
        init_l: int | None = None,
        shared: bool = False,
    ):
        super().__init__()
        self.shared, self.causal = shared, dims.causal
        self.init_l = dims.train_length if init_l is None else init_l
        self.c = nn.Parameter(torch.tensor(float(init_c)))
        self.m = nn.Parameter(torch.tensor(1.0))
        self.inner = nn.Parameter(torch.empty(hidden).uniform_(-1, 1))
        self.inner_bias = nn.Parameter(torch.empty(hidden).uniform_(-1, 1))
        self.outer = nn.Parameter(torch.empty(dims.heads, hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def f(self, x: Float[Tensor, "*b q k"], final: bool = True) -> Float[Tensor, "h *b q k"]:
        """The network; the hidden units of about PAIRS numbers at a time. final: whether a softmax is next.

        Every query has a copy of the last weights: their gradient is summed over a query's keys first, most of which
        cancels, and over queries in float64. In one float32 sum it was off by 1e-5.
        """
        inner, bias, outer = self.inner.float()[:, None], self.inner_bias.float()[:, None], self.outer.float()
        # A unit that is on for all of x adds one number to all keys of a query: the gradient of its bias is 0. Autograd
        # would round it to something that Adam then scales up.
        if final:
            always = (bias > 0) & (inner * x.detach().max() + bias > 0)
            bias = torch.where(always, bias.detach(), bias)
        rows, size = x.reshape(-1, 1, x.shape[-1]), max(1, PAIRS // x.shape[-1])
        own = outer.double().expand(len(rows), -1, -1).float()
        parts = zip(own.split(size), rows.split(size), strict=True)
        bias = torch.cat([weight @ torch.addcmul(bias, inner, part).relu() for weight, part in parts])
        return bias.transpose(0, 1).unflatten(1, x.shape[:-1])

    def progress(self, distance: Int[Tensor, "*b q k"], q_pos: Int[Tensor, "*b q"]) -> Float[Tensor, "*b q k"]:
        if self.causal:
            distance = distance.clamp(min=0)  # the future is masked
        return progress(distance, q_pos, self.c.float(), (self.m.float() * self.init_l).abs())

    def bias(self, span: Span) -> Float[Tensor, "#b h q k"]:
        bias = self.f(self.progress(span.distance(), span.q_pos), span.final)
        return bias[None] if bias.ndim == 3 else bias.movedim(0, 1)

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "*shape"]]:
        """As the weights now are: the hidden units that no pair switches on. Of torch's first weights these are about
        three in eight. What multiplies the progress also learns nothing from a unit that only distance 0 switches on.
        """
        on = self._on(length)
        dead, deaf = ~on.any(dim=0), ~on[1:].any(dim=0)
        return {"inner": deaf, "inner_bias": dead, "outer": dead.expand_as(self.outer)}

    def uniform(self, length: int) -> dict[str, Bool[Tensor, "hidden"]]:
        """The biases of the hidden units that every pair switches on (see f), three in eight as well."""
        return {"inner_bias": self._on(length).all(dim=0)}

    def _on(self, length: int) -> Bool[Tensor, "3 hidden"]:
        """Which units are on at no progress, at the least and at the most."""
        far, near = length - 1, min(1, length - 1)
        query = far if self.causal else 0  # that of the most progress; the last is that of the least
        ends = [self._progress_of(0, 0), self._progress_of(near, length - 1), self._progress_of(far, query)]
        return torch.stack([self.inner.float() * x + self.inner_bias.float() > 0 for x in ends])

    @torch.no_grad()
    def _progress_of(self, distance: int, q_pos: int) -> Float[Tensor, ""]:
        device = self.c.device
        return self.progress(torch.tensor([[distance]], device=device), torch.tensor([q_pos], device=device))[0, 0]
