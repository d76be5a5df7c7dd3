"""The checks of shapes and types: they bite, and a call like one that was right costs none."""

import pytest
import torch
import typed
from jaxtyping import Float, TypeCheckError
from torch import Tensor

SHAPE = {"out": 0}


def outer(x: Float[Tensor, "b n"], y: Float[Tensor, "b m"]) -> Float[Tensor, "b n m"]:
    return (x[:, :, None] * y[:, None])[:, SHAPE["out"] :]


def nested(x: Float[Tensor, "b n"], wrong: bool):
    def inner(x: Float[Tensor, "b n"], y: Float[Tensor, "b n"]):
        return x + y

    return checked(inner)(x, x[:, :1] if wrong else x)


def checked(fn):
    from beartype import beartype

    return typed._jaxtyped_once(fn, typechecker=beartype)


def test_shapes_dtypes_and_results_are_checked_before_and_after_a_right_call(monkeypatch):
    product, a, b = checked(outer), torch.ones(1, 3), torch.ones(1, 5)
    for _ in range(2):
        for wrong in ((a, b[0]), (a, b.expand(2, -1)), (a, b.long()), (a, 5.0)):
            with pytest.raises(TypeCheckError):
                product(*wrong)
        assert product(a, b).shape == product(x=a, y=b).shape == (1, 3, 5)
    monkeypatch.setitem(SHAPE, "out", 1)  # the very arguments that were right, and another result
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            product(a, b)


def test_functions_within_functions_are_checked():
    for _ in range(2):
        assert nested(torch.ones(1, 3), wrong=False).sum() == 6
        with pytest.raises(TypeCheckError):
            nested(torch.ones(1, 3), wrong=True)


def test_what_is_imported_from_the_package_is_checked():
    from posenc_train.positions.base import Span
    from posenc_train.positions.rope import turn

    Span(torch.arange(3), torch.arange(3))
    with pytest.raises(TypeCheckError):
        Span(torch.arange(3.0), torch.arange(3))
    with pytest.raises(TypeCheckError):
        turn(torch.ones(2, 3), torch.arange(3), torch.ones(1), "half")
