"""Critical sections that are safe to re-enter, and that no exception breaks.

The collector finalizes an abandoned call, and a signal handler makes one, between any two bytecodes of a thread: also
while that thread is inside a critical section of the very object which the other call needs. A plain lock deadlocks
there. A re-entrant lock alone lets the second operation see, and break, what the first has half changed.

So every lock of this package that such code can reach is one of these:

* A `Section`. An operation without a result (a refund, an event to count) is deferred: the thread inside runs it before
  it goes on. An operation with a result gets one that is safe whatever the thread inside was about to do.
* No lock at all: every change is one atomic operation of a C object (a deque, a dict, an iterator).
* Private to one call, or to one wait, so that no other code can reach it.

Tests hold them to this standard: at every bytecode of a critical section, any operation of the same object by the same
thread returns, breaks nothing and loses nothing. `docs/architecture.md` lists them all.

A signal handler may also raise (Ctrl-C, a soft time limit). The interpreter runs handlers when a function of Python
begins, when a function of C has returned to Python, and when a loop jumps back; not between other bytecodes. Everything
here relies on that:

* An iterator takes a lock and releases it. No handler runs between a `for` statement that takes its item and the next
  statement, so none comes between taking the lock and the `try`. A `with` statement has that gap since Python 3.14.
* Values that must agree are changed by statements without calls in between.
* A reference to something borrowed is dropped after it was given back, and giving back twice has no effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import RLock
from types import CodeType, FrameType
from typing import Any, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

MAX_WAIT = 0.1
"""Seconds for which an operation waits for the thread inside before it is deferred.

Without a limit two threads could deadlock: each is inside one section, and what interrupted it needs the other's.
"""

_entering: set[CodeType] = set()
"""The code of functions that hold a section's lock while they call others."""


def takes_lock(function: F) -> F:
    """Declare that a function takes the lock of a section itself."""
    _entering.add(function.__code__)
    return function


def may_wait() -> bool:
    """Return whether the calling function may wait for another thread: not if it interrupted a section."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _entering:
            return False
        frame = frame.f_back
    return True


class Section:
    """A re-entrant critical section: one operation at a time changes an object.

    >>> section, seen = Section(), []
    >>> def outer():
    ...     section.run_or_defer(seen.append, "second")  # as a finalizer would, in the middle
    ...     seen.append("first")
    ...     return section.call(len, seen, otherwise=lambda seen: "inside")
    >>> section.call(outer, otherwise=str), seen
    ('inside', ['first', 'second'])

    On hot paths a method that is declared with `takes_lock` takes the lock itself, as `call` does: it checks `busy`,
    sets it while something is half changed, and calls `run_deferred` after releasing the lock if anything is
    `deferred`.
    """

    __slots__ = ("__weakref__", "busy", "deferred", "entering", "leaving", "lock")

    def __init__(self) -> None:
        self.deferred: list[
            tuple[Callable[..., object], tuple[Any, ...]]
        ] = []  # smaller than a deque, and mostly empty
        self._open()

    def _open(self) -> None:
        self.lock = RLock()
        self.busy = False
        self.entering: Iterator[bool] = iter(self.lock.acquire, None)
        """Each iteration takes the lock."""
        self.leaving: Iterator[None] = iter(self.lock.release, True)
        """Each iteration releases it."""

    def after_fork(self) -> None:
        """In the child: replace a lock whose owner does not exist there."""
        try:
            self.lock.release()
        except RuntimeError:
            self._open()
        else:
            self.lock.acquire()  # a signal handler forked, and this thread is still inside

    def run_or_defer(self, act: Callable[..., object], *args: Any) -> None:
        """Call ``act(*args)`` under the lock; if this thread holds it already, when it releases it.

        If a signal handler raises in the middle, `act` is called once more before the exception goes on. So `act` must
        change nothing before its last inner call that a second run would change again.
        """
        try:
            self.deferred.append((act, args))
            self._run_deferred(self.entering_with_timeout() if self.busy else self.entering)
        except BaseException:
            if self.deferred:
                self.run_deferred()
            raise

    def entering_with_timeout(self) -> Iterator[bool]:
        """Like `entering`, for a section that is busy: each item tells whether the lock was taken within `MAX_WAIT`.

        If threads wait for each other in a cycle, the last one to wait finds the section busy, so at least one times
        out and goes on: there is no deadlock.
        """
        return iter(partial(self.lock.acquire, True, MAX_WAIT), None)

    @takes_lock
    def call(self, act: Callable[..., T], *args: Any, otherwise: Callable[..., T]) -> T:
        """Return ``act(*args)``, called under the lock.

        If this thread is inside already, return ``otherwise(*args)``: other threads are kept out, but what the section
        guards may be half changed. Do the same in a thread that interrupted another section, if this one is still busy
        after `MAX_WAIT`.
        """
        try:
            for taken in self.entering_with_timeout() if self.busy else self.entering:  # pragma: no branch
                if not taken:
                    if may_wait():
                        continue
                    return otherwise(*args)
                try:
                    if self.busy:
                        return otherwise(*args)
                    try:
                        self.busy = True
                        if self.deferred:
                            self._drain()
                        return act(*args)
                    finally:
                        self.busy = False
                finally:
                    for _ in self.leaving:  # pragma: no branch
                        break
        finally:
            if self.deferred:
                try:
                    self.run_deferred()
                except BaseException:
                    if self.deferred:
                        self.run_deferred()
                    raise
        raise AssertionError("an iterator without end has ended")

    def run_deferred(self) -> None:
        """Run what was deferred, unless a thread is inside, which does it when it leaves."""
        self._run_deferred(iter(partial(self.lock.acquire, False), None))

    @takes_lock
    def _run_deferred(self, entering: Iterator[bool]) -> None:
        while True:
            for taken in entering:  # pragma: no branch
                if not taken:
                    return  # the thread inside does it
                try:
                    if self.busy:
                        return
                    try:
                        self.busy = True
                        self._drain()
                    finally:
                        self.busy = False
                finally:
                    for _ in self.leaving:  # pragma: no branch
                        break
                break
            if not self.deferred:
                return
            entering = iter(partial(self.lock.acquire, False), None)

    def _drain(self) -> None:
        try:
            while self.deferred:
                act, args = self.deferred[0]
                del self.deferred[0]
                try:
                    act(*args)
                except BaseException:
                    with suppress(Exception):
                        act(*args)  # interrupted by a signal handler: the deferring thread may never know
                    raise
        except BaseException:
            if self.deferred:
                self._drain()
            raise
