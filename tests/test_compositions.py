"""Stacks, heads and layers: what a composition is must equal what its parts are."""

from dataclasses import replace
from itertools import product

import pytest
import torch
import yaml
from running import NANO, run

from posenc_train.build import build_model, build_schemes, rehearse
from posenc_train.checks import choices, file_settings
from posenc_train.config import UserError, cell_name, check, compose, label, run_folder
from posenc_train.model.attend import attend
from posenc_train.positions.alibi import Alibi, slopes
from posenc_train.positions.base import Dims, Span
from posenc_train.positions.blockwise import Blockwise
from posenc_train.positions.fire import Fire
from posenc_train.positions.heads import Heads
from posenc_train.positions.learned import Learned
from posenc_train.positions.logn import Logn
from posenc_train.positions.nope import Nope
from posenc_train.positions.pope import Pope
from posenc_train.positions.rope import Rope
from posenc_train.positions.sinusoidal import Sinusoidal
from posenc_train.positions.ssmax import Ssmax
from posenc_train.positions.stack import Stack
from posenc_train.positions.t5 import T5
from posenc_train.positions.window import Window

DIMS = Dims(width=32, heads=4, head_width=8, layers=4, train_length=24)


def inputs(queries: int = 30, heads: int = 4):
    return torch.randn(3, 2, heads, queries, 8, generator=torch.Generator().manual_seed(0))


def test_biases_add_and_masks_intersect():
    """In float64, by hand: RoPE, two biases and two masks at once."""
    alibi, t5, rope = Alibi(DIMS), T5(DIMS), Rope(DIMS)
    stack = Stack({"t5": t5, "rope": rope, "alibi": alibi, "near": Window(DIMS, 9), "block": Blockwise(DIMS, 6)})
    q, k, v = inputs()
    i, j = torch.arange(30)[:, None], torch.arange(30)
    distance = i - j
    turned_q, turned_k = rope.rotate(q, k, Span.of(30))
    scores = (turned_q.double() @ turned_k.double().mT) / 8**0.5
    scores = scores + t5.by_distance(distance).double() + alibi.by_distance(distance).double()
    seen = (distance >= 0) & (distance < 9) & (i // 6 - j // 6 <= 1)
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v.double()
    with torch.no_grad():
        for backend in ("reference", "fused"):
            assert torch.allclose(attend(q, k, v, stack, Span.of(30), backend).double(), expected, atol=2e-6)


def test_biases_of_both_kinds_add():
    """One by distance, two that read the query's position, in float64."""
    alibi, fires = Alibi(DIMS), [Fire(DIMS, init_l=5), Fire(DIMS, init_l=9)]
    q, k, v = inputs()
    span = Span.of(30)
    with torch.no_grad():
        added = alibi.by_distance(span.distance()).double() + sum(fire.bias(span)[0].double() for fire in fires)
        scores = (q.double() @ k.double().mT) / 8**0.5 + added
        expected = scores.masked_fill(~span.allowed(), -torch.inf).softmax(-1) @ v.double()
        stack = Stack({"alibi": alibi, "one": fires[0], "two": fires[1]})
        for backend in ("reference", "fused"):
            assert torch.allclose(attend(q, k, v, stack, span, backend).double(), expected, atol=2e-6)


def test_the_shortest_reach_counts():
    assert Stack({"long": Learned(DIMS, reach=40), "short": Learned(DIMS, reach=30)}).reach == 30
    assert Stack({"any": Rope(DIMS)}).reach is None


def test_embeddings_chain_in_order():
    x, pos = torch.randn(2, 5, 32), torch.arange(5)
    first, second = Sinusoidal(DIMS), Learned(DIMS)
    stack = Stack({"first": first, "second": second})
    assert torch.equal(stack.embed(x, pos), second.embed(first.embed(x, pos), pos))
    assert stack.reach == 24 and not stack.relative and stack.bias is None and stack.rotate is None


def test_a_stack_of_one_is_that_one():
    q, k, v = inputs()
    for scheme in (Nope(DIMS), Rope(DIMS), Alibi(DIMS), Window(DIMS, 5, sinks=2), Logn(DIMS)):
        assert torch.equal(attend(q, k, v, Stack({"only": scheme}), Span.of(30)), attend(q, k, v, scheme, Span.of(30)))


def test_parts_embed_all_at_once_or_all_before_every_layer():
    with pytest.raises(ValueError, match="every_layer"):
        Stack({"once": Sinusoidal(DIMS), "often": Learned(DIMS, every_layer=True)})


def test_every_head_follows_its_part():
    """Head by head, each as if its part were alone, with as many heads as it has."""
    two = replace(DIMS, heads=2)
    parts = {"alibi": Alibi(two), "rope": Rope(two)}
    heads = Heads(parts, {"alibi": 2, "rope": 2})
    q, k, v = inputs()
    for span in (Span.of(30), Span(torch.arange(30).expand(2, -1), torch.arange(30).expand(2, -1))):
        for backend in ("reference", "fused"):
            out = attend(q, k, v, heads, span, backend)
            for part, some in zip(parts.values(), (slice(0, 2), slice(2, 4)), strict=True):
                alone = attend(q[:, some], k[:, some], v[:, some], part, span, backend)
                assert torch.allclose(out[:, some], alone, atol=1e-6)


def test_heads_of_masks_of_widening_parts_and_of_parts_without_anything():
    one, two = replace(DIMS, heads=1), replace(DIMS, heads=2)
    for parts in (
        {"pope": Pope(one), "sinks": Window(one, 5, sinks=2), "nope": Nope(two)},
        {"nope": Nope(two), "near": Window(one, 3), "far": Window(one, 9)},
        {"alibi": Alibi(two), "fire": Fire(two)},
        {"fire": Fire(one), "rope": Rope(two), "sinks": Window(one, 4, sinks=1)},
    ):
        counts = {
            name: 2 if part.__class__ in (Nope, Rope, Alibi) or len(parts) == 2 else 1 for name, part in parts.items()
        }
        heads, (q, k, v) = Heads(parts, counts), inputs()
        rows = torch.stack([torch.arange(30), torch.arange(0, 60, 2)])  # another position in each row
        for span, backend in product((Span.of(30), Span(rows, rows)), ("reference", "fused")):
            with torch.no_grad():
                out, first = attend(q, k, v, heads, span, backend), 0
                for name, part in parts.items():
                    some = slice(first, first := first + counts[name])
                    alone = attend(q[:, some], k[:, some], v[:, some], part, span, "reference")
                    assert torch.allclose(out[:, some], alone, atol=1e-6)


def test_heads_in_a_configuration_have_the_slopes_of_their_number():
    settings = file_settings("position", "alibi_rope")
    (scheme,) = set(build_schemes(settings, DIMS))
    assert scheme.counts == {"alibi": 2, "rope": 2} and scheme.parts["alibi"].slopes == slopes(2)


def test_parts_are_one_for_all_layers_or_one_for_each():
    """T5 and ALiBi say one, SSMax one each: a stack of both has one table and four sets of scales."""
    parts = {"t5": dict(file_settings("position", "t5")), "ssmax": dict(file_settings("position", "ssmax"))}
    settings = {"_target_": "posenc_train.positions.stack.Stack", "parts": parts}
    layers = build_schemes(settings, DIMS)
    assert len({id(layer.parts["t5"]) for layer in layers}) == 1
    assert len({id(layer.parts["ssmax"]) for layer in layers}) == 4
    together = Stack({"t5": T5(DIMS), "ssmax": Ssmax(DIMS)})
    assert [p.shape for p in together.parameters()] == [p.shape for p in layers[0].parameters()]


def test_layers_within_a_stack_or_heads_stay_different():
    """Though each of them, like RoPE and NoPE, is one for all layers."""
    deep = {"deep": file_settings("position", "rnope_swa"), "logn": file_settings("position", "logn")}
    layers = build_schemes({"_target_": "posenc_train.positions.stack.Stack", "parts": deep}, DIMS)
    assert [layer.visible is not None for layer in layers] == [True, True, True, False]
    share = {"deep": 0.5, "logn": 0.5}
    layers = build_schemes({"_target_": "posenc_train.positions.heads.Heads", "parts": deep, "share": share}, DIMS)
    assert [layer.visible is not None for layer in layers] == [True, True, True, False]


def test_what_takes_q_and_k_as_projected_comes_first():
    """PoPE makes lengths of them, so that a scale or a rotation before it would mean something else."""
    parts = {"pope": Pope(DIMS), "logn": Logn(DIMS)}
    q, k, v = inputs()
    turned = parts["pope"].rotate(q, k, Span.of(30))
    assert torch.equal(Stack(parts).rotate(q, k, Span.of(30))[0], parts["logn"].rotate(*turned, Span.of(30))[0])
    with pytest.raises(ValueError, match="position.parts.pope: takes q and k as projected; put it before logn"):
        Stack(dict(reversed(parts.items())))


def test_the_order_of_the_parts_is_part_of_a_runs_name():
    """Heads are given out in that order: another order is another model."""
    cfg = compose("train", ["position=alibi_rope"])
    other = cfg | {"position": cfg["position"] | {"parts": dict(reversed(cfg["position"]["parts"].items()))}}
    assert cell_name(cfg) != cell_name(other)
    assert label(other, "position") == "alibi_rope(parts=[rope,alibi])" != label(cfg, "position")
    fewer = compose("train", ["position=rope_window", "~position.parts.rope"])
    assert label(fewer, "position") == "rope_window(parts=[window])"


def test_every_layer_of_a_pattern_has_its_own_copy():
    """Of a part that is one per layer."""
    parts = {"a": file_settings("position", "ssmax"), "b": file_settings("position", "nope")}
    settings = {"_target_": "posenc_train.positions.layers.Layers", "parts": parts, "pattern": ["a", "b"]}
    layers = build_schemes(settings, DIMS)
    assert layers[0] is not layers[2] and layers[1] is layers[3]


def test_layers_follow_the_pattern():
    """RNoPE-SWA as described in arXiv 2501.18795: every fourth layer without positions and without a window."""
    layers = build_schemes(file_settings("position", "rnope_swa"), replace(DIMS, layers=9))
    kinds = [type(layer).__name__ for layer in layers]
    assert kinds == ["Stack", "Stack", "Stack", "Nope", "Stack", "Stack", "Stack", "Nope", "Stack"]
    assert layers[0].rotate is not None and layers[0].visible is not None
    swan = build_schemes(file_settings("position", "swan"), DIMS)
    assert isinstance(swan[3].parts["logn"], Logn) and swan[3].visible is None


def test_a_model_of_layers_uses_each_in_its_place():
    """Against the same weights with one scheme throughout: the first layers differ where their schemes do."""
    cfg = compose("train", ["position=rnope_swa", "model=tiny", "model.layers=4", "train_length=24"])
    model = build_model(cfg, type("Bytes", (), {"vocab": 256, "marks": 0, "pooled": False})())
    ids, seen = torch.randint(0, 256, (1, 20)), []
    for layer in range(4):
        changed = [Nope(model.dims) if i == layer else s for i, s in enumerate(model.positions)]
        with torch.no_grad():
            seen.append(torch.equal(model.under(changed)(ids), model(ids)))
    assert seen == [False, False, False, True] and len(model.positions) == 4


@pytest.mark.parametrize(
    "words, message",
    [
        ("position=rnope_swa model=nano", "model.layers=2: must be at least 4, as position.pattern="),
        (
            "position=alibi_rope model.heads=1 model.width=16",
            "position.share={alibi: 0.5, rope: 0.5}: must be fractions of model.heads=1",
        ),
        ("position=alibi_rope position.share.rope=0.3", "must be fractions of model.heads=4"),
        ("position=alibi_rope position.share.rope=true", "position.share=.*must be a fraction above 0 for each part"),
        ("position=alibi_rope position.share=0.5", "position.share=0.5: must be a fraction above 0 for each part"),
        ("position=alibi_rope ~position.share.rope", "position.share={alibi: 0.5}: must name the parts, alibi, rope"),
        ("position=rnope_swa position.pattern=[local,globl]", "position.pattern=.local,globl.: must be made of"),
        ("position=rnope_swa position.pattern=[1,2]", "position.pattern=.1,2.: must be a list, each a text"),
        ("position=rnope_swa position.pattern=null", "position.pattern=null: must be a list, each a text"),
        ("position=rope_window position.parts=null", "position.parts=null: must be schemes by name"),
        ("position=rope_window position.parts.rope=null", "position.parts=.*: must be schemes by name"),
        ("position=rope position.base=1", "position.base=1.0: must be a number above 1"),
        ("position=rope position.single=0.1 position.base=500", "position.base=500.0: must be left out, since"),
        ("position=rope position.fraction=0.3", "and 4.8 is not an even number"),
        ("position=own position._target_=math.sqrt", "position._target_=math.sqrt: must be a subclass of"),
        ("position=rope_window position.parts.window.window=0", "position.parts.window.window=0: must be an integer"),
        ("position=rope_window position.parts.rope.base=x", "position.parts.rope.base=x: must be a number above 1"),
        ("position=rope_window position.parts.rope.bas=1", "did you mean position.parts.rope.base?"),
        ("position=learned_t5 position.parts.t5.max_distance=9", "position.parts.t5.max_distance=9: must be more than"),
        ("position=learned_t5 position.parts.learned.reach=9", "position.parts.learned.reach=9: must be at least"),
        ("position=alibi_rope model.width=12 model.heads=4", "makes the head width 3"),
        ("position=xpos_blockwise model.causal=false", "model.causal=false"),
    ],
)
def test_bad_compositions_are_refused_by_name(words, message):
    with pytest.raises(UserError, match=message):
        cfg = compose("train", words.split())
        check(cfg)
        rehearse(cfg)


def test_a_composition_says_in_its_label_what_was_changed():
    cfg = compose("train", ["position=rope_window", "position.parts.window.window=7"])
    assert label(cfg, "position") == "rope_window(parts.window.window=7)"
    assert label(compose("train", ["position=rope_window"]), "position") == "rope_window"


def test_compositions_are_made_of_the_files_of_their_parts():
    """A part has the settings of its own file: no value is written twice."""
    composed = {name: file_settings("position", name) for name in choices("position")}
    composed = {name: settings for name, settings in composed.items() if "parts" in settings}
    assert len(composed) >= 7
    for settings in composed.values():
        for part in settings["parts"].values():
            assert part in [dict(file_settings("position", name)) for name in choices("position")]


def test_a_composition_of_ones_own_in_ones_own_folder(tmp_path, monkeypatch):
    """A YAML in a folder of the user's, through hydra.searchpath: trained, evaluated, named in the rows."""
    (tmp_path / "mine" / "position").mkdir(parents=True)
    text = "defaults:\n- alibi@parts.alibi\n- window@parts.window\n- _self_\n"
    (tmp_path / "mine/position/near.yaml").write_text(text + "_target_: posenc_train.positions.stack.Stack\n")
    monkeypatch.chdir(tmp_path)
    search = f"hydra.searchpath=[file://{tmp_path}/mine]"
    cfg = run("train", *NANO, "logger=none", search, "position=near", "position.parts.window.window=9")
    folder = run_folder(cfg)
    assert yaml.safe_load((folder / "config.yaml").read_text())["position"]["parts"]["window"]["window"] == 9
    assert '"scheme": "near' in (folder / "rows.jsonl").read_text().replace('":"', '": "')
    with pytest.raises(UserError, match="position.parts.window.window=-1: must be an integer of at least 1"):
        run("train", *NANO, "logger=none", search, "position=near", "position.parts.window.window=-1")
