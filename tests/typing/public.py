"""What type checkers must know about decorated functions; read by mypy and pyright, never run."""

from typing import assert_type

import abate

orders = abate.Policy(name="orders", on=(TimeoutError, abate.http.transient), attempts=4, timeout=30.0)


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
assert_type(orders.describe().attempts, int)
assert_type(orders.replace(attempts=2), abate.Policy)


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
