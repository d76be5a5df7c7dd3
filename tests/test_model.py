"""The model: which kernel runs, what is stored, sizes, switches."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from posenc_train.build import build_model
from posenc_train.config import compose
from posenc_train.model import toeplitz
from posenc_train.model.attend import attend
from posenc_train.model.cache import Cache
from posenc_train.model.transformer import Block, Transformer, generate
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.nope import Nope
from posenc_train.positions.rope import Rope
from posenc_train.positions.t5 import T5
from posenc_train.tasks.base import Task
from posenc_train.tasks.copy import Copy

DIMS = Dims(width=32, heads=4, head_width=8, layers=2, train_length=64)


class Bytes(Task):
    vocab, marks = 256, 0


def called(work) -> dict[str, int]:
    """How often each operator of torch ran."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        work()
    return {event.key: event.count for event in record.key_averages()}


@pytest.mark.parametrize("scheme", [Nope, Alibi, T5])
@pytest.mark.parametrize("length", [64, 700])
def test_the_fused_kernel_is_taken(scheme, length):
    """Except where a short learned bias trains faster without (its gradient), no (query, key) softmax is computed."""
    made = scheme(DIMS)
    q, k, v = (torch.randn(1, 4, length, 8, requires_grad=True) for _ in range(3))
    counts = called(lambda: attend(q, k, v, made, Span.of(length)).sum().backward())
    if scheme is T5 and length == 64:
        assert "aten::_softmax" in counts
    else:
        assert counts["aten::_scaled_dot_product_flash_attention_for_cpu"] == -(
            -length // toeplitz.CHUNK if made.by_distance else -1
        )
        assert counts["aten::_scaled_dot_product_flash_attention_for_cpu_backward"] > 0
        assert "aten::_softmax" not in counts


@pytest.mark.parametrize("scheme", [Alibi, T5])
def test_no_matrix_of_a_distance_bias(scheme):
    """A view of q x k elements that stores q + k: peak allocation grows with the length, not with its square."""
    made = scheme(DIMS)
    peaks = []
    for length in (1024, 2048, 4096):
        q, k, v = torch.randn(3, 1, 4, length, 8)
        with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            attend(q, k, v, made, Span.of(length))
        peaks.append(max(event.self_device_memory_usage or event.self_cpu_memory_usage for event in record.events()))
    assert peaks[2] < 2.2 * peaks[1] < 4.9 * peaks[0]
    assert peaks[2] < 4 * 4 * 4096 * 4096 / 16  # bytes of one (head, q, k) matrix: far below


def test_the_view_stores_a_vector():
    vector = torch.randn(3, 99)
    mask = toeplitz.view(vector[:, 10:70], 20, 41)
    assert mask.shape == (1, 3, 20, 41) and mask.untyped_storage().nbytes() == vector.untyped_storage().nbytes()
    assert all(torch.equal(mask[0, :, i, j], vector[:, 10 + i + j]) for i in (0, 7, 19) for j in (0, 13, 40))


def test_sum_of_diagonals_by_brute_force():
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    expected = torch.zeros(2, 12, dtype=torch.float64)
    for i in range(5):
        for j in range(8):
            expected[:, i + j] += x[:, i, j]
    assert torch.allclose(toeplitz.sum_diagonals(x), expected)
    small = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert toeplitz.sum_diagonals(small).tolist() == [[1, 5, 4]]


def test_attention_in_float64_by_brute_force():
    """softmax(q.k / sqrt(d) - m (i - j)) v, pair by pair."""
    q, k, v = torch.randn(3, 1, 4, 7, 8)
    out = attend(q, k, v, Alibi(DIMS), Span.of(7), "reference").double()
    for head, slope in enumerate((2**-2, 2**-4, 2**-6, 2**-8)):
        for i in range(7):
            scores = [
                float(q[0, head, i].double() @ k[0, head, j].double()) / 8**0.5 - slope * (i - j) for j in range(i + 1)
            ]
            weights = torch.tensor(scores, dtype=torch.float64).softmax(0)
            assert torch.allclose(weights @ v[0, head, : i + 1].double(), out[0, head, i], atol=1e-6)


@pytest.mark.parametrize(
    "size, low, high", [("nano", 2e4, 4e4), ("tiny", 1.6e5, 1.8e5), ("small", 4e6, 6e6), ("base", 1.2e8, 1.3e8)]
)
def test_sizes(size, low, high):
    with torch.device("meta"):
        model = build_model(compose("train", [f"model={size}", "position=nope"]), Bytes())
    assert low < sum(p.numel() for p in model.parameters()) < high


@pytest.mark.parametrize("override", ["model.mlp=swiglu", "model.qk_norm=true", "model.dropout=0.5"])
def test_switches_change_the_model(override):
    plain, other = (build_model(compose("train", ["model=nano", *more]), Bytes()) for more in ([], [override]))
    ids = torch.randint(0, 256, (2, 16))
    torch.manual_seed(0)
    assert not torch.allclose(plain(ids), other(ids), atol=1e-3)
    cost = [sum(p.numel() for p in m.parameters()) for m in (plain, other)]
    assert cost[1] == pytest.approx(cost[0], rel=0.01)


def test_a_model_depends_on_its_seed_only():
    cfg = compose("train", ["model=nano", "position=t5"])
    torch.randn(5)
    first = build_model(cfg, Bytes()).state_dict()
    torch.randn(7)
    again, other = build_model(cfg, Bytes()).state_dict(), build_model(cfg | {"seed": 1}, Bytes()).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_the_head_is_the_embedding_of_what_is_predicted():
    task = Copy(alphabet=5)
    model = build_model(compose("train", ["model=nano", "task=copy"]), task)
    assert model.head.weight is model.embedding.weight and model.head.weight.shape[0] == 6
    assert model(torch.tensor([[task.separator, 0, task.separator, 0, task.end]])).shape == (1, 5, 6)


def test_embeddings_enter_with_unit_variance():
    model = build_model(compose("train", ["model=tiny", "position=nope"]), Bytes())
    assert model.embed(torch.arange(256)[None]).std().item() == pytest.approx(1, rel=0.1)


def test_one_scheme_for_all_layers_or_one_each():
    shared, own = (
        build_model(compose("train", ["model=tiny", "position=t5", f"position.shared={s}"]), Bytes())
        for s in ("true", "false")
    )
    assert len(shared.positions) == 1 and len(own.positions) == 3
    assert {own.scheme(layer) for layer in range(3)} == set(own.positions)


def test_another_scheme_over_the_same_weights_leaves_the_model_as_it_was():
    model = Transformer(DIMS, 11, 0, [Nope(DIMS)])
    ids = torch.randint(0, 11, (2, 20))
    plain = model(ids)
    other = model.under([Alibi(DIMS)])
    assert not torch.equal(other(ids), plain)
    assert torch.equal(model(ids), plain) and isinstance(model.positions[0], Nope)
    assert other.embedding.weight is model.embedding.weight
    assert torch.equal(model.under(list(model.positions))(ids), plain)


def test_a_cache_is_told_positions_always_or_never():
    model = Transformer(DIMS, 11, 0, [Nope(DIMS)])
    cache = Cache()
    model(torch.zeros(1, 3, dtype=torch.int64), cache=cache)
    with pytest.raises(ValueError, match="at every call or at none"):
        model(torch.zeros(1, 1, dtype=torch.int64), pos=torch.tensor([[3]]), cache=cache)


def test_training_in_bfloat16_keeps_the_bias_in_float32(monkeypatch):
    """Under autocast the kernel gets bfloat16 q, k, v beside a float32 mask."""
    seen = []
    true = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def spy(q, k, v, attn_mask, scale):
        seen.append((q.dtype, attn_mask.dtype))
        return true(q, k, v, attn_mask=attn_mask, scale=scale)

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", spy)
    model = Transformer(DIMS, 11, 0, [Alibi(DIMS)])
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.zeros(1, 64, dtype=torch.int64))
    assert set(seen) == {(torch.bfloat16, torch.float32)}


def test_the_way_of_other_devices_agrees_too(monkeypatch):
    """A materialised mask, chunk by chunk: what a GPU takes, forced here for any length."""
    monkeypatch.setattr(toeplitz, "MATERIALISE", 10**9)
    scheme = T5(DIMS)
    for queries, cached in ((300, 0), (150, 20), (1, 140)):
        span, w = Span.of(queries, cached), torch.randn(2, 4, queries, 8)
        q = torch.randn(2, 4, queries, 8, requires_grad=True)
        k, v = (torch.randn(2, 4, queries + cached, 8, requires_grad=True) for _ in range(2))
        found = []
        for backend in ("fused", "reference"):
            out = attend(q, k, v, scheme, span, backend)
            found.append([out, *torch.autograd.grad((out * w).sum(), [q, k, v, scheme.table])])
        assert all(torch.allclose(a, b, atol=1e-4, rtol=1e-4) for a, b in zip(*found, strict=True))


def test_the_mask_of_given_positions_is_float32_beside_bfloat16():
    pos, v = 3 * torch.arange(600), torch.randn(1, 4, 600, 8).bfloat16()
    zero, scheme = torch.zeros(1, 4, 600, 8), Alibi(DIMS)
    low = attend(zero.bfloat16(), zero.bfloat16(), v, scheme, Span(pos, pos)).float()
    high = attend(zero, zero, v.float(), scheme, Span(pos, pos), "reference")
    assert (low - high).abs().max() < 2e-2


def test_attention_is_computed_outside_autocast():
    q, k, v = torch.randn(3, 1, 4, 20, 8)
    plain = attend(q, k, v, Alibi(DIMS), Span.of(20), "reference")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attend(q, k, v, Alibi(DIMS), Span.of(20), "reference"), plain)


@pytest.mark.parametrize("backend", ["fused", "reference"])
def test_padding_sees_nothing_not_even_padding(backend):
    q, k, v = torch.randn(3, 1, 4, 4, 8)
    pos, doc = torch.arange(4), torch.tensor([[-1, -1, 0, 0]])
    out = attend(q, k, v, Alibi(DIMS), Span(pos, pos, 0, doc, doc), backend)
    assert out[:, :, :2].abs().max() == 0 and out[:, :, 2:].abs().min() > 0


def test_a_cache_holds_documents_in_order():
    model = Transformer(DIMS, 11, 0, [Alibi(DIMS)])
    ids, pos = torch.randint(0, 11, (2, 9)), torch.arange(9).expand(2, -1)
    doc = torch.tensor([-1, -1, 0, 0, 0, 1, 1, 1, 1]).expand(2, -1)
    whole, cache = model(ids, pos=pos, doc=doc), Cache()
    parts = [x.split([4, 1, 4], dim=1) for x in (ids, pos, doc)]
    pieces = [model(i, pos=p, doc=d, cache=cache) for i, p, d in zip(*parts, strict=True)]
    assert torch.allclose(torch.cat(pieces, dim=1), whole, atol=1e-5)


def test_generation_at_given_positions():
    model = Transformer(DIMS, 11, 0, [Rope(DIMS)]).eval()
    text, pos = torch.randint(0, 11, (2, 6)), 3 * torch.arange(11)
    said = generate(model, text, 5, pos=pos.expand(2, -1))
    for _ in range(5):
        logits = model(text, pos=pos[: text.shape[1]].expand(2, -1))
        text = torch.cat([text, logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(said, text[:, 6:])


def block(**options) -> Block:
    made = Block(DIMS, **options)
    for weight in made.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    return made


def through(made: Block, x: torch.Tensor) -> torch.Tensor:
    return made(x, Nope(DIMS), Span.of(x.shape[1]), lambda k, v, x: (k, v, x), "fused")


def test_qk_norm_takes_away_the_scale_of_q_and_of_k():
    made, x = block(qk_norm=True), torch.randn(2, 9, 32)
    before = through(made, x)
    for rows in (slice(0, 32), slice(32, 64)):
        made.qkv.weight.data[rows] *= 5
        assert torch.allclose(through(made, x), before, atol=1e-4)


def test_dropout_reaches_both_halves_of_a_block():
    made, x = block(dropout=1 - 1e-12).train(), torch.randn(2, 9, 32)
    assert torch.allclose(through(made, x), x)


def test_swiglu_is_silu_of_the_gate_times_the_rest():
    made, x = block(mlp="swiglu"), torch.randn(2, 9, 32)
    made.out.weight.data.zero_()  # the attention adds nothing
    gate, up = made.up(made.mlp_norm(x)).chunk(2, dim=-1)
    assert torch.allclose(through(made, x), x + made.down(gate * torch.sigmoid(gate) * up), atol=1e-6)


def test_initial_sizes():
    dims = Dims(width=256, heads=4, head_width=64, layers=2, train_length=64)
    model = Transformer(dims, 256, 64, [Nope(dims)])
    stds = {"blocks.0.qkv": 1, "blocks.0.out": 0.5, "blocks.1.down": 0.5 * 0.5, "embedding": 1, "mark_embedding": 1}
    for name, factor in stds.items():  # in units of width^-1/2; `down` has four times the inputs
        assert model.get_submodule(name).weight.std().item() == pytest.approx(factor / 16, rel=0.05), name
