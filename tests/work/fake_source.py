"""An in-memory source that tests fill and can make fail."""

import asyncio
from collections import deque

from abate.work import Message


class FakeSource:
    """Hold messages in memory, and record how they were settled and which leases were extended."""

    name = "tray"
    durable = True

    def __init__(self, *messages, lease=None):
        self.lease = lease
        self.messages = deque(messages)
        self.settled = []
        self.extended = []
        self.taken = []
        self.asked = 0
        self.lost = set()
        self.receive_errors = deque()
        self.settle_errors = deque()
        self.extend_errors = deque()
        self.arrived = asyncio.Event()

    def put(self, *messages):
        self.messages.extend(messages)
        self.arrived.set()

    async def receive(self, most, wait):
        self.asked += 1
        if self.receive_errors:
            raise self.receive_errors.popleft()
        if not self.messages and wait:
            self.arrived.clear()
            await self.arrived.wait()
        batch = [self.messages.popleft() for _ in range(min(most, len(self.messages)))]
        self.taken += batch
        return batch

    async def extend(self, messages):
        if self.extend_errors:
            raise self.extend_errors.popleft()
        self.extended.append([message.key for message in messages])
        return [message for message in messages if message.key in self.lost]

    async def settle(self, settlements):
        if self.settle_errors:
            raise self.settle_errors.popleft()
        self.settled += [(message.key, verdict) for message, verdict in settlements if message.key not in self.lost]
        return [message for message, _ in settlements if message.key in self.lost]

    @property
    def verdicts(self):
        """Return the last verdict of each key."""
        return dict(self.settled)


class PlainFakeSource(FakeSource):
    """The same source with plain methods, which the loop calls in threads."""

    def receive(self, most, wait):
        batch = [self.messages.popleft() for _ in range(min(most, len(self.messages)))]
        self.taken += batch
        return batch

    def extend(self, messages):
        return ()

    def settle(self, settlements):
        self.settled += [(message.key, verdict) for message, verdict in settlements]
        return ()


def messages(*keys, **fields):
    """Return messages with these keys."""
    return [Message(key, **fields) for key in keys]
