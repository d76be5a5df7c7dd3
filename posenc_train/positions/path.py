"""PaTH: accumulated Householder transformations (Yang et al. 2025, arXiv 2505.16381)."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.positions.base import Dims, PositionScheme, Span

BLOCK = 64  # keys whose transformations are applied at once
EPS = 1e-6  # under the root of the squared length, as in the authors' code


def transported(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b h k d"],
    w: Float[Tensor, "b h k d"],
    beta: Float[Tensor, "b h k"],
    start: int,
) -> Float[Tensor, "b h q k"]:
    """k_j · H_(j+1) … H_i q_i, H_t = I - beta_t w_t w_t^T, for the queries i = start, start + 1, … H_i meets q first.

    q_1 = (1, 2), k = (3, 1), no transformation but of two tokens after the key, beta = 2, w = (1, 0), then beta = 1,
    w = (1, 1) / sqrt(2): 2.
    From the last block of keys to the first: z = H … H q of all later blocks. Within a block z_t = z - (w_t' a_t' of
    t' > t), and a_t = beta_t w_t · z_t: a triangular system (I + diag(beta) triu(w w^T, 1)) a = diag(beta) w z.
    Keys after the query are masked; what is returned for them is none of the above.
    """
    at = start + torch.arange(q.shape[2], device=q.device)[:, None]
    z, pieces = q, []
    for first in reversed(range(0, k.shape[2], BLOCK)):
        part = slice(first, first + BLOCK)
        k_, w_, beta_ = k[:, :, part], w[:, :, part], beta[:, :, part]
        turns = torch.arange(first, first + k_.shape[2], device=q.device) <= at  # those up to the query, itself too
        right = (beta_[:, :, None] * (z @ w_.mT)).masked_fill(~turns, 0.0)
        system = (beta_[..., None] * (w_ @ w_.mT)).triu(1)
        a = torch.linalg.solve_triangular(system, right.mT, upper=True, unitriangular=True).mT
        pieces.append(z @ k_.mT - a @ (w_ @ k_.mT).tril(-1))
        z = z - a @ w_
    return torch.cat(pieces[::-1], dim=-1)


class PaTH(PositionScheme):
    """score = k_j · H_(j+1) … H_i q_i / sqrt(d), in place of k · q / sqrt(d): every token between reflects or shrinks
    one direction w of its own, H = I - beta w w^T, both read from the layer's input x, per head and layer.

    w = silu(convolution of W x with the tokens before), of length 1; W is of low rank. beta = 2 sigmoid(u · x + b).
    Beta 0 is no position at all. No position is read, only what stands between; a document's first tokens are
    convolved with nothing before it.
    rank: that of W. taps: how many tokens the convolution spans, the token itself included.
    With FoX's bias (PaTH-FoX of the paper) it is a stack of the two.
    W and u start from N(0, fan_in^-1/2), the convolution as torch's, b at 0, which makes beta about 1; the authors' own
    numbers are unverified. q and k are those projected: a stack refuses to rotate them, in vain, before it.
    Raises ValueError for a bidirectional model: the product ends at the query.
    """

    paper = "Yang et al. 2025, arXiv 2505.16381"
    parameters_formula = "rank x (width + heads x head_width) + taps x heads x head_width + heads x (width + 1)"
    shared = False
    reads_content = True
    placeless = True
    replaces_scores = True

    def __init__(self, dims: Dims, rank: int = 32, taps: int = 3):
        super().__init__()
        if not dims.causal:
            raise ValueError("position=path model.causal=false: must be true; the product ends at the query")
        out = dims.heads * dims.head_width
        self.heads = dims.heads
        self.down = nn.Parameter(torch.empty(rank, dims.width).normal_(std=dims.width**-0.5))
        self.up = nn.Parameter(torch.empty(out, rank).normal_(std=rank**-0.5))
        self.convolution = nn.Parameter(torch.empty(taps, out).uniform_(-(taps**-0.5), taps**-0.5))
        self.u = nn.Parameter(torch.empty(dims.heads, dims.width).normal_(std=dims.width**-0.5))
        self.b = nn.Parameter(torch.zeros(dims.heads))

    def directions(
        self, x: Float[Tensor, "b k w"], doc: Int[Tensor, "b k"] | None
    ) -> tuple[Float[Tensor, "b h k d"], Float[Tensor, "b h k"]]:
        """w and beta of every token; beta of padding is 0."""
        x, n = x.float(), x.shape[1]
        flat = x @ self.down.float().T @ self.up.float().T
        mixed = 0
        for lag, weight in enumerate(self.convolution.float()):  # the first is the token's own
            earlier = F.pad(flat, (0, 0, lag, 0))[:, :n]
            if doc is not None and lag:
                same = F.pad(doc, (lag, 0), value=-2)[:, :n] == doc
                earlier = earlier * same[..., None]
            mixed = mixed + weight * earlier
        w = F.silu(mixed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        w = w * (w.square().sum(-1, keepdim=True) + EPS).rsqrt()
        beta = 2 * F.linear(x, self.u.float(), self.b.float()).sigmoid().mT
        return w, beta if doc is None else beta * (doc >= 0)[:, None]

    def refine(
        self,
        scores: Float[Tensor, "b h q k"],
        q: Float[Tensor, "b h q d"],
        k: Float[Tensor, "b h k d"],
        seen: Bool[Tensor, "#b #h q k"],
        span: Span,
    ) -> Float[Tensor, "b h q k"]:
        w, beta = self.directions(span.x, span.k_doc)
        return transported(q, k, w, beta, span.start) / q.shape[-1] ** 0.5

    def unreached(self, length: int) -> dict[str, Bool[Tensor, "..."]]:
        """Between the first token and itself there is none, so of a single token nothing; of two tokens the second's
        convolution reaches no further than the first."""
        if length == 1:
            return {name: torch.ones_like(p, dtype=torch.bool) for name, p in self.named_parameters()}
        lags = torch.arange(len(self.convolution), device=self.b.device)[:, None]
        return {"convolution": (lags >= length).expand_as(self.convolution)}
