"""Blocks that hold in a context, and end for every copy of it when their ``with`` statement ends.

A task copies the context it is started in, and may outlive the block; so may a thread that was given a copy. A plain
context variable would hold there for ever. What the variable holds here is a `Scope`: leaving the block closes it, and
a closed scope is seen through to the nearest open one around it.

A thread does not inherit scopes by being started, on any build: where Python starts threads with a copy of the context
(``sys.flags.thread_inherit_context``, as free-threaded builds do), a pool's threads would keep those of whichever call
started them, and so would the tasks of an event loop in such a thread. A copy does not tell how it was made, so the
scopes are taken out when the thread is started (`outside`). A context that is carried there on purpose counts, as
`asyncio.to_thread` and ``Thread(context=...)`` do.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar

_variables: list[ContextVar[Any]] = []


def outside(start: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a version of ``Thread.start`` whose threads inherit the context of the caller without its scopes."""

    @functools.wraps(start)
    def start_outside(self: Any) -> None:
        if getattr(self, "_context", self) is None:  # else it was given one on purpose
            self._context = copy_context()
            self._context.run(_shed)
        start(self)

    return start_outside


def _shed() -> None:
    for variable in _variables:
        if variable.get() is not None:
            variable.set(None)


class _Threads:
    """Whether threads may still inherit scopes: until the first one is opened there are none."""

    __slots__ = ("inherit",)

    def __init__(self) -> None:
        self.inherit = bool(getattr(sys.flags, "thread_inherit_context", 0))

    def start_outside(self) -> None:
        self.inherit = False
        threading.Thread.start = outside(threading.Thread.start)  # type: ignore[method-assign, assignment]


_threads = _Threads()


COLLECTS_ANYWHERE = sys.version_info < (3, 12)
"""Does the collector run in the middle of functions of C?

Then it may run in `ContextVar.set`, which reads the variables of the context while it makes new ones, without holding
on to them: where a finalizer sets a variable as well, which drops the old ones, the interpreter crashes. A copy of the
context holds on to them.
"""


class Scope:
    """One passage through a block. `owner` is what was entered, which may be entered many times."""

    __slots__ = ("open", "outer", "owner")

    outer: Scope | None

    def __init__(self, owner: object = None) -> None:
        self.owner = owner
        self.open = True


S = TypeVar("S", bound=Scope)


class Scopes(Generic[S]):
    """The open blocks of one kind around the code that asks."""

    __slots__ = ("_here", "around")

    def __init__(self, name: str) -> None:
        self._here: ContextVar[S | None] = ContextVar(name, default=None)
        _variables.append(self._here)
        self.around = self._here.get
        """None where no block can be open; what costs least to ask."""

    def enter(self, scope: S) -> S:
        """Open a block here."""
        if _threads.inherit:
            _threads.start_outside()
        scope.outer = self.nearest()  # closed ones are left out, so that chains of tasks don't gather them
        _kept = copy_context() if COLLECTS_ANYWHERE else None
        try:
            self._here.set(scope)
        except BaseException:  # a signal handler has raised: the block will not be entered
            self.leave(scope)
            raise
        return scope

    def leave(self, scope: S) -> None:
        """Close a block, in whichever context this is: a generator may be closed in another than it was begun in."""
        scope.open = False
        if self._here.get() is scope:
            _kept = copy_context() if COLLECTS_ANYWHERE else None
            self._here.set(self.nearest())

    def entered_by(self, owner: object) -> S | None:
        """The innermost open block here that `owner` was entered for."""
        scope = self.nearest()
        while scope is not None and scope.owner is not owner:
            scope = self.beyond(scope)
        return scope

    def nearest(self) -> S | None:
        """The innermost open block."""
        return self._open(self._here.get())

    def beyond(self, scope: S) -> S | None:
        """The next open block around `scope`."""
        return self._open(scope.outer)  # type: ignore[arg-type]

    def _open(self, scope: S | None) -> S | None:
        while scope is not None and not scope.open:
            scope = scope.outer  # type: ignore[assignment]
        return scope
