"""Vectors by distance against independent implementations, on random weights."""

from types import SimpleNamespace

import pytest
import torch
from transformers import VitsConfig, Wav2Vec2ConformerConfig, XLNetConfig, XLNetModel
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoderAttention
from transformers.models.vits.modeling_vits import VitsAttention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import _apply_relative_key_position_encoding
from transformers.models.wav2vec2_conformer import modeling_wav2vec2_conformer as conformer

from posenc_train.model.attend import attend
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.shaw import Shaw
from posenc_train.positions.transformer_xl import TransformerXl


def dims(causal=True):
    return Dims(16, 4, 4, 2, train_length=32, causal=causal)


def refined(scheme, q, k, span):
    scores = q @ k.mT / 2
    return scheme.refine(scores, q, k, torch.ones(1, 1, *scores.shape[2:], dtype=torch.bool), span)


def heads(x):
    """[b, n, w] -> [b, 4, n, w/4]"""
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


# ---- Shaw


@pytest.mark.verifies("shaw", "transformers: _apply_relative_key_position_encoding of Wav2Vec2-BERT, for sides=key")
@pytest.mark.parametrize("clip", [2, 7, 40])
def test_shaw_of_wav2vec2_bert(clip):
    table = torch.nn.Embedding(2 * clip + 1, 4)
    module = SimpleNamespace(
        left_max_position_embeddings=clip,
        right_max_position_embeddings=clip,
        distance_embedding=table,
        scaling=4**-0.5,
    )
    q, k = torch.randn(2, 2, 4, 30, 4)
    _, peer = _apply_relative_key_position_encoding(module, q, k)
    scheme, causal = Shaw(dims(False), clip, "key"), Shaw(dims(), clip, "key")
    scheme.load_state_dict({"key_table": table.weight})
    causal.load_state_dict({"key_table": table.weight[: clip + 1]})
    found = refined(scheme, q, k, Span.of(30, causal=False)) - q @ k.mT / 2
    assert torch.allclose(found, peer, atol=1e-5)
    later = refined(causal, q[:, :, 20:], k, Span.of(10, cached=20)) - q[:, :, 20:] @ k.mT / 2
    assert torch.allclose(later.tril(20), peer[:, :, 20:].tril(20), atol=1e-5)


@pytest.mark.verifies("shaw", "transformers: VitsAttention, a whole layer, up to its window")
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("length", [3, 8])
def test_shaw_of_vits(causal, length):
    """Beyond its window VITS has zeros in place of the last vector."""
    config = VitsConfig(hidden_size=16, num_attention_heads=4, window_size=7, attention_dropout=0.0)
    peer, scheme = VitsAttention(config).eval(), Shaw(dims(causal), clip=7)
    for table in (peer.emb_rel_k, peer.emb_rel_v):
        torch.nn.init.normal_(table)
    rows = len(scheme.key_table)
    scheme.load_state_dict({"key_table": peer.emb_rel_k[0, :rows], "value_table": peer.emb_rel_v[0, :rows]})
    x = torch.randn(2, length, 16)
    mask = torch.full((2, 1, length, length), -1e9).triu(1) if causal else None
    expected, _ = peer(x, attention_mask=mask)
    q, k, v = (heads(project(x)) for project in (peer.q_proj, peer.k_proj, peer.v_proj))
    found = attend(q, k, v, scheme, Span.of(length, causal=causal))
    assert torch.allclose(peer.out_proj(found.transpose(1, 2).flatten(2)), expected, atol=1e-5)


# ---- Transformer-XL


def xlnet(**settings):
    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=50, d_model=16, n_layer=2, n_head=4, d_inner=32, dropout=0.0, **settings)
    model = XLNetModel(config).eval()
    for layer in model.layer:  # its own are zero at first, or too small to matter
        for parameter in (layer.rel_attn.r_w_bias, layer.rel_attn.r_r_bias):
            torch.nn.init.normal_(parameter)
        for parameter in (layer.rel_attn.q, layer.rel_attn.k, layer.rel_attn.v, layer.rel_attn.o, layer.rel_attn.r):
            torch.nn.init.normal_(parameter, std=0.25)
    return model


def of_xlnet(attention, causal, clamp=None):
    """Its layers have u and v of their own; its projection of R maps the width to heads and their width."""
    scheme = TransformerXl(dims(causal), untied=True, clamp=clamp)
    w = attention.r.permute(1, 2, 0)
    scheme.load_state_dict({"u": attention.r_w_bias, "v": attention.r_r_bias, "w": w})
    return scheme


@pytest.mark.verifies("transformer_xl", "transformers: rel_attn_core of XLNet, causal with memory, and bidirectional")
@pytest.mark.parametrize("clamp", [None, 5])
@pytest.mark.parametrize("kind, queries, keys", [("uni", 9, 9), ("uni", 4, 15), ("uni", 1, 8), ("bi", 9, 9)])
def test_transformer_xl_of_xlnet(kind, queries, keys, clamp):
    model, causal = xlnet(attn_type=kind, clamp_len=-1 if clamp is None else clamp), kind == "uni"
    attention, d = model.layer[0].rel_attn, 4
    q, k, v = (torch.randn(n, 2, 4, d) for n in (queries, keys, keys))
    relative = torch.einsum("tbw,whd->tbhd", model.relative_positional_encoding(queries, keys, bsz=2), attention.r)
    mask = model.create_mask(queries, keys - queries)[:, :, None, None] if causal else None
    expected, weights = attention.rel_attn_core(q, k, v, relative, attn_mask=mask, output_attentions=True)
    ours = [x.permute(1, 2, 0, 3) for x in (q, k, v)]
    span, scheme = Span.of(queries, keys - queries, causal=causal), of_xlnet(attention, causal, clamp)
    assert torch.allclose(attend(*ours, scheme, span).permute(2, 0, 1, 3), expected, atol=1e-5)
    scores = refined(scheme, *ours[:2], span).masked_fill(~span.allowed(), -torch.inf)
    assert torch.allclose(scores.softmax(-1).permute(2, 3, 0, 1), weights, atol=1e-5)


@pytest.mark.verifies("transformer_xl", "transformers: XLNetModel on segments with memory, long enough or too short")
@pytest.mark.parametrize("memory", [64, 10])
def test_transformer_xl_in_the_recurrence_of_xlnet(memory):
    """XLNet's layers around our attention; a memory holds each layer's inputs of the tokens before."""
    model = xlnet(attn_type="uni", mem_len=memory)
    ids = torch.randint(0, 50, (2, 48))
    theirs, ours = None, [torch.empty(0, 2, 16)] * 2
    with torch.no_grad():
        for segment in ids.split(16, dim=1):
            peer = model(segment, mems=theirs, use_mems=True)
            theirs, h = peer.mems, model.word_embedding(segment).transpose(0, 1)
            for i, layer in enumerate(model.layer):
                a, both = layer.rel_attn, torch.cat([ours[i], h])
                q, k, v = (torch.einsum("ibw,whd->bhid", x, p) for x, p in ((h, a.q), (both, a.k), (both, a.v)))
                span = Span.of(16, cached=len(ours[i]))
                mixed = attend(q, k, v, of_xlnet(a, causal=True), span).permute(2, 0, 1, 3)
                ours[i] = both[-memory:]
                h = layer.ff(a.post_attention(h, mixed))
            assert torch.allclose(h.transpose(0, 1), peer.last_hidden_state, atol=1e-5)
        at_once = model(ids, use_mems=False).last_hidden_state[:, 32:]
    assert torch.allclose(h.transpose(0, 1), at_once, atol=1e-4) == (memory == 64)


@pytest.mark.verifies("transformer_xl", "transformers: _rel_shift of Parakeet")
@pytest.mark.parametrize("queries, cached", [(3, 0), (2, 3), (7, 20)])
def test_transformer_xl_shift_of_parakeet(queries, cached):
    """The shift of products with all distances, largest first, as the authors' code has it. Below the diagonal."""
    keys, scheme = cached + queries, TransformerXl(dims())
    rows = torch.arange(keys - 1, -1, -1.0).expand(1, 1, queries, keys)
    shifted = ParakeetEncoderAttention._rel_shift(None, rows)[0, 0]
    distance, row = scheme._distances(Span.of(queries, cached))
    assert torch.equal(distance[row].float().tril(cached), shifted.tril(cached))


@pytest.mark.verifies("transformer_xl", "transformers: _apply_relative_position_encoding of Wav2Vec2-Conformer")
def test_transformer_xl_of_wav2vec2_conformer():
    """Bidirectional. It interleaves sines and cosines, which only renames the columns of W_R."""
    config = Wav2Vec2ConformerConfig(
        hidden_size=16, num_attention_heads=4, position_embeddings_type="relative", max_source_positions=64
    )
    module, scheme = conformer.Wav2Vec2ConformerSelfAttention(config), TransformerXl(dims(False))
    for parameter in (module.pos_bias_u, module.pos_bias_v):
        torch.nn.init.normal_(parameter)
    w = module.linear_pos.weight.unflatten(0, (4, 4))
    w = torch.cat([w[..., 0::2], w[..., 1::2]], dim=-1)
    scheme.load_state_dict({"u": module.pos_bias_u, "v": module.pos_bias_v, "w": w})
    q, k = torch.randn(2, 2, 4, 20, 4)
    relative = conformer.Wav2Vec2ConformerRelPositionalEmbedding(config)(torch.zeros(2, 20, 16))
    moved, bias = conformer._apply_relative_position_encoding(module, q, k, relative)
    found = refined(scheme, q, k, Span.of(20, causal=False))
    assert torch.allclose(found, moved @ k.mT / 2 + bias, atol=1e-5)
