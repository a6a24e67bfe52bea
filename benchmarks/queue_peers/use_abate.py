"""abate, with its defaults: four workers of a plain function; or 32 tasks of a coroutine function."""

import sys

from handled import URL, handled

import abate


def fill(count: int) -> None:
    with abate.open_store(URL) as store:
        queue = store.queue("handle")
        for number in range(count):
            queue.send(str(number))


if __name__ == "__main__":
    if sys.argv[1] == "async":

        @abate.consumer(workers=32)
        async def handle(message: abate.work.Message) -> None:
            handled(int(message.body))

    else:

        @abate.consumer()
        def handle(message: abate.work.Message) -> None:
            handled(int(message.body))

    handle.run(URL)
