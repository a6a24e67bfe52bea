"""Critical sections that are safe to re-enter.

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
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 0.1
"""Seconds for which an operation that can be left to another thread waits for that thread.

Without a limit two threads could wait for each other: each is inside one section, and what interrupted it there needs
the other's.
"""


class Section:
    """Lets one operation at a time change an object, and is safe to re-enter.

    >>> section, seen = Section(), []
    >>> def outer():
    ...     section.run(seen.append, "second")  # as a finalizer would, in the middle
    ...     seen.append("first")
    ...     return section.ask(len, seen, otherwise=lambda seen: "inside")
    >>> section.ask(outer, otherwise=str), seen
    ('inside', ['first', 'second'])

    Where a call of `ask` would cost too much, a method takes `lock` itself: it looks at `busy`, sets it for as long as
    something is half changed, and calls `finish` after it has let go if anything is `left`.
    """

    __slots__ = ("__weakref__", "busy", "left", "lock")

    def __init__(self) -> None:
        self.left: list[tuple[Callable[..., object], tuple[Any, ...]]] = []  # smaller than a deque, and mostly empty
        self._open()

    def _open(self) -> None:
        self.lock = RLock()
        self.busy = False

    def after_fork(self) -> None:
        """In the child: replace a lock whose owner does not exist there."""
        try:
            self.lock.release()
        except RuntimeError:
            self._open()
        else:
            self.lock.acquire()  # a handler has forked, and this thread is still inside

    def run(self, act: Callable[..., object], *args: Any) -> None:
        """Call ``act(*args)`` inside. If this thread is inside already, it does so when it leaves."""
        self.left.append((act, args))
        self._finish(True, PATIENCE)

    def ask(self, act: Callable[..., T], *args: Any, otherwise: Callable[..., T]) -> T:
        """Return ``act(*args)``, called inside.

        If this thread is inside already, return ``otherwise(*args)``: other threads are kept out, but whatever the
        section guards may be half changed.
        """
        try:
            with self.lock:
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
            if self.left:
                self.finish()

    def finish(self) -> None:
        """Do what is left, unless a thread is inside, which comes here when it leaves."""
        self._finish(False)

    def _finish(self, blocking: bool, timeout: float = -1.0) -> None:
        while True:
            # an iterator takes the lock, so that no KeyboardInterrupt comes between taking it and the `try`
            for _ in iter(partial(self.lock.acquire, blocking, timeout), False):
                try:
                    if self.busy:
                        return
                    try:
                        self.busy = True
                        self._clear()
                    finally:
                        self.busy = False
                finally:
                    self.lock.release()
                break
            else:
                return  # the thread inside does it
            if not self.left:
                return
            blocking, timeout = False, -1.0

    def _clear(self) -> None:
        while self.left:
            act, args = self.left.pop(0)
            act(*args)
