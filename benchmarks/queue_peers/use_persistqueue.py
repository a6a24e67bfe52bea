"""persist-queue on SQLite: a loop over `get` and `ack`."""

import time
from pathlib import Path

import persistqueue
from handled import URL, handled


def opened() -> persistqueue.SQLiteAckQueue:
    return persistqueue.SQLiteAckQueue(str(Path(URL).parent), multithreading=True)


def fill(count: int) -> None:
    queue = opened()
    for number in range(count):
        queue.put(number)


def main() -> None:
    queue = opened()
    while True:
        try:
            number = queue.get(block=False)
        except persistqueue.Empty:
            time.sleep(0.05)
            continue
        handled(number)
        queue.ack(number)


if __name__ == "__main__":
    main()
