"""What kind of function something is, without the import time of `inspect`."""

from __future__ import annotations

import functools
import sys
from types import CoroutineType
from typing import Any

# as in `inspect`, which takes longer to import than all of abate
CO_VARARGS, CO_VARKEYWORDS, CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x4, 0x8, 0x20, 0x80, 0x200


def is_generator(function: Any) -> bool:
    """Is it a generator function, async ones included?

    >>> def numbers(): yield 1
    >>> is_generator(functools.partial(numbers)), is_generator(print)
    (True, False)
    """
    return bool(_flags(function) & (CO_GENERATOR | CO_ASYNC_GENERATOR))


def is_coroutine(function: Any) -> bool:
    """Is it a coroutine function, or marked as one? Partials, methods and callable objects are looked through.

    >>> async def load(): ...
    >>> is_coroutine(functools.partial(load)), is_coroutine(print)
    (True, False)
    """
    if _flags(function) & CO_COROUTINE:
        return True
    inspect = sys.modules.get("inspect")  # whoever marked a function has imported it
    return inspect is not None and inspect.iscoroutinefunction(function)


def returned_coroutine(value: object) -> bool:
    """Is it a coroutine, which has done nothing until it is awaited? Futures and tasks run by themselves.

    >>> async def load(): ...
    >>> made = load()
    >>> returned_coroutine(made), returned_coroutine(42)
    (True, False)
    >>> made.close()
    """
    kind = type(value)
    return kind is CoroutineType or (kind.__name__ == "coroutine" and hasattr(kind, "__await__"))  # Cython has its own


def _flags(function: Any) -> int:
    """The code flags of what runs when `function` is called; none for what is not written in Python."""
    while isinstance(function, functools.partial):
        function = function.func
    for called in (function, type(function).__call__):
        code = getattr(called, "__code__", None)
        if code is not None:
            return int(code.co_flags)
    return 0
