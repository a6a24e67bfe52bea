"""What a request that succeeds at once pays for its retries: abate's transports around a plain one, in the process.

python benchmarks/http_clients.py
"""

from __future__ import annotations

import sys
from typing import Any

import httpx
from timing import Samples, loop, measure, table

import abate
from abate.clients.httpx import AsyncTransport, Transport

POLICY = abate.Policy(on=abate.http.transient, budget=abate.Budget(reserve=1e6))


class Tries(httpx.BaseTransport):
    """The loop that one writes by hand: three attempts, no wait, no budget, no headers."""

    def __init__(self, transport: httpx.BaseTransport) -> None:
        self.transport = transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for left in (2, 1, 0):
            response = self.transport.handle_request(request)
            if response.status_code < 500 or not left:
                return response
            response.close()
        raise AssertionError("unreachable")


def requests(method: str) -> httpx.Request:
    """A request as a client builds it."""
    body = b"x" * 100 if method == "POST" else None
    with httpx.Client() as client:
        return client.build_request(method, "http://orders.internal/42?full=1", content=body)


def sync(method: str) -> Samples:
    plain = httpx.MockTransport(lambda request: answer)
    answer = httpx.Response(200)
    return compare(method, "handle_request", plain, {"by hand": Tries(plain), "abate": Transport(POLICY, plain)})


def asynchronous(method: str) -> Samples:
    plain = httpx.MockTransport(lambda request: answer)
    answer = httpx.Response(200)
    return compare(method, "handle_async_request", plain, {"abate": AsyncTransport(POLICY, plain)}, awaited=True)


def compare(method: str, send: str, plain: Any, others: dict[str, Any], *, awaited: bool = False) -> Samples:
    """Every transport sends a request of its own over and over, as one that is used again."""
    return measure(
        {
            name: loop(
                f"{'await ' if awaited else ''}send(request)",
                awaited=awaited,
                send=getattr(transport, send),
                request=requests(method),
            )
            for name, transport in {"plain": plain, **others}.items()
        }
    )


def whole_clients() -> Samples:
    """What it is of a request through a client, with everything that a client does."""
    plain = httpx.MockTransport(lambda request: httpx.Response(200))
    clients = {"plain": httpx.Client(transport=plain), "abate": httpx.Client(transport=Transport(POLICY, plain))}
    url = "http://orders.internal/42"
    return measure({name: loop("get(url)", get=client.get, url=url) for name, client in clients.items()}, rounds=30)


def main() -> int:
    bars = []
    for method in ("GET", "POST"):
        for title, samples, bar in (
            (f"{method}, sync", sync(method), 2.0),
            (f"{method}, await", asynchronous(method), 4.0),
        ):
            table(f"A request that succeeds: {title}", samples, "plain")
            bars.append((title, (min(samples["abate"]) - min(samples["plain"])) / 1000, bar))
    table("A request that succeeds: client.get", whole_clients(), "plain")
    print("\nAgainst the bars\n\n| what | µs on top | bar | |\n|---|---:|---:|---|")
    for what, value, bar in bars:
        print(f"| {what} | {value:.2f} | {bar:g} | {'kept' if value <= bar else 'MISSED'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
