"""Critical sections that are safe to re-enter, and that no exception breaks.

The collector finalizes an abandoned call, and a signal handler makes one, between any two bytecodes of a thread: also
while that thread is inside a critical section of the very object which the other call needs. A plain lock deadlocks
there. A re-entrant lock alone lets the second operation see, and break, what the first has half changed.

So every lock of this package that such code can reach is one of these:

* A `Section`. What needs no answer (a refund, an event to count) is left for the thread inside, which does it before it
  goes on. What needs an answer gets one that is safe whatever the thread inside was about to do.
* No lock at all: every change is one atomic operation of a C object (a deque, a dict, an iterator).
* Private to one call, or to one wait, so that no other code can reach it.

They are held to this standard: at every bytecode of a critical section, any operation of the same object by the same
thread returns, breaks nothing and loses nothing. `docs/architecture.md` lists them all.

A signal handler may also raise (Ctrl-C, a soft time limit). The interpreter runs handlers when a function of Python
begins, when a function of C has returned to Python, and when a loop jumps back; not between other bytecodes. Everything
here relies on that:

* An iterator takes a lock and releases it: what a `for` statement calls is followed by no handler, so that none comes
  between taking the lock and the `try`. A `with` statement has that gap since Python 3.14.
* What belongs together is changed by statements without calls.
* Whoever holds something forgets it after it has been given back, and to give back twice is the same as once.
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

PATIENCE = 0.1
"""Seconds for which an operation that can be left to another thread waits for that thread.

Without a limit two threads could wait for each other: each is inside one section, and what interrupted it there needs
the other's.
"""

_entering: set[CodeType] = set()
"""The code of functions that are inside a section while they call others."""


def enters(function: F) -> F:
    """Declare that a function takes the lock of a section by itself."""
    _entering.add(function.__code__)
    return function


def may_wait() -> bool:
    """Can the function that asks wait for another thread? Not if it has interrupted a section of its own thread."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _entering:
            return False
        frame = frame.f_back
    return True


class Section:
    """Lets one operation at a time change an object, and is safe to re-enter.

    >>> section, seen = Section(), []
    >>> def outer():
    ...     section.run(seen.append, "second")  # as a finalizer would, in the middle
    ...     seen.append("first")
    ...     return section.ask(len, seen, otherwise=lambda seen: "inside")
    >>> section.ask(outer, otherwise=str), seen
    ('inside', ['first', 'second'])

    Where a call of `ask` would cost too much, a method that is declared with `enters` takes the lock itself, as `ask`
    does: it looks at `busy`, sets it for as long as something is half changed, and calls `finish` after it has let go
    if anything is `left`.
    """

    __slots__ = ("__weakref__", "busy", "entering", "leaving", "left", "lock")

    def __init__(self) -> None:
        self.left: list[tuple[Callable[..., object], tuple[Any, ...]]] = []  # smaller than a deque, and mostly empty
        self._open()

    def _open(self) -> None:
        self.lock = RLock()
        self.busy = False
        self.entering: Iterator[bool] = iter(self.lock.acquire, None)
        """Each item takes the lock."""
        self.leaving: Iterator[None] = iter(self.lock.release, True)
        """Each item releases it."""

    def after_fork(self) -> None:
        """In the child: replace a lock whose owner does not exist there."""
        try:
            self.lock.release()
        except RuntimeError:
            self._open()
        else:
            self.lock.acquire()  # a handler has forked, and this thread is still inside

    def run(self, act: Callable[..., object], *args: Any) -> None:
        """Call ``act(*args)`` inside. If this thread is inside already, it does so when it leaves.

        What is raised in the middle of it, by a signal handler, is raised after it has been called once more. So it
        changes nothing before its last call that it would change again.
        """
        try:
            self.left.append((act, args))
            self._finish(self.patiently() if self.busy else self.entering)
        except BaseException:
            if self.left:
                self.finish()
            raise

    def patiently(self) -> Iterator[bool]:
        """Like `entering`, for a section that is busy: has the lock been taken within `PATIENCE`?

        Of threads that wait for each other in a circle, each one being inside a section that another waits for, the
        last one to wait finds that section busy. So one of them goes on.
        """
        return iter(partial(self.lock.acquire, True, PATIENCE), None)

    @enters
    def ask(self, act: Callable[..., T], *args: Any, otherwise: Callable[..., T]) -> T:
        """Return ``act(*args)``, called inside.

        If this thread is inside already, return ``otherwise(*args)``: other threads are kept out, but whatever the
        section guards may be half changed. So does a thread that has interrupted another section, if a third party has
        not left this one within `PATIENCE`.
        """
        try:
            for taken in self.patiently() if self.busy else self.entering:  # pragma: no branch
                if not taken:
                    if may_wait():
                        continue
                    return otherwise(*args)
                try:
                    if self.busy:
                        return otherwise(*args)
                    try:
                        self.busy = True
                        if self.left:
                            self._clear()
                        return act(*args)
                    finally:
                        self.busy = False
                finally:
                    for _ in self.leaving:  # pragma: no branch
                        break
        finally:
            if self.left:
                try:
                    self.finish()
                except BaseException:
                    if self.left:
                        self.finish()
                    raise
        raise AssertionError("an iterator without end has ended")

    def finish(self) -> None:
        """Do what is left, unless a thread is inside, which comes here when it leaves."""
        self._finish(iter(partial(self.lock.acquire, False), None))

    @enters
    def _finish(self, entering: Iterator[bool]) -> None:
        while True:
            for taken in entering:  # pragma: no branch
                if not taken:
                    return  # the thread inside does it
                try:
                    if self.busy:
                        return
                    try:
                        self.busy = True
                        self._clear()
                    finally:
                        self.busy = False
                finally:
                    for _ in self.leaving:  # pragma: no branch
                        break
                break
            if not self.left:
                return
            entering = iter(partial(self.lock.acquire, False), None)

    def _clear(self) -> None:
        try:
            while self.left:
                act, args = self.left[0]
                del self.left[0]
                try:
                    act(*args)
                except BaseException:
                    with suppress(Exception):
                        act(*args)  # a signal handler has broken it off; who left it here may never know
                    raise
        except BaseException:
            if self.left:
                self._clear()
            raise
