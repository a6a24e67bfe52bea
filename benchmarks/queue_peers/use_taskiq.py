"""taskiq on a Redis stream, with its defaults: a hundred tasks; a message is acknowledged after its task."""

import asyncio

from handled import URL, handled
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(URL, consumer_id="0")


@broker.task
async def handle(number: int) -> None:
    handled(number)


def fill(count: int) -> None:
    async def send() -> None:
        await broker.startup()
        for number in range(count):
            await handle.kiq(number)
        await broker.shutdown()

    asyncio.run(send())
