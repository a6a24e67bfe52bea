"""litequeue on SQLite: a loop over `pop` and `done`."""

import time

import litequeue
from handled import URL, handled


def fill(count: int) -> None:
    queue = litequeue.LiteQueue(URL)
    for number in range(count):
        queue.put(str(number))


def main() -> None:
    queue = litequeue.LiteQueue(URL)
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(0.05)
            continue
        handled(int(message.data))
        claim = {"claim_id": message.claim_id} if hasattr(message, "claim_id") else {}  # since 0.14
        queue.done(message.message_id, **claim)


if __name__ == "__main__":
    main()
