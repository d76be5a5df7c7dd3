"""Extensions against independent implementations: whole attention scores of random queries and keys."""

import numpy as np
import pytest
import torch
from rotary_embedding_torch import RotaryEmbedding as LucidrainsRotary
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama as llama
from x_transformers.x_transformers import RotaryEmbedding as XRotary
from x_transformers.x_transformers import apply_rotary_pos_emb

from posenc_train.positions.base import Dims, Span
from posenc_train.positions.extensions.by_parts import by_parts
from posenc_train.positions.extensions.dynamic_ntk import dynamic_ntk
from posenc_train.positions.extensions.longrope import longrope
from posenc_train.positions.extensions.ntk import ntk
from posenc_train.positions.extensions.pi import pi
from posenc_train.positions.extensions.yarn import yarn
from posenc_train.positions.rope import Rope

TRAINED, WIDTH, SCALE = 64, 64, 4.0
LENGTH = 200  # beyond the trained length, and within SCALE times it
DIMS = Dims(2 * WIDTH, 2, WIDTH, 1, TRAINED)
LAMBDAS = np.linspace(1, 5, WIDTH // 2).tolist()


def vectors():
    draw = torch.Generator().manual_seed(0)
    return (torch.randn(2, 2, LENGTH, WIDTH, generator=draw) for _ in range(2))


def ours(extension, pairing: str = "half", **settings) -> torch.Tensor:
    q, k = vectors()
    q, k = extension(Rope(DIMS, pairing=pairing), DIMS, SCALE, **settings).rotate(q, k, Span.of(LENGTH))
    return q @ k.mT / WIDTH**0.5


def of_transformers(kind: str, longest: int = TRAINED, **settings) -> torch.Tensor:
    """A fresh module for every length: its dynamic frequencies are kept between calls."""
    config = LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=longest,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **settings},
    )  # fmt: skip
    q, k = vectors()
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, torch.arange(LENGTH)[None])
    q, k = llama.apply_rotary_pos_emb(q, k, cos, sin)
    return q @ k.mT / WIDTH**0.5


def agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    """To 1e-5 of the largest score."""
    return bool((a - b).abs().max() <= 1e-5 * b.abs().max())


@pytest.mark.verifies("pi", "transformers 5.24.0: ROPE_INIT_FUNCTIONS['linear']")
def test_pi():
    assert agree(ours(pi), of_transformers("linear", factor=SCALE))


@pytest.mark.verifies("dynamic_ntk", "transformers 5.24.0: ROPE_INIT_FUNCTIONS['dynamic']")
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_dynamic_ntk(factor):
    assert agree(ours(dynamic_ntk, factor=factor), of_transformers("dynamic", factor=factor))


@pytest.mark.verifies("ntk", "transformers 5.24.0: ROPE_INIT_FUNCTIONS['dynamic'] at the length s L")
def test_ntk():
    """Static scaling by s is what dynamic scaling with factor 1 becomes at s times the trained length."""
    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0}
    config = LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=TRAINED,
        rope_parameters=parameters,
    )  # fmt: skip
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=int(SCALE) * TRAINED)
    extended = ntk(Rope(DIMS), DIMS, SCALE)
    assert torch.allclose(extended.frequency(Span.of(LENGTH)), theirs, rtol=1e-5)


@pytest.mark.verifies("yarn", "transformers 5.24.0: ROPE_INIT_FUNCTIONS['yarn']")
@pytest.mark.parametrize("settings", [{}, {"beta_fast": 16.0, "beta_slow": 0.5}])
def test_yarn(settings):
    theirs = of_transformers("yarn", factor=SCALE, original_max_position_embeddings=TRAINED, **settings)
    assert agree(ours(yarn, **settings), theirs)


@pytest.mark.verifies("longrope", "transformers 5.24.0: ROPE_INIT_FUNCTIONS['longrope']")
def test_longrope():
    theirs = of_transformers(
        "longrope", int(SCALE) * TRAINED, factor=SCALE, original_max_position_embeddings=TRAINED,
        short_factor=[1.0] * (WIDTH // 2), long_factor=LAMBDAS,
    )  # fmt: skip
    assert agree(ours(longrope, factors=LAMBDAS), theirs)


@pytest.mark.verifies("by_parts", "transformers 5.24.0: ROPE_INIT_FUNCTIONS['llama3']")
@pytest.mark.parametrize("alpha, beta", [(1.0, 32.0), (1.0, 4.0)])
def test_by_parts(alpha, beta):
    theirs = of_transformers(
        "llama3", int(SCALE) * TRAINED, factor=SCALE, low_freq_factor=alpha, high_freq_factor=beta,
        original_max_position_embeddings=TRAINED,
    )  # fmt: skip
    assert agree(ours(by_parts, alpha=alpha, beta=beta), theirs)


@pytest.mark.verifies("pi", "x-transformers 2.31.10: RotaryEmbedding(interpolation_factor=)")
def test_pi_of_x_transformers():
    assert agree(ours(pi, "interleaved"), of_x_transformers(interpolation_factor=SCALE))


@pytest.mark.verifies("ntk", "x-transformers 2.31.10: RotaryEmbedding(base_rescale_factor=)")
def test_ntk_of_x_transformers():
    assert agree(ours(ntk, "interleaved"), of_x_transformers(base_rescale_factor=SCALE))


def of_x_transformers(**settings) -> torch.Tensor:
    q, k = vectors()
    angles, scale = XRotary(WIDTH, **settings)(torch.arange(LENGTH))
    return apply_rotary_pos_emb(q, angles, scale) @ apply_rotary_pos_emb(k, angles, scale).mT / WIDTH**0.5


@pytest.mark.verifies("pi", "rotary-embedding-torch 0.9.1: RotaryEmbedding(interpolate_factor=)")
def test_pi_of_rotary_embedding_torch():
    assert agree(ours(pi, "interleaved"), of_rotary_embedding_torch(interpolate_factor=SCALE))


@pytest.mark.verifies("ntk", "rotary-embedding-torch 0.9.1: RotaryEmbedding(theta_rescale_factor=)")
def test_ntk_of_rotary_embedding_torch():
    assert agree(ours(ntk, "interleaved"), of_rotary_embedding_torch(theta_rescale_factor=SCALE))


def of_rotary_embedding_torch(**settings) -> torch.Tensor:
    q, k = (LucidrainsRotary(WIDTH, **settings).rotate_queries_or_keys(x) for x in vectors())
    return (q @ k.mT / WIDTH**0.5).detach()
