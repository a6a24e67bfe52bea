"""pgqueuer on PostgreSQL: its batch of ten, with up to a hundred tasks."""

import asyncio

import asyncpg
from handled import URL, handled
from pgqueuer.db import AsyncpgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

BATCH = 500


def fill(count: int) -> None:
    async def send() -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))
        await queries.install()
        for start in range(0, count, BATCH):
            numbers = range(start, min(count, start + BATCH))
            await queries.enqueue(["handle"] * len(numbers), [str(n).encode() for n in numbers], [0] * len(numbers))

    asyncio.run(send())


async def main() -> None:
    manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(URL))))

    @manager.entrypoint("handle")
    async def handle(job):
        handled(int(job.payload))

    await manager.run(batch_size=10, max_concurrent_tasks=100)


if __name__ == "__main__":
    asyncio.run(main())
