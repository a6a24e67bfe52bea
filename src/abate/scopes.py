"""Blocks that hold in a context, and end for every copy of it when their ``with`` statement ends.

A task copies the context it is started in, and may outlive the block; so may a thread that was given a copy. A plain
context variable would hold there for ever. What the variable holds here is a `Scope`: leaving the block closes it, and
a closed scope is seen through to the nearest open one around it.

A thread does not inherit scopes by being started, on any build: where Python starts threads with a copy of the context
(``sys.flags.thread_inherit_context``, as free-threaded builds do), a pool's threads would keep those of whichever call
started them. A context that is carried there on purpose counts, as `asyncio.to_thread` does.
"""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar
from threading import get_ident
from typing import Generic, TypeVar

THREADS_INHERIT: bool = bool(getattr(sys.flags, "thread_inherit_context", 0))

_probe: ContextVar[object] = ContextVar("abate_probe")


class Scope:
    """One passage through a block. `owner` is what was entered, which may be entered many times."""

    __slots__ = ("open", "outer", "owner", "thread")

    outer: Scope | None

    def __init__(self, owner: object = None) -> None:
        self.owner = owner
        self.open = True
        self.thread = get_ident()


S = TypeVar("S", bound=Scope)


class Scopes(Generic[S]):
    """The open blocks of one kind around the code that asks."""

    __slots__ = ("_here", "around")

    def __init__(self, name: str) -> None:
        self._here: ContextVar[S | None] = ContextVar(name, default=None)
        self.around = self._here.get
        """None where no block can be open; what costs least to ask."""

    def enter(self, scope: S) -> S:
        """Open a block here."""
        scope.outer = self.nearest()  # closed ones are left out, so that chains of tasks don't gather them
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
        while scope is not None and not (scope.open and (not THREADS_INHERIT or _carried(scope))):
            scope = scope.outer  # type: ignore[assignment]
        return scope


def _carried(scope: Scope) -> bool:
    """Was the scope opened by this thread, or else carried here on purpose?"""
    if scope.thread == get_ident():
        return True
    given = getattr(threading.current_thread(), "_context", None)
    if given is None:
        return True
    # is the context that the thread was started with the one that this code runs in? Only then is this seen there
    mark = object()
    token = _probe.set(mark)
    try:
        return given.get(_probe) is not mark
    finally:
        _probe.reset(token)
