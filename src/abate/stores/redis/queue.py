"""A queue in Redis: the rules of `abate.stores.contract`, each in one script (see `scripts`, and the folder lua).

The layout. A queue has these keys, all under one hash tag, so that a cluster keeps them together:

    item      hash              up to five fields for each message, one letter before its key:
                                r  state, sequence, due, priority, receives, token: w(aiting), l(eased), a(dded again
                                   while leased) or d(ead); due is since when or from when on it is ready, when its
                                   lease runs out, or when it died
                                u  sequence, receives, unanswered, where there are any; apart from r, so that version
                                   0.1 can work on the same queue
                                c  attributes and body
                                a  what was added while it was leased
                                w  of a dead one: kind, reason, trace
    line      sorted set        all that live, by due: what is ready, whether it waited for its time or its lease ran
                                out, is what is due
    lane      sorted set        those with a priority, by priority and due
    leased    sorted set        those that were leased, by the end of the lease; for counting
    dead      sorted set        those that are dead, by when they died
    meta      hash              the sequence, the turns, who watches, and how late it is
    bell      list              who waits blocks on it

Members of the sorted sets begin with the sequence, so that of two with one due the earlier comes first.

Waking. Who finds nothing blocks on the bell (BLPOP): whatever makes a message ready pushes onto it, if it is empty, and
Redis gives that to the one who has waited longest. A list rather than pub/sub, which would wake everybody in the fleet
for one message, and nobody who is just about to wait. For what comes by itself, a delay that is over or a lease that
runs out, one of those who wait watches: it blocks until that instant. The others block past it, and take its place
where it stays away. Nobody blocks for longer than `LONGEST_LOOK`, as whoever was woken may die before it looks.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from abate.clock import MachineClock
from abate.schedule.backoff import Uniform
from abate.stores.contract import DeadLetter, Depth, Queue
from abate.stores.envelope import UNREADABLE, readable
from abate.stores.input import LONGEST_REASON
from abate.stores.redis import scripts
from abate.stores.redis.envelope import shown, unwrapped, wrapped
from abate.stores.redis.scripts import BATCH, Script
from abate.stores.redis.server import LONGEST_LOOK
from abate.work.keys import QueueFull
from abate.work.source import Back, Bury, Done, Message, Settlement, Verdict

if TYPE_CHECKING:
    from abate.stores.redis.store import RedisStore

FULL = -1
SHORTEST_PAUSE = 1e-6
"""Seconds; a shorter one might not move a clock that counts from 1970 at all."""
T = TypeVar("T")


class RedisQueue(Queue):
    """The items of one queue in a store in Redis."""

    durable = True

    def __init__(
        self, store: RedisStore, name: str, lease: float, capacity: int | None, max_body: int, rng: Uniform = random
    ) -> None:
        super().__init__(name, lease, capacity, max_body)
        self._store = store
        self._keys = [key.encode() for key in store.names.of_queue(name)]  # once, and not at every call
        self._bell = store.names.bell(name)
        self._rng = rng

    def _call(self, script: Script, *args: Any, repeatable: bool = False) -> Any:
        return self._store.server.call(script, self._keys, (self._store.now(), *args), repeatable=repeatable)

    # -- in

    def _add(
        self, key: str, body: str, priority: int, after: float, attributes: Mapping[str, str], revive: bool
    ) -> bool:
        self._store.enlist(self.name)
        capacity = "" if self.capacity is None else self.capacity
        content = wrapped(body, attributes)
        new = self._call(scripts.ADD, key, content, priority, repr(after), int(revive), capacity, self.name)
        if new == FULL:
            raise QueueFull(f"the queue {self.name!r} holds {self.capacity} messages, and no more")
        return bool(new)

    def _cancel(self, key: str) -> bool:
        return bool(self._call(scripts.CANCEL, key))

    # -- out

    def _receive(self, most: int, wait: float) -> list[Message]:
        clock = self._store.clock
        waiter = os.urandom(8).hex() if wait else ""
        end = clock.now() + wait
        while True:
            left = end - clock.now()
            messages, due = self._take(most, waiter, left)
            if messages or left <= 0:
                return messages
            pause = left if due is None else min(left, due)
            if isinstance(clock, MachineClock):
                self._store.server.listen(self._bell, min(pause, LONGEST_LOOK * (0.5 + 0.5 * self._rng.random())))
            else:
                clock.sleep(max(SHORTEST_PAUSE, pause))

    def _take(self, most: int, waiter: str, left: float) -> tuple[list[Message], float | None]:
        """What is ready, up to so many; where nothing is, the seconds after which to look again, if there are any."""
        messages: list[Message] = []
        while True:
            wanted = min(BATCH, most - len(messages))
            patience = 0.0 if messages else max(0.0, left)  # who has got something does not wait
            waits = (waiter, repr(patience), repr(self._rng.random())) if waiter else ()
            pause, strays, *parts = self._call(scripts.RECEIVE, wanted, repr(self._lease), *waits)
            leased = list(zip(*[iter(parts)] * 5, strict=True))
            before = len(messages)
            for key, content, receives, token, unanswered in leased:
                try:
                    name, body, attributes = unwrapped(key, content, self.max_body)
                    known = receives, int(token), attributes
                    messages.append(Message(name, body, *known, unanswered=unanswered))
                except ValueError as error:
                    self._bury_unreadable(key, token, error)
            if len(messages) == most or (len(messages) - before < wanted and len(leased) < wanted and not strays):
                return messages, float(pause) if pause else None

    def _bury_unreadable(self, key: bytes, token: bytes, error: ValueError) -> None:
        """Bury one that can't be read, with its bytes as they are."""
        self._call(scripts.SETTLE, key, token, *_worded(Bury(*UNREADABLE.because(error))))

    def _extend(self, messages: Sequence[Message]) -> list[Message]:
        lost: list[Message] = []
        for batch in _batches(messages):
            pairs = [part for message in batch for part in (message.key, message.token)]
            numbers = self._call(scripts.EXTEND, repr(self._lease), *pairs, repeatable=True)
            lost += [batch[number] for number in numbers]
        return lost

    def _settle(self, settlements: Sequence[Settlement]) -> list[Message]:
        batches = list(_batches(settlements))
        answers = self._store.server.calls(
            [
                (
                    scripts.SETTLE,
                    self._keys,
                    [self._store.now(), *(part for one in batch for part in _settlement(*one))],
                )
                for batch in batches
            ]
        )
        return [batch[number][0] for batch, lost in zip(batches, answers, strict=True) for number in lost]

    # -- what there is

    def depth(self) -> Depth:
        return counted(self._call(scripts.DEPTH, repeatable=True))

    def _dead(self, limit: int) -> list[DeadLetter]:
        letters: dict[bytes, DeadLetter] = {}  # by key: of those that died at one instant some may be shown twice
        last: Any = b""
        died: Any = b""
        while len(letters) < limit:
            most = min(BATCH, limit - len(letters))
            last, died, *parts = self._call(scripts.LETTERS, most, last, died, repeatable=True)
            letters |= {parts[n]: _letter(self._shown, *parts[n : n + 5]) for n in range(0, len(parts), 5)}
            if not last:
                break
        return list(letters.values())

    def _redrive(self, keys: Sequence[str] | None) -> int:
        return self._exhumed("redrive", keys)

    def _purge(self, keys: Sequence[str] | None) -> int:
        return self._exhumed("purge", keys)

    def _exhumed(self, what: str, keys: Sequence[str] | None) -> int:
        if keys is not None:
            return sum(self._call(scripts.EXHUME, what, "", *batch)[0] for batch in _batches(keys))
        total: int = 0
        died_by = b""
        while True:  # those that die meanwhile are left alone, so this ends
            many, looked_at, died_by = self._call(scripts.EXHUME, what, died_by)
            total += many
            if looked_at < BATCH:
                return total


def counted(answer: Sequence[Any]) -> Depth:
    """What the script says of how many there are."""
    ready, delayed, leased, dead, age = answer
    return Depth(ready, delayed, leased, dead, float(age) if age else None)


def _batches(several: Sequence[T]) -> Iterator[Sequence[T]]:
    return (several[start : start + BATCH] for start in range(0, len(several), BATCH))


def _settlement(message: Message, verdict: Verdict) -> tuple[Any, ...]:
    return (message.key, message.token, *_worded(verdict))


def _worded(verdict: Verdict) -> tuple[str, str]:
    """A verdict, as the script knows it."""
    match verdict:
        case Done(None):
            return "done", ""
        case Done(again):
            return "again", repr(again)
        case Back(after, touched):
            return "back" if touched else "untouched", repr(after)
        case Bury(kind, reason, trace):
            return "bury", json.dumps([kind, reason, trace], ensure_ascii=False)


def _letter(
    longest: int, key: bytes, content: bytes | None, why: bytes | None, receives: int, died: bytes
) -> DeadLetter:
    body, attributes = shown(content, longest)
    try:
        kind, reason, trace = (readable(str(words), LONGEST_REASON) for words in json.loads(why or b""))
    except (ValueError, TypeError, RecursionError):  # another program may have written anything
        kind, reason, trace = "", readable(why, LONGEST_REASON), ""
    return DeadLetter(readable(key, longest), body, attributes, kind, reason, trace, receives, float(died))
