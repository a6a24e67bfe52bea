"""etcd through its JSON gateway: snapshots, compare-and-swap, and a watch.

A request that has no answer in time may have been carried out all the same, now or when the server wakes up. So
nothing is ever written but by compare-and-swap on the revision that was read: a write that was made after all is
found when its keys are read again, and one that comes late finds another revision and does nothing.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

import abate

LONGEST_LINE = 2**22
"""Bytes; a watch tells in one line all that has happened while it could not."""


class NoAnswer(TimeoutError):
    """No answer in time, or none at all: the request may have been carried out or not."""


class Conflict(Exception):
    """The keys have changed since they were read: read them again."""


@dataclass(frozen=True)
class Item:
    """What is stored under a key: a number, the revision that wrote it, and how often it was written."""

    value: int = 0
    revision: int = 0
    writes: int = 0


@dataclass
class Traffic:
    """What was sent, and what became of it."""

    sent: list[float] = field(default_factory=list)
    """The instant of every request."""
    unanswered: int = 0
    conflicts: int = 0


class Etcd:
    """A client that bounds the wait for every answer, and retries nothing."""

    def __init__(self, session: aiohttp.ClientSession, timeout: float) -> None:
        self._session = session
        self._timeout = timeout
        self._ask: Callable[[str, Mapping[str, Any]], Awaitable[Any]] = self._post
        self.traffic = Traffic()

    def through(self, policy: abate.Policy) -> "Etcd":
        """The same client, whose requests are calls of a policy."""
        other = Etcd(self._session, self._timeout)
        other.traffic = self.traffic
        other._ask = policy(other._post)
        return other

    async def read(self, prefix: str) -> tuple[dict[str, Item], int]:
        """What all keys with a prefix hold at one instant, and the revision of it.

        One range, not a transaction of several: some versions of etcd (3.5.1 is one) crash when the caller of a
        transaction that only reads goes away.
        """
        answer = await self._ask("range", span(prefix))
        found = {decoded(kv["key"]): item(kv) for kv in answer.get("kvs", [])}
        return found, int(answer["header"]["revision"])

    async def swap(self, changes: Mapping[str, tuple[Item, int]]) -> None:
        """Write new values, all or none, if each key still holds the item that was read; else `Conflict`."""
        compare = [
            {"key": encoded(key), "target": "MOD", "modRevision": str(seen.revision)}
            for key, (seen, _) in changes.items()
        ]
        puts = [
            {"requestPut": {"key": encoded(key), "value": encoded(str(value))}} for key, (_, value) in changes.items()
        ]
        answer = await self._ask("txn", {"compare": compare, "success": puts})
        if not answer.get("succeeded"):  # absent where it is false
            self.traffic.conflicts += 1
            raise Conflict(", ".join(changes))

    async def watch(self, prefix: str, revision: int) -> AsyncIterator[tuple[str, int]]:
        """The keys with a prefix that are written from a revision on, and their revisions; without end."""
        request = {"create_request": {**span(prefix), "start_revision": str(revision)}}
        endless = aiohttp.ClientTimeout(total=None)
        try:
            async with self._session.post("/v3/watch", json=request, timeout=endless) as response:
                response.raise_for_status()
                async for line in response.content:
                    news = json.loads(line)
                    if "result" not in news:
                        raise NoAnswer(f"the watch ended: {news}")
                    for event in news["result"].get("events", []):
                        kv = event["kv"]
                        yield decoded(kv["key"]), int(kv["mod_revision"])
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise NoAnswer(f"the watch broke: {error!r}") from error

    async def _post(self, method: str, body: Mapping[str, Any]) -> Any:
        self.traffic.sent.append(asyncio.get_running_loop().time())
        limit = aiohttp.ClientTimeout(total=self._timeout)
        try:
            async with self._session.post(f"/v3/kv/{method}", json=body, timeout=limit) as response:
                if response.status == 429 or response.status >= 500:
                    raise TimeoutError(f"status {response.status}")  # etcd's own timeouts come as these
                response.raise_for_status()
                return await response.json()
        except (TimeoutError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            self.traffic.unanswered += 1
            raise NoAnswer(f"{method}: {error!r}") from error


@asynccontextmanager
async def session(url: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Connections to an etcd, as many as there are requests, so that none waits for one."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector, read_bufsize=LONGEST_LINE) as connections:
        yield connections


def item(kv: Mapping[str, str]) -> Item:
    return Item(int(b64decode(kv["value"])), int(kv["mod_revision"]), int(kv["version"]))


def span(prefix: str) -> dict[str, str]:
    """All keys that begin with a prefix."""
    return {"key": encoded(prefix), "range_end": encoded(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    return b64decode(text).decode()
