"""A limit on the attempts in flight: permits that are taken and released."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile
from types import TracebackType
from typing import Any

from abate import forks
from abate.admit.gate import Gate
from abate.errors import Refused, suggests_settings, whole
from abate.frozen import Shared


class ConcurrencyLimit(Shared, Gate):
    """Admit while fewer than `limit` permits are held; never wait.

    >>> limit = ConcurrencyLimit(1)
    >>> with limit:
    ...     limit.try_acquire()
    False
    >>> limit.held
    0
    """

    __slots__ = ("__weakref__", "_freeing", "_held", "_making", "_taking", "limit")

    held_by_streams = True

    @suggests_settings
    def __init__(self, limit: int, *, name: str = "concurrency") -> None:
        self.limit = whole("limit", limit, least=1)
        self.name = name
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """Release all permits in the child: the threads that held them don't exist there."""
        # No lock: taking an item from one of these iterators is atomic and moves one permit. No signal handler runs
        # between a `for` statement that takes its item and the next statement, so no permit is lost.
        free: list[int] = []
        held: list[int] = []
        self._held = held
        self._making: Iterator[None] = map(held.append, takewhile(self.limit.__gt__, count()))
        self._taking: Iterator[None] = map(held.append, iter(free.pop, None))
        self._freeing: Iterator[None] = map(free.append, iter(held.pop, None))

    @property
    def held(self) -> int:
        """The number of permits that are held."""
        return len(self._held)

    def try_acquire(self) -> bool:
        """Take a permit if one is free."""
        try:
            for _ in self._taking:  # pragma: no branch
                return True
        except IndexError:
            pass  # none was released, or all of those are held again
        for _ in self._making:
            return True
        return False

    def release(self) -> None:
        """Release a permit."""
        try:
            for _ in self._freeing:  # pragma: no branch
                break
        except IndexError:
            pass  # none is held

    def __enter__(self) -> ConcurrencyLimit:
        if not self.try_acquire():
            raise Refused(self.name, self.refusal())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def enter(self, retry: bool) -> Gate | None:
        return None if self.try_acquire() else self

    def leave(self, accepted: bool | None) -> None:
        self.release()

    def refund(self) -> None:
        self.release()

    def apart(self) -> ConcurrencyLimit:
        return ConcurrencyLimit(self.limit, name=self.name) if type(self) is ConcurrencyLimit else self

    def refusal(self) -> str:
        return f"all {self.limit} permits are held"

    def _pickled_settings(self) -> dict[str, Any]:
        return {"limit": self.limit, "name": self.name}

    def __repr__(self) -> str:
        return f"ConcurrencyLimit({self.limit}, held={self.held})"
