"""Twenty victims per second beside an attacker on the same policy: how many of them are served, and how soon?

    python benchmarks/tenants.py [SECONDS [ROUNDS]]

Real sockets on loopback, through httpx: one server process answers the victims within 20 ms, and each attack in its own
way. The attacker's requests carry another tenant's name, which is the key where there are keys.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from typing import Any

import httpx
import pybreaker  # type: ignore[import-not-found, unused-ignore]

import abate
import abate.clients.httpx

VICTIMS = 20.0
TAKES = 0.02
ATTACKS = {
    "nobody": 0.0,
    "500s, 60/s": 60.0,
    "429 and 503 that ask for minutes, 8/s": 8.0,
    "429 and 503 that ask for minutes, 60/s": 60.0,
    "hangs, 60/s": 60.0,
}
HEADERS = "HTTP/1.1 {} Told\r\nContent-Length: 0\r\n{}\r\n"
Get = Callable[[str, str], Awaitable[int]]


# -- the server


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refusals: Any) -> None:
    """Answer by the path that is asked for, until the connection is closed."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split(b" ", 2)[1]
            if path == b"/good":
                await asyncio.sleep(TAKES)
                text = HEADERS.format(200, "")
            elif path == b"/500":
                await asyncio.sleep(TAKES / 4)
                text = HEADERS.format(500, "")
            elif path == b"/hint":
                text = HEADERS.format(next(refusals), "Retry-After: 240\r\n")
            else:
                await reader.read()  # until the client hangs up
                return
            writer.write(text.encode())
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve() -> None:
    refusals = cycle((429, 503))
    server = await asyncio.start_server(lambda r, w: answer(r, w, refusals), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # the parent is gone


# -- the candidates


def client(**options: Any) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    return httpx.AsyncClient(trust_env=False, timeout=1.0, limits=limits, **options)


def by_abate(key: Any = None, **settings: Any) -> tuple[httpx.AsyncClient, Get]:
    policy = abate.Policy(name="api", on=abate.http.transient, timeout=3.0, **settings)
    http = client(transport=abate.clients.httpx.AsyncTransport(policy, key=key))

    async def get(url: str, tenant: str) -> int:
        return (await http.get(url, headers={"Tenant": tenant})).status_code

    return http, get


def by_breaker() -> tuple[httpx.AsyncClient, Get]:
    http, breaker = client(), pybreaker.CircuitBreaker(fail_max=5, reset_timeout=10)

    async def get(url: str, tenant: str) -> int:
        with breaker.calling():
            response = await http.get(url)
            response.raise_for_status()
        return response.status_code

    return http, get


def of_tenant(request: httpx.Request) -> str:
    return request.headers["Tenant"]


CANDIDATES: dict[str, Callable[[], tuple[httpx.AsyncClient, Get]]] = {
    "no shelter": by_abate,
    "circuit breaker (pybreaker: 5 failures, 10 s)": by_breaker,
    "shelter": lambda: by_abate(shelter=abate.Shelter(name="api")),
    "throttle": lambda: by_abate(gate=abate.AdaptiveThrottle()),
    "shelter, with keys": lambda: by_abate(of_tenant, shelter=abate.Shelter(name="api")),
}


# -- one run


async def run(candidate: str, attack: str, port: int, seconds: float, seed: int) -> dict[str, Any]:
    """The victims' fate: how many were served, and within how many milliseconds."""
    http, get = CANDIDATES[candidate]()
    chance, waits, lost = random.Random(seed), [], 0
    path = "500" if attack.startswith("500") else "hint" if attack.startswith("4") else "hang"

    async def victim() -> None:
        nonlocal lost
        began = time.monotonic()
        try:
            served = await get(f"http://127.0.0.1:{port}/good", "victim") == 200
        except Exception:
            served = False
        if served:
            waits.append(time.monotonic() - began)
        else:
            lost += 1

    async def attacker() -> None:
        try:
            await get(f"http://127.0.0.1:{port}/{path}", "attacker")
        except Exception:
            pass

    async def arrivals(rate: float, call: Callable[[], Awaitable[None]]) -> None:
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            while rate and time.monotonic() < end:
                await asyncio.sleep(chance.expovariate(rate))
                group.create_task(call())  # type: ignore[arg-type]

    async with http:
        for _ in range(50):
            await victim()
        waits.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(arrivals(VICTIMS, victim))
            group.create_task(arrivals(ATTACKS[attack], attacker))
    waits.sort()
    share = len(waits) / (len(waits) + lost)
    return {
        "served": 100 * share,
        "p50": 1000 * waits[len(waits) // 2] if waits else float("nan"),
        "p90": 1000 * waits[int(0.9 * len(waits))] if waits else float("nan"),
    }


def measured(candidate: str, attack: str, port: int, seconds: float, seed: int) -> dict[str, Any]:
    """One run, in a process of its own."""
    job = [candidate, attack, port, seconds, seed]
    done = subprocess.run([sys.executable, __file__, "run", json.dumps(job)], capture_output=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main(seconds: float = 15.0, rounds: int = 3) -> None:
    with subprocess.Popen(
        [sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        print("| attacker | candidate | victims served, % | p50, ms | p90, ms |\n|---|---|---:|---:|---:|")
        for attack in ATTACKS:
            for candidate in CANDIDATES:
                runs = [measured(candidate, attack, port, seconds, seed) for seed in range(rounds)]
                served, p50, p90 = (statistics.median(each[name] for each in runs) for name in ("served", "p50", "p90"))
                waits = " | ".join("–" if wait != wait else f"{wait:.0f}" for wait in (p50, p90))
                print(f"| {attack} | {candidate} | {served:.1f} | {waits} |", flush=True)
        server.terminate()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["run", job]:
            print(json.dumps(asyncio.run(run(*json.loads(job)))))
        case given:
            main(*(kind(text) for kind, text in zip((float, int), given, strict=False)))
