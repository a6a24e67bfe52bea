"""A queue in SQLite: each operation of `abate.stores.queue_contract` is one transaction.

The SQL is in `queue_statements`, the order of messages in `next_items`. `now` is read after the write lock was
acquired, which may take a while: a lease begins when it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf, isfinite
from sqlite3 import Connection
from time import sleep
from typing import TYPE_CHECKING, Any, TypeAlias

from abate.stores.encoding import (
    DEFAULT_MAX_BODY,
    MAX_ATTRIBUTES_BYTES,
    MAX_REASON_BYTES,
    checked_count,
    decode_attributes,
    decode_message,
    encode_attributes,
    preview,
    preview_attributes,
    unreadable_reason,
)
from abate.stores.message_waits import QueueWaiter
from abate.stores.queue_contract import DeadLetter, Depth, Queue
from abate.stores.sqlite import queue_statements as sql
from abate.stores.sqlite.next_items import next_items
from abate.stores.sqlite.schema import DEAD, LEASED
from abate.work.key_queue import QueueFull
from abate.work.source import Back, Bury, Done, Message, Settlement

if TYPE_CHECKING:
    from abate.stores.sqlite.database import Database
    from abate.stores.sqlite.store import SqliteStore

BATCH = 500
"""Dead letters that are read, redriven or purged at once."""
BATCH_PAUSE = 0.005
"""Seconds between two batches: other clients that wait for the write lock try again within this time."""
MAX_CLOCK_TOKEN = 2**52
"""Tokens follow the clock up to this value, and are counted on from there."""
MAX_TOKEN = 2**62
"""A higher token was written by another program."""

DeadLetterPosition: TypeAlias = tuple[float, int]
"""When a message became a dead letter, and its id."""


class SqliteQueue(Queue):
    """A queue in a SQLite store."""

    _batch_size = BATCH

    def __init__(self, store: SqliteStore, name: str, lease: float, capacity: int | None, max_body: int) -> None:
        super().__init__(store, name, lease, capacity, max_body)
        self.durable = store.file.path is not None
        self._store = store

    @property
    def _file(self) -> Database:
        return self._store.messages()

    # -- adding

    def _add_many(
        self, messages: list[tuple[str, str]], priority: int, after: float, attributes: Mapping[str, str], revive: bool
    ) -> list[bool]:
        content = priority, encode_attributes(attributes)
        new, waiting = self._file.transaction(partial(self._add_items, messages, after, *content, revive))
        if waiting:
            self._store.wakeups.wake_queue(self.name, waiting)
        return new

    def _add_items(
        self,
        messages: list[tuple[str, str]],
        after: float,
        priority: int,
        attributes: str | None,
        revive: bool,
        db: Connection,
    ) -> tuple[list[bool], int]:
        """Add items. Return for each whether its key is new, and how many wait."""
        now = self._store.now()
        due = now + after
        new: list[bool] = []
        started = waiting = 0
        for key, body in messages:
            if db.execute(sql.INSERT, (self.name, key, due, priority, attributes, body)).rowcount:
                started += 1
                waiting += 1
                new.append(True)
                continue
            id, state, known_due, again_due = db.execute(sql.KNOWN, (self.name, key)).fetchone()
            if state == DEAD:
                if revive:
                    db.execute(sql.REVIVE, (due, priority, attributes, body, id))
                    started += 1
                    waiting += 1
                new.append(revive)
            elif state == LEASED and known_due > now:
                db.execute(sql.ADD_WHILE_LEASED, (priority, due, priority, attributes, body, id))
                new.append(again_due is None)
            else:
                db.execute(sql.COALESCE, (due, priority, attributes, body, id))
                waiting += 1
                new.append(False)
        if started:
            self._check_capacity(db, now)
        return new, waiting

    def _check_capacity(self, db: Connection, now: float) -> None:
        """Raise `QueueFull` if too many messages wait; the transaction is then rolled back."""
        if self.capacity is None:
            return
        (waiting,) = db.execute(sql.COUNT_WAITING, {"queue": self.name, "now": now}).fetchone()
        if waiting > self.capacity:
            raise QueueFull(f"the queue {self.name!r} is full: it holds {self.capacity} messages")

    def _cancel(self, key: str) -> bool:
        def cancel(db: Connection) -> bool:
            now = self._store.now()
            at = (self.name, key, now)
            gone = db.execute("DELETE FROM item WHERE queue = ? AND key = ? AND state = 0 AND due > ?", at).rowcount
            return bool(gone or db.execute(sql.CANCEL_ADD_WHILE_LEASED, (*at, now)).rowcount)

        return self._file.transaction(cancel)

    # -- working

    def _receive(self, max_messages: int, ahead: int, wait: float) -> list[Message]:
        # try before joining the wait list, since leaving the list wakes another thread
        messages, _ = self._take(max_messages, ahead, None)
        return messages if messages or not wait else super()._receive(max_messages, ahead, wait)

    @contextmanager
    def _waiting(self) -> Iterator[QueueWaiter]:
        wakeups = self._store.wakeups
        with wakeups.waiting(self.name) as wait_list:
            yield QueueWaiter(wakeups, wait_list)

    def interrupt(self) -> None:
        self._store.wakeups.interrupt(self.name)

    def _take(self, max_messages: int, ahead: int, waiter: object) -> tuple[list[Message], float | None]:
        # read first: an empty queue needs no write lock
        ((due,),) = self._file.read(sql.NEXT_DUE, (self.name, self.name))
        if not isinstance(due, float):
            return [], None
        now = self._store.now()
        if due > now:
            return [], due - now
        return self._file.transaction(partial(self._lease_items, max_messages, ahead)), 0.0

    def _lease_items(self, max_messages: int, ahead: int, db: Connection) -> list[Message]:
        messages: list[Message] = []
        most, blocked = max_messages + ahead, False
        now = self._store.now()
        row = db.execute("SELECT token FROM lease").fetchone()
        token = row[0] if row and isinstance(row[0], int) and 0 <= row[0] < MAX_TOKEN else 0
        # tokens also follow the clock, so that a file restored from a backup does not repeat them
        token = max(token, min(int(now * 1e6), MAX_CLOCK_TOKEN))
        while len(messages) < most and not blocked:
            rows = next_items(db, self.name, most - len(messages), now, self.max_body)
            if not rows and (messages or not self._fix_priorities(db, now)):
                break
            for row in rows:
                counts = len(messages) < max_messages
                blocked = not counts and row[-1]  # in order: none behind one that was received before
                if blocked:
                    break
                message = self._lease_item(db, row, token + 1, now, counts)
                if message is not None:
                    token += 1
                    messages.append(message)
        db.execute("UPDATE lease SET token = ?", (token,))
        return messages

    def _fix_priorities(self, db: Connection, now: float) -> bool:
        """Give ready items without a valid priority the lowest one. Return whether there were any.

        Otherwise they would never be received, and a waiting call would query for them in a loop.
        """
        ((due,),) = db.execute(sql.NEXT_DUE, (self.name, self.name)).fetchall()
        ready = isinstance(due, float) and due <= now
        return ready and db.execute(sql.FIX_PRIORITIES, (self.name,)).rowcount > 0

    def _lease_item(self, db: Connection, row: tuple[Any, ...], token: int, now: float, counts: bool) -> Message | None:
        """Lease one item. If it can't be decoded, bury it with its bytes unchanged and return None.

        Unless the receive `counts`, it counts when the item is settled: until then `receives` is 0.
        """
        id, key, receives, attributes, body, again_due, again_attributes, again_body, unanswered, _ = row
        if again_due is not None:  # it was added during its last lease, which ran out
            attributes, body = again_attributes, again_body
            db.execute(sql.MERGE, (id,))
        try:
            receives, unanswered = checked_count(receives), checked_count(unanswered)
            found, text = decode_message(
                key or b"", body or b"", self.max_body
            )  # SQLite may hold NULL for an empty value
            message = Message(found, text, receives + 1, token, decode_attributes(attributes), unanswered=unanswered)
        except ValueError as error:
            db.execute(sql.BURY, (self._store.clock.wall(), 0, *unreadable_reason(error), id))
            return None
        db.execute(sql.LEASE, (now + self._lease, token, receives + counts, unanswered, id))
        return message

    def _extend(self, messages: Sequence[Message]) -> list[Message]:
        def extend(db: Connection) -> list[Message]:
            now = self._store.now()
            due = now + self._lease
            return [
                message
                for message in messages
                if not db.execute(sql.EXTEND, (due, self.name, message.key, message.token, now)).rowcount
            ]

        return self._file.transaction(extend)

    def _settle(self, settlements: Sequence[Settlement]) -> list[Message]:
        def settle(db: Connection) -> tuple[list[Message], int]:
            lost: list[Message] = []
            waiting = 0
            now = self._store.now()
            for message, verdict in settlements:
                held = (self.name, message.key, message.token, now)
                if type(verdict) is Done and verdict.again is None and db.execute(sql.DONE, held).rowcount:
                    continue
                row = db.execute(sql.SELECT_LEASED, held).fetchone()
                if row is None:
                    lost.append(message)
                else:
                    waiting += self._settle_item(db, row, verdict, now)
            return lost, waiting

        lost, waiting = self._file.transaction(settle)
        if waiting:
            self._store.wakeups.wake_queue(self.name, waiting)
        return lost

    def _settle_item(self, db: Connection, row: tuple[Any, ...], verdict: Done | Back | Bury, now: float) -> bool:
        """Carry out one verdict on a leased item. Return whether it waits again."""
        id, receives, again_due, again_priority = row
        added = None  # the earliest instant at which an add during the lease can be ready
        if again_due is not None:
            added = max(now, again_due) if isinstance(again_due, float) else now
        if type(again_priority) is not int or again_priority < 0:  # another program may have written anything
            again_priority = 0
        if added is not None:
            db.execute(sql.MERGE, (id,))
        match verdict:
            case Bury(kind, reason, trace) if added is None:
                db.execute(sql.BURY, (self._store.clock.wall(), 1, kind, reason, trace, id))
                return False
            case Done(None) | Bury():  # it was added during the lease: it starts over with what was added
                db.execute(sql.BEGIN_ANEW, (added, again_priority, id))
            case Done(float() | int() as again):
                db.execute(sql.BACK, (_earlier(now + again, added), 0, id))
            case Back(after, touched=True):
                db.execute(sql.BACK, (_earlier(now + after, added), max(1, receives), id))
            case Back(after):
                db.execute(sql.UNTOUCHED, (_earlier(now + after, added), id))
        return True

    # -- looking, and dead letters

    def depth(self) -> Depth:
        return depths(self._file, self._store.now(), self.name).get(self.name, Depth())

    def _dead_page(
        self, position: DeadLetterPosition | None, max_letters: int
    ) -> tuple[dict[int, DeadLetter], DeadLetterPosition | None]:
        wanted = min(max_letters, BATCH)
        due, id = position or (inf, 0)
        asked = {"queue": self.name, "due": due, "id": id, "most": wanted}
        bounds = {"longest": self._max_shown, "longest_attributes": MAX_ATTRIBUTES_BYTES}
        rows = self._file.read(sql.DEAD_LETTERS, {**asked, **bounds})
        letters = {row[-1]: _dead_letter(row, self._max_shown) for row in rows}
        return letters, None if len(rows) < wanted else rows[-1][-2:]

    def _oldest_dead_letters(self) -> tuple[DeadLetterPosition, DeadLetterPosition] | None:
        last = self._file.read(sql.DIED_LAST, (self.name,))  # dead letters that come later are not touched
        return ((-inf, 0), last[0]) if last else None

    def _redrive_or_purge_batch(
        self,
        purge: bool,
        keys: Sequence[str] | None,
        position: tuple[DeadLetterPosition, DeadLetterPosition] | None,
    ) -> tuple[int, tuple[DeadLetterPosition, DeadLetterPosition] | None]:
        def change(db: Connection) -> tuple[list[DeadLetterPosition], int]:
            if position is not None:
                after, last = position
                rows = db.execute(sql.DIED_FIRST, (self.name, *after, *last, self._batch_size)).fetchall()
            else:
                rows = sorted(row for key in keys or () for row in db.execute(sql.DEAD, (self.name, key)))
            now = self._store.now()
            if purge:
                return rows, sum(db.execute(sql.PURGE, (id,)).rowcount for _, id in rows)
            return rows, sum(db.execute(sql.REDRIVE, (now, id)).rowcount for _, id in rows)

        rows, changed = self._file.transaction(change)
        if changed and not purge:
            self._store.wakeups.wake_queue(self.name, changed)
        return changed, None if position is None or len(rows) < self._batch_size else (rows[-1], position[1])

    def _yield_to_others(self) -> None:
        sleep(BATCH_PAUSE)


def depths(file: Database, now: float, name: str | None = None) -> dict[str, Depth]:
    """Count the messages of one queue, or of each queue."""
    return {
        preview(queue, DEFAULT_MAX_BODY): Depth(ready, delayed, leased, dead, None if oldest is None else now - oldest)
        for queue, ready, delayed, leased, dead, oldest in file.read(sql.DEPTHS, {"now": now, "queue": name})
    }


def _earlier(instant: float, other: float | None) -> float:
    return instant if other is None else min(instant, other)


def _dead_letter(row: tuple[Any, ...], max_bytes: int) -> DeadLetter:
    key, body, attributes, kind, reason, trace, receives, died, _ = row
    return DeadLetter(
        preview(key, max_bytes),
        preview(body, max_bytes),
        preview_attributes(attributes),
        preview(kind, MAX_REASON_BYTES),
        preview(reason, MAX_REASON_BYTES),
        preview(trace, MAX_REASON_BYTES),
        receives if isinstance(receives, int) else 0,
        died if isinstance(died, float) and isfinite(died) else 0.0,
    )
