"""Documents packed into windows: nothing lost or asked twice, and a document in a pack is the document alone."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_train.config import compose, label
from posenc_train.evaluation.evaluate import evaluate, token_losses
from posenc_train.model.transformer import Transformer
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims
from posenc_train.positions.cope import Cope
from posenc_train.positions.fire import Fire
from posenc_train.positions.fox import Fox
from posenc_train.positions.learned import Learned
from posenc_train.positions.logn import Logn
from posenc_train.positions.nope import Nope
from posenc_train.positions.path import PaTH
from posenc_train.positions.rope import Rope
from posenc_train.positions.stack import Stack
from posenc_train.positions.t5 import T5
from posenc_train.positions.transformer_xl import TransformerXl
from posenc_train.tasks.base import IGNORE
from posenc_train.tasks.draw import Draw
from posenc_train.tasks.packing import Packs, asked, filled, within
from posenc_train.tasks.text import Text


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Given:
    """Documents as they are given."""

    def __init__(self, documents):
        self.documents = [np.array(document, np.int64) for document in documents]
        self.lengths = np.array([len(document) for document in documents], np.int64)

    def __getitem__(self, index):
        return self.documents[index]


def numbered(lengths):
    """Documents no id of which is another's."""
    ends = np.cumsum(lengths)
    return Given([np.arange(end - length, end) for end, length in zip(ends, lengths, strict=True)])


# ---------------------------------------------------------------------------------------- packing


@settings(max_examples=150, deadline=None)
@given(sizes=st.lists(st.integers(2, 12), max_size=40))
def test_a_bin_takes_the_largest_that_still_fits_until_none_does(sizes):
    """By the plainest code there is."""
    left, expected = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)), []
    while left:
        room, chosen = 12, []
        while fitting := [i for i in left if sizes[i] <= room]:
            chosen.append(fitting[0])
            left.remove(fitting[0])
            room -= sizes[fitting[0]]
        expected.append(chosen)
    assert [bin.tolist() for bin in filled(np.array(sizes, np.int64), 12)] == expected


@settings(max_examples=150, deadline=None)
@given(lengths=st.lists(st.integers(0, 40), max_size=25), length=st.integers(1, 12), first=st.booleans())
def test_every_target_of_every_document_is_asked_once_behind_what_stands_before_it(lengths, length, first):
    documents = numbered(lengths)
    packs = Packs(documents, length)
    numbers = np.arange(len(packs))
    ids, doc = packs.rows(numbers, Draw(0, "order", 0, numbers), padded_first=first)
    assert ids.shape == doc.shape == (len(packs), length + 1)
    pairs = np.stack([ids[:, :-1], ids[:, 1:]], axis=-1)[asked(doc)].tolist()
    wanted = [[a, b] for document in documents.documents for a, b in itertools.pairwise(document.tolist())]
    assert sorted(pairs) == sorted(wanted)
    assert packs.padding() == (doc < 0).sum()
    for row in doc:  # padding stands on one side, and documents are numbered as they come
        real = row[row >= 0]
        assert (row[-len(real) :] if first else row[: len(real)]).tolist() == real.tolist()
        assert np.unique(real).tolist() == list(range(real.max() + 1)) and (np.diff(real) >= 0).all()


def test_whole_documents_are_whole_where_they_fit():
    packs = Packs(numbered([4, 3, 2, 11, 12]), 10)
    pieces = sorted(piece for number in range(len(packs)) for piece in packs.pieces(number))
    assert pieces == [(0, 0, 4), (1, 0, 3), (2, 0, 2), (3, 0, 11), (4, 0, 11), (4, 10, 2)]
    assert len(packs) == 3 and packs.padding() == 0


def test_the_order_of_documents_is_drawn_for_each_row():
    packs = Packs(numbered([2] * 6), 11)
    orders = [packs.rows(np.zeros(9, int), Draw(seed, "order", 0, np.arange(9)))[0] for seed in (0, 1)]
    assert len({row.tobytes() for rows in orders for row in rows}) == 18
    part = packs.rows(np.zeros(3, int), Draw(0, "order", 0, np.arange(4, 7)))[0]
    assert np.array_equal(part, orders[0][4:7])


def test_positions_in_documents_and_what_is_asked():
    doc = np.array([[0, 0, 0, 1, 1, 2, -1, -1]])
    assert within(doc).tolist() == [[0, 1, 2, 0, 1, 0, 0, 1]]
    assert asked(doc).tolist() == [[True, True, False, True, False, False, False]]


# ---------------------------------------------------------------------------------------- the task

LENGTHS = [0, 1, 2, 5, 6, 7, 8, 60, 33, 20, 20, 45, 12, 3, 59, 7, 7, 30, 31, 9, 11, 4, 4, 26, 14]
TEXTS = [bytes(np.random.default_rng(i).integers(97, 123, n, np.uint8)) for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for index, text in enumerate(TEXTS):
        (folder / f"{index:02}.txt").write_bytes(text)
    return str(folder)


@pytest.fixture(scope="module")
def reset(folder):
    return Text(path=folder, packed="reset", windows=5)


def test_reset_and_joined_differ_in_positions_and_attention_only(folder, reset):
    one, other = (task.batch(3, 4, range(20), 40) for task in (reset, Text(path=folder, packed="joined")))
    assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
    assert other.doc is None and other.pos is None
    assert torch.equal(one.pos, torch.from_numpy(within(one.doc.numpy())))
    assert (one.doc.max(1).values > 0).any() and one.inputs.shape == one.targets.shape == (20, 40)
    documents = [document.tobytes() for document in reset.train]
    for row in range(20):
        for number in one.doc[row].unique().tolist():
            here = one.doc[row] == number
            if number >= 0:
                fed = bytes(one.inputs[row, here].tolist())
                assert any(fed in document for document in documents)
                said = one.targets[row, here]
                assert bytes(said[said != IGNORE].tolist())[: len(fed) - 1] == fed[1:]
            else:
                assert (one.targets[row, here] == IGNORE).all()


def test_the_mark_stands_at_the_beginning_of_every_document_and_is_no_target(folder, reset):
    marked = Text(path=folder, packed="reset", bos=True).batch(3, 4, range(20), 40)
    plain = reset.batch(3, 4, range(20), 40)
    begins = (plain.pos == 0) & (plain.doc >= 0)
    assert torch.equal(marked.inputs == 256, begins)
    assert torch.equal(marked.inputs[~begins], plain.inputs[~begins]) and torch.equal(marked.targets, plain.targets)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), step=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 24), max_size=5))
def test_field_bug_39_a_row_of_packs_depends_on_seed_step_and_row_only(reset, seed, step, cuts):
    together = reset.batch(seed, step, range(24), 30)
    edges = sorted({0, 24, *cuts})
    parts = [reset.batch(seed, step, range(a, b), 30) for a, b in reversed(list(itertools.pairwise(edges)))]
    for name, whole in together._asdict().items():
        assert torch.equal(torch.cat([getattr(part, name) for part in reversed(parts)]), whole)


def test_all_packs_are_drawn_alike(reset):
    packs = Packs(reset.train, 12)
    rows = [row.tobytes() for step in range(40) for row in np.sort(reset.batch(0, step, range(50), 12).targets.numpy())]
    expected = 2000 / len(packs)
    counts = np.unique(rows, return_counts=True)[1]
    assert abs(((counts - expected) ** 2 / expected).sum() - len(packs)) < 5 * (2 * len(packs)) ** 0.5


def test_field_bug_72_what_packing_leaves_out_is_counted(folder, reset):
    report = reset.report(36, 18)
    for name, documents in ("train", reset.train), ("validation", reset.validation):
        short = [len(document) for document in documents if len(document) < 2]
        assert (report[name]["documents_dropped"], report[name]["bytes_dropped"]) == (len(short), sum(short))
    packs = Packs(reset.train, 36)
    assert (report["train"]["packs"], report["train"]["places_of_padding"]) == (len(packs), packs.padding())
    assert report["validation"]["windows"] == min(5, len(Packs(reset.validation, 18)))
    whole = sum(len(text) for text in TEXTS)
    assert report["train"]["bytes"] + report["validation"]["bytes"] == whole


def test_the_label_says_how_documents_are_packed():
    assert label(compose("train", ["task.packed=reset"]), "task") == "text(packed=reset)"


# ------------------------------------------------------------------------------ laws of the models

DIMS = Dims(width=32, heads=4, head_width=8, layers=2, train_length=64)
SCHEMES = {
    "nope": Nope,
    "rope": Rope,
    "learned": Learned,
    "alibi": Alibi,
    "t5": T5,
    "fire": Fire,
    "fox": Fox,
    "cope": lambda dims: Cope(dims, positions=16),
    "path": PaTH,
    "transformer_xl": TransformerXl,
    "rope and log-n": lambda dims: Stack({"rope": Rope(dims), "logn": Logn(dims)}),
}


def transformer(name, marks=0):
    torch.manual_seed(0)
    model = Transformer(DIMS, 256, marks, [SCHEMES[name](DIMS)]).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # what starts at zero would hide a difference
            parameter.add_(0.3 * parameter.std().nan_to_num(1.0) * torch.randn_like(parameter) + 0.02)
    return model


@pytest.mark.parametrize("name", SCHEMES)
def test_a_document_in_a_pack_has_the_losses_that_it_has_alone(reset, name):
    model, batch = transformer(name), reset.batch(0, 0, range(6), 60)
    packed = token_losses(model, batch.inputs, batch.targets.clamp(min=0), batch.pos, batch.doc)
    together = token_losses(model, batch.inputs, batch.targets.clamp(min=0))
    differs = 0.0
    for row in range(6):
        for number in range(int(batch.doc[row].max()) + 1):
            here = batch.doc[row] == number
            said = batch.targets[row, here] != IGNORE
            fed, targets = batch.inputs[row, here][None], batch.targets[row, here].clamp(min=0)[None]
            alone = token_losses(model, fed, targets)[0]
            assert torch.allclose(packed[row, here][said], alone[said], atol=2e-5)
            differs = max(differs, float((together[row, here] - alone)[said].abs().max()))
    assert differs > 1e-3  # so packing them without the reset would not have passed


# ------------------------------------------------------------------------------------- evaluation

PROTOCOLS = {"nonoverlapping": {}, "same_targets": {"k": 8}, "per_position": {}, "sliding": {"stride": 8}}


def found(model, task, lengths, longest):
    rows = evaluate(model, task, lengths, PROTOCOLS, 16, longest)
    return {(r.length, r.protocol, r.unit, str(r.slice)): (r.total, r.count) for r in rows}


@pytest.mark.parametrize("packed", ["reset", "joined"])
@pytest.mark.parametrize("bos", [False, True])
def test_every_number_of_packed_windows_by_brute_force(folder, packed, bos):
    """Piece by piece and document by document, through the model's plain forward; padding is cut off."""
    task = Text(path=folder, packed=packed, bos=bos, windows=5)
    model = transformer("rope", marks=int(bos))
    rows = found(model, task, [32, 16], 32)
    _, docs = task._evaluation_packs(32)
    windows = task.windows(32)
    assert (docs < 0).any() and (docs.max(1) > 0).any()
    for length in (32, 16):
        whole = last = 0.0
        count = last_count = 0
        for window, doc in zip(windows, docs, strict=True):
            for start in range(0, 32, length):
                ids, own = window[start : start + length + 1], doc[start : start + length + 1]
                groups = [own[:-1] == number for number in np.unique(own[:-1]) if number >= 0]
                if packed == "joined":
                    groups = [own[:-1] >= 0]
                for here in groups:
                    place = np.flatnonzero(here)
                    if not len(place):
                        continue
                    fed = torch.from_numpy(ids[place].astype(np.int64))
                    if bos:
                        fed[[0, *(np.flatnonzero(np.diff(own[place])) + 1)]] = 256
                    log_p = model(fed[None])[0].double().log_softmax(-1)
                    for i, at in enumerate(place):
                        if own[at + 1] == own[at]:
                            loss = -float(log_p[i, ids[at + 1]])
                            whole, count = whole + loss, count + 1
                            if start + at >= 24:
                                last, last_count = last + loss, last_count + 1
        assert rows[length, "nonoverlapping", "byte", "{}"] == (pytest.approx(whole, rel=1e-5), count)
        assert rows[length, "same_targets(k=8)", "byte", "{}"] == (pytest.approx(last, rel=1e-5), last_count)
        parts = [value for key, value in rows.items() if key[:2] == (length, "per_position")]
        assert (sum(total for total, _ in parts), sum(n for _, n in parts)) == (pytest.approx(whole, rel=1e-5), count)
    assert rows[32, "sliding(stride=8)", "byte", "{}"][1] == rows[32, "nonoverlapping", "byte", "{}"][1]
