"""Permits: a bound on how many attempts are in flight at once."""

from __future__ import annotations

from itertools import count
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

    __slots__ = ("__weakref__", "_free", "_held", "_made", "limit")

    def __init__(self, limit: int, name: str = "permits") -> None:
        self.limit = whole("limit", limit, least=1)
        self.name = name
        self.after_fork()
        forks.keep(self)

    def after_fork(self) -> None:
        """In the child no permit is held: the threads that held them do not exist there."""
        # no lock: a permit is made by taking a number, and then goes from list to list, each step atomic
        self._made = count()
        self._free: list[int] = []
        self._held: list[int] = []

    @property
    def held(self) -> int:
        """How many permits are held."""
        return len(self._held)

    def try_acquire(self) -> bool:
        """Take a permit if one is free."""
        try:
            permit = self._free.pop()
        except IndexError:
            permit = next(self._made)
            if permit >= self.limit:
                return False
        self._held.append(permit)
        return True

    def release(self) -> None:
        """Give a permit back."""
        try:
            self._free.append(self._held.pop())
        except IndexError:
            pass  # none is held

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

    def leave(self, accepted: bool | None) -> None:
        self.release()

    def refund(self) -> None:
        self.release()

    def apart(self) -> Permits:
        return Permits(self.limit, self.name) if type(self) is Permits else self

    def refusal(self) -> str:
        return f"all {self.limit} permits are held"

    def _made_from(self) -> dict[str, Any]:
        return {"limit": self.limit, "name": self.name}

    def __repr__(self) -> str:
        return f"Permits({self.limit}, held={self.held})"
