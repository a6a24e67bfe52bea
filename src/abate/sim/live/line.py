"""How a service is called over real sockets: one attempt, and what its answer means.

A call of a row is a read, and a write that holds if nobody else has written since (``ETag`` and ``If-Match``).
"""

from __future__ import annotations

from abate.schedule.deadlines import remaining
from abate.sim.answers import answer
from abate.sim.live.wire import HOST, Head, Pool
from abate.sim.services import Row, Service

DEADLINE = "Abate-Deadline"
"""Milliseconds that the caller still waits."""
EXHAUSTED = "Abate-Exhausted"
"""Somebody further in has retried already."""


class Line:
    """Makes attempts at one service."""

    __slots__ = ("_path", "_row", "_tells", "pool")

    def __init__(self, service: Service | Row, port: int, tells: bool) -> None:
        self._row = isinstance(service, Row)
        self._path = f"/{'row' if self._row else 'service'} HTTP/1.1"
        self._tells = tells
        self.pool = Pool(port)

    async def attempt(self) -> None:
        """Make one attempt; an answer that is a failure is raised, as an `Answer`."""
        found = await self._ask("GET", {})
        if self._row:
            await self._ask("PUT", {"If-Match": found.headers.get("etag", "")})

    async def _ask(self, method: str, headers: dict[str, str]) -> Head:
        left = remaining() if self._tells else None
        if left is not None:
            headers[DEADLINE] = str(max(1, round(left * 1000)))
        head = await self.pool.ask(f"{method} {self._path}", {"Host": HOST, **headers})
        status = int(head.words[1])
        if status >= 400:
            hint = head.headers.get("retry-after")
            raise answer(status, None if hint is None else float(hint), EXHAUSTED.lower() in head.headers)()
        return head
