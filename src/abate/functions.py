"""The kind of a function, without importing `inspect`."""

from __future__ import annotations

import functools
import sys
from types import CoroutineType
from typing import Any

# as in `inspect`, which takes longer to import than abate
CO_VARARGS, CO_VARKEYWORDS, CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x4, 0x8, 0x20, 0x80, 0x200


def is_generator_function(function: Any) -> bool:
    """Return whether this is a generator function, async ones included.

    >>> def numbers(): yield 1
    >>> is_generator_function(functools.partial(numbers)), is_generator_function(print)
    (True, False)
    """
    return bool(_flags(function) & (CO_GENERATOR | CO_ASYNC_GENERATOR))


def is_async_generator_function(function: Any) -> bool:
    """Return whether this is an async generator function.

    >>> async def numbers(): yield 1
    >>> is_async_generator_function(numbers), is_async_generator_function(print)
    (True, False)
    """
    return bool(_flags(function) & CO_ASYNC_GENERATOR)


def is_coroutine_function(function: Any) -> bool:
    """Return whether this is, or is marked as, a coroutine function; also for partials, methods and callable objects.

    >>> async def load(): ...
    >>> is_coroutine_function(functools.partial(load)), is_coroutine_function(print)
    (True, False)
    """
    if _flags(function) & CO_COROUTINE:
        return True
    inspect = sys.modules.get("inspect")  # functions are marked by `inspect`
    return inspect is not None and inspect.iscoroutinefunction(function)


def is_coroutine_object(value: object) -> bool:
    """Return whether this is a coroutine, which does nothing until it is awaited, unlike futures and tasks.

    >>> async def load(): ...
    >>> made = load()
    >>> is_coroutine_object(made), is_coroutine_object(42)
    (True, False)
    >>> made.close()
    """
    kind = type(value)
    return kind is CoroutineType or (kind.__name__ == "coroutine" and hasattr(kind, "__await__"))  # Cython has its own


def _flags(function: Any) -> int:
    """Return the code flags of what runs when `function` is called; 0 if it is not written in Python."""
    while isinstance(function, functools.partial):
        function = function.func
    for called in (function, type(function).__call__):
        code = getattr(called, "__code__", None)
        if code is not None:
            return int(code.co_flags)
    return 0
