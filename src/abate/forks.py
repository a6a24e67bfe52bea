"""What happens to this package's objects when the process forks.

Threads other than the one that forks do not exist in the child. Locks that they held, connections that they used and
counts that they had half changed are there as they were. So an object with such state is kept here, weakly, and is
told: `after_fork()` in every child; and, if it has them, `before_fork()` before the fork and `after_fork_in_parent()`
after it, in the parent.
"""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeVar

from abate.registry import Registry


class Forked(Protocol):
    """An object that must be mended in a child."""

    def after_fork(self) -> None:
        """In the child: replace locks, and forget what other threads had in hand."""
        ...


K = TypeVar("K", bound=Forked)
_kept: Registry[Forked] = Registry()
_held: Registry[Any] = Registry()
"""Those of them that have a `before_fork`."""


def keep(thing: K) -> K:
    """Call `thing.after_fork()` in every child that this process forks, as long as `thing` lives.

    >>> class Counter:
    ...     def after_fork(self): self.total = 0
    >>> counter = keep(Counter())
    """
    _kept.add(thing)
    if hasattr(thing, "before_fork"):
        _held.add(thing)
    return thing


def kept() -> list[Forked]:
    """Return everything that is kept here now."""
    return _kept.alive()


def _before() -> None:
    for thing in reversed(_held.alive()):
        thing.before_fork()


def _in_parent() -> None:
    for thing in _held.alive():
        thing.after_fork_in_parent()


def _in_child() -> None:
    for thing in kept():
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
