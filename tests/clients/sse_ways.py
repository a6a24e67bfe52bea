"""Every way to read server-sent events: httpx, httpx2 and aiohttp, in a thread, asyncio and trio; and a server."""

import asyncio
from contextlib import aclosing, closing

import aiohttp
import httpx
import httpx2
import pytest
import trio

import abate
from abate.clients import sse
from tests.clients.server import Server, respond


class Way:
    """One way to read events."""

    def __init__(self, library, loop):
        self.library = library
        self.loop = loop

    def __repr__(self):
        return f"{self.library.__name__}-{self.loop}"

    @property
    def sync(self):
        return self.loop == "threads"

    def client(self, **options):
        if self.library is aiohttp:
            return aiohttp.ClientSession(**options)
        kind = self.library.Client if self.sync else self.library.AsyncClient
        return kind(verify=False, **options)

    def run(self, function, *args):
        return asyncio.run(function(*args)) if self.loop == "asyncio" else trio.run(function, *args)

    def read(self, url, *, count=None, seen=None, method="GET", client=None, **options):
        """All events, or at most the given number; `seen` gets them as they come."""
        seen = [] if seen is None else seen
        if not self.sync:
            return self.run(self._aread, url, count, seen, method, client or {}, options)
        with self.client(**(client or {})) as opened, closing(sse.events(opened, method, url, **options)) as found:
            for event in found:
                seen.append(event)
                if len(seen) == count:
                    break
        return seen

    async def _aread(self, url, count, seen, method, client, options):
        async with self.client(**client) as opened, aclosing(sse.events(opened, method, url, **options)) as found:
            async for event in found:
                seen.append(event)
                if len(seen) == count:
                    break
        return seen


WAYS = [
    Way(httpx, "threads"),
    Way(httpx2, "threads"),
    Way(httpx, "asyncio"),
    Way(httpx2, "asyncio"),
    Way(httpx, "trio"),
    Way(aiohttp, "asyncio"),
]
every = pytest.mark.parametrize("way", WAYS, ids=repr)


class EventServer(Server):
    """Says 204 when its script has run out."""

    def pick(self, request):
        return self.script.popleft() if self.script else respond(204)

    @property
    def last_ids(self):
        return [request.headers.get("last-event-id") for request in self.requests]


def policy(**settings):
    """A policy that doesn't wait, unless told."""
    return abate.Policy(**{"on": abate.http.transient, "backoff": [0.0], "name": "news", **settings})


def texts(events):
    return [event.data for event in events]


def numbered(*numbers):
    return [f"id: {number}\ndata: event {number}\n\n" for number in numbers]
