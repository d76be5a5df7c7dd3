"""Extensions of a trained rotary model: values of their papers, the identity at scale 1, and whole evaluations."""

import copy
import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from running import NANO, run

from posenc_train.build import class_of, extend, scale_of
from posenc_train.checks import ANYTHING, EXTENSIONS, TWO_SPAN
from posenc_train.config import CONF, UserError, check, compose, extension_label, run_folder
from posenc_train.evaluation import longrope as searching
from posenc_train.evaluation.run import evaluate_run, wanted
from posenc_train.model.cache import Cache
from posenc_train.model.transformer import Transformer, generate
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.extensions import by_parts, longrope, ntk, yarn
from posenc_train.positions.extensions.rotary import pairs, ropes
from posenc_train.positions.fope import Fope
from posenc_train.positions.heads import Heads
from posenc_train.positions.learned import Learned
from posenc_train.positions.nope import Nope
from posenc_train.positions.p_rope import PRope
from posenc_train.positions.pope import Pope
from posenc_train.positions.rope import Rope, frequencies
from posenc_train.positions.stack import Stack
from posenc_train.positions.xpos import Xpos
from posenc_train.runs import finished
from posenc_train.training.checkpoint import read

LENGTH = 16
DIMS = Dims(width=32, heads=4, head_width=8, layers=2, train_length=LENGTH)
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(Path(CONF, "extension").glob("*.yaml"))}


def fope(dims: Dims) -> Fope:
    """With all of its pairs: of this small width the floor would keep the fastest alone, which NTK leaves alone."""
    return Fope(dims, floor=False)


ROTARY = (Rope, PRope, Xpos, fope, Pope)
STRETCHING = [name for name in FILES if name not in (*ANYTHING, *TWO_SPAN)]


def wide(length: int) -> Dims:
    return Dims(64, 1, 64, 1, length)


def under(name: str, scheme: PositionScheme, scale: float, dims: Dims = DIMS, **given) -> PositionScheme:
    settings = FILES[name] | given
    if settings.get("factors") == "search" and "factors" not in given:
        count = sum(pairs(rope) for rope in ropes(scheme))
        settings["factors"] = np.linspace(1, 4, count).tolist()
    cfg = {"extension": {name: settings}, "names": {"position": "rope"}}
    return extend(cfg, name, [scheme], dims, scale)[0]


def frequency(name: str, scale: float, length: int, tokens: int = 1, **settings) -> torch.Tensor:
    dims = wide(length)
    rope = under(name, Rope(dims), scale, dims, **settings)
    return rope.frequency(Span.of(tokens))


def scores(scheme: PositionScheme, span: Span, heads: int = 4, width: int = 8) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, heads, span.queries, width, generator=draw)
    k = torch.randn(2, heads, span.keys, width, generator=draw)
    q, k = scheme.rotate(q, k, span)
    return (q @ k.mT).detach()


def model_of(*schemes: PositionScheme) -> Transformer:
    torch.manual_seed(1)
    return Transformer(DIMS, vocab=11, marks=0, schemes=schemes).eval()


# ---- files


@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_the_defaults_of_its_function(name):
    settings = dict(FILES[name])
    function = class_of(settings.pop("_target_"), "extension")
    assert function.__name__ == name and function.__module__.endswith(f"extensions.{name}")
    first, *defaults = [p for p in inspect.signature(function).parameters.values() if p.name not in ("dims", "scale")]
    assert settings.pop("scale", "auto") == "auto" and first.name == "scheme"
    assert settings == {p.name: p.default for p in defaults}


def test_every_file_has_its_rules():
    assert set(EXTENSIONS) == set(FILES)


# ---- values


@pytest.mark.verifies("ntk", "formula, arXiv 2309.00071 Definition 1")
@pytest.mark.parametrize(
    "width, scale, base", [(64, 4.0, 41829.36593), (128, 4.0, 40889.94243), (128, 2.0, 20221.26169)]
)
def test_ntk_is_a_change_of_base(width, scale, base):
    ratio = ntk.ratio(width // 2, scale)
    expected = base ** (-np.arange(0, width, 2) / width)
    assert np.allclose(10000.0 ** (-np.arange(0, width, 2) / width) * ratio.numpy(), expected, rtol=1e-7)
    assert ratio[0] == 1 and ratio[-1] == 1 / scale  # exactly


@pytest.mark.verifies("yarn", "borders of the released code, arXiv 2309.00071")
@pytest.mark.parametrize("width, length, expected", [(128, 4096, (20, 46)), (64, 512, (3, 16)), (64, 1024, (5, 18))])
def test_yarn_borders(width, length, expected):
    assert yarn.borders(width, 10000.0, length) == expected


def test_yarn_borders_stay_within_the_code_s_clamps():
    """0 below; above, the width minus 1, although there are only half as many pairs."""
    assert yarn.borders(8, 10000.0, 64) == (0, 2) and yarn.borders(8, 10000.0, 10**9, slow=1e-9)[1] == 7


def test_the_two_ramps_of_yarn():
    """The released code's and the paper's, which differ: d = 64, L = 512, s = 4."""
    code, paper = yarn.ratio(32, 10000.0, 512, 4.0), by_parts.ratio(frequencies(64), 512, 4.0, 1.0, 32.0)
    assert np.allclose(code[:20:4], [1, 0.942308, 0.711538, 0.480769, 0.25], atol=1e-6)
    assert np.allclose(paper[:20:4], [1, 0.849239, 0.422953, 0.288150, 0.25], atol=1e-6)
    assert (code - paper).abs().max() == pytest.approx(0.29, abs=5e-3)


@pytest.mark.parametrize(
    "scale, expected, squared",
    [(1.0, 1, 1), (0.5, 1, 1), (2.0, 1.069315, 1.143434), (4.0, 1.138629, 1.296477), (8.0, 1.207944, 1.459129),
     (16.0, 1.277259, 1.631390), (32.0, 1.346574, 1.813260)],
)  # fmt: skip
def test_yarn_temperature(scale, expected, squared):
    assert yarn.temperature(scale) == pytest.approx(expected, abs=1e-6)
    assert yarn.temperature(scale) ** 2 == pytest.approx(squared, abs=1e-6)


@pytest.mark.parametrize("scheme", ROTARY)
@pytest.mark.parametrize("name", ["yarn", "yarn_by_turns", "longrope"])
def test_a_temperature_multiplies_scores_by_its_square(name, scheme):
    """It stands on queries and keys, so that scores at the very same frequencies are multiplied by it twice."""
    extended = under(name, scheme(DIMS), 4.0)
    cool = copy.copy(extended)
    cool.temperature = 1.0
    t = longrope.temperature(4.0, LENGTH) if name == "longrope" else yarn.temperature(4.0)
    assert extended.temperature == t > 1
    assert torch.allclose(scores(extended, Span.of(20)), t * t * scores(cool, Span.of(20)), rtol=1e-4, atol=1e-5)


@pytest.mark.verifies("longrope", "temperature, arXiv 2402.13753")
@pytest.mark.parametrize("scale, expected", [(1.0, 1), (8.0, 1.118034), (32.0, 1.190238)])
def test_longrope_temperature(scale, expected):
    assert longrope.temperature(scale, 4096) == pytest.approx(expected, abs=1e-6)


@pytest.mark.verifies("dynamic_ntk", "formula of the released code, arXiv 2309.00071 section 3.3")
@pytest.mark.parametrize(
    "tokens, factor, base",
    [(1, 1.0, 10000.0), (512, 1.0, 10000.0), (600, 1.0, 11778.8602), (1024, 1.0, 20452.2287),
     (2048, 1.0, 41829.3659), (1024, 2.0, 31082.2367), (512, 2.0, 10000.0), (300, 2.0, 10000.0)],
)  # fmt: skip
def test_dynamic_ntk_base(tokens, factor, base):
    expected = base ** (-np.arange(0, 64, 2) / 64)
    assert np.allclose(frequency("dynamic_ntk", 1.0, 512, tokens, factor=factor), expected, rtol=1e-6)


def test_longrope_divides_each_frequency_by_its_factor():
    found = frequency("longrope", 8.0, 512, factors=[1.0] * 16 + [2.0] * 16)
    assert torch.allclose(found, frequencies(64) / torch.tensor([1.0] * 16 + [2.0] * 16))


@pytest.mark.verifies("abf", "formula in float64, arXiv 2309.16039")
def test_abf_is_the_other_base():
    expected = 500000.0 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    assert torch.allclose(frequency("abf", 1.0, 512).double(), expected, rtol=1e-6)
    assert torch.equal(frequency("abf", 4.0, 512, base=10000.0), frequencies(64))


@pytest.mark.verifies("pi", "brute force: positions divided by the scale, arXiv 2306.15595")
def test_pi_divides_positions_and_keeps_fractions():
    rope = under("pi", Rope(DIMS), 4.0)
    far, near = Span(torch.tensor([8, 20]), torch.tensor([4])), Span(torch.tensor([2, 5]), torch.tensor([1]))
    assert torch.allclose(scores(rope, far), scores(Rope(DIMS), near), atol=1e-5)
    q = torch.ones(1, 4, 1, 8)
    turned, _ = rope.rotate(q, q, Span(torch.tensor([3]), torch.tensor([0])))  # position 0.75
    theta = 10000.0 ** (-np.arange(0, 8, 2) / 8)
    assert np.allclose(turned[0, 0, 0, :4], np.cos(0.75 * theta) - np.sin(0.75 * theta), atol=1e-6)


def test_pi_reads_a_learned_table_between_its_rows():
    table = Learned(DIMS)
    wider = under("pi", table, 2.0)
    zeros = torch.zeros(1, 2 * LENGTH, 32)
    out, plain = (
        wider.embed(zeros, torch.arange(2 * LENGTH))[0],
        table.embed(zeros[:, :LENGTH], torch.arange(LENGTH))[0],
    )
    assert torch.equal(out[::2], plain)  # E'(2p) = E(p)
    assert torch.allclose(out[1:-1:2], (plain[1:] + plain[:-1]) / 2, atol=1e-7)
    assert wider.reach == 2 * LENGTH and table.reach == LENGTH and table.stretch == 1


def test_by_parts_between_pi_and_nothing():
    everything = frequency("by_parts", 4.0, 512, alpha=1e8, beta=2e8)
    nothing = frequency("by_parts", 4.0, 512, alpha=1e-9, beta=2e-9)
    assert torch.equal(everything, frequency("pi", 4.0, 512)) and torch.equal(nothing, frequencies(64))


@pytest.mark.verifies("yarn_by_turns", "its frequencies are those of by_parts, its temperature that of yarn")
def test_yarn_by_turns_is_by_parts_with_a_temperature():
    assert torch.equal(frequency("yarn_by_turns", 4.0, 512), frequency("by_parts", 4.0, 512))


@pytest.mark.parametrize("name", STRETCHING)
def test_frequencies_that_are_zero_stay_zero(name):
    """The pairs that p-RoPE does not turn carry no position under an extension either."""
    scheme = under(name, PRope(DIMS, fraction=0.5), 4.0)
    assert scheme.frequency(Span.of(64))[2:].tolist() == [0, 0]


# ---- identity, sharing, composition


@pytest.mark.parametrize("scheme", ROTARY)
@pytest.mark.parametrize("name", FILES)
def test_scale_1_is_the_plain_scheme(name, scheme):
    """Bit by bit, within the trained length. Another base is another scheme at any scale, unless it is the same."""
    plain, span = scheme(DIMS), Span.of(LENGTH)
    same = {"base": plain.base} if name == "abf" else {}
    extended = under(name, plain, 1.0, **same)
    assert torch.equal(scores(extended, span), scores(plain, span))
    if name not in ("none", "abf", *TWO_SPAN):  # the last act on scores: see test_two_span.py
        longer = under(name, plain, 4.0)
        assert not torch.allclose(scores(longer, Span.of(64)), scores(plain, Span.of(64)), atol=1e-3)
    if name == "abf":
        assert not torch.allclose(scores(under(name, plain, 1.0), span), scores(plain, span), atol=1e-3)


@pytest.mark.parametrize("scheme", ROTARY)
@pytest.mark.parametrize("name", FILES)
def test_an_extension_shares_parameters_and_changes_nothing_of_the_original(name, scheme):
    plain = scheme(DIMS)
    before, state = dict(plain.__dict__), {key: value.clone() for key, value in plain.state_dict().items()}
    extended = under(name, plain, 4.0)
    assert plain.stretch is None and plain.temperature == 1 and plain.__dict__ == before
    assert {id(p) for p in extended.parameters()} == {id(p) for p in plain.parameters()}
    assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items())


def test_every_rotary_part_of_a_composition_is_extended():
    heads = Heads({"rope": Rope(Dims(16, 2, 8, 2, LENGTH)), "alibi": Alibi(Dims(16, 2, 8, 2, LENGTH))},
                  {"rope": 2, "alibi": 2})  # fmt: skip
    whole = Stack({"heads": heads, "nope": Nope(DIMS)})
    extended = under("pi", whole, 4.0)
    assert [rope.stretch is None for rope in ropes(extended)] == [False]
    assert [rope.stretch for rope in ropes(whole)] == [None]
    assert (
        extended.parts["heads"].parts["alibi"] is heads.parts["alibi"] and extended.parts["nope"] is whole.parts["nope"]
    )
    quarter = Span(torch.arange(0, 32, 4), torch.arange(0, 32, 4))
    assert torch.allclose(scores(extended, quarter)[:, :2], scores(whole, Span.of(8))[:, :2], atol=1e-5)
    assert torch.equal(extended.by_distance(torch.arange(9)), whole.by_distance(torch.arange(9)))


def test_layers_without_rotary_positions_are_left_as_they_are():
    rope, nope = Rope(DIMS), Nope(DIMS)
    cfg = {"extension": {"yarn": FILES["yarn"]}, "names": {"position": "mine"}}
    first, second, third = extend(cfg, "yarn", [rope, nope, rope], DIMS, 4.0)
    assert second is nope and first is third is not rope  # one scheme for several layers stays one
    with pytest.raises(
        UserError, match="extension=yarn: position=mine has no rotary positions to extend; choose one of"
    ):
        extend(cfg, "yarn", [nope, Stack({"alibi": Alibi(DIMS)})], DIMS, 4.0)


def test_logn_works_on_any_scheme():
    """Queries that see n > L keys are multiplied by ln n / ln L."""
    extended = under("logn", Alibi(DIMS), 1.0)
    assert torch.equal(extended.by_distance(torch.arange(5)), Alibi(DIMS).by_distance(torch.arange(5)))
    ones = torch.ones(1, 4, 64, 8)
    q, k = extended.rotate(ones, ones, Span.of(64))
    assert torch.equal(k, ones) and torch.equal(q[:, :, :LENGTH], ones[:, :, :LENGTH])
    assert q[0, 0, 63, 0].item() == pytest.approx(math.log(64) / math.log(LENGTH))


# ---- what a call may depend on


def test_dynamic_ntk_looks_at_each_row_of_a_call_and_remembers_nothing():
    rope = under("dynamic_ntk", Rope(DIMS), 1.0)
    pos = torch.stack([torch.arange(8), 40 + torch.arange(8)])
    both = rope.frequency(Span(pos, pos))
    assert both.shape == (2, 4) and torch.equal(both[0], Rope(DIMS).trained())
    assert torch.equal(both[1], rope.frequency(Span(pos[1], pos[1])))
    first = rope.frequency(Span.of(40))
    rope.frequency(Span.of(500))
    assert torch.equal(rope.frequency(Span.of(40)), first)
    rows = scores(rope, Span(pos, pos))
    assert torch.allclose(rows[1:], scores(rope, Span(pos[1], pos[1]))[1:], atol=1e-6)


@pytest.mark.parametrize("name", STRETCHING)
def test_only_the_dynamic_one_depends_on_what_follows_and_on_where_the_text_stands(name):
    model = model_of(Rope(DIMS))
    extended = model.under([under(name, model.positions[0], 4.0)])
    ids = torch.randint(0, 11, (2, 48), generator=torch.Generator().manual_seed(2))
    pos = torch.arange(48)
    with torch.no_grad():
        whole = extended(ids)
        prefix = torch.allclose(extended(ids[:, :24]), whole[:, :24], atol=1e-5)
        shift = torch.allclose(extended(ids, pos=pos + 100), whole, atol=1e-4)
    assert prefix == shift == (name != "dynamic_ntk")


@pytest.mark.parametrize("name", FILES)
def test_generation_through_the_cache_is_that_without_it(name):
    model = model_of(Rope(DIMS))
    extended = model.under([under(name, model.positions[0], 4.0)])
    ids = torch.randint(0, 11, (3, 14), generator=torch.Generator().manual_seed(3))
    text, cache, errors = ids, Cache(), []
    with torch.no_grad():
        for step in range(14):
            expected = extended(text)[:, -1:]
            found = extended(ids if step == 0 else text[:, -1:], cache=cache)[:, -1:]
            errors.append((found - expected).abs().max().item())
            text = torch.cat([text, found.argmax(-1)], dim=1)
    assert (max(errors) < 1e-4) == (name != "dynamic_ntk")  # for which see below
    assert torch.equal(generate(extended, ids, 14), text[:, 14:])


def test_dynamic_ntk_in_one_layer_rotates_cached_keys_anew():
    """Keys are cached before rotation: in one layer, attention through a cache equals that without. In several, the
    lower layers' outputs for earlier tokens were computed at the length of their time, as in any dynamic scaling."""
    torch.manual_seed(1)
    dims = Dims(32, 4, 8, 1, LENGTH)
    plain = Transformer(dims, 11, 0, [Rope(dims)]).eval()
    model = plain.under([under("dynamic_ntk", plain.positions[0], 1.0, dims)])
    ids, cache = torch.randint(0, 11, (2, 60), generator=torch.Generator().manual_seed(4)), Cache()
    with torch.no_grad():
        for n in range(1, 61):
            last = model(ids[:, n - 1 : n], cache=cache)
            assert torch.allclose(last[:, -1], model(ids[:, :n])[:, -1], atol=1e-5)


# ---- refused


@pytest.mark.parametrize("name", ["ntk", "dynamic_ntk", "yarn", "abf"])
def test_one_frequency_for_all_has_no_base(name):
    with pytest.raises(UserError, match=f"extension={name}: position.single=1 is one frequency.*choose one of pi"):
        under(name, Rope(DIMS, single=1.0), 4.0)
    assert under("pi", Rope(DIMS, single=1.0), 4.0).frequency(Span.of(3)).tolist() == [0.25] * 4


@pytest.mark.parametrize("name", ["ntk", "dynamic_ntk"])
def test_a_single_pair_has_no_exponent(name):
    with pytest.raises(UserError, match=f"extension={name}: needs at least two pairs"):
        under(name, Rope(Dims(2, 1, 2, 1, 16)), 4.0, Dims(2, 1, 2, 1, 16))


@pytest.mark.parametrize(
    "name, settings, complaint",
    [
        ("longrope", {"factors": [1.0, 2.0]}, "factors: must be 4 numbers, one for each pair.*there are 2"),
        ("longrope", {"factors": [1.0, 2.0, 1.5, 4.0]}, "factors.*do not decrease"),
        ("longrope", {"factors": [0.5, 1.0, 1.5, 4.0]}, "factors.*at least 1"),
        ("longrope", {"factors": "search"}, "factors=search: must be the factors found"),
        ("by_parts", {"alpha": 32.0, "beta": 1.0}, "extension.by_parts.beta=1: must be a number above"),
        ("yarn_by_turns", {"alpha": 2.0, "beta": 2.0}, "extension.yarn_by_turns.beta=2: must be a number above"),
        ("yarn", {"beta_fast": 1.0}, "extension.yarn.beta_fast=1: must be a number above extension.yarn.beta_slow=1"),
        ("dynamic_ntk", {"factor": 0.5}, "extension.dynamic_ntk.factor=0.5: must be a number of at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_when_built(name, settings, complaint):
    with pytest.raises(UserError, match=complaint):
        under(name, Rope(DIMS), 4.0, **settings)


@pytest.mark.parametrize(
    "overrides, complaint",
    [
        ("extension=[pi] extension.pi.scale=true", "extension.pi.scale=true: must be a number of at least 1, or auto"),
        ("extension=[pi] extension.pi.scale=0.5", "extension.pi.scale=0.5: must be a number of at least 1, or auto"),
        ("extension=[pi] extension.pi.scale=atuo", "extension.pi.scale=atuo: must be a number of at least 1, or auto"),
        ("extension=[pi] extension.pi.scal=2", "extension.pi.scal=2: no such key; did you mean extension.pi.scale"),
        ("extension=[pi] ++extension.pi.scal=2", "extension.pi.scal=2: no such key; did you mean extension.pi.scale"),
        ("extension=[pi] extension.ntk.scale=2", "extension.ntk.scale=2: is a setting of extension=ntk, which is not"),
        ("extension=[yran]", "extension=yran: no such choice; did you mean yarn"),
        ("extension=[yarn] extension.yarn.beta_fast=0.5", "beta_fast=0.5: must be a number above extension.yarn.b"),
        ("extension=[by_parts] extension.by_parts.alpha=-1", "extension.by_parts.alpha=-1.0: must be a number above 0"),
        ("extension=[dynamic_ntk] extension.dynamic_ntk.factor=0", "factor=0.0: must be a number of at least 1"),
        ("extension=[abf] extension.abf.base=1", "extension.abf.base=1.0: must be a number above 1"),
        ("extension=[longrope] extension.longrope.factors=[2,1]", r"factors=\[2,1\]: must be search, or a list"),
        ("extension=[longrope] extension.longrope.factors=[1,true]", "must be search, or a list"),
        ("extension=[longrope] extension.longrope.factors=find", "factors=find: must be search, or a list"),
        ("extension=[longrope] extension.longrope.population=1", "population=1: must be an integer of at least 2"),
        ("extension=[longrope] extension.longrope.tokens=true", "tokens=true: must be an integer of at least 1"),
        ("~extension.pi.scale extension=[pi]", "extension.pi.scale: is missing"),
        ("position=alibi extension=[none,yarn]", "extension=yarn: position=alibi has no rotary positions to extend; "
         "choose one of none, logn, drope, or a rotary position such as rope"),
        ("position=learned extension=[ntk]", "extension=ntk: position=learned has no rotary"),
        ("position=sinusoidal extension=[pi]", "extension=pi: position=sinusoidal has no rotary"),
        ("position=learned_t5 extension=[yarn]", "extension=yarn: position=learned_t5 has no rotary"),
    ],
)  # fmt: skip
def test_a_wrong_configuration_is_refused_before_anything_is_built(overrides, complaint):
    with pytest.raises(UserError, match=complaint):
        check(compose("train", overrides.split()))


@pytest.mark.parametrize(
    "overrides",
    ["position=learned extension=[pi]", "position=alibi extension=[none,logn]", "position=alibi_rope extension=[yarn]",
     "position=xpos extension=[pi,ntk,yarn,by_parts,yarn_by_turns,dynamic_ntk,longrope,abf,logn]",
     "position=own position._target_=posenc_train.positions.rope.Rope extension=[yarn]",
     "position=own position._target_=wave.Wave extension=[yarn]"],
)  # fmt: skip
def test_what_can_be_extended_passes(overrides):
    check(compose("train", overrides.split()))


def test_a_class_of_ones_own_without_rotary_positions_is_refused_before_training(tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text(
        "from posenc_train.positions.nope import Nope\n\n\nclass Plain(Nope):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="extension=yarn: position=own has no rotary positions to extend"):
        run(
            "train", "model=nano", "task=copy", "position=own", "position._target_=plain.Plain", "extension=[none,yarn]"
        )
    assert not Path("runs").exists()


# ---- names and scales


@pytest.mark.parametrize(
    "overrides, label",
    [
        ("extension=[pi]", "pi"),
        ("extension=[pi] extension.pi.scale=8", "pi(scale=8)"),
        ("extension=[pi] extension.pi.scale=8.0", "pi(scale=8)"),
        ("extension=[pi] extension.pi.scale=2.5", "pi(scale=2.5)"),
        ("extension=[yarn] extension.yarn.scale=4 extension.yarn.beta_fast=16", "yarn(beta_fast=16.0, scale=4)"),
        ("extension=[longrope] extension.longrope.factors=[1,1,2,4]", "longrope(factors=[1.0,1.0,2.0,4.0])"),
        ("extension=[longrope] extension.longrope.factors=[1,1,1,1,1]", "longrope(factors=#"),
    ],
)
def test_labels(overrides, label):
    cfg = compose("train", overrides.split())
    ((name, settings),) = cfg["extension"].items()
    assert extension_label(name, settings).startswith(label)
    assert label.endswith("#") or extension_label(name, settings) == label
    assert {extension for extension, _, _ in wanted(cfg, ("nonoverlapping",))} == {extension_label(name, settings)}


def test_an_old_run_has_its_extension_as_it_was():
    cfg = compose("train", [])
    cfg["extension"] = {"none": {"_target_": "posenc_train.positions.extensions.none.none"}}
    check(cfg)
    assert extension_label("none", cfg["extension"]["none"]) == "none"


def test_the_scale_is_that_of_the_length_or_the_one_given():
    assert [scale_of({"scale": "auto"}, n, 128) for n in (64, 128, 192, 1024)] == [1, 1, 1.5, 8]
    assert [scale_of({"scale": 4}, n, 128) for n in (64, 1024)] == [4, 4] and scale_of({}, 256, 128) == 2


# ---- the search


def bowl(candidate):
    """Least at 1, 2, 3, 4."""
    return sum((a - b) ** 2 for a, b in zip(candidate, (1, 2, 3, 4), strict=True))


def test_the_search_improves_on_its_starts_and_is_the_same_every_time():
    starts = [(4.0,) * 4, (1.0, 1.587, 2.52, 4.0)]
    found = [
        searching.search(bowl, starts, 5.0, 16, generations, np.random.default_rng(0)) for generations in (6, 6, 0)
    ]
    assert found[0] == found[1] and bowl(found[0]) < 0.1 < bowl(starts[1])
    assert bowl(found[0]) <= bowl(found[2]) <= bowl(starts[1])


def test_candidates_never_decrease_and_stay_in_range():
    random = np.random.default_rng(0)
    crowd = [(1.0, 1.0, 2.0, 8.0), (8.0,) * 4]
    for _ in range(200):
        crowd += [searching.mutated(crowd[-1], 10.0, random), searching.crossed(crowd[-2:], random)]
    assert all(list(c) == sorted(c) and c[0] >= 1 and c[-1] <= 10 for c in crowd) and len(set(crowd)) > 100


def test_a_search_without_offspring_or_a_number_still_ends():
    assert searching.search(lambda c: math.inf, [(2.0,)], 2.5, 2, 3, np.random.default_rng(0)) is not None


# ---- the main job


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished RoPE run, its model, and its configuration with several extensions."""
    from posenc_train.build import build_model, build_task
    from posenc_train.training.checkpoint import load

    here = tmp_path_factory.mktemp("extensions")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        cfg = run("train", *NANO, "factors=[1,2,4]", "logger=none")
        folder = here / run_folder(cfg)
        names = ["none", "pi", "ntk", "yarn", "dynamic_ntk", "logn"]
        cfg["extension"] = {name: FILES[name] for name in names}
        task = build_task(cfg)
        model = build_model(cfg, task)
        load(model, folder / "last.ckpt")
        yield here, folder, cfg, task, model


def sums(rows):
    return {
        (r.extension, r.length, r.protocol, str(r.slice), r.unit): (r.total, r.count)
        for r in rows
        if not r.protocol.startswith(("per_position", "recurrence"))  # of many slices
    }


def test_the_order_of_lengths_changes_nothing_and_the_model_stays(trained):
    _, _, cfg, task, model = trained
    before = {key: value.clone() for key, value in model.state_dict().items()}
    forth = sums(evaluate_run(cfg, task, model, 12, "last@12"))
    back = sums(evaluate_run(cfg | {"lengths": [64, 16, 32]}, task, model, 12, "last@12"))
    alone = sums(
        evaluate_run(cfg | {"lengths": [32]} | {"task": cfg["task"] | {"longest": 128}}, task, model, 12, "last@12")
    )
    assert forth == back and all(forth[key] == value for key, value in alone.items())
    assert {(key[0], key[1]) for key in alone} == {(name, 32) for name in cfg["extension"]}
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(scheme.stretch is None and scheme.temperature == 1 for scheme in model.positions)
    assert all(forth[(name, 16, *rest)] == forth[("none", 16, *rest)] for name, _, *rest in forth)
    far = {
        name: total
        for (name, length, protocol, *_), (total, _) in forth.items()
        if (length, protocol) == (64, "nonoverlapping")
    }
    assert len(set(far.values())) == len(far) - 1 and far["ntk"] == pytest.approx(far["dynamic_ntk"], rel=1e-6)


def test_a_given_scale_is_used_at_every_length(trained):
    _, _, cfg, task, model = trained
    cfg = cfg | {"extension": {"pi": FILES["pi"] | {"scale": 4}}, "lengths": [16, 64]}
    fixed = sums(evaluate_run(cfg, task, model, 12, "last@12"))
    cfg = cfg | {"extension": {"none": FILES["none"], "pi": FILES["pi"]}}
    auto = sums(evaluate_run(cfg, task, model, 12, "last@12"))
    key = "nonoverlapping", "{}", "byte"
    assert fixed["pi(scale=4)", 64, *key] == auto["pi", 64, *key]
    assert fixed["pi(scale=4)", 16, *key] != auto["pi", 16, *key] == auto["none", 16, *key]


def test_extensions_of_a_trained_run_make_one_table(trained, monkeypatch, capsys):
    here, folder, *_ = trained
    monkeypatch.chdir(here)
    asked = [f"run={folder}", "extension=[none,pi,ntk,yarn]", "logger=none"]
    capsys.readouterr()
    run("evaluate", *asked)
    said = capsys.readouterr().out
    table = said[said.index("same_targets(k=8)") :].split("\n\n")[0].splitlines()
    assert [line.split("  ")[0] for line in table if line.startswith("rope")] == [
        "rope", "rope + ntk", "rope + pi", "rope + yarn",
    ]  # fmt: skip
    assert any("1x 16  2x 32  4x 64" in line for line in table) and max(map(len, said.splitlines()[1:])) <= 80
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert {row["extension"] for row in rows} == {"none", "pi", "ntk", "yarn"}
    run("evaluate", *asked)
    assert "every row asked for is there already" in capsys.readouterr().out


def test_longrope_searches_training_text_once_and_keeps_what_it_finds(trained, monkeypatch, capsys):
    here, folder, _, task, model = trained
    monkeypatch.chdir(here)
    small = [f"extension.longrope.{setting}" for setting in ("population=4", "generations=1", "tokens=128")]
    asked = [f"run={folder}", "extension=[longrope]", "logger=none", *small]
    cfg = run("evaluate", *asked)
    said = capsys.readouterr().out
    label = "longrope(generations=1, population=4, tokens=128)"
    assert (
        f"{label}: searching 8 factors for 64 tokens" in said
        and "generation 1 of 1: " in said
        and "nats a token" in said
    )
    record = json.loads((folder / "longrope.json").read_text())
    assert set(record) == {f"{label} last@12 length {length}" for length in (32, 64)}
    entry = record[f"{label} last@12 length 64"]
    assert entry["factors"] == sorted(entry["factors"]) and len(entry["factors"]) == 8 and entry["factors"][0] >= 1
    assert entry["loss"] <= min(entry["starts"].values()) and set(entry["starts"]) == {"pi", "ntk", "yarn"}
    # the loss on record, computed again from the training text by the plain forward
    full = yaml.safe_load((folder / "config.yaml").read_text()) | {"extension": cfg["extension"]}
    inputs, targets = task.batch(full["seed"], 12, range(2), 64)[:2]
    schemes = extend(full, "longrope", model.positions, model.dims, 4.0, factors=entry["factors"])
    with torch.no_grad():
        logits = model.under(schemes)(inputs).double()
    again = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert entry["loss"] == pytest.approx(again, rel=1e-5)
    # the same search again finds the same; a record is read instead of a search
    (folder / "longrope.json").unlink()
    full |= {"lengths": [32, 64], "factors": None}
    told = []
    first = list(evaluate_run(full, task, model, 12, "last@12", folder, told.append))
    assert json.loads((folder / "longrope.json").read_text()) == record and told
    told.clear()
    assert list(evaluate_run(full, task, model, 12, "last@12", folder, told.append)) == first and not told
    # other weights are searched for by themselves, and a damaged record is refused in words
    evaluated = list(evaluate_run(full | {"lengths": [32]}, task, model, 12, "last@12 edited", folder, told.append))
    assert evaluated and told
    (folder / "longrope.json").write_text(json.dumps({key: {"factors": [1, 2]} for key in record}))
    with pytest.raises(UserError, match="longrope.json: is no record of a search for 8 factors: remove it"):
        list(evaluate_run(full, task, model, 12, "last@12", folder, told.append))
    (folder / "longrope.json").write_text("[")
    with pytest.raises(UserError, match="longrope.json: is no record of a search: remove it"):
        list(evaluate_run(full, task, model, 12, "last@12", folder, told.append))
    (folder / "longrope.json").unlink()


def test_given_factors_are_on_record(trained):
    _, folder, cfg, task, model = trained
    factors = [1.0, 1.0, 1.5, 2.0, 2.0, 3.0, 3.5, 4.0]
    cfg = cfg | {"extension": {"longrope": FILES["longrope"] | {"factors": factors}}, "lengths": [64]}
    rows = list(evaluate_run(cfg, task, model, 12, "last@12", folder))
    record = json.loads((folder / "longrope.json").read_text())
    assert record == {rows[0].extension: {"factors": factors}}
    (folder / "longrope.json").unlink()


def test_a_search_scores_only_what_a_task_asks_for():
    """Of a copy task, the answers; by the loss's definition in float64."""
    from posenc_train.tasks.base import IGNORE
    from posenc_train.tasks.copy import Copy

    task = Copy(alphabet=5)
    torch.manual_seed(0)
    model = Transformer(DIMS, task.vocab, task.marks, [Rope(DIMS)]).eval()
    batch = task.batch(0, 0, range(6), 16)
    with torch.no_grad():
        loss = -model(batch.inputs).double().log_softmax(-1)
    kept = [loss[i, j, t].item() for i, row in enumerate(batch.targets) for j, t in enumerate(row) if t != IGNORE]
    assert searching.mean_loss(model, batch) == pytest.approx(np.mean(kept), rel=1e-5)


def test_training_evaluates_under_extensions_and_is_finished_then(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = run("train", *NANO, "factors=[1,2]", "extension=[none,yarn,abf]", "extension.yarn.scale=2", "logger=none")
    folder = run_folder(cfg)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert {row["extension"] for row in rows} == {"none", "yarn(scale=2)", "abf"}
    assert finished(cfg, folder, read(folder / "last.ckpt").label)
    cfg["extension"]["yarn"]["scale"] = 4
    assert not finished(cfg, folder, read(folder / "last.ckpt").label)


def test_an_extension_that_does_not_fit_is_refused_at_evaluation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = run("train", *NANO, "factors=[1]", "position=alibi", "logger=none")
    with pytest.raises(UserError, match="extension=ntk: position=alibi has no rotary positions to extend"):
        run("evaluate", f"run={run_folder(cfg)}", "extension=[none,ntk]")
