"""Evaluation of next-token losses: models of known loss, invariance, and a second computation by brute force."""

import math

import numpy as np
import pytest
import torch

from posenc_train.evaluation import evaluate as evaluate_module
from posenc_train.evaluation.evaluate import evaluate, position_buckets
from posenc_train.evaluation.protocols import protocol_label
from posenc_train.model.transformer import Transformer
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims
from posenc_train.positions.learned import Learned
from posenc_train.tasks.base import Task

PROTOCOLS = {"nonoverlapping": {}, "same_targets": {"k": 8}, "per_position": {}, "free_running": {}}
DIMS = Dims(width=16, heads=2, head_width=8, layers=2, train_length=16)


class Windows(Task):
    """A task of given windows of ids."""

    protocols = ("nonoverlapping", "same_targets", "per_position")
    unit = "byte"

    def __init__(self, count=5, longest=128, vocab=256, begin=None):
        self.ids = np.random.default_rng(0).integers(0, vocab, (count, longest + 1)).astype(np.uint8)
        self.vocab, self.begin = vocab, begin

    def windows(self, longest):
        assert longest == self.ids.shape[1] - 1
        return self.ids


def transformer(vocab=256, marks=0, scheme=Alibi):
    torch.manual_seed(0)
    return Transformer(DIMS, vocab, marks, [scheme(DIMS)])


def rows_of(model, task, lengths, longest=128, **options):
    return list(evaluate(model, task, lengths, PROTOCOLS, 16, longest, **options))


def sums(rows):
    return {(r.length, r.protocol, str(r.slice)): (r.total, r.count) for r in rows}


@pytest.mark.parametrize("vocab", [256, 100, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_zero_head_is_uniform_exactly(vocab, dtype):
    model = transformer(vocab).to(dtype)
    model.head.weight.data.zero_()
    rows = rows_of(model, Windows(vocab=vocab), [16, 128, 50])
    for row in rows:
        assert math.exp(row.total / row.count) == pytest.approx(vocab, rel=1e-12)
        assert row.total / row.count / math.log(2) == pytest.approx(math.log2(vocab), rel=1e-12)


def test_every_number_by_brute_force(monkeypatch):
    """Window by window, target by target, through the model's plain forward; logits a few positions at a time."""
    monkeypatch.setattr(evaluate_module, "LOGITS", 7)
    model, task = transformer(), Windows(count=3, longest=50)
    found = sums(rows_of(model, task, [16, 50], longest=50))
    for length in (16, 50):
        pieces = 50 // length
        loss = np.zeros((3, pieces, length))
        for window in range(3):
            for piece in range(pieces):
                first = 50 - (pieces - piece) * length  # the last piece ends where the window ends
                ids = torch.from_numpy(task.ids[window, first : first + length + 1].astype(np.int64))
                with torch.no_grad():
                    log_p = model(ids[None, :-1])[0].double().log_softmax(-1)
                loss[window, piece] = -log_p[torch.arange(length), ids[1:]].numpy()
        assert found[length, "nonoverlapping", "{}"] == (pytest.approx(loss.sum(), rel=1e-6), loss.size)
        assert found[length, "same_targets(k=8)", "{}"] == (pytest.approx(loss[:, -1, -8:].sum(), rel=1e-6), 24)
        for position in (0, 7, length - 1):
            part = loss[:, :, position]
            key = (length, "per_position", str({"position": [position, position]}))
            assert found[key] == (pytest.approx(part.sum(), rel=1e-6), part.size)


def test_the_same_targets_are_scored_at_every_length():
    """A model that looks at no context scores them equally at every length; a window's end is the same text."""
    model = transformer()
    for block in model.blocks:
        block.out.weight.data.zero_()
    rows = {r.length: r for r in rows_of(model, Windows(), [16, 32, 64, 128]) if r.protocol == "same_targets(k=8)"}
    assert len({r.count for r in rows.values()}) == 1
    assert all(r.total == pytest.approx(rows[16].total, rel=1e-6) for r in rows.values())


@pytest.mark.parametrize("options", [{"tokens": 1}, {"tokens": 7 * 128}, {"tokens": 10**9}])
def test_batch_size_and_order_of_lengths_change_nothing(options):
    model, task = transformer(), Windows()
    expected = sums(rows_of(model, task, [16, 32, 128]))
    found = sums(rows_of(model, task, [128, 16, 32], **options))
    assert found.keys() == expected.keys()
    for key, (total, count) in expected.items():
        assert found[key] == (pytest.approx(total, rel=1e-6), count)


def test_positions_add_up_to_the_whole():
    rows = rows_of(transformer(), Windows(), [100], longest=128)
    whole = next(r for r in rows if r.protocol == "nonoverlapping")
    parts = [r for r in rows if r.protocol == "per_position"]
    assert sum(r.count for r in parts) == whole.count == 500
    assert sum(r.total for r in parts) == pytest.approx(whole.total, rel=1e-12)


@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 100, 128, 1000, 8192, 65536])
def test_position_buckets(length):
    buckets = position_buckets(length)
    assert [first for first, _ in buckets] == [0, *(last + 1 for _, last in buckets[:-1])]
    assert buckets[-1][1] == length - 1
    assert buckets[: min(length, 64)] == [(i, i) for i in range(min(length, 64))]
    assert len(buckets) <= 64 + 256


def test_bos_is_fed_and_never_a_target():
    """The first fed id of every piece is the mark; the targets are the same bytes as without."""
    fed = []
    model, plain = transformer(marks=1), transformer()
    hidden = model.hidden

    def spy(ids, **options):
        fed.append(ids.clone())
        return hidden(ids, **options)

    model.hidden = spy
    with_bos, without = (rows_of(m, Windows(begin=b), [16, 128]) for m, b in ((model, 256), (plain, None)))
    assert [(r.length, r.protocol, r.count) for r in with_bos] == [(r.length, r.protocol, r.count) for r in without]
    assert all((ids[:, 0] == 256).all() and (ids[:, 1:] < 256).all() for ids in fed)
    assert {ids.shape[1] for ids in fed} == {16, 128}  # length is tokens fed


def test_beyond_reach_is_said_and_the_rest_measured():
    rows = rows_of(transformer(scheme=Learned), Windows(), [16, 32])
    assert {r.status for r in rows if r.length == 16} == {"ok"}
    assert {(r.status, r.total, r.count) for r in rows if r.length == 32} == {("beyond reach", None, 0)}
    assert {r.protocol for r in rows if r.length == 32} == {"nonoverlapping", "same_targets(k=8)", "per_position"}


def test_a_loss_that_is_not_finite_is_no_number():
    model = transformer()
    model.norm.weight.data[0] = math.nan
    assert {(r.status, r.total, r.count) for r in rows_of(model, Windows(), [16])} == {("not finite", None, 0)}


def test_the_model_is_left_as_it_was():
    model = transformer().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rows_of(model, Windows(), [16, 128])
    assert model.training and all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_the_protocol_is_one_string():
    assert protocol_label("same_targets", {"k": 64}, 128) == protocol_label("same_targets", {"k": None}, 128)
    assert protocol_label("same_targets", {"k": None}, 128) == "same_targets(k=64)"
    assert protocol_label("nonoverlapping", {}, 128) == "nonoverlapping"


def test_one_hash_for_one_text():
    first, again = (rows_of(transformer(), Windows(), [16, 128]) for _ in range(2))
    other = rows_of(transformer(), Windows(count=6), [16])
    assert len({r.eval_hash for r in (*first, *again)}) == 1 and other[0].eval_hash != first[0].eval_hash


def test_bits_per_byte_of_tokens():
    """Where targets are tokens of several bytes, the same loss stands once more over the bytes they spell."""
    task = Windows(count=2, longest=20)
    task.unit, task.bytes_per_id = "token", np.arange(1, 257)
    rows = {r.unit: r for r in rows_of(transformer(), task, [16], longest=20) if r.protocol == "nonoverlapping"}
    assert rows["token"].total == rows["byte"].total and rows["token"].count == 32
    assert rows["byte"].count == int((task.ids[:, 5:].astype(int) + 1).sum())


def test_dropout_is_off():
    torch.manual_seed(0)
    noisy = Transformer(DIMS, 256, 0, [Alibi(DIMS)], dropout=0.5).train()
    quiet = transformer()
    quiet.load_state_dict(noisy.state_dict())
    assert sums(rows_of(noisy, Windows(), [16])) == sums(rows_of(quiet, Windows(), [16]))
    assert noisy.training


def test_the_last_targets_need_a_length_of_as_many():
    rows = rows_of(transformer(), Windows(), [8, 7])
    assert [(r.length, r.count) for r in rows if r.protocol == "same_targets(k=8)"] == [(8, 40)]
