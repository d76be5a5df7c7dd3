"""A small decoder Transformer that is handed its position scheme."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from posenc_train.model.attend import attend
from posenc_train.model.cache import Cache, Memory
from posenc_train.positions.base import Dims, PositionScheme, Span


class Block(nn.Module):
    """Pre-norm attention and a GELU or SwiGLU feed-forward layer (SwiGLU at two thirds of the width: equal cost)."""

    def __init__(self, dims: Dims, mlp: str = "gelu", qk_norm: bool = False, dropout: float = 0.0):
        super().__init__()
        width, hidden = dims.width, 4 * dims.width
        self.heads, self.gated = dims.heads, mlp == "swiglu"
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        # Before any rotation: a norm after it would undo a scheme that scales q or k.
        self.q_norm = nn.RMSNorm(dims.head_width) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(dims.head_width) if qk_norm else nn.Identity()
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        if self.gated:
            hidden = 2 * hidden // 3
        self.up = nn.Linear(width, 2 * hidden if self.gated else hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b n w"], scheme: PositionScheme, span: Span, remember, backend: str, before=None
    ):
        """before: the layer's inputs with those that a memory holds in front; None: there is no memory."""
        read = self.attention_norm(x if before is None else before)
        q, k, v = self.qkv(read).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q = q[:, :, -x.shape[1] :]
        k, v, read = remember(self.k_norm(k), v, read if scheme.reads_content else None)
        mixed = attend(self.q_norm(q), k, v, scheme, replace(span, x=read), backend)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        up = self.up(self.mlp_norm(x))
        if self.gated:
            gate, up = up.chunk(2, dim=-1)
            up = F.silu(gate) * up
        else:
            up = F.gelu(up)
        return x + self.dropout(self.down(up))


class Transformer(nn.Module):
    """Token ids to logits. Ids below `vocab` are predicted, the `marks` ids above them are only fed (BOS, separator).

    schemes: one per layer, which may be the same one. The head is tied to the embedding of the predicted ids.
    pooled: there is one answer a sequence, read from the mean over its tokens; else one at every token.
    dims.causal False: every token sees all of its document, and there is no cache.
    attention: "auto" (the fused backend) or "reference".
    """

    pooled = False

    def __init__(
        self,
        dims: Dims,
        vocab: int,
        marks: int,
        schemes: Sequence[PositionScheme],
        mlp: str = "gelu",
        qk_norm: bool = False,
        dropout: float = 0.0,
        attention: str = "auto",
        pooled: bool = False,
    ):
        super().__init__()
        self.dims, self.pooled = dims, pooled
        self.backend = "fused" if attention == "auto" else attention
        # One for all layers is held once, so that a checkpoint names it once.
        self.positions = nn.ModuleList(schemes[:1] if all(scheme is schemes[0] for scheme in schemes) else schemes)
        self.embedding = nn.Embedding(vocab, dims.width)
        self.mark_embedding = nn.Embedding(marks, dims.width) if marks else None
        self.blocks = nn.ModuleList([Block(dims, mlp, qk_norm, dropout) for _ in range(dims.layers)])
        self.norm = nn.LayerNorm(dims.width, bias=False)
        self.head = nn.Linear(dims.width, vocab, bias=False)
        self.dropout = nn.Dropout(dropout)
        self._initialise()
        self.head.weight = self.embedding.weight

    def _initialise(self) -> None:
        """Weights N(0, fan_in^-1/2), smaller where they add to the residual stream, which then keeps its size."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear) and not name.startswith("positions."):
                std = module.in_features**-0.5
                if name.endswith((".out", ".down")):
                    std *= (2 * self.dims.layers) ** -0.5
                nn.init.normal_(module.weight, std=std)
        for embedding in filter(None, (self.embedding, self.mark_embedding)):
            nn.init.normal_(embedding.weight, std=self.dims.width**-0.5)

    @property
    def reach(self) -> int | None:
        """The longest context that the schemes can represent; None: any."""
        return min((scheme.reach for scheme in self.positions if scheme.reach is not None), default=None)

    @property
    def memory(self) -> int:
        """Tokens of earlier segments that training reads."""
        return max(scheme.memory for scheme in self.positions)

    def under(self, schemes: Sequence[PositionScheme]) -> "Transformer":
        """This model, its very parameters, under other schemes (an extension of its own); it stays as it is."""
        other = copy.copy(self)
        other._modules = self._modules | {"positions": nn.ModuleList(schemes)}
        return other

    def scheme(self, layer: int) -> PositionScheme:
        return self.positions[layer if len(self.positions) > 1 else 0]

    def embed(self, ids: Int[Tensor, "b n"]) -> Float[Tensor, "b n w"]:
        table = self.embedding.weight
        if self.mark_embedding is not None:
            table = torch.cat([table, self.mark_embedding.weight])
        return F.embedding(ids, table) * self.dims.width**0.5  # unit variance (Vaswani et al., section 3.4)

    def hidden(
        self,
        ids: Int[Tensor, "b n"],
        pos: Int[Tensor, "*b n"] | None = None,
        doc: Int[Tensor, "b n"] | None = None,
        cache: Cache | None = None,
        memory: Memory | None = None,
    ) -> Float[Tensor, "b n w"]:
        """The last layer's normalised output. pos None: consecutive, behind what the cache holds; doc None: one
        document, else its number per token, -1 for padding. A cache is extended by these tokens; so is a memory, which
        takes consecutive positions.

        Raises ValueError for a cache where later tokens change earlier ones, and beside a memory, as for positions."""
        if memory is None:
            span = self._span(ids, pos, doc, cache)
        elif pos is not None or cache is not None:
            raise ValueError("a memory takes consecutive positions, and no cache beside it")
        else:
            span, k_doc = Span.of(ids.shape[1], memory.length, ids.device), memory.place(doc)
            if doc is not None and bool(
                (k_doc != k_doc[:, :1]).any()
            ):  # else one document, for which there are faster ways
                span = replace(span, q_doc=doc, k_doc=k_doc)
        x = self.embed(ids)
        for layer, block in enumerate(self.blocks):
            scheme = self.scheme(layer)
            if scheme.embed is not None and (layer == 0 or scheme.every_layer):
                x = scheme.embed(x, span.q_pos)
            if layer == 0:
                x = self.dropout(x)

            def remember(k, v, read, layer=layer):
                return (k, v, read) if cache is None else cache.extend(layer, k, v, read)

            x = block(x, scheme, span, remember, self.backend, memory and memory.before(layer, x))
        return self.norm(x)

    def forward(
        self, ids: Int[Tensor, "b n"], pos=None, doc=None, cache: Cache | None = None, memory: Memory | None = None
    ):
        """Logits [b, n, vocab], of a pooled model [b, 1, vocab]; arguments as in `hidden`."""
        return self.head(self.read(self.hidden(ids, pos, doc, cache, memory), doc))

    def new_cache(self) -> Cache:
        """What `hidden` takes to remember, empty."""
        return Cache()

    def read(self, hidden: Float[Tensor, "b n w"], doc: Int[Tensor, "b n"] | None = None) -> Float[Tensor, "b m w"]:
        """What the head reads: every token's state, or of a pooled model their mean (padding left out)."""
        if not self.pooled:
            return hidden
        real = torch.ones_like(hidden[..., :1]) if doc is None else (doc >= 0)[..., None].to(hidden.dtype)
        return (hidden * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)

    def _span(self, ids, pos, doc, cache: Cache | None) -> Span:
        if cache is None:
            cache = Cache()
        elif not self.dims.causal:
            raise ValueError(
                "model.causal=false: later tokens change earlier ones, so there is no cache to generate from"
            )
        cached = cache.length
        pos, doc = cache.place(pos, doc)
        span = Span.of(ids.shape[1], cached, ids.device, self.dims.causal)
        if pos is not None:
            span = replace(span, q_pos=pos[..., cached:], k_pos=pos, consecutive=False)
        if doc is not None:
            span = replace(span, q_doc=doc[:, cached:], k_doc=doc)
        return span


@torch.no_grad()
def answer(
    model: Transformer, ids: Int[Tensor, "b n"], asked: Bool[Tensor, "n"], pos: Int[Tensor, "*b n"] | None = None
) -> Int[Tensor, "b m"]:
    """What the model says at the asked places of a sequence, the most likely token each time, fed back through the
    cache. What is not asked is fed as it stands; what stands at asked places is not read. Ties go to the lowest id.

    asked: not the first. pos: of the whole sequence, drawn once; None: consecutive.
    Raises FloatingPointError where logits are not finite: there is no most likely token.
    """
    cache, out, fed, waiting = model.new_cache(), [], 0, ids[:, :0]
    for place in asked.nonzero()[:, 0].tolist():
        waiting = torch.cat([waiting, ids[:, fed + waiting.shape[1] : place]], dim=1)
        here = None if pos is None else pos[..., fed : fed + waiting.shape[1]]
        fed += waiting.shape[1]
        waiting = said_by(model.head(model.hidden(waiting, pos=here, cache=cache)[:, -1:]))
        out.append(waiting)
    return torch.cat(out, dim=1)


def said_by(logits: Float[Tensor, "*b v"]) -> Int[Tensor, "*b"]:
    """The most likely token; argmax takes one among NaN as well. Raises FloatingPointError there."""
    if not logits.amax(-1).isfinite().all():
        raise FloatingPointError("the logits are not finite")
    return logits.argmax(-1)


def generate(
    model: Transformer, prompt: Int[Tensor, "b n"], steps: int, pos: Int[Tensor, "*b m"] | None = None
) -> Int[Tensor, "b steps"]:
    """The answer of `steps` tokens to a prompt. pos: of both together."""
    whole = torch.cat([prompt, prompt.new_zeros(len(prompt), steps)], dim=1)
    return answer(model, whole, torch.arange(whole.shape[1]) >= prompt.shape[1], pos)
