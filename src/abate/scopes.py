"""Scopes of a context, which end in every copy of it when their ``with`` statement ends.

A task copies the context it is started in, and may outlive the block; so may a thread that was given a copy. A plain
context variable would stay set there forever. Here the variable holds a `Scope`: leaving the block closes it, and
lookups skip closed scopes.

A thread does not inherit scopes by being started, on any build: where Python starts threads with a copy of the context
(``sys.flags.thread_inherit_context``, as free-threaded builds do), a pool's threads would keep those of whichever call
started them, and so would the tasks of an event loop in such a thread. A copy does not tell how it was made, so the
scopes are taken out when the thread is started (`without_scopes`). A context that is carried there on purpose counts,
as `asyncio.to_thread` and ``Thread(context=...)`` do.

A fixture of a test enters the context of the test runner, but the test may run in a task that was started before, and
so in a copy of the context without the scope. For these a scope can be `shared_in_thread`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar

_variables: list[ContextVar[Any]] = []


def without_scopes(start: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a version of ``Thread.start`` whose threads inherit the context of the caller without its scopes."""

    @functools.wraps(start)
    def start_without_scopes(self: Any) -> None:
        if getattr(self, "_context", self) is None:  # else it was given one on purpose
            self._context = copy_context()
            self._context.run(_clear_scopes)
        start(self)

    return start_without_scopes


def _clear_scopes() -> None:
    for variable in _variables:
        if variable.get() is not None:
            variable.set(None)


class _Threads:
    """Whether started threads may inherit scopes: not checked until the first scope is opened."""

    __slots__ = ("inherit",)

    def __init__(self) -> None:
        self.inherit = bool(getattr(sys.flags, "thread_inherit_context", 0))

    def start_without_scopes(self) -> None:
        self.inherit = False
        threading.Thread.start = without_scopes(threading.Thread.start)  # type: ignore[method-assign, assignment]


_threads = _Threads()


GC_RUNS_IN_C_CODE = sys.version_info < (3, 12)
"""Whether the collector may run inside functions of C.

Then it may run in `ContextVar.set`, which holds no reference to the old variables while it makes new ones: a finalizer
that sets a variable drops the old ones, and the interpreter crashes. A copy of the context keeps them alive.
"""


class Scope:
    """One pass through a block. `owner` is the object that was entered; it may be entered many times."""

    __slots__ = ("open", "outer", "owner")

    outer: Scope | None

    def __init__(self, owner: object = None) -> None:
        self.owner = owner
        self.open = True


S = TypeVar("S", bound=Scope)


class Scopes(Generic[S]):
    """The open scopes of one kind around the calling code."""

    __slots__ = ("_here", "_shared", "peek")

    def __init__(self, name: str) -> None:
        self._here: ContextVar[S | None] = ContextVar(name, default=None)
        self._shared: dict[int, S] = {}
        """For threads, by number: the scope for those of their contexts that have none."""
        _variables.append(self._here)
        self.peek = self._here.get
        """Return None if no scope can be open, apart from a shared one: the cheapest check."""

    def enter(self, scope: S) -> S:
        """Open a scope here."""
        if _threads.inherit:
            _threads.start_without_scopes()
        scope.outer = self.nearest()  # without closed ones, so that chains of tasks don't accumulate them
        _kept = copy_context() if GC_RUNS_IN_C_CODE else None
        try:
            self._here.set(scope)
        except BaseException:  # a signal handler raised: the block is not entered
            self.leave(scope)
            raise
        return scope

    def leave(self, scope: S) -> None:
        """Close a scope, in any context: a generator may be closed in another context than it was started in."""
        scope.open = False
        if self._here.get() is scope:
            _kept = copy_context() if GC_RUNS_IN_C_CODE else None
            self._here.set(self.nearest())

    def entered_by(self, owner: object) -> S | None:
        """Return the innermost open scope of `owner`."""
        scope = self.nearest()
        while scope is not None and scope.owner is not owner:
            scope = self.open_parent(scope)
        return scope

    def nearest(self) -> S | None:
        """Return the innermost open scope."""
        scope = self._open(self._here.get())
        if scope is None and self._shared:
            return self._open(self._shared.get(threading.get_ident()))
        return scope

    @contextmanager
    def shared_in_thread(self) -> Iterator[None]:
        """Share the innermost open scope with all contexts of this thread that have none, until the block ends."""
        thread, scope = threading.get_ident(), self.nearest()
        before = self._shared.get(thread)
        if scope is not None:
            self._shared[thread] = scope
        try:
            yield
        finally:
            if before is None:
                self._shared.pop(thread, None)
            else:
                self._shared[thread] = before

    def adopt(self) -> None:
        """Enter the shared scope, if it counts here, so that copies of this context have it in other threads too."""
        scope = self.nearest()
        if scope is not None and self._here.get() is not scope:
            self._here.set(scope)

    def open_parent(self, scope: S) -> S | None:
        """Return the next open scope around `scope`."""
        return self._open(scope.outer)  # type: ignore[arg-type]

    def _open(self, scope: S | None) -> S | None:
        while scope is not None and not scope.open:
            scope = scope.outer  # type: ignore[assignment]
        return scope
