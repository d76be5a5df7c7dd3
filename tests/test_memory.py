"""Segment recurrence: memory in the model, contiguous batches, training that goes on where it was."""

import numpy as np
import pytest
import torch
from running import NANO, run

from posenc_train.build import rehearse
from posenc_train.checks import file_settings
from posenc_train.config import UserError, cell_name, check, compose, label, run_folder
from posenc_train.model.cache import Cache, Memory
from posenc_train.model.transformer import Transformer
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims
from posenc_train.positions.rope import Rope
from posenc_train.positions.transformer_xl import TransformerXl
from posenc_train.tasks.base import IGNORE
from posenc_train.tasks.text import Text

DIMS = Dims(width=32, heads=4, head_width=8, layers=3, train_length=16)
XL = ["position=transformer_xl", "position.memory=16", "task.contiguous=true", "logger=none"]


def model_of(scheme) -> Transformer:
    torch.manual_seed(0)
    return Transformer(DIMS, 11, 0, [scheme(DIMS) for _ in range(3)]).eval()


def ids(n: int = 48) -> torch.Tensor:
    return torch.randint(0, 11, (2, n), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scheme", [TransformerXl, Rope, Alibi])
def test_segments_with_all_of_the_past_are_one_call(scheme):
    """At any depth (Dai et al. 2019, section 3.2)."""
    model, memory = model_of(scheme), Memory(48)
    with torch.no_grad():
        parts = [model(segment, memory=memory) for segment in ids().split(16, dim=1)]
        assert torch.allclose(torch.cat(parts, dim=1), model(ids()), atol=1e-5)


@pytest.mark.parametrize("n", [32, 64, 128, 16 + 5, 128 + 5])
def test_an_evaluation_at_n_tokens_is_one_of_segments_with_n_minus_l_of_memory(n):
    """L = 16. What n tokens read at once give is what segments give, the first of which may be shorter: the last one
    needs a memory of n - L. With one token less it is another. A shorter last segment needs all before it."""
    model, text = model_of(TransformerXl), ids(n)
    with torch.no_grad():
        whole = model(text)

        def segments(first: int, memory: Memory):
            parts = [model(x, memory=memory) for x in (text[:, :first], *text[:, first:].split(16, dim=1)) if x.numel()]
            return torch.cat(parts, dim=1)

        assert torch.allclose(segments(n % 16, Memory(n - 16)), whole, atol=1e-5)
        assert not torch.allclose(segments(n % 16, Memory(n - 17)), whole, atol=1e-5)
        assert torch.allclose(segments(16, Memory((n - 1) // 16 * 16)), whole, atol=1e-5)


def test_a_memory_from_a_checkpoint_follows_the_model_to_its_device():
    memory = Memory(4, [torch.zeros(2, 3, 32)], torch.zeros(2, 3, dtype=torch.int64))
    doc = memory.place(torch.zeros(2, 5, dtype=torch.int64, device="meta"))
    whole = memory.before(0, torch.zeros(2, 5, 32, device="meta"))
    assert whole.device.type == doc.device.type == "meta" and whole.shape == (2, 8, 32) and doc.shape == (2, 8)
    assert memory.inputs[0].shape == (2, 4, 32) and memory.doc.shape == (2, 4)


def test_a_memory_takes_no_positions_and_no_cache():
    with pytest.raises(ValueError, match="a memory takes consecutive positions"):
        model_of(Rope)(ids(), pos=torch.arange(48), memory=Memory(4))
    with pytest.raises(ValueError, match="no cache beside it"):
        model_of(Rope)(ids(), cache=Cache(), memory=Memory(4))


def test_a_memory_holds_as_much_as_it_says_and_no_gradient():
    model, memory = model_of(Rope), Memory(10)
    model(ids()[:, :16], memory=memory)
    first = memory.inputs[0]
    assert memory.length == 10 and len(memory.inputs) == 3 and not any(x.requires_grad for x in memory.inputs)
    assert torch.equal(first, model.embed(ids()[:, 6:16]).detach())
    model(ids()[:, 16:20], memory=memory)
    assert torch.equal(memory.inputs[0], model.embed(ids()[:, 10:20]).detach())


def test_a_short_memory_is_a_window_of_one_layer():
    """With one layer, 5 tokens of memory and segments of 16: each token sees its segment and the 5 before, no more."""
    dims = Dims(width=32, heads=4, head_width=8, layers=1, train_length=16)
    model, memory = Transformer(dims, 11, 0, [Rope(dims)]).eval(), Memory(5)
    with torch.no_grad():
        _, second = (model(segment, memory=memory) for segment in ids(32).split(16, dim=1))
        assert torch.allclose(second, model(ids(32)[:, 11:])[:, 5:], atol=1e-5)


def test_a_document_does_not_see_the_one_before():
    model, memory = model_of(TransformerXl), Memory(48)
    doc = (torch.arange(48) >= 20).long().expand(2, -1)
    with torch.no_grad():
        segments = zip(ids().split(16, dim=1), doc.split(16, dim=1), strict=True)
        parts = torch.cat([model(x, doc=d, memory=memory) for x, d in segments], dim=1)
        assert torch.allclose(parts[:, 20:], model(ids()[:, 20:]), atol=1e-5)
        assert torch.allclose(parts[:, :20], model(ids()[:, :20]), atol=1e-5)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Three documents of bytes that tell document and place, a fourth of none for validation."""
    folder = tmp_path_factory.mktemp("texts")
    for name in "abcdefghij":
        (folder / f"{name}.txt").write_bytes(bytes([ord(name)]) * 3 + bytes(range(65, 65 + ord(name) - 90)))
    return Text(path=str(folder), contiguous=True)


def test_every_row_goes_on_where_it_was(text):
    """Step by step it reads all training documents in their order, again and again."""
    stream = np.concatenate([text.train[i] for i in range(len(text.train))])
    rows = [text.batch(0, step, range(4), 7) for step in range(40)]
    for row in range(4):
        read = np.concatenate([batch.inputs[row].numpy() for batch in rows])
        starts = [s for s in range(len(stream)) if np.array_equal(np.resize(np.roll(stream, -s), len(read)), read)]
        assert starts, "no place of the training text reads on like this"
    ahead = np.concatenate([batch.targets[0].numpy() for batch in rows])
    read = np.concatenate([batch.inputs[0].numpy() for batch in rows])
    docs = np.concatenate([batch.doc[0].numpy() for batch in rows])
    asked = ahead[:-1] != IGNORE
    assert np.array_equal(ahead[:-1][asked], read[1:][asked])
    assert np.array_equal(~asked, docs[1:] != docs[:-1])  # nothing is asked where a document ends


def test_a_row_is_the_same_whichever_others_are_asked_for(text):
    whole = text.batch(3, 5, range(6), 9)
    part = text.batch(3, 5, range(2, 4), 9)
    assert whole.pos is part.pos is None
    for a, b in zip(whole[:3], part[:3], strict=True):
        assert torch.equal(a[2:4], b)


def test_training_goes_on_with_its_memory(tmp_path, monkeypatch):
    """Twelve steps at once are six and then six, to the last bit: the memory is in the checkpoint."""
    results = []
    for name, parts in (("whole", [12]), ("parts", [6, 12])):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for steps in parts:
            stopped = Stop(steps) if steps < 12 else None
            folder = trained(stopped)
        results.append(torch.load(folder / "last.ckpt", weights_only=True))
    for key, value in results[0]["state_dict"].items():
        assert torch.equal(value, results[1]["state_dict"][key]), key
    assert results[0]["memory"]["inputs"][0].shape == (4, 16, 32)
    assert all(torch.equal(a, b) for a, b in zip(*(r["memory"]["inputs"] for r in results), strict=True))


class Stop:
    """Ends the training as a signal would, after a number of steps."""

    def __init__(self, steps: int):
        self.steps = steps


def trained(stopped):
    from posenc_train.training import module

    words = [*NANO, *XL, "trainer.checkpoint_every=6"]
    if stopped is None:
        return run_folder(run("train", *words))
    step = module.Training.training_step

    def interrupted(self, batch, index):
        if self.trainer.global_step == stopped.steps:
            raise KeyboardInterrupt
        return step(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Training, "training_step", interrupted)
        with pytest.raises((SystemExit, KeyboardInterrupt)):
            run("train", *words)


def test_memory_changes_what_is_trained_and_the_name_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_memory = compose("train", [*NANO, *XL])
    without = compose("train", [*NANO, *XL, "position.memory=0"])
    assert cell_name(with_memory) != cell_name(without)
    assert label(with_memory, "position") == "transformer_xl(memory=16)"
    assert label(with_memory, "task") == "text"  # the data are those of others
    folders = [run_folder(run("train", *NANO, *XL, f"position.memory={n}")) for n in (16, 0)]
    weights = [torch.load(folder / "last.ckpt", weights_only=True)["state_dict"] for folder in folders]
    assert any(not torch.equal(value, weights[1][key]) for key, value in weights[0].items())


@pytest.mark.parametrize(
    "words, message",
    [
        ("task.contiguous=false", "task.contiguous=false: must be true with position.memory=16"),
        ("task=copy task.examples=4", "task.contiguous=null: must be true|task.contiguous"),
        ("sampling=pose", "sampling=pose: must be consecutive with position.memory=16"),
        ("model.causal=false", "model.causal=false: must be true"),
        ("trainer.devices=2", "trainer.devices=2: must be 1 with position.memory=16"),
    ],
)
def test_what_a_memory_needs(words, message):
    with pytest.raises(UserError, match=message):
        cfg = compose(
            "train",
            [*(w for w in NANO if "task" not in w), *XL[:2], "task.contiguous=true", *words.split()]
            if "copy" not in words
            else [*XL[:2], *words.split()],
        )
        check(cfg)
        rehearse(cfg)


@pytest.fixture(scope="module")
def cfg():
    return compose("train", ["task.contiguous=true"])


def beside(cfg, other: dict, memory: int) -> dict:
    """The configuration with Transformer-XL in a stack with another scheme."""
    parts = {"other": other, "xl": file_settings("position", "transformer_xl") | {"memory": memory}}
    position = {"_target_": "posenc_train.positions.stack.Stack", "parts": parts}
    return cfg | {"position": position, "names": cfg["names"] | {"position": "mine"}}


@pytest.mark.parametrize("memory", [0, 16])
@pytest.mark.parametrize("other", ["sinusoidal", "learned", "integer", "learned_t5"])
def test_absolute_positions_beside_it_are_refused(other, memory, cfg):
    both = beside(cfg, file_settings("position", other), memory)
    check(both)
    with pytest.raises(UserError, match="position.parts.other: stands in the embedding, .* Transformer-XL"):
        rehearse(both)
    rehearse(beside(cfg, file_settings("position", "alibi"), memory))


def test_positions_of_ones_own_in_the_embedding_are_refused_beside_it(tmp_path, monkeypatch, cfg):
    text = "from posenc_train.positions.base import PositionScheme\n\n\nclass Mine(PositionScheme):\n"
    (tmp_path / "mine_in_embedding.py").write_text(text + "    def embed(self, x, pos):\n        return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="position.parts.other: stands in the embedding"):
        rehearse(beside(cfg, {"_target_": "mine_in_embedding.Mine"}, 0))


@pytest.mark.parametrize("other", ["fire", "fope"])
def test_a_memory_is_refused_beside_what_depends_on_more_than_distances(other, cfg):
    with pytest.raises(UserError, match="position=mine: a memory needs relative positions only"):
        rehearse(beside(cfg, file_settings("position", other), 16))
    rehearse(beside(cfg, file_settings("position", other), 0))
