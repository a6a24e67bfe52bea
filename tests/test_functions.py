"""What kind of function something is: seen through partials, methods, callable objects and marks."""

import asyncio
import functools
import inspect
import sys
from unittest.mock import AsyncMock

import pytest

from abate.functions import is_coroutine_function, is_coroutine_object, is_generator_function


async def coroutine_function(): ...


def generator_function():
    yield


async def async_generator_function():
    yield


class Callable:
    async def __call__(self): ...

    async def method(self): ...

    @staticmethod
    async def static(): ...


COROUTINES = [
    coroutine_function,
    functools.partial(coroutine_function),
    functools.partial(functools.partial(coroutine_function)),
    Callable(),
    functools.partial(Callable()),
    Callable().method,
    Callable.static,
    AsyncMock(),
]
PLAIN = [print, len, Callable, functools.partial(print), lambda: coroutine_function(), object()]


@pytest.mark.parametrize("function", COROUTINES)
def test_coroutine_functions_are_known(function):
    """Whatever stands in front of them."""
    assert is_coroutine_function(function)
    assert not is_generator_function(function)


@pytest.mark.parametrize("function", PLAIN)
def test_anything_else_is_none(function):
    """A wrapper without a mark is a plain function."""
    assert not is_coroutine_function(function)
    assert not is_generator_function(function)


@pytest.mark.parametrize("function", [generator_function, async_generator_function])
def test_generator_functions_are_known(function):
    """Async ones too."""
    assert is_generator_function(function)
    assert is_generator_function(functools.partial(function))
    assert not is_coroutine_function(function)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="functions cannot be marked")
def test_a_marked_function_is_a_coroutine_function():
    """As `inspect` says."""
    assert is_coroutine_function(inspect.markcoroutinefunction(lambda: coroutine_function()))


def test_nothing_is_imported_to_find_out(monkeypatch):
    """A function without a mark is plain."""
    monkeypatch.delitem(sys.modules, "inspect")
    assert not is_coroutine_function(print)


def test_a_coroutine_is_told_from_what_runs_by_itself():
    """Futures and tasks are results like any other; a coroutine does nothing until it is awaited."""

    async def main():
        made = coroutine_function()
        task = asyncio.ensure_future(asyncio.sleep(0))
        found = is_coroutine_object(made), is_coroutine_object(task), is_coroutine_object(None)
        await made
        await task
        return found

    assert asyncio.run(main()) == (True, False, False)


def test_coroutines_of_other_compilers_are_known():
    """Cython has a type of its own, by the same name."""
    other = type("coroutine", (), {"__await__": lambda self: iter(())})
    assert is_coroutine_object(other())
    assert not is_coroutine_object(type("coroutine", (), {})())
