"""Models of `transformers` from a folder: the library's own logits, through our protocols and extensions."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import yaml
from running import run
from test_text import spaced
from tokenizers import Tokenizer, models, pre_tokenizers

from posenc_train import foreign
from posenc_train.build import extend
from posenc_train.checks import file_settings
from posenc_train.config import UserError, check, compose
from posenc_train.model import hf
from posenc_train.model.transformer import Transformer, generate
from posenc_train.positions.base import Span
from posenc_train.positions.rope import Rope
from posenc_train.report import store
from posenc_train.tasks import tokens
from posenc_train.tasks.needle import Needle
from posenc_train.tasks.text import Text

SIZES = {"vocab_size": 310, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
SIZES |= {"max_position_embeddings": 16, "initializer_range": 0.25, "bos_token_id": 305, "eos_token_id": 306}
LLAMA = SIZES | {"intermediate_size": 48, "num_key_value_heads": 2}
GPT2 = {"vocab_size": 310, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 16, "initializer_range": 0.25}
BLOOM = {"vocab_size": 310, "hidden_size": 32, "n_head": 4, "n_layer": 2, "initializer_range": 0.25}
MODELS = {  # name -> its class, its configuration, whether it has rotary frequencies, its reach
    "llama": (transformers.LlamaConfig, LLAMA, True, None),
    "qwen2": (transformers.Qwen2Config, LLAMA, True, None),
    "mistral": (transformers.MistralConfig, LLAMA | {"sliding_window": 6}, True, None),
    "gpt_neox": (transformers.GPTNeoXConfig, SIZES | {"intermediate_size": 48, "rotary_pct": 0.5}, True, None),
    "gpt2": (transformers.GPT2Config, GPT2, False, 16),
    "falcon": (transformers.FalconConfig, SIZES | {"alibi": True}, False, None),
    "bloom": (transformers.BloomConfig, BLOOM, False, None),
}
ROTARY = [name for name, (*_, rotary, _) in MODELS.items() if rotary]
TEXT = "def add(first, second):\n    return first + second  # the sum of the two\n\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of each model, with a byte-level tokenizer in it."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = tokens._bpe(iter([TEXT * 2]), 280, "test")
    for number, (name, (config, sizes, *_)) in enumerate(MODELS.items()):
        torch.manual_seed(number)
        model = transformers.AutoModelForCausalLM.from_config(config(**sizes))
        model.save_pretrained(root / name)
        tokenizer.save(str(root / name / "tokenizer.json"))
    return root


@pytest.fixture(scope="module")
def loaded(folder):
    return {name: hf.load(str(folder / name), "float32", 16) for name in MODELS}


def theirs(path, **changes):
    """The library's own model, with changes of its configuration."""
    config = transformers.AutoConfig.from_pretrained(path)
    for key, value in changes.items():
        setattr(config, key, value)
    return transformers.AutoModelForCausalLM.from_pretrained(path, config=config).eval()


def under(model, name, scale, **settings):
    """The model under an extension, as an evaluation builds it."""
    cfg = {"extension": {name: dict(file_settings("extension", name)) | settings}, "names": {"position": model.type}}
    return model.under(extend(cfg, name, model.positions, model.dims, scale))


@torch.no_grad()
def logits(model, ids):
    return model(ids) if isinstance(model, hf.Hf) else model(ids, use_cache=False).logits


def some(length, rows=2):
    return torch.from_numpy(np.random.default_rng(length).integers(0, 280, (rows, length)))


# ---------------------------------------------------------------------------------------- the model


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_librarys_and_order_matters(folder, loaded, name):
    ids, model = some(16), loaded[name]
    assert torch.equal(logits(model, ids), logits(theirs(folder / name), ids))
    assert model.reach == MODELS[name][3] and bool(model.rotaries) == MODELS[name][2]
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in theirs(folder / name).parameters())
    turned = ids[:, [*range(13), 14, 13, 15]]
    assert not torch.allclose(logits(model, ids)[:, -1], logits(model, turned)[:, -1], atol=1e-3)


@pytest.mark.parametrize("name", [*MODELS, "llama, yarn", "gpt_neox, ntk"])
def test_generation_through_the_cache_is_the_most_likely_token_of_the_whole_each_time(loaded, name):
    name, _, extension = name.partition(", ")
    model = under(loaded[name], extension, 4.0) if extension else loaded[name]
    whole = prompt = some(5)
    for _ in range(9):
        whole = torch.cat([whole, logits(model, whole)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generate(model, prompt, 9), whole[:, 5:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_held_as_asked_and_frequencies_in_float32(folder, dtype):
    model = hf.load(str(folder / "llama"), dtype, 16)
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    assert model.rotaries[0].inv_freq.dtype == torch.float32
    assert torch.equal(model.positions[0].trained(), Rope(model.dims).trained())


# --------------------------------------------------------------------------------------- extensions


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
@pytest.mark.parametrize("extension", ["pi", "ntk", "yarn", "by_parts", "yarn_by_turns"])
def test_an_extension_at_scale_1_is_the_plain_model(loaded, name, extension):
    ids = some(16)
    plain, same = logits(loaded[name], ids), logits(under(loaded[name], extension, 1.0), ids)
    assert torch.allclose(plain, same, atol=1e-5)
    assert not torch.allclose(plain, logits(under(loaded[name], extension, 4.0), ids), atol=1e-2)


SCALINGS = {
    "pi": {"rope_type": "linear", "factor": 4.0},
    "ntk": {"rope_type": "dynamic", "factor": 1.0},  # at four times the trained length, which is one call's
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
}


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("extension", SCALINGS)
def test_extended_logits_are_those_of_the_librarys_own_scaling(folder, loaded, name, extension):
    path = folder / name
    plain = transformers.AutoConfig.from_pretrained(path).rope_parameters
    ids = some(64)
    expected = logits(theirs(path, rope_parameters=plain | SCALINGS[extension]), ids)
    assert torch.allclose(logits(under(loaded[name], extension, 4.0), ids), expected, atol=2e-4)
    assert not torch.allclose(logits(loaded[name], ids), expected, atol=1e-2)


@pytest.mark.parametrize("extension", ["none", "pi", "ntk", "yarn", "by_parts", "yarn_by_turns", "abf"])
def test_frequencies_are_those_of_our_own_models(loaded, extension):
    for name, fraction in ("llama", 1.0), ("gpt_neox", 0.5):
        model = loaded[name]
        ours = Transformer(model.dims, 10, 0, [Rope(model.dims, fraction=fraction)])
        ours.type = "rope"
        of_theirs, of_ours = (under(m, extension, 4.0).positions[0] for m in (model, ours))
        span = Span.of(64)
        assert torch.allclose(of_theirs.frequency(span), of_ours.frequency(span), rtol=1e-6)
        assert of_theirs.temperature == of_ours.temperature


def test_an_extension_leaves_the_model_as_it_was(loaded):
    model, ids = loaded["llama"], some(32)
    before, frequencies = logits(model, ids), model.rotaries[0].inv_freq.clone()
    extended = under(model, "yarn", 2.0), under(model, "pi", 4.0)
    first, second = (logits(each, ids) for each in extended)
    assert not torch.allclose(first, second, atol=1e-3)
    assert torch.equal(logits(model, ids), before) and torch.equal(logits(extended[0], ids), first)
    assert torch.equal(model.rotaries[0].inv_freq, frequencies) and model.rotaries[0].attention_scaling == 1.0


@pytest.mark.parametrize("extension", ["dynamic_ntk", "rerope", "logn", "sinks"])
def test_what_is_more_than_frequencies_is_refused(loaded, extension):
    with pytest.raises(UserError, match=r"model=hf: its attention is its own.*extensions can be none, pi, ntk"):
        under(loaded["llama"], extension, 4.0)


# ---------------------------------------------------------------------------------------- the command


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "texts").mkdir()
    for i in range(20):
        (tmp_path / "texts" / f"{i:02}.txt").write_text(f"{i} {TEXT}" * 4)
    return tmp_path


def evaluated(folder, name, *overrides):
    run("evaluate", "model=hf", f"model.path={folder / name}", *overrides)
    (where,) = Path("runs/default").glob(f"hf_{name}_-*")
    return where, store.load(where / "rows.jsonl")


ON_TEXT = ["task=text", "task.path=texts", "task.windows=3", "lengths=[16,32]"]


def test_a_model_goes_through_the_protocols_with_its_own_tokenizer(folder, home, capsys):
    where, rows = evaluated(folder, "llama", *ON_TEXT, "extension=[none,pi]")
    task = Text(path="texts", tokenizer=str(folder / "llama" / "tokenizer.json"), windows=3)
    windows = torch.from_numpy(task.windows(128).astype(np.int64))  # 8 times the 16 tokens of its config.json
    scaled = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    for extension, model in (
        ("none", theirs(folder / "llama")),
        ("pi", theirs(folder / "llama", rope_parameters=scaled)),
    ):
        loss = 0.0
        for start in range(0, 128, 32):
            log_p = logits(model, windows[:, start : start + 32]).double().log_softmax(-1)
            loss -= float(log_p.gather(2, windows[:, start + 1 : start + 33, None]).sum())
        found = {
            r.unit: r
            for r in rows
            if (r.extension, r.length, r.protocol, r.slice) == (extension, 32, "nonoverlapping", {})
        }
        assert found["token"].total == found["byte"].total == pytest.approx(loss, rel=1e-5)
        assert found["token"].count == len(windows) * 128
        assert found["byte"].count == int(task.bytes_per_id[windows[:, 1:]].sum())
    assert {(r.scheme, r.model, r.task, r.train_length, r.tokens_seen) for r in rows} == {
        ("hf(llama)", "llama", "text", 16, 0)
    }
    assert {r.status for r in rows} == {"ok"} and len({r.checkpoint for r in rows}) == 1
    assert {"same_targets(k=8)", "per_position", "recurrence(bytes=8)"} < {r.protocol for r in rows}
    said = capsys.readouterr().out
    assert "hf(llama) + pi" in said and max(map(len, said.splitlines()[1:])) <= 80
    assert evaluated(folder, "llama", *ON_TEXT, "extension=[none,pi]")[1] == rows
    assert "every row asked for is there already" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"holds rows of a model of transformers: write model=hf"):
        run("evaluate", f"run={where}")
    assert yaml.safe_load((where / "config.yaml").read_text())["train_length"] == 16


def test_learned_positions_end_where_their_table_does(folder, home):
    _, rows = evaluated(folder, "gpt2", *ON_TEXT, "protocol=[nonoverlapping]")
    assert {(r.length, r.status) for r in rows if r.protocol != "training"} == {(16, "ok"), (32, "beyond reach")}


def test_a_model_may_be_asked_and_alibi_has_any_length(folder, home):
    overrides = ["task=copy", "task.examples=4", "train_length=15", "factors=[1,4]"]
    _, rows = evaluated(folder, "falcon", *overrides)
    scored = [r for r in rows if r.protocol != "training"]
    assert {(r.length, r.slice["size"], r.status) for r in scored} == {(15, 6, "ok"), (60, 28, "ok")}
    assert {r.protocol for r in scored} == {"free_running", "teacher_forced"}


def test_needles_are_marked_by_ids_of_the_model_that_are_in_no_text(tmp_path, home):
    """A tokenizer with ▁ for a space, and a model that knows its ids and no other."""
    library = Tokenizer.from_file(spaced(tmp_path / "tokenizer.json"))
    size = library.get_vocab_size()
    path = saved(tmp_path / "llama", transformers.LlamaConfig(**LLAMA | {"vocab_size": size}))
    library.save(f"{path}/tokenizer.json")
    settings = ["task=needle", "task.path=texts", "task.examples=5", "train_length=40", "factors=[1,2]"]
    _, rows = evaluated(tmp_path, "llama", *settings, "protocol=[free_running]")
    asked = [r for r in rows if (r.metric, r.protocol) == ("token", "free_running") and r.slice.get("depth") is None]
    assert {(r.length, r.status) for r in asked} == {(40, "ok"), (80, "ok")}
    config = compose("evaluate", ["model=hf", f"model.path={path}", *settings])
    described = hf.described(path)
    task = Needle(path="texts", tokenizer=f"{path}/tokenizer.json", examples=5)
    marks = task.opening, task.closing, task.question
    assert marks == (size, size + 1, size + 2) and task.symbols[size:] == ["‹", "›", "⁇"]
    foreign.check(foreign.configuration(config, described), hf.load(path, "float32", 40), task, described)
    used = {id for file in home.glob("texts/*") for id in library.encode(file.read_text()).ids}
    used |= {library.token_to_id(symbol) for symbol in "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"}
    unused = sorted(set(range(size)) - used)[-3:]
    assert [task.opening, task.closing, task.question] == unused and task.marks == 0
    for ids in task.examples(80).ids.tolist():
        assert [ids.count(mark) for mark in unused] == [1, 1, 1] and max(ids) < size
        place = ids.index(task.opening)
        assert ids[place + 1 : place + 3] == ids[-5:-3] and ids[place + 3 : place + 6] == ids[-3:]
        assert ids[place + 6] == task.closing and ids[-6] == task.question


def test_the_models_own_mark_begins_every_window(folder, home):
    config = compose("evaluate", ["model=hf", f"model.path={folder / 'llama'}", *ON_TEXT, "task.bos=true"])
    check(config)
    described = hf.described(config["model"]["path"])
    whole = foreign.configuration(config, described)
    task = Text(path="texts", tokenizer=str(folder / "llama" / "tokenizer.json"), bos=True)
    foreign.check(whole, hf.load(config["model"]["path"], "float32", 16), task, described)
    assert (task.begin, task.marks, task.vocab) == (305, 0, 280)
    described.bos_token_id = None
    task = Text(path="texts", tokenizer=str(folder / "llama" / "tokenizer.json"), bos=True)
    with pytest.raises(UserError, match=r"task.bos=true: must be false, as .* names no bos_token_id"):
        foreign.check(whole, hf.load(config["model"]["path"], "float32", 16), task, described)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        (
            "llama",
            "task=copy task.alphabet=309",
            r"task=copy: feeds ids up to 310, and hf\(llama\) knows those below 310",
        ),
        ("llama", "task=text extension=[rerope]", r"extension=rerope: must be one of none, pi, .* with model=hf"),
        ("gpt2", "task=text task.path=texts extension=[pi]", r"extension=pi: must be none; hf\(gpt2\) has no rotary"),
        ("falcon", "task=copy extension=[yarn]", r"extension=yarn: must be none; hf\(falcon\) has no rotary"),
        ("bloom", "task=copy", r"train_length=null: must be given, as the config.json of .*bloom names none"),
        ("llama", "task=text task.packed=reset", r"task.packed=reset: must be null with model=hf"),
        ("llama", "task=text protocol=[masked_window]", r"protocol=masked_window: must be left out with model=hf"),
        ("llama", "task=copy train_length=4", r"train_length=4: must be at least 5, the least of task=copy"),
    ],
)
def test_what_a_model_cannot_do_is_told_in_a_line(folder, home, name, overrides, message):
    with pytest.raises(UserError, match=message) as error:
        evaluated(folder, name, *overrides.split())
    assert "\n" not in str(error.value)


# ------------------------------------------------------------------------------------ what is refused


def saved(path, config, cls=transformers.AutoModelForCausalLM):
    cls.from_config(config).save_pretrained(path)
    return str(path)


def test_models_that_evaluation_cannot_have_are_refused(tmp_path, folder):
    scaled = LLAMA | {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
    dynamic = saved(tmp_path / "dynamic", transformers.LlamaConfig(**scaled))
    with pytest.raises(UserError, match=r"model.path=.*: has rope_type=dynamic, frequencies that change from call"):
        hf.load(dynamic, "float32", 16)
    capped = saved(tmp_path / "capped", transformers.Gemma2Config(**LLAMA, head_dim=8))
    with pytest.raises(UserError, match=r"model=hf: gemma2 makes more of its last states than a linear layer does"):
        hf.load(capped, "float32", 16)
    headless = saved(tmp_path / "headless", transformers.LlamaConfig(**LLAMA), transformers.AutoModel)
    with pytest.raises(UserError, match=r"holds no weights for lm_head.weight"):
        hf.load(headless, "float32", 16)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"model.path=.*empty: no causal language model of transformers: "):
        hf.described(str(tmp_path / "empty"))
    trained = LLAMA | {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}}
    model = hf.load(saved(tmp_path / "trained", transformers.LlamaConfig(**trained)), "float32", 16)
    cfg = {"names": {"task": "copy", "position": "hf(llama)"}, "extension": {"none": {}, "pi": {}}}
    with pytest.raises(
        UserError, match=r"extension=pi: must be none; hf\(llama\) was extended already, by rope_type=yarn"
    ):
        foreign.check(cfg, model, Task(), model.model.config)
    task = Task()
    task.pooled = True
    with pytest.raises(UserError, match="task=copy: is answered from the mean over all tokens"):
        foreign.check(cfg, model, task, model.model.config)


class Task:
    vocab, marks, pooled = 10, 0, False


def test_a_tokenizer_that_does_not_keep_the_bytes_is_refused(tmp_path, folder, home):
    path = saved(tmp_path / "llama", transformers.LlamaConfig(**LLAMA))
    with pytest.raises(UserError, match=r"has no tokenizer.json; give task.tokenizer="):
        evaluated(tmp_path, "llama", *ON_TEXT)
    words = Tokenizer(models.WordLevel({"the": 0, "[UNK]": 1}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(f"{path}/tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer.json: neither byte-level nor with ▁ for a space, so bits per byte"):
        evaluated(tmp_path, "llama", *ON_TEXT)


def test_without_the_extra_one_line_names_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"model=hf: needs the extra hf: pip install -e '\.\[hf\]'"):
        hf.described(str(folder / "llama"))


def test_only_consecutive_positions_of_one_document(loaded):
    with pytest.raises(ValueError, match="consecutive"):
        loaded["llama"].hidden(some(4), pos=torch.arange(4) + 1)
    assert math.isfinite(float(logits(loaded["llama"], some(4)).sum()))
