"""Adds messages to a queue in a store: one or many at once, from threads and from event loops.

`Producer` checks what it is given. An engine implements `_add_many`, which adds all of its messages in one transaction.
"""

from __future__ import annotations

import asyncio
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

from abate import clock as clocks
from abate.clock import MACHINE, in_trio
from abate.errors import number, whole
from abate.stores.encoding import MAX_KEY_BYTES, MAX_PRIORITY, checked_attributes, checked_text
from abate.work.add_counts import AddCounts

MAX_MANY = 10_000
"""Maximum number of messages in one call: a store is not available to others while it adds them."""
MAX_MANY_BYTES = 67_108_864
"""Maximum bytes of several messages together, with their keys and attributes; a single message may be longer."""

T = TypeVar("T")


def _bounded(items: Any, expected: str) -> list[Any]:
    """Return the messages of one call as a list; raise, without reading on, if there are more than it takes."""
    if isinstance(items, (str, bytes)) or not isinstance(items, Iterable):
        raise TypeError(f"{expected}, not {items!r:.80}")
    given = list(islice(items, MAX_MANY + 1))
    if len(given) > MAX_MANY:
        count = len(items) if isinstance(items, Sized) else f"{len(given)} or more"
        raise ValueError(f"one call adds at most {MAX_MANY} messages, not {count}: split them into several calls")
    return given


class Producer(ABC):
    """Adds messages to a queue. Every method has a twin for event loops: `aadd`, `aadd_many`, `asend`, `asend_many`."""

    durable: bool
    max_body: int
    add_counts: AddCounts

    def add(
        self,
        key: str,
        body: str = "",
        *,
        priority: int = 0,
        after: float = 0.0,
        attributes: Mapping[str, str] | None = None,
        revive: bool = True,
    ) -> bool:
        """Add a message that becomes ready after `after` seconds. Return whether its key is new in this queue.

        If the key waits already, its message takes the newer body, the higher priority and the earlier due instant. If
        it is leased, it waits again once it is settled. If it is dead, it is redriven, unless `revive` is false.

        >>> import abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("orders")
        >>> queue.add("orders/42", after=60.0), queue.add("orders/42", "now"), queue.receive()
        (True, False, [Message(key='orders/42', body='now', receives=1)])
        """
        checked = {self._checked_key(key): self._checked_body(body)}
        return self._add_checked(checked, priority, after, checked_attributes(attributes), revive)[key]

    def add_many(
        self,
        messages: Iterable[str | tuple[str, str]] | Mapping[str, str],
        *,
        priority: int = 0,
        after: float = 0.0,
        attributes: Mapping[str, str] | None = None,
        revive: bool = True,
    ) -> list[bool]:
        """Add keys, or pairs of a key and a body, in one transaction: all or none. Return for each whether it is new.

        The result is as if `add` was called for one after the other, with the same options. If they don't all fit into
        the queue's capacity, `QueueFull` is raised and none is added. A call takes up to 10,000 messages of up to
        64 MiB together.

        >>> import abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("orders")
        >>> queue.add_many(["orders/1", "orders/2"]), queue.add_many({"orders/2": "{}", "orders/3": "{}"}, priority=1)
        ([True, True], [False, True])
        """
        shared = checked_attributes(attributes)
        given = messages.items() if isinstance(messages, Mapping) else messages
        expected = "messages must be a list of keys, or of pairs of a key and a body"
        pairs = [self._checked_pair(message) for message in _bounded(given, expected)]
        unique = dict(pairs)
        self._check_total(len(pairs), unique, shared)
        new = self._add_checked(unique, priority, after, shared, revive, len(pairs))
        return [new.pop(key, False) for key, _ in pairs]  # a key that is given twice is new once

    def send(
        self, body: str, *, priority: int = 0, after: float = 0.0, attributes: Mapping[str, str] | None = None
    ) -> str:
        """Add a message under a new random key, and return the key."""
        key = os.urandom(16).hex()
        self.add(key, body, priority=priority, after=after, attributes=attributes)
        return key

    def send_many(
        self,
        bodies: Iterable[str],
        *,
        priority: int = 0,
        after: float = 0.0,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Add messages under new random keys, in one transaction like `add_many`, and return the keys.

        >>> import abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("mails")
        >>> keys = queue.send_many(["to Ann", "to Bob"])
        >>> [message.body for message in queue.receive(10)]
        ['to Ann', 'to Bob']
        """
        shared = checked_attributes(attributes)
        checked = [self._checked_body(body) for body in _bounded(bodies, "bodies must be a list of strings")]
        # keys that share their beginning are neighbours in an index
        unique = os.urandom(13).hex()
        messages = {f"{unique}{place:06x}": body for place, body in enumerate(checked)}
        self._check_total(len(checked), messages, shared)
        self._add_checked(messages, priority, after, shared, True, len(checked))
        return list(messages)

    # -- from an event loop

    async def aadd(
        self,
        key: str,
        body: str = "",
        *,
        priority: int = 0,
        after: float = 0.0,
        attributes: Mapping[str, str] | None = None,
        revive: bool = True,
    ) -> bool:
        """Do the same as `add` without blocking the event loop, of asyncio or trio.

        The call is made in another thread. If the task is cancelled meanwhile, the message may have been added.

        >>> import asyncio, abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("orders")
        >>> asyncio.run(queue.aadd("orders/42"))
        True
        """
        options = {"priority": priority, "after": after, "attributes": attributes, "revive": revive}
        return await self._in_thread(partial(self.add, key, body, **options))  # type: ignore[arg-type]

    async def aadd_many(
        self,
        messages: Iterable[str | tuple[str, str]] | Mapping[str, str],
        *,
        priority: int = 0,
        after: float = 0.0,
        attributes: Mapping[str, str] | None = None,
        revive: bool = True,
    ) -> list[bool]:
        """Do the same as `add_many` without blocking the event loop; see `aadd`.

        >>> import asyncio, abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("orders")
        >>> asyncio.run(queue.aadd_many(["orders/1", "orders/1"]))
        [True, False]
        """
        options = {"priority": priority, "after": after, "attributes": attributes, "revive": revive}
        return await self._in_thread(partial(self.add_many, messages, **options))  # type: ignore[arg-type]

    async def asend(
        self, body: str, *, priority: int = 0, after: float = 0.0, attributes: Mapping[str, str] | None = None
    ) -> str:
        """Do the same as `send` without blocking the event loop; see `aadd`.

        >>> import asyncio, abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("mails")
        >>> asyncio.run(queue.asend("to Ann")) == queue.receive()[0].key
        True
        """
        return await self._in_thread(partial(self.send, body, priority=priority, after=after, attributes=attributes))

    async def asend_many(
        self,
        bodies: Iterable[str],
        *,
        priority: int = 0,
        after: float = 0.0,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Do the same as `send_many` without blocking the event loop; see `aadd`.

        >>> import asyncio, abate.stores
        >>> queue = abate.stores.open_store("memory:").queue("mails")
        >>> len(asyncio.run(queue.asend_many(["to Ann", "to Bob"])))
        2
        """
        options = {"priority": priority, "after": after, "attributes": attributes}
        return await self._in_thread(partial(self.send_many, bodies, **options))  # type: ignore[arg-type]

    async def _in_thread(self, call: Callable[[], T]) -> T:
        if not self.durable or clocks.entered_clock() is not None:  # in memory, or in virtual time, it does not wait
            await MACHINE.asleep(0.0)
            return call()
        if in_trio():
            to_thread: Any = sys.modules["trio"].to_thread
            return cast(T, await to_thread.run_sync(call))
        return await asyncio.to_thread(call)

    # -- checks

    def _checked_key(self, key: Any) -> str:
        return checked_text("a key", key, MAX_KEY_BYTES, empty=False)

    def _checked_body(self, body: Any) -> str:
        return checked_text("a body", body, self.max_body)

    def _checked_pair(self, given: Any) -> tuple[str, str]:
        if isinstance(given, str):
            return self._checked_key(given), ""
        if not isinstance(given, tuple) or len(given) != 2:
            raise TypeError(f"a message must be a key, or a pair of a key and a body, not {given!r:.80}")
        return self._checked_key(given[0]), self._checked_body(given[1])

    def _check_total(self, count: int, messages: Mapping[str, str], attributes: Mapping[str, str]) -> None:
        if count < 2:
            return
        each = sum(len(text.encode()) for pair in attributes.items() for text in pair)
        total = count * each + sum(len(text.encode()) for pair in messages.items() for text in pair)
        if total > MAX_MANY_BYTES:
            raise ValueError(
                f"one call adds at most {MAX_MANY_BYTES} bytes, not {total}: split the messages into several calls"
            )

    def _add_checked(
        self,
        messages: dict[str, str],
        priority: int,
        after: float,
        attributes: Mapping[str, str],
        revive: bool,
        count: int = 1,
    ) -> dict[str, bool]:
        """Add messages by key, given `count` times in all. Return by key whether it is new."""
        whole("priority", priority, least=0, most=MAX_PRIORITY)
        seconds = number("after", after, least=0)
        if not messages:
            return {}
        new = self._add_many(list(messages.items()), priority, seconds, attributes, revive)
        # without `revive` a known key may be dead: not coalesced
        self.add_counts.record(count, count - (sum(new) if revive else len(new)))
        return dict(zip(messages, new, strict=True))

    @abstractmethod
    def _add_many(
        self,
        messages: list[tuple[str, str]],
        priority: int,
        after: float,
        attributes: Mapping[str, str],
        revive: bool,
    ) -> list[bool]:
        """Add messages with different keys, all or none. Return for each whether its key is new."""
