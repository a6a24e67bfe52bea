"""What kind of function something is: seen through partials, methods, callable objects and marks."""

import asyncio
import functools
import inspect
import sys
from unittest.mock import AsyncMock

import pytest

from abate.functions import is_coroutine, is_generator, returned_coroutine


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
    assert is_coroutine(function)
    assert not is_generator(function)


@pytest.mark.parametrize("function", PLAIN)
def test_anything_else_is_none(function):
    """A wrapper without a mark is a plain function."""
    assert not is_coroutine(function)
    assert not is_generator(function)


@pytest.mark.parametrize("function", [generator_function, async_generator_function])
def test_generator_functions_are_known(function):
    """Async ones too."""
    assert is_generator(function)
    assert is_generator(functools.partial(function))
    assert not is_coroutine(function)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="functions cannot be marked")
def test_a_marked_function_is_a_coroutine_function():
    """As `inspect` says."""
    assert is_coroutine(inspect.markcoroutinefunction(lambda: coroutine_function()))


def test_nothing_is_imported_to_find_out(monkeypatch):
    """A function that nobody marked is plain."""
    monkeypatch.delitem(sys.modules, "inspect")
    assert not is_coroutine(print)


def test_a_coroutine_is_told_from_what_runs_by_itself():
    """Futures and tasks are results like any other; a coroutine does nothing until it is awaited."""

    async def main():
        made = coroutine_function()
        task = asyncio.ensure_future(asyncio.sleep(0))
        found = returned_coroutine(made), returned_coroutine(task), returned_coroutine(None)
        await made
        await task
        return found

    assert asyncio.run(main()) == (True, False, False)


def test_coroutines_of_other_compilers_are_known():
    """Cython has a type of its own, by the same name."""
    other = type("coroutine", (), {"__await__": lambda self: iter(())})
    assert returned_coroutine(other())
    assert not returned_coroutine(type("coroutine", (), {})())
