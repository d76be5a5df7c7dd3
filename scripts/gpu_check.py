"""Checks on one GPU, for one scheme of every hook kind; called by gpu_check.sh. `--device cpu --small` tries itself."""

import argparse
import json
import platform
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from posenc_train.evaluation.evaluate import evaluate
from posenc_train.model.attend import attend
from posenc_train.model.transformer import Transformer
from posenc_train.positions.alibi import Alibi
from posenc_train.positions.base import Dims, PositionScheme, Span
from posenc_train.positions.cope import Cope
from posenc_train.positions.fire import Fire
from posenc_train.positions.fox import Fox
from posenc_train.positions.learned import Learned
from posenc_train.positions.nope import Nope
from posenc_train.positions.path import PaTH
from posenc_train.positions.pope import Pope
from posenc_train.positions.rope import Rope
from posenc_train.positions.shaw import Shaw
from posenc_train.positions.sinusoidal import Sinusoidal
from posenc_train.positions.ssmax import Ssmax
from posenc_train.positions.stack import Stack
from posenc_train.positions.t5 import T5
from posenc_train.positions.window import Window
from posenc_train.tasks.base import Task


def sinks(dims: Dims) -> PositionScheme:
    return Window(dims, window=dims.train_length // 2, sinks=2)


def stack(dims: Dims) -> PositionScheme:
    return Stack({"rope": Rope(dims), "t5": T5(dims), "ssmax": Ssmax(dims), "window": Window(dims)})


KINDS = {  # hook -> the scheme that stands for it
    "none": Nope,
    "embed": Sinusoidal,
    "embed, learned": Learned,
    "rotate": Rope,
    "rotate, widened": Pope,
    "by_distance": Alibi,
    "by_distance, learned": T5,
    "bias": Fire,
    "visible, relative": Window,
    "visible": sinks,
    "bias, of content": Fox,
    "refine": Cope,
    "refine, of content": PaTH,
    "refine and mix": Shaw,
    "stack": stack,
}


class Text(Task):
    """Random bytes as a task: what evaluation asks of one."""

    protocols, unit, begin, vocab = ("nonoverlapping",), "byte", None, 256

    def windows(self, longest: int) -> np.ndarray:
        return np.random.default_rng(0).integers(0, 256, (1, longest + 1)).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "error: no CUDA device is visible: run this on a machine with a GPU (torch.cuda.is_available() is false)"
        )
    torch.manual_seed(0)
    torch.set_default_device(options.device)
    result = {"environment": environment(options.device)}
    steps = [
        (f"{check.__name__}: {kind}", check, kind)
        for check in (agreement, laws, training, long_evaluation)
        for kind in KINDS
    ]
    for name, check, kind in steps:
        began = time.perf_counter()
        try:
            result[name] = check(kind, options.device, options.small)
        except Exception as error:  # the other checks still count
            result[name] = {
                "ok": False,
                "error": f"{type(error).__name__}: {error}",
                "trace": traceback.format_exc()[-2000:],
            }
        result[name]["seconds"] = round(time.perf_counter() - began, 2)
        options.out.write_text(json.dumps(result, indent=1))
        print(name, json.dumps({k: v for k, v in result[name].items() if k != "trace"}), flush=True)
    failed = [name for name, value in result.items() if value.get("ok") is False]
    print(f"{len(steps) - len(failed)} of {len(steps)} checks are good; written to {options.out}")
    if failed:
        raise SystemExit("failed: " + "; ".join(failed))


def environment(device: str) -> dict:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    return {"python": platform.python_version(), "torch": torch.__version__, "device": name}


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1)).item()


def agreement(kind: str, device: str, small: bool) -> dict:
    """Fused against reference, forward and gradients, in float32 (1e-5; TF32 is off) and bfloat16 (2e-2), for equal and
    unequal numbers of queries and keys, and for rows of several documents."""
    torch.backends.cuda.matmul.allow_tf32 = False
    n = 96 if small else 700
    scheme = KINDS[kind](Dims(256, 4, 64, 2, n)).to(device)
    found = {}
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        for where, span in spans(n, device).items():
            q = torch.randn(2, 4, span.queries, 64, dtype=dtype, requires_grad=True)
            k, v = (torch.randn(2, 4, span.keys, 64, dtype=dtype, requires_grad=True) for _ in range(2))
            leaves, w = [q, k, v, *scheme.parameters()], torch.randn_like(q)
            span = replace(span, x=torch.randn(2, span.keys, 256))
            out = []
            for backend in ("fused", "reference"):
                y = attend(q, k, v, scheme, span, backend)
                out.append([y, *torch.autograd.grad((y * w).sum(), leaves, allow_unused=True)])
            worst = max(difference(a, b) for a, b in zip(*out, strict=True) if a is not None)
            found[f"{str(dtype)[6:]}, {where}"] = [worst, worst <= bound]
    return {"ok": all(good for _, good in found.values()), "worst": found}


def spans(n: int, device: str) -> dict[str, Span]:
    doc = (torch.arange(n) >= n // 2).long().expand(2, -1)
    pos = (torch.arange(n) % (n // 2)).expand(2, -1)
    return {
        "square": Span.of(n, device=device),
        "behind a cache": Span.of(n // 3, n - n // 3, device=device),
        "documents": Span(pos, pos, 0, doc, doc),
    }


def model_of(kind: str, width: int, heads: int, layers: int, length: int) -> Transformer:
    dims = Dims(width, heads, width // heads, layers, length)
    return Transformer(dims, 256, 0, [KINDS[kind](dims)])


def laws(kind: str, device: str, small: bool) -> dict:
    """Causality, prefix, left padding, and a gradient for every parameter, on this device."""
    n = 48 if small else 300
    model = model_of(kind, 64, 4, 2, n)
    ids = torch.randint(0, 256, (2, n))
    whole = model(ids)
    other = ids.clone()
    other[:, n // 2] = (ids[:, n // 2] + 1) % 256
    doc = torch.cat([torch.full((7,), -1), torch.zeros(n - 7).long()]).expand(2, -1)
    pos = (torch.arange(n) - 7).clamp(min=0).expand(2, -1)
    found = {
        "causality": difference(model(other)[:, : n // 2], whole[:, : n // 2]),
        "prefix": difference(model(ids[:, : n // 3]), whole[:, : n // 3]),
        "left padding": difference(model(ids, pos=pos, doc=doc)[:, 7:], model(ids[:, 7:])),
    }
    whole.square().mean().backward()
    gradients = all(
        p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any() for p in model.positions.parameters()
    )
    return {"ok": max(found.values()) <= 1e-4 and gradients, "differences": found, "gradients": gradients}


def training(kind: str, device: str, small: bool) -> dict:
    """A training step at 125M parameters, 1,024 tokens, bfloat16, against RoPE in turn: medians, and peak memory."""
    width, heads, layers, n, batch, rounds = (64, 4, 2, 64, 2, 3) if small else (1024, 16, 10, 1024, 8, 8)
    ids = torch.randint(0, 256, (batch, n))
    models = {name: model_of(name, width, heads, layers, n) for name in {kind, "rotate"}}
    optimizers = {name: torch.optim.AdamW(model.parameters()) for name, model in models.items()}
    times, peaks = {name: [] for name in models}, {}
    for turn in range(rounds + 2):
        for name, model in models.items():
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            began = clock(device)
            with torch.autocast(device, torch.bfloat16):
                logits = model(ids)
            torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            if turn >= 2:  # the first two warm up
                times[name].append(clock(device) - began)
            peaks[name] = torch.cuda.max_memory_allocated() if device == "cuda" else None
    medians = {name: float(np.median(value)) for name, value in times.items()}
    return {"step": medians[kind], "over rope": medians[kind] / medians["rotate"], "peak bytes": peaks[kind]}


def clock(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def long_evaluation(kind: str, device: str, small: bool) -> dict:
    """Evaluation at 32k and 64k tokens: time, peak memory and its growth; schemes beyond their reach say so."""
    short = 256 if small else 32768
    model = model_of(kind, *((64, 4, 2) if small else (256, 4, 4)), 128)
    found = {}
    for length in (short, 2 * short):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began = clock(device)
        row = next(iter(evaluate(model, Text(), [length], {"nonoverlapping": {}}, 128, length)))
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
        found[str(length)] = {"status": row.status, "seconds": clock(device) - began, "peak bytes": peak}
    peaks = [value["peak bytes"] for value in found.values()]
    growth = peaks[1] / peaks[0] if device == "cuda" and model.reach is None else None
    return {"ok": growth is None or growth <= 2.1, "lengths": found, "growth of memory": growth}


if __name__ == "__main__":
    main()
