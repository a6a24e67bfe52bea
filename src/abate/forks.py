"""Hooks for objects that must be repaired when the process forks.

Only the forking thread exists in the child. Locks that other threads held, connections that they used and counts that
they had half changed stay as they were. Objects with such state are registered here, weakly: `after_fork()` is called
in every child; `before_fork()` and `after_fork_in_parent()`, if they exist, in the parent.

The interpreter drops what a hook raises, and goes on. So a signal handler that raises in a hook must leave nothing
undone: the other objects are called all the same, and the interrupted one is called again. The methods are called once
or more, and repeating them has no effect.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from abate.registry import Registry


class ForkAware(Protocol):
    """An object that must be repaired in a child."""

    def after_fork(self) -> None:
        """In the child: replace locks, and forget what other threads were doing."""
        ...


K = TypeVar("K", bound=ForkAware)
_registered: Registry[ForkAware] = Registry()
_with_before_fork: Registry[Any] = Registry()
"""Those that have a `before_fork`."""


def register(thing: K) -> K:
    """Call `thing.after_fork()` in every child that this process forks, as long as `thing` lives.

    >>> class Counter:
    ...     def after_fork(self): self.total = 0
    >>> counter = register(Counter())
    """
    _registered.add(thing)
    if hasattr(thing, "before_fork"):
        _with_before_fork.add(thing)
    return thing


def registered() -> list[ForkAware]:
    """Return all registered objects."""
    return _registered.alive()


def _before() -> None:
    _call_each(_with_before_fork.alive(), "before_fork")


def _in_parent() -> None:
    _call_each(_with_before_fork.alive()[::-1], "after_fork_in_parent")


def _in_child() -> None:
    _call_each(registered()[::-1], "after_fork")


def _call_each(things: list[Any], method: str) -> None:
    """Call a method of each object, the last one first; raise the first error after the last call."""
    try:
        while things:
            getattr(things[-1], method)()
            del things[-1]
    except BaseException:
        with suppress(Exception):
            getattr(things.pop(), method)()
        _call_each(things, method)
        raise


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
    os.register_at_fork(after_in_parent=_in_parent)  # a signal handler may raise before the first one has begun
