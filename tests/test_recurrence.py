"""How far back a context last occurred: against a search by hand, and the losses in parts."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_train.evaluation.evaluate import evaluate
from posenc_train.evaluation.recurrence import NEVER, distances, slices
from posenc_train.model.transformer import Transformer
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims
from posenc_train.tasks.base import Task

BYTES = np.ones(256, np.int64)


def by_search(windows, spelt, context, doc):
    """For every target, the tokens before it one by one until they have their bytes; then every earlier place."""
    found = np.zeros((len(windows), windows.shape[1] - 1), int)
    for row, ids in enumerate(windows.tolist()):

        def before(place, ids=ids):
            size = 0
            while size <= place and sum(spelt[i] for i in ids[place - size : place]) < context:
                size += 1
            return ids[place - size : place] if size <= place else None

        for target in range(1, len(ids)):
            own = before(target)
            earlier = [e for e in range(target) if own and before(e) == own and doc[row, e] == doc[row, target]]
            found[row, target - 1] = target - earlier[-1] if earlier else 0
    return found


@settings(max_examples=150, deadline=None)
@given(data=st.data(), letters=st.integers(1, 4), context=st.integers(1, 5), longest=st.integers(1, 40))
def test_distances_are_those_of_a_search(data, letters, context, longest):
    windows = np.array(data.draw(st.lists(st.lists(st.integers(0, letters - 1), min_size=longest + 1,
                                                    max_size=longest + 1), min_size=1, max_size=3)))  # fmt: skip
    spelt = np.array(data.draw(st.lists(st.integers(1, 4), min_size=letters, max_size=letters)))
    doc = np.sort(np.array(data.draw(st.lists(st.integers(0, 1), min_size=longest + 1, max_size=longest + 1))))
    doc = np.broadcast_to(doc, windows.shape)
    assert np.array_equal(distances(windows, spelt, context), by_search(windows, spelt, context, np.zeros_like(doc)))
    assert np.array_equal(distances(windows, spelt, context, doc), by_search(windows, spelt, context, doc))


def test_the_example_of_the_docstring():
    text = np.frombuffer(b"abcd, xy abcd; z", np.uint8)[None]
    assert distances(text, BYTES, 3).tolist() == [[0] * 11 + [9, 9, 0, 0]]


def test_contexts_may_overlap():
    assert distances(np.zeros((1, 8), np.uint8), BYTES, 3).tolist() == [[0, 0, 0, 1, 1, 1, 1]]


def test_slices_are_octaves_of_the_trained_length_to_the_end():
    assert list(slices(128, 1024)) == ["1-64", "65-128", "129-256", "257-512", "513-1024", NEVER]
    assert list(slices(16, 100)) == ["1-8", "9-16", "17-32", "33-64", "65-100", NEVER]
    for length, longest in (1, 1), (1, 5), (3, 100), (128, 64), (64, 64):
        bounds = [pair for name, pair in slices(length, longest).items() if name != NEVER]
        assert [d for low, high in bounds for d in range(low, high + 1)] == list(range(1, longest + 1))


def test_it_costs_next_to_nothing():
    """64 windows of 1,024 bytes in less than 0.2 s of one core, text that recurs a lot."""
    text = np.random.default_rng(0).choice(np.frombuffer(b"aeiou tnsr", np.uint8), (64, 1025))
    text[:, 512:] = text[:, :513]
    began = time.process_time()
    back = distances(text, BYTES, 8)
    assert time.process_time() - began < 0.2
    assert (back[:, 600:] == 512).mean() > 0.9


# ------------------------------------------------------------------------------------- the losses

DIMS = Dims(width=16, heads=2, head_width=8, layers=1, train_length=16)
PROTOCOLS = {"nonoverlapping": {}, "recurrence": {"bytes": 3}}


class Windows(Task):
    """Text over four letters, of which the second half repeats the first."""

    protocols, unit, begin, vocab, bytes_per_id = tuple(PROTOCOLS), "byte", None, 256, BYTES

    def windows(self, longest):
        ids = np.random.default_rng(0).integers(0, 4, (3, longest + 1)).astype(np.uint8)
        ids[:, longest // 2 :] = ids[:, : longest // 2 + 1]
        return ids


def rows_of(lengths, longest=64):
    torch.manual_seed(0)
    model = Transformer(DIMS, 256, 0, [Alibi(DIMS)])
    return list(evaluate(model, Windows(), lengths, PROTOCOLS, 16, longest))


def test_the_parts_add_up_to_nonoverlapping_and_hold_the_same_targets_at_every_length():
    rows = rows_of([16, 32, 64])
    for length in (16, 32, 64):
        whole = next(r for r in rows if (r.length, r.protocol) == (length, "nonoverlapping"))
        parts = {r.slice["recurrence"]: r for r in rows if (r.length, r.protocol) == (length, "recurrence(bytes=3)")}
        assert sum(r.total for r in parts.values()) == pytest.approx(whole.total, rel=1e-12)
        assert sum(r.count for r in parts.values()) == whole.count
        assert {key: r.count for key, r in parts.items()} == {
            key: int(((low <= back) & (back <= high)).sum())
            for key, (low, high) in slices(16, 64).items()
            for back in [distances(Windows().windows(64), BYTES, 3)]
            if ((low <= back) & (back <= high)).any()
        }
    assert len({r.eval_hash for r in rows}) == 1


def test_each_part_is_the_sum_of_its_targets_losses():
    torch.manual_seed(0)
    model, windows = Transformer(DIMS, 256, 0, [Alibi(DIMS)]), Windows().windows(64)
    back = distances(windows, BYTES, 3)
    ids = torch.from_numpy(windows.astype(np.int64))
    with torch.no_grad():
        log_p = model(ids[:, :-1]).double().log_softmax(-1)
    loss = -log_p.gather(2, ids[:, 1:, None])[..., 0].numpy()
    for row in rows_of([64]):
        if row.protocol != "nonoverlapping":
            low, high = slices(16, 64)[row.slice["recurrence"]]
            assert row.total == pytest.approx(loss[(low <= back) & (back <= high)].sum(), rel=1e-6)
