"""dramatiq on Redis, with its defaults: eight threads; a message is acknowledged after its actor."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from handled import URL, handled

dramatiq.set_broker(RedisBroker(url=URL))


@dramatiq.actor
def handle(number: int) -> None:
    handled(number)


def fill(count: int) -> None:
    for number in range(count):
        handle.send(number)
