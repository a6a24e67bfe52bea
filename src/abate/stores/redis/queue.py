"""A queue in Redis: each operation of `abate.stores.queue_contract` is one script (see `scripts`, and the folder lua).

A queue has these keys, all under one hash tag, so that a cluster keeps them on one node:

    item      hash              up to five fields for each message; a letter precedes the message's key:
                                r  state, sequence, due, priority, receives, token. The state is w(aiting), l(eased),
                                   a(dded again while leased) or d(ead); due is the instant of being ready, of the
                                   end of the lease, or of death
                                u  sequence, receives, unanswered, if unanswered is not 0
                                c  attributes and body
                                a  what was added while the message was leased
                                w  of a dead letter: kind, reason, trace
    line      sorted set        all messages that are not dead, by due: those that are due are ready, whether their
                                delay is over or their lease ran out
    lane      sorted set        messages with a priority, by priority and due
    leased    sorted set        messages that were leased, by the end of the lease; for counting
    dead      sorted set        dead letters, by the time of death
    meta      hash              the sequence, the turns of priorities, the watcher, and the latest instant seen
    bell      list              waiting clients block on it

Members of the sorted sets begin with the sequence, so that of two messages with the same due the earlier comes first.

Wake-ups: a client that finds no message blocks on the list `bell` (BLPOP), and sends its next receive behind that
command, so that a wake-up costs no further round trip (in a cluster it does). A script that makes a message ready
pushes onto the list if it is empty, and Redis gives the element to the client that has waited longest. Pub/sub would
wake every client for one message, and miss a client that is about to wait. Nothing is pushed when a delay or a lease
ends, so one waiting client is the watcher: it blocks until that instant. The others block longer, and one of them
replaces a watcher that is late. No client blocks longer than `MAX_BLOCK`: a client whose machine has lost its network
may take a wake-up, and then messages, until its block ends; their leases run out. Each client also blocks on a list of
its own, ``bell:id``, to which `interrupt` pushes.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from abate.schedule.backoff import RandomSource
from abate.stores.encoding import (
    MAX_REASON_BYTES,
    batches,
    decode_content,
    encode_content,
    preview,
    preview_content,
    unreadable_reason,
)
from abate.stores.queue_contract import DeadLetter, Depth, Queue
from abate.stores.redis import scripts
from abate.stores.redis.connection import MAX_BLOCK
from abate.stores.redis.scripts import BATCH, LuaScript
from abate.work.key_queue import QueueFull
from abate.work.source import Back, Bury, Done, Message, Settlement, Verdict

if TYPE_CHECKING:
    from abate.stores.redis.store import RedisStore

FULL = -1
NOTHING = 2
"""The length of a reply of the script `receive` without messages."""


class BlockingWaiter:
    """One call that waits for a message, blocking on the wake-up list and on a list of its own, for interrupts.

    Behind the command that blocks, the script `receive` is sent in the same round trip; `reply` is its reply.
    """

    __slots__ = ("_queue", "ends", "id", "interrupted", "left", "reply", "wanted")

    def __init__(self, queue: RedisQueue) -> None:
        self._queue = queue
        self.id = os.urandom(8).hex()
        self.left = 0.0
        self.wanted: tuple[int, int] = (1, 1)
        """The number of messages that the last receive has asked for, and how many of them count."""
        self.reply: list[Any] | None = None
        self.ends = False
        """Whether the receive behind the wait was sent as the last one of this call."""
        self.interrupted = False

    def look(self, left: float) -> None:
        self.left = 0.0 if self.interrupted else max(0.0, left)

    def wait(self, seconds: float) -> None:
        self._queue.block(self, seconds)

    def take_reply(self) -> list[Any] | None:
        """Return the reply that came with the last wait; None if a new one is needed."""
        reply, self.reply = self.reply, None
        # it found nothing, and this call goes on after all (another client took the message), or ends after all
        outdated = reply is not None and len(reply) == NOTHING and self.ends == bool(self.left)
        return None if outdated else reply


class RedisQueue(Queue):
    """A queue in a store in Redis."""

    durable = True
    _batch_size = BATCH

    def __init__(
        self,
        store: RedisStore,
        name: str,
        lease: float,
        capacity: int | None,
        max_body: int,
        rng: RandomSource = random,
    ) -> None:
        super().__init__(store, name, lease, capacity, max_body)
        self._store = store
        self._keys = [key.encode() for key in store.names.queue_keys(name)]
        self._wakeup_list = store.names.wakeup_list(name)
        self._rng = rng
        self._waiters: dict[str, BlockingWaiter] = {}
        """The calls of this process that wait for a message, by id."""

    def _call(self, script: LuaScript, *args: Any, repeatable: bool = False) -> Any:
        return self._store.server.call(script, self._keys, (self._store.now(), *args), repeatable=repeatable)

    # -- adding

    def _add_many(
        self, messages: list[tuple[str, str]], priority: int, after: float, attributes: Mapping[str, str], revive: bool
    ) -> list[bool]:
        self._store.register_queue(self.name)
        capacity = "" if self.capacity is None else self.capacity
        first_line = encode_content("", attributes)
        contents = (part for key, body in messages for part in (key, first_line + body))
        new = self._call(scripts.ADD, priority, repr(after), int(revive), capacity, self.name, *contents)
        if new == FULL:
            raise QueueFull(f"the queue {self.name!r} is full: it holds {self.capacity} messages")
        return [flag == 1 for flag in new]

    def _cancel(self, key: str) -> bool:
        return bool(self._call(scripts.CANCEL, key))

    # -- working

    @contextmanager
    def _waiting(self) -> Iterator[BlockingWaiter]:
        waiter = BlockingWaiter(self)
        self._waiters[waiter.id] = waiter
        try:
            yield waiter
        finally:
            self._waiters.pop(waiter.id, None)

    def block(self, waiter: BlockingWaiter, seconds: float) -> None:
        """Block for at most `seconds`, and receive."""
        limit = min(seconds, MAX_BLOCK * (0.5 + 0.5 * self._rng.random()))
        left = max(0.0, waiter.left - limit)
        waiter.ends = not left
        args = self._store.now(), *waiter.wanted, *self._receive_options(waiter.id, left)
        lists = self._wakeup_list, self._interrupt_list(waiter.id)
        waiter.reply = self._store.server.listen(lists, limit, scripts.RECEIVE, self._keys, args)

    def _receive_options(self, waiter: str, left: float) -> tuple[str, ...]:
        return repr(self._lease), waiter, repr(left), repr(self._rng.random())

    def interrupt(self) -> None:
        for waiter in list(self._waiters.values()):
            waiter.interrupted = True
            self._store.server.interrupt(self._interrupt_list(waiter.id))

    def _interrupt_list(self, waiter: str) -> str:
        return f"{self._wakeup_list}:{waiter}"

    def _take(self, max_messages: int, ahead: int, waiter: BlockingWaiter | None) -> tuple[list[Message], float | None]:
        messages: list[Message] = []
        while True:
            wanted = min(BATCH, max_messages + ahead - len(messages))
            counted = max(0, min(wanted, max_messages - len(messages)))
            reply = None
            if waiter is not None:
                waiter.wanted = wanted, counted
                reply = waiter.take_reply()
            if reply is None:
                options: tuple[str, ...] = (repr(self._lease),)
                if waiter is not None:  # a call that has a message does not wait
                    options = self._receive_options(waiter.id, 0.0 if messages else waiter.left)
                reply = self._call(scripts.RECEIVE, wanted, counted, *options)
            pause, strays, *parts = reply
            leased = list(zip(*[iter(parts)] * 5, strict=True))
            before = len(messages)
            for key, content, receives, token, unanswered in leased:
                try:
                    name, body, attributes = decode_content(key, content, self.max_body)
                    known = receives, int(token), attributes
                    messages.append(Message(name, body, *known, unanswered=unanswered))
                except ValueError as error:
                    self._bury_unreadable(key, token, error)
            if len(messages) == max_messages + ahead or (
                len(messages) - before < wanted and len(leased) < wanted and not strays
            ):
                return messages, float(pause) if pause else None

    def _bury_unreadable(self, key: bytes, token: bytes, error: ValueError) -> None:
        """Bury a message that can't be decoded, with its bytes unchanged."""
        self._call(scripts.SETTLE, key, token, *_encode_verdict(Bury(*unreadable_reason(error))))

    def _extend(self, messages: Sequence[Message]) -> list[Message]:
        lost: list[Message] = []
        for batch in batches(messages, BATCH):
            pairs = [part for message in batch for part in (message.key, message.token)]
            numbers = self._call(scripts.EXTEND, repr(self._lease), *pairs, repeatable=True)
            lost += [batch[number] for number in numbers]
        return lost

    def _settle(self, settlements: Sequence[Settlement]) -> list[Message]:
        parts = list(batches(settlements, BATCH))
        replies = self._store.server.calls(
            [
                (
                    scripts.SETTLE,
                    self._keys,
                    [self._store.now(), *(part for one in batch for part in _encode_settlement(*one))],
                )
                for batch in parts
            ]
        )
        return [batch[number][0] for batch, lost in zip(parts, replies, strict=True) for number in lost]

    # -- looking, and dead letters

    def depth(self) -> Depth:
        return decode_depth(self._call(scripts.DEPTH, repeatable=True))

    def _dead_page(
        self, position: tuple[Any, Any] | None, max_letters: int
    ) -> tuple[dict[bytes, DeadLetter], tuple[Any, Any] | None]:
        wanted = min(BATCH, max_letters)
        last, died, *parts = self._call(scripts.DEAD_LETTERS, wanted, *(position or (b"", b"")), repeatable=True)
        letters = {parts[n]: _dead_letter(self._max_shown, *parts[n : n + 5]) for n in range(0, len(parts), 5)}
        return letters, (last, died) if last else None

    def _oldest_dead_letters(self) -> bytes:
        return b""  # the first batch returns when the last one died: later dead letters are not touched

    def _redrive_or_purge_batch(
        self, purge: bool, keys: Sequence[str] | None, position: bytes | None
    ) -> tuple[int, bytes | None]:
        what = "purge" if purge else "redrive"
        changed, looked_at, died_by = self._call(scripts.REDRIVE_OR_PURGE, what, position or "", *(keys or ()))
        return changed, None if position is None or looked_at < BATCH else died_by


def decode_depth(reply: Sequence[Any]) -> Depth:
    """Decode the reply of the script `depth`."""
    ready, delayed, leased, dead, age = reply
    return Depth(ready, delayed, leased, dead, float(age) if age else None)


def _encode_settlement(message: Message, verdict: Verdict) -> tuple[Any, ...]:
    return (message.key, message.token, *_encode_verdict(verdict))


def _encode_verdict(verdict: Verdict) -> tuple[str, str]:
    """Encode a verdict for the script `settle`."""
    match verdict:
        case Done(None):
            return "done", ""
        case Done(again):
            return "again", repr(again)
        case Back(after, touched):
            return "back" if touched else "untouched", repr(after)
        case Bury(kind, reason, trace):
            return "bury", json.dumps([kind, reason, trace], ensure_ascii=False)


def _dead_letter(
    max_bytes: int, key: bytes, content: bytes | None, why: bytes | None, receives: int, died: bytes
) -> DeadLetter:
    body, attributes = preview_content(content, max_bytes)
    try:
        kind, reason, trace = (preview(str(words), MAX_REASON_BYTES) for words in json.loads(why or b""))
    except (ValueError, TypeError, RecursionError):  # written by another program
        kind, reason, trace = "", preview(why, MAX_REASON_BYTES), ""
    return DeadLetter(preview(key, max_bytes), body, attributes, kind, reason, trace, receives, float(died))
