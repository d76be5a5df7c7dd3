"""A causal language model of `transformers` from a local folder, as evaluation wants a model: states and a head.

Nothing is downloaded and no code of the folder is executed. Its own attention is at work, so that a scheme of ours
cannot stand in its place, with one exception: rotary frequencies. They are in one place in such a model (`inv_freq`,
and `attention_scaling`, by which cosine and sine are multiplied), and an extension changes them there.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posenc_train.checks import HF_EXTENSIONS, UserError
from posenc_train.model.transformer import Transformer
from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.nope import Nope
from posenc_train.positions.rope import Rope

PROBE = 8  # tokens of the forwards that verify what is assumed of a model


class Theirs(Rope):
    """The rotary positions of such a model, for extensions to read and change: it rotates itself."""

    def __init__(self, frequencies: Float[Tensor, "pairs"], base: float):
        PositionScheme.__init__(self)
        self.frequencies, self.base, self.single = frequencies, base, None
        self.rotated, self.pairing = 2 * len(frequencies), "half"

    def trained(self, device: torch.device | None = None) -> Float[Tensor, "pairs"]:
        return self.frequencies.to(device)


class Hf(Transformer):
    """positions: one `Theirs` for rotary positions, else a scheme that says nothing. Only consecutive positions, and
    one document a row."""

    def __init__(self, model: nn.Module, train_length: int):
        nn.Module.__init__(self)
        config = model.config
        self.model, self.head, self.backend = model, model.get_output_embeddings(), "theirs"
        self.type, self.vocab = config.model_type, model.get_input_embeddings().num_embeddings
        width, heads = config.hidden_size, config.num_attention_heads
        head_width = getattr(config, "head_dim", None) or width // heads
        self.dims = Dims(width, heads, head_width, config.num_hidden_layers, train_length)
        self.positions = nn.ModuleList([Nope(self.dims)])
        self.eval()
        self._check_head()
        self.rotaries = self._rotaries()
        if self.rotaries:
            self.positions = nn.ModuleList([Theirs(self.rotaries[0].inv_freq.float().clone(), self._base())])

    @property
    def reach(self) -> int | None:
        """Any for rotary positions and ALiBi; for others what the configuration says."""
        config = self.model.config
        alibi = any(getattr(part, "alibi", False) for part in (config, getattr(config, "attn_config", None)))
        rotary = any(name.endswith("inv_freq") for name, _ in self.model.named_buffers())
        if rotary or alibi or self.type == "bloom":
            return None
        return getattr(config, "max_position_embeddings", None)

    def under(self, schemes: Sequence[PositionScheme]) -> "Hf":
        """Raises UserError for schemes that are more than other rotary frequencies, the same in every call."""
        (scheme,) = {id(scheme): scheme for scheme in schemes}.values()
        short, long = (Span.of(n) for n in (1, 64 * self.dims.train_length))
        if type(scheme) is not type(self.positions[0]) or (
            isinstance(scheme, Rope) and not torch.equal(scheme.frequency(short), scheme.frequency(long))
        ):
            raise UserError(
                "model=hf: its attention is its own, and takes no mask, no bias and no frequencies that change from "
                f"call to call; extensions can be {', '.join(HF_EXTENSIONS)}"
            )
        return super().under(schemes)

    def new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def hidden(
        self,
        ids: Int[Tensor, "b n"],
        pos: Int[Tensor, "*b n"] | None = None,
        doc: Int[Tensor, "b n"] | None = None,
        cache: Any = None,
        memory: None = None,
    ) -> Float[Tensor, "b n w"]:
        """The last layer's states, normalised. Raises ValueError for positions and documents."""
        if pos is not None or doc is not None:
            raise ValueError("a model of transformers takes consecutive positions and one document a row")
        with self._turned():
            remembered = {} if cache is None else {"cache": cache}
            out = self.model.base_model(input_ids=ids, use_cache=cache is not None, **remembered)
        return out.last_hidden_state

    @contextlib.contextmanager
    def _turned(self) -> Iterator[None]:
        """The model with the frequencies of its scheme; afterwards it is what it was."""
        scheme = self.positions[0]
        if not isinstance(scheme, Rope) or (scheme.stretch is None and scheme.temperature == 1):
            yield
            return
        frequency = scheme.frequency(Span.of(1))
        before = [(part, part.inv_freq, part.attention_scaling) for part in self.rotaries]
        try:
            for part, theirs, scaling in before:
                part.inv_freq = frequency.to(theirs.device)
                part.attention_scaling = scaling * scheme.temperature
            yield
        finally:
            for part, theirs, scaling in before:
                part.inv_freq, part.attention_scaling = theirs, scaling

    @torch.no_grad()
    def _check_head(self) -> None:
        """That the logits are the head's output, tried with a large one: small logits hide what caps them."""
        ids = torch.arange(PROBE)[None] % self.vocab
        hook = self.head.register_forward_hook(lambda module, inputs, out: 1000 * out)
        found, wanted = self(ids).float(), self.model(ids, use_cache=False).logits.float()
        hook.remove()
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-3 * float(found.abs().max())):
            raise UserError(
                f"model=hf: {self.type} makes more of its last states than a linear layer does, and an evaluation, "
                "which never holds all logits, does that alone; take another model"
            )

    @torch.no_grad()
    def _rotaries(self) -> list[nn.Module]:
        """The modules that hold the frequencies, where they are all alike and it is they that count."""
        found = [
            part
            for part in self.model.modules()
            if isinstance(getattr(part, "inv_freq", None), Tensor) and hasattr(part, "attention_scaling")
        ]
        if not found or any(not torch.equal(part.inv_freq, found[0].inv_freq) for part in found):
            return []
        ids = torch.arange(PROBE)[None] % self.vocab
        plain, self.rotaries = self.hidden(ids), found
        other = Theirs(torch.zeros_like(found[0].inv_freq), 1.0)
        other.temperature = 1.5
        self.positions = nn.ModuleList([other])
        turned = self.hidden(ids)
        self.positions = nn.ModuleList([Nope(self.dims)])
        return [] if torch.equal(plain, turned) else found  # Falcon with ALiBi holds some that nobody reads

    def _base(self) -> float:
        return float((getattr(self.model.config, "rope_parameters", None) or {}).get("rope_theta", 10000.0))

    @property
    def rope_type(self) -> str:
        """What `transformers` calls the scaling that the model was trained or saved with; default: none."""
        return (getattr(self.model.config, "rope_parameters", None) or {}).get("rope_type", "default")


def described(path: str) -> Any:
    """The configuration of the model in a folder. Raises UserError where there is none."""
    transformers = _transformers(path)
    with _told(path):
        return transformers.AutoConfig.from_pretrained(os.path.expanduser(path), local_files_only=True)


def load(path: str, dtype: str, train_length: int) -> Hf:
    """The model in a folder, its weights in float32 or bfloat16. Raises UserError where there is none, where weights
    are missing, and for one that evaluation cannot have."""
    transformers = _transformers(path)
    with _told(path):
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            os.path.expanduser(path), local_files_only=True, dtype=getattr(torch, dtype), output_loading_info=True
        )
    if missing := sorted(loaded["missing_keys"]):
        raise UserError(f"model.path={path}: holds no weights for {missing[0]}; it may be no causal language model")
    found = Hf(model, train_length)
    if found.rope_type in ("dynamic", "longrope"):
        raise UserError(
            f"model.path={path}: has rope_type={found.rope_type}, frequencies that change from call to call, under "
            "which a cache does not give what one call gives; take another model"
        )
    return found


def _transformers(path: str) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UserError(f"model=hf: needs the extra hf: pip install -e '.[hf]' ({error})") from error
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """What the library says of a folder, in a line."""
    try:
        yield
    except Exception as error:  # it raises OSError, ValueError, KeyError and RuntimeError
        why = " ".join(str(error).split())[:300]
        raise UserError(f"model.path={path}: no causal language model of transformers: {why}") from error
