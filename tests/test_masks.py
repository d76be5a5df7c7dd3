"""Schemes that hide keys, against masks written out pair by pair."""

import pytest
import torch

from posenc_train.model.attend import attend
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.blockwise import Blockwise
from posenc_train.positions.hard_alibi import HardAlibi
from posenc_train.positions.window import Window

EVERY = [
    (Window, {"window": 3}),
    (Window, {"window": 3, "sinks": 2}),
    (Window, {"window": 1}),
    (Blockwise, {"block": 3}),
    (HardAlibi, {}),
    (HardAlibi, {"masked": 4}),
]


def dims(causal: bool = True, heads: int = 4, train_length: int = 12) -> Dims:
    return Dims(width=8 * heads, heads=heads, head_width=8, layers=1, train_length=train_length, causal=causal)


def sees(kind, settings, head: int, i: int, j: int, causal: bool) -> bool:
    """Whether head `head` lets position i see position j: the definitions, once more."""
    apart = i - j if causal else abs(i - j)
    if causal and apart < 0:
        return False
    if kind is Window:
        return apart < settings["window"] or j < settings.get("sinks", 0)
    if kind is Blockwise:
        blocks = i // settings["block"] - j // settings["block"]
        return abs(blocks) <= 1
    return head >= settings.get("masked", 2) or apart <= head


def seen(scheme, span) -> torch.Tensor:
    """What is left of the span's own mask, [b h q k]."""
    allowed = span.allowed()
    allowed = allowed[None, None] if allowed.ndim == 2 else allowed[:, None]
    mask = scheme.visible(span)
    assert mask.ndim == 4 and mask.dtype == torch.bool
    return (allowed & mask).expand(len(span.q_pos) if span.q_pos.ndim == 2 else 1, 4, -1, -1)


@pytest.mark.verifies("window", "definition, arXiv 2004.05150")
@pytest.mark.verifies("blockwise", "definition, arXiv 2212.10554")
@pytest.mark.verifies("hard_alibi", "definition, arXiv 2402.01032")
@pytest.mark.parametrize("kind, settings", EVERY)
@pytest.mark.parametrize("causal", [True, False])
def test_masks_pair_by_pair(kind, settings, causal):
    """At natural positions, with a cache, and at random ones with gaps, another set for each row."""
    scheme = kind(dims(causal), **settings)
    gaps = torch.randint(1, 4, (2, 12), generator=torch.Generator().manual_seed(0)).cumsum(1)
    for pos, first in (torch.arange(12)[None], 0), (torch.arange(12)[None], 7), (gaps, 0), (gaps, 7):
        for span in (
            Span(pos[:, first:], pos, start=first, causal=causal),
            Span(pos[0, first:], pos[0], start=first, causal=causal),
        ):
            found = seen(scheme, span)
            for row, positions in enumerate(pos.tolist()[: len(found)]):
                expected = [
                    [[sees(kind, settings, h, i, j, causal) for j in positions] for i in positions[first:]]
                    for h in range(4)
                ]
                assert found[row].tolist() == expected


@pytest.mark.parametrize("kind, settings", EVERY)
@pytest.mark.parametrize("causal", [True, False])
def test_every_query_sees_itself_and_a_vector_of_distances_says_the_same(kind, settings, causal):
    scheme = kind(dims(causal), **settings)
    pos = torch.arange(12)
    matrix = scheme.visible(Span(pos, pos, causal=causal))
    assert matrix.diagonal(dim1=-2, dim2=-1).all()
    if scheme.relative:
        distance = torch.arange(-11, 12)
        line = scheme.visible(Span(distance, torch.zeros(1, dtype=torch.int64)))[0, :, :, 0]
        assert torch.equal(line[:, 11 + pos[:, None] - pos], matrix[0])


def test_who_is_relative():
    assert Window(dims(), window=3).relative and HardAlibi(dims()).relative
    assert not Window(dims(), window=3, sinks=1).relative and not Blockwise(dims()).relative


def test_window_examples():
    def row(**settings):
        return seen(Window(dims(), **settings), Span.of(10))[0, 0, 6].nonzero().flatten().tolist()

    assert row(window=3) == [4, 5, 6]
    assert row(window=3, sinks=2) == [0, 1, 4, 5, 6]
    assert row(window=7, sinks=2) == row(window=7) == [0, 1, 2, 3, 4, 5, 6]


def test_sinks_are_the_first_positions_of_every_document():
    doc = torch.tensor([[0] * 6 + [1] * 6])
    pos = torch.tensor([[*range(6), *range(6)]])
    mask = seen(Window(dims(), window=2, sinks=1), Span(pos, pos, 0, doc, doc))
    assert mask[0, 0, 11].nonzero().flatten().tolist() == [6, 10, 11]
    assert mask[0, 0, 5].nonzero().flatten().tolist() == [0, 4, 5]


def test_a_window_as_long_as_the_text_hides_nothing():
    q, k, v = torch.randn(3, 1, 4, 12, 8, generator=torch.Generator().manual_seed(0))
    plain = attend(q, k, v, HardAlibi(dims(), masked=0), Span.of(12))
    assert torch.allclose(attend(q, k, v, Window(dims(), window=12), Span.of(12)), plain, atol=1e-6)
    assert not torch.allclose(attend(q, k, v, Window(dims(), window=11), Span.of(12)), plain, atol=1e-4)


def test_a_window_of_one_gives_every_token_its_own_value():
    q, k, v = torch.randn(3, 1, 4, 12, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(attend(q, k, v, Window(dims(), window=1), Span.of(12)), v, atol=1e-6)


def test_blocks_of_half_the_training_length_hide_nothing_within_it():
    scheme = Blockwise(dims(train_length=12))
    assert scheme.block == 6 and Blockwise(dims(train_length=1)).block == 1
    assert torch.equal(seen(scheme, Span.of(12))[0, 0], torch.ones(12, 12, dtype=torch.bool).tril())
    assert seen(scheme, Span.of(18))[0, 0, 12:, :6].sum() == 0


def test_block_example():
    assert seen(Blockwise(dims(), block=3), Span.of(9))[0, 0, 7].nonzero().flatten().tolist() == [3, 4, 5, 6, 7]


@pytest.mark.verifies("hard_alibi", "num_masked_heads = 8 of 16, sjelassi/transformers_ssm_copy")
def test_hard_alibi_masked_heads_see_one_to_eight_keys():
    counts = HardAlibi(dims(heads=16)).visible(Span.of(40))[0, :, 39].sum(-1)
    assert counts.tolist() == [1, 2, 3, 4, 5, 6, 7, 8] + [40] * 8


@pytest.mark.parametrize(
    "kind, settings, message",
    [
        (Window, {"window": 0}, "position.window=0: must be at least 1"),
        (Window, {"sinks": -1}, "position.sinks=-1: must be at least 0"),
        (Blockwise, {"block": 0}, "position.block=0: must be at least 1"),
        (HardAlibi, {"masked": 5}, "position.masked=5: must be from 0 to model.heads=4"),
        (HardAlibi, {"masked": -1}, "position.masked=-1: must be from 0 to model.heads=4"),
    ],
)
def test_settings_without_a_meaning_are_refused(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(dims(), **settings)
