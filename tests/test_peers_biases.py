"""Absolute schemes and biases by distance against independent implementations, on random weights."""

import pytest
import torch
from transformers import T5Config
from transformers.models.bloom import modeling_bloom as bloom
from transformers.models.falcon import modeling_falcon as falcon
from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2Model
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.speecht5.modeling_speecht5 import SpeechT5ScaledPositionalEncoding
from transformers.models.t5.modeling_t5 import T5Attention
from x_transformers import x_transformers as lucid

from posenc_train.positions.alibi import Alibi, slopes
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.clipped import Clipped
from posenc_train.positions.learned import Learned
from posenc_train.positions.sandwich import kernel
from posenc_train.positions.sinusoidal import Sinusoidal, sinusoids
from posenc_train.positions.t5 import T5

HEADS = [1, 2, 3, 5, 6, 8, 10, 12, 16, 20]


def dims(heads=4, causal=True):
    return Dims(heads * 4, heads, 4, 1, train_length=32, causal=causal)


# ---- absolute


@pytest.mark.verifies("sinusoidal", "transformers: create_sinusoidal_positions of GPT-J")
def test_sinusoidal_of_gptj():
    peer = torch.stack(create_sinusoidal_positions(1001, 64).chunk(2, dim=-1), dim=-1).flatten(-2)  # [sin | cos]
    assert torch.allclose(sinusoids(torch.arange(1001), 64), peer, atol=1e-4)  # its angles are float32, and ours


@pytest.mark.verifies("sinusoidal", "transformers: SpeechT5ScaledPositionalEncoding")
def test_sinusoidal_of_speecht5():
    peer = SpeechT5ScaledPositionalEncoding(0.0, 64, 1001).pe[0]
    assert torch.allclose(sinusoids(torch.arange(1001), 64), peer, atol=1e-4)


@pytest.mark.verifies("sinusoidal", "x-transformers: ScaledSinusoidalEmbedding, for fuse=scaled_add")
def test_scaled_sinusoidal_of_x_transformers():
    peer, scheme = lucid.ScaledSinusoidalEmbedding(16), Sinusoidal(dims(), fuse="scaled_add")
    assert scheme.alpha.item() == peer.scale.item()
    torch.nn.init.constant_(peer.scale, 0.7)
    torch.nn.init.constant_(scheme.alpha, 0.7)
    x = torch.randn(2, 300, 16)
    table = torch.stack(peer(x).chunk(2, dim=-1), dim=-1).flatten(-2)  # [sin | cos]
    assert torch.allclose(scheme.embed(x, torch.arange(300)), x + table, atol=2e-5)


@pytest.mark.verifies("learned", "transformers: GPT2Model.wpe")
def test_learned_of_gpt2():
    peer = GPT2Model(GPT2Config(vocab_size=11, n_positions=32, n_embd=16, n_layer=1, n_head=2)).eval()
    ids, scheme = torch.randint(0, 11, (2, 20)), Learned(dims())
    scheme.load_state_dict({"table": peer.wpe.weight})
    entering = peer(ids, output_hidden_states=True).hidden_states[0]
    assert torch.allclose(scheme.embed(peer.wte(ids), torch.arange(20)), entering, atol=1e-6)


@pytest.mark.verifies("learned", "x-transformers: AbsolutePositionalEmbedding, for scale = width^-1/2")
def test_learned_of_x_transformers():
    peer, scheme = lucid.AbsolutePositionalEmbedding(16, 32), Learned(dims(), scale=16**-0.5)
    scheme.load_state_dict({"table": peer.emb.weight})
    x = torch.randn(2, 20, 16)
    assert torch.allclose(scheme.embed(x, torch.arange(20)), x + peer(x), atol=1e-6)


# ---- T5


@pytest.mark.verifies("t5", "transformers: T5Attention.compute_bias, causal and bidirectional")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("buckets, furthest", [(32, 128), (20, 50)])
def test_t5_of_transformers(causal, buckets, furthest):
    distance = torch.arange(-9000, 9000)
    scheme = T5(dims(causal=causal), buckets, furthest)
    peer = T5Attention._relative_position_bucket(-distance, not causal, buckets, furthest)
    assert torch.equal(scheme.bucket(distance), peer)
    config = T5Config(
        d_model=16,
        d_kv=4,
        num_heads=4,
        is_decoder=causal,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=furthest,
    )
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    torch.nn.init.normal_(attention.relative_attention_bias.weight)
    scheme.load_state_dict({"table": attention.relative_attention_bias.weight})
    bias = scheme.by_distance(Span.of(70, cached=60).distance())
    assert torch.allclose(bias[None], attention.compute_bias(70, 130, past_seen_tokens=60), atol=1e-6)


@pytest.mark.verifies("t5", "x-transformers: RelativePositionBias, for by_root_d=true")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_t5_of_x_transformers(causal):
    peer = lucid.RelativePositionBias(scale=4**0.5, causal=causal, num_buckets=32, max_distance=128, heads=4)
    scheme = T5(dims(causal=causal), by_root_d=True)
    scheme.load_state_dict({"table": peer.relative_attention_bias.weight})
    assert torch.allclose(scheme.by_distance(Span.of(150).distance()), peer(150, 150), atol=1e-5)
    plain = T5(dims(causal=causal))
    plain.load_state_dict(scheme.state_dict())
    assert torch.equal(2 * plain.by_distance(torch.arange(9)), scheme.by_distance(torch.arange(9)))


@pytest.mark.verifies("t5", "x-transformers: attention weights of a Decoder with rel_pos_bias, for by_root_d=true")
def test_t5_in_the_attention_of_x_transformers():
    peer = lucid.Decoder(dim=16, depth=1, heads=4, attn_dim_head=4, rel_pos_bias=True).eval()
    torch.nn.init.normal_(peer.rel_pos.relative_attention_bias.weight)
    scheme = T5(dims(), by_root_d=True)
    scheme.load_state_dict({"table": peer.rel_pos.relative_attention_bias.weight})
    _check_decoder(peer, scheme)


# ---- a table for every distance


@pytest.mark.verifies("clipped", "transformers: T5Attention with a bucket for every distance")
@pytest.mark.verifies("clipped", "x-transformers: RelativePositionBias with a bucket for every distance")
def test_clipped_is_t5_with_a_bucket_for_every_distance():
    """Twice as many buckets as distances, so that no two share one."""
    scheme = Clipped(dims(), clip=39)
    torch.nn.init.normal_(scheme.table)
    by_distance = scheme.table.flip(0).detach()  # the scheme's first row is the furthest past
    peer = lucid.RelativePositionBias(scale=1.0, causal=True, num_buckets=80, max_distance=1000, heads=4)
    config = T5Config(
        d_model=16, d_kv=4, num_heads=4, is_decoder=True, relative_attention_num_buckets=80,
        relative_attention_max_distance=1000,
    )  # fmt: skip
    other = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    with torch.no_grad():
        for table in (peer.relative_attention_bias.weight, other.relative_attention_bias.weight):
            table[:40] = by_distance
        past = torch.ones(40, 40, dtype=torch.bool).tril()
        ours = scheme.by_distance(Span.of(40).distance())[:, past]
        assert torch.allclose(ours, peer(40, 40)[:, past], atol=1e-6)
        assert torch.allclose(ours, other.compute_bias(40, 40)[0][:, past], atol=1e-6)


# ---- ALiBi


@pytest.mark.verifies("alibi", "transformers: build_alibi_tensor of BLOOM")
@pytest.mark.parametrize("heads", HEADS)
def test_alibi_of_bloom(heads):
    """BLOOM adds m j, the same to softmax."""
    peer = bloom.build_alibi_tensor(torch.ones(1, 9), heads, torch.float32).view(heads, 1, 9)
    assert torch.allclose(torch.tensor(slopes(heads)), bloom._get_alibi_slopes(heads, "cpu"), rtol=1e-6)
    assert torch.allclose(_weights(Alibi(dims(heads)), 9), _causal(peer.expand(-1, 9, -1)), atol=1e-5)


@pytest.mark.verifies("alibi", "transformers: build_mpt_alibi_tensor")
@pytest.mark.parametrize("heads", HEADS)
def test_alibi_of_mpt(heads):
    """MPT adds -m (L - 1 - j), the same to softmax."""
    peer = build_mpt_alibi_tensor(heads, 9).expand(-1, 9, -1)
    assert torch.allclose(_weights(Alibi(dims(heads)), 9), _causal(peer), atol=1e-5)


@pytest.mark.verifies("alibi", "x-transformers: AlibiPositionalBias")
@pytest.mark.parametrize("heads", HEADS)
def test_alibi_of_x_transformers(heads):
    peer, scheme = lucid.AlibiPositionalBias(heads), Alibi(dims(heads, causal=False))
    assert torch.allclose(scheme.by_distance(Span.of(150).distance()), peer(150, 150), rtol=1e-5)
    pos = torch.tensor([0, 3, 10, 11, 400])
    found = scheme.by_distance(Span(pos, pos).distance())
    assert torch.allclose(found, peer.forward_custom_pos(pos.float()), rtol=1e-5)


@pytest.mark.verifies("alibi", "x-transformers: attention weights of a Decoder with alibi_pos_bias")
def test_alibi_in_the_attention_of_x_transformers():
    peer = lucid.Decoder(dim=16, depth=1, heads=4, attn_dim_head=4, alibi_pos_bias=True).eval()
    _check_decoder(peer, Alibi(dims()))


@pytest.mark.parametrize("heads", [10, 12, 14, 16, 20])
def test_alibi_of_falcon_is_another(heads):
    """It rounds slopes to bfloat16: no evidence for or against ours."""
    peer = falcon.build_alibi_tensor(torch.ones(1, 9), heads, torch.float32).view(heads, 1, 9)
    assert not torch.allclose(peer[:, 0, 1], torch.tensor(slopes(heads)), rtol=1e-4)
    assert torch.allclose(peer[:, 0, 1], torch.tensor(slopes(heads)), rtol=2**-8)


# ---- Sandwich


@pytest.mark.verifies("sandwich", "Gram matrix of transformers' create_sinusoidal_positions of GPT-J")
def test_sandwich_is_the_inner_product_of_sinusoidal_positions():
    table = create_sinusoidal_positions(600, 128).double()
    products = table @ table.T - 64
    distance = torch.arange(600)[:, None] - torch.arange(600)
    assert torch.allclose(kernel(distance).double(), products, atol=2e-3)  # the table's angles are float32
    values = torch.tensor([0, -1.906316, -6.618139, -21.179977, -33.456545, -49.956840], dtype=torch.float64)
    assert torch.allclose(products[0, [0, 1, 2, 10, 100, 512]], values, atol=2e-4)


# ---- helpers


def _causal(scores):
    n = scores.shape[-1]
    return scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -1e9).softmax(-1)


def _weights(scheme, n):
    return _causal(scheme.by_distance(Span.of(n).distance()))


def _check_decoder(peer, scheme):
    """One layer of x-transformers: its attention weights from its own q and k and our bias."""
    x = torch.randn(2, 30, 16)
    _, kept = peer(x, return_hiddens=True)
    norm, attention = peer.layers[0][0][0], peer.layers[0][1]
    q, k = (f(norm(x)).view(2, 30, 4, 4).transpose(1, 2) for f in (attention.to_q, attention.to_k))
    scores = q @ k.mT * 4**-0.5 + scheme.by_distance(Span.of(30).distance())
    assert torch.allclose(_causal(scores), kept.attn_intermediates[0].post_softmax_attn, atol=1e-5)
