"""Permits: a bound on how many attempts are in flight at once."""

from __future__ import annotations

from threading import Lock
from types import TracebackType
from typing import Any

from abate import forks
from abate.admit.gate import Gate
from abate.errors import Refused, whole
from abate.values import Shared


class Permits(Shared, Gate):
    """Admits while fewer than `limit` permits are held; it never waits.

    >>> permits = Permits(1)
    >>> with permits:
    ...     permits.try_acquire()
    False
    >>> permits.held
    0
    """

    __slots__ = ("__weakref__", "_lock", "held", "limit")

    def __init__(self, limit: int, name: str = "permits") -> None:
        self.limit = whole("limit", limit, least=1)
        self.name = name
        self.held = 0
        self._lock = Lock()
        forks.keep(self)

    def try_acquire(self) -> bool:
        """Take a permit if one is free."""
        with self._lock:
            if self.held >= self.limit:
                return False
            self.held += 1
            return True

    def release(self) -> None:
        """Give a permit back."""
        with self._lock:
            if self.held:
                self.held -= 1

    def __enter__(self) -> Permits:
        if not self.try_acquire():
            raise Refused(self.name, self.refusal())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def enter(self, retry: bool) -> Gate | None:
        return None if self.try_acquire() else self

    def leave(self, accepted: bool) -> None:
        self.release()

    def refund(self) -> None:
        self.release()

    def refusal(self) -> str:
        return f"all {self.limit} permits are held"

    def after_fork(self) -> None:
        # the threads that held permits are not in the child
        self._lock = Lock()
        self.held = 0

    def _made_from(self) -> dict[str, Any]:
        return {"limit": self.limit, "name": self.name}

    def __repr__(self) -> str:
        return f"Permits({self.limit}, held={self.held})"
