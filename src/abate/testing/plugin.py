"""The pytest plugin: fixtures, found by pytest wherever abate is installed.

* `abate_clock`: the test runs in virtual time; the clock is its value.
* `abate_events`: a record of the events during the test.
* `abate_off`: calls make one attempt during the test.
* `abate_reset`: controllers and consumers are reset before the test and after it.

Clock and off switch are bound to a context, but a runner of async tests may run the test in a context that was copied
before the fixture was set up: anyio and pytest-asyncio have one task or one event loop for all tests and fixtures of a
module or session, and `unittest.IsolatedAsyncioTestCase` copies the context when it is created. So they are shared with
all contexts of the thread that runs the tests, and the coroutine of the test takes them into its own context, so that
`asyncio.to_thread` carries them to other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any
from unittest import TestCase

import pytest

if TYPE_CHECKING:
    from abate.testing import Recorder, VirtualClock

SHARED = {"abate_clock", "abate_off"}
"""The fixtures that are bound to a context."""


@pytest.fixture
def abate_clock() -> Iterator[VirtualClock]:
    """Virtual time for this test: sleeping moves it."""
    from abate import clock as clocks
    from abate.testing import VirtualClock

    with VirtualClock() as clock, clocks.shared_in_thread():
        yield clock


@pytest.fixture
def abate_events() -> Iterator[Recorder]:
    """The events that happen during this test."""
    from abate.testing import Recorder

    with Recorder() as recorder:
        yield recorder


@pytest.fixture
def abate_off() -> Iterator[None]:
    """Retries are off during this test."""
    from abate.call.off_switch import off_shared_in_thread
    from abate.testing import off

    with off(), off_shared_in_thread():
        yield


@pytest.fixture
def abate_reset() -> Iterator[None]:
    """All controllers and consumers are reset before this test and after it. None of them may be running."""
    from abate import registry

    for service in registry.services.alive():
        service.reset()
    yield
    for service in registry.services.alive():
        service.reset()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # before a plugin wraps the coroutine function in a plain one
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """Let the coroutine of a test take the clock and the off switch of its fixtures into its own context."""
    if not isinstance(item, pytest.Function) or SHARED.isdisjoint(item.fixturenames):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        if iscoroutinefunction(item.obj):
            patch.setattr(item, "obj", _adopting(item.obj))
            if isinstance(item.instance, TestCase):
                patch.setattr(item.instance, item.name, item.obj)  # unittest calls this one
        yield


def _adopting(function: Callable[..., Any]) -> Callable[..., Any]:
    from abate import clock as clocks
    from abate.call.off_switch import adopt_shared_off

    @wraps(function)
    async def test(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        clocks.adopt_shared()
        adopt_shared_off()
        return await function(*args, **kwargs)

    return test
