"""What type checkers must know about the public surface; read by mypy and pyright, never run.

An error that is expected and does not come fails: of mypy here, of pyright in refused.py.
"""

from collections import Counter
from collections.abc import AsyncIterator, MutableMapping
from typing import Any, assert_type

import abate
from abate.clients.asgi import Middleware
from abate.clients.trust import Secret

orders = abate.Policy(name="orders", on=(TimeoutError, abate.http.transient), max_attempts=4, timeout=30.0)


@abate.retry(on=ConnectionError)
def load(order: int, *, fresh: bool = False) -> str:
    return str(order)


@orders
async def aload(order: int) -> bytes:
    return bytes(order)


class Shop:
    @orders
    def method(self, order: int) -> str:
        return str(order)

    @orders
    async def amethod(self, order: int) -> str:
        return str(order)

    @orders
    @classmethod
    def above_classmethod(cls, order: int) -> str:
        return str(order)

    @classmethod
    @orders
    def below_classmethod(cls, order: int) -> str:
        return str(order)

    @orders
    @staticmethod
    def above_staticmethod(order: int) -> str:
        return str(order)

    @staticmethod
    @orders
    def below_staticmethod(order: int) -> str:
        return str(order)


assert_type(load(1, fresh=True), str)
assert_type(Shop().method(1), str)
assert_type(Shop.above_classmethod(1), str)
assert_type(Shop.below_classmethod(1), str)
assert_type(Shop.above_staticmethod(1), str)
assert_type(Shop.below_staticmethod(1), str)
assert_type(orders.call(load, 1, fresh=True), str)
assert_type(orders.call(Shop().method, 1), str)
assert_type(orders.describe().attempts, int | None)
assert_type(orders.replace(max_attempts=2), abate.Policy)


async def use() -> None:
    assert_type(await aload(1), bytes)
    assert_type(await orders.acall(aload, 1), bytes)
    assert_type(await Shop().amethod(1), str)
    async for attempt in orders.attempts():
        with attempt:
            assert_type(attempt.number, int)


load("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
load(1, stale=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
orders.call(load, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
abate.Policy(on="TimeoutError")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
abate.Backoff(jitter="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@abate.controller(workers=2, store="memory:")
def reconcile(key: str) -> abate.Again | None:
    return None if key else abate.Again(5.0)


@reconcile.source
async def watch() -> AsyncIterator[str]:
    yield "orders/42"


@reconcile.source(keys=lambda event: event["order"])
async def events() -> AsyncIterator[dict[str, str]]:
    yield {"order": "42"}


@reconcile.poll(every=30.0)
def unfinished() -> list[str]:
    return []


@abate.consumer(source=abate.open_store("memory:"))
async def handle(message: abate.work.Message) -> None: ...


assert_type(reconcile("orders/42"), abate.Again | None)
assert_type(unfinished(), list[str])
assert_type(reconcile.waiting(), int)
assert_type(reconcile.run(drain=True), Counter[str])
assert_type(handle.health().ready, bool)
assert_type(abate.open_store("memory:").queue("orders").add("42"), bool)
abate.Policy(on=OSError, budget=abate.open_store("memory:").budget("orders"))

reconcile(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
abate.controller(store=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

assert_type(abate.carry_deadline(load)(1, fresh=True), str)
assert_type(abate.deadline(None).remaining(), float)


async def served(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None: ...


secret = Secret("an-example-of-24-letters")
Middleware(served, trusted=["10.0.0.0/8", secret, lambda scope: scope["path"] == "/"], min_deadline=0.5, cancel=True)
Middleware(served, trusted=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# -- what is public is known by its type, and nothing else is there

abate.nonsense  # type: ignore[attr-defined]
abate.observe.nonsense  # type: ignore[attr-defined]
abate.clients.nonsense  # type: ignore[attr-defined]
abate.work.nonsense  # type: ignore[attr-defined]

assert_type(abate.work.Message("42", "body"), abate.work.Message)
assert_type(abate.observe.LoggingSink(), abate.observe.LoggingSink)
assert_type(abate.observe.PrometheusSink(), abate.observe.PrometheusSink)
assert_type(abate.stores.open_store("memory:").queue("orders").depth(), abate.stores.Depth)
assert_type(abate.CircuitBreaker().seconds_until_half_open(), float | None)

breaker = abate.CircuitBreaker(0.5, 20, 60.0, 30.0, name="api")
abate.Policy(on=OSError, gate=breaker & abate.ConcurrencyLimit(10))
abate.consumer(breaker=breaker)
abate.consumer(breaker=False)

# -- misspelt settings, settings by position, bare decorators

abate.Policy(on=OSError, max_attemps=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
abate.Policy(OSError)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
abate.controller(worker=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
abate.consumer(max_recieves=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
abate.CircuitBreaker(threshold=0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
abate.consumer(breaker=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
abate.retry(load)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
