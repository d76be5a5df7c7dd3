"""Shapes and types are checked by jaxtyping and beartype, once for every kind of call.

What they say depends on nothing but the types of arguments and results, and of tensors the shapes and dtypes. So a call
like an earlier one passes, in microseconds instead of half a millisecond; a function within a function is wrapped when
it is first called, and not whenever the outer one is.
"""

import functools
import inspect
from collections import defaultdict

import jaxtyping

_jaxtyped = jaxtyping.jaxtyped
_passed = defaultdict(set)  # code -> the kinds of arguments, and of arguments with their result, that were right


def kind(x):
    cls = type(x)
    if cls is tuple or cls is list:
        return cls, *map(kind, x)
    if cls is dict:
        return cls, *x, *map(kind, x.values())
    return (
        (cls, x.dtype, x.shape) if hasattr(cls, "dtype") and hasattr(cls, "shape") else cls
    )  # no attribute of a module is looked for


def _jaxtyped_once(fn=None, *, typechecker=None):
    if fn is None:
        return functools.partial(_jaxtyped_once, typechecker=typechecker)
    if not inspect.isfunction(fn):
        return _jaxtyped(fn, typechecker=typechecker)
    passed = _passed[fn.__code__]
    typed = functools.cache(lambda: _jaxtyped(fn, typechecker=typechecker))

    @functools.wraps(fn)
    def wrapped(*args, **kwargs):
        given = kind(args), kind(kwargs)
        if given not in passed:
            out = typed()(*args, **kwargs)
        else:
            out = fn(*args, **kwargs)
            if (given, kind(out)) not in passed:  # the result alone is new
                _jaxtyped(functools.wraps(fn)(lambda *_, **__: out), typechecker=typechecker)(*args, **kwargs)
        passed.update((given, (given, kind(out))))
        return out

    return wrapped


def install(*modules: str) -> None:
    """Checks whatever is imported from them from now on."""
    jaxtyping.jaxtyped = _jaxtyped_once  # which the import hook puts before every function
    jaxtyping.install_import_hook(list(modules), "beartype.beartype")
