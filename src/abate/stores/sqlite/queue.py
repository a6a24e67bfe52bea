"""A queue in SQLite: the rules of `abate.stores.contract`, each in one transaction.

The SQL is in `statements`, the order of turns in `pick`. `now` is read after the right to write has been obtained,
which may have taken a while: a lease begins when it is written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf, isfinite
from sqlite3 import Connection
from time import sleep
from typing import TYPE_CHECKING, Any

from abate.clock import MachineClock
from abate.stores.contract import DeadLetter, Depth, Queue
from abate.stores.envelope import LONGEST, UNREADABLE, checked, counted, readable, shown, unwrapped, wrapped
from abate.stores.input import LONGEST_BODY, LONGEST_REASON
from abate.stores.sqlite import statements as sql
from abate.stores.sqlite.pick import pick
from abate.stores.sqlite.schema import DEAD, LEASED
from abate.work.keys import QueueFull
from abate.work.source import Back, Bury, Done, Message, Settlement

if TYPE_CHECKING:
    from abate.stores.sqlite.file import File
    from abate.stores.sqlite.store import SqliteStore

LONGEST_PAUSE = 3600.0
BATCH = 500
"""Dead letters that are read, redriven or purged at once."""
PAUSE = 0.005
"""Seconds between two batches: others who wait for the file ask again within this time."""
SHORTEST_PAUSE = 1e-6
"""Seconds; a shorter one might not move a clock that counts from 1970 at all."""
LAST_BY_CLOCK = 2**52
"""Tokens follow a clock up to this one, which leaves room to count on."""
LAST = 2**62
"""A higher token was not handed out by any queue."""


class SqliteQueue(Queue):
    """The items of one queue in a SQLite store."""

    def __init__(self, store: SqliteStore, name: str, lease: float, capacity: int | None, max_body: int) -> None:
        super().__init__(name, lease, capacity, max_body)
        self.durable = store.file.path is not None
        self._store = store

    @property
    def _file(self) -> File:
        return self._store.messages()

    # -- in

    def _add(
        self, key: str, body: str, priority: int, after: float, attributes: Mapping[str, str], revive: bool
    ) -> bool:
        new = self._file.transaction(partial(self._added, key, body, priority, after, wrapped(attributes), revive))
        if new is None:
            return False
        self._store.bells.ring(self.name)
        return new

    def _added(
        self, key: str, body: str, priority: int, after: float, written: str | None, revive: bool, db: Connection
    ) -> bool | None:
        """Is it new? None where it is dead, and stays so."""
        now = self._store.now()
        due = now + after
        known = db.execute(
            "SELECT id, state, due, again_due FROM item WHERE queue = ? AND key = ?", (self.name, key)
        ).fetchone()
        if known is None:
            self._room(db, now)
            db.execute(sql.INSERT, (self.name, key, due, priority, written, body))
            new = True
        else:
            id, state, known_due, again_due = known
            if state == DEAD and not revive:
                return None
            if state == DEAD:
                self._room(db, now)
                db.execute(sql.LIVE, (due, priority, written, body, id))
                new = True
            elif state == LEASED and known_due > now:
                db.execute(sql.AGAIN, (priority, due, priority, written, body, id))
                new = again_due is None
            else:
                db.execute(sql.COALESCE, (due, priority, written, body, id))
                new = False
        return new

    def _room(self, db: Connection, now: float) -> None:
        """Is there room for one more that waits?"""
        if self.capacity is None:
            return
        (waiting,) = db.execute(sql.COUNT_WAITING, {"queue": self.name, "now": now}).fetchone()
        if waiting >= self.capacity:
            raise QueueFull(f"the queue {self.name!r} holds {self.capacity} messages, and no more")

    def _cancel(self, key: str) -> bool:
        def cancel(db: Connection) -> bool:
            now = self._store.now()
            at = (self.name, key, now)
            gone = db.execute("DELETE FROM item WHERE queue = ? AND key = ? AND state = 0 AND due > ?", at).rowcount
            return bool(gone or db.execute(sql.FORGET_AGAIN, (*at, now)).rowcount)

        return self._file.transaction(cancel)

    # -- out

    def _receive(self, most: int, wait: float) -> list[Message]:
        messages, due = self._take(most)
        if messages or not wait:
            return messages
        clock = self._store.clock
        end = clock.now() + wait
        bells = self._store.bells
        with bells.line(self.name) as line:
            while True:
                seen = line.rung
                messages, due = self._take(most)
                left = end - clock.now()
                if messages or left <= 0:
                    return messages
                pause = left if due is None else max(SHORTEST_PAUSE, min(left, due - self._store.now()))
                if isinstance(clock, MachineClock):
                    bells.wait(line, seen, min(pause, LONGEST_PAUSE))
                else:
                    clock.sleep(pause)

    def _take(self, most: int) -> tuple[list[Message], float | None]:
        """What is ready, up to so many; where nothing is, the instant at which something will be."""
        # read first: an empty queue needs no write lock
        ((due,),) = self._file.read(sql.NEXT_DUE, (self.name, self.name))
        if not isinstance(due, float) or due > self._store.now():
            return [], due if isinstance(due, float) else None
        return self._file.transaction(partial(self._taken, most))

    def _taken(self, most: int, db: Connection) -> tuple[list[Message], float]:
        messages: list[Message] = []
        now = self._store.now()
        row = db.execute("SELECT token FROM lease").fetchone()
        token = row[0] if row and isinstance(row[0], int) and 0 <= row[0] < LAST else 0
        # tokens grow with the clock as well, so that a file put back from a backup hands out none a second time
        token = max(token, min(int(now * 1e6), LAST_BY_CLOCK))
        while len(messages) < most:
            rows = pick(db, self.name, most - len(messages), now, self.max_body)
            if not rows and (messages or not self._mend(db, now)):
                break
            for row in rows:
                message = self._leased(db, row, token + 1, now)
                if message is not None:
                    token += 1
                    messages.append(message)
        db.execute("UPDATE lease SET token = ?", (token,))
        return messages, now

    def _mend(self, db: Connection, now: float) -> bool:
        """Give items the lowest priority that are ready and have none that is a priority; were there any?

        They have no turn otherwise, and whoever waits would look for them again and again.
        """
        ((due,),) = db.execute(sql.NEXT_DUE, (self.name, self.name)).fetchall()
        ready = isinstance(due, float) and due <= now
        return ready and db.execute(sql.MEND, (self.name,)).rowcount > 0

    def _leased(self, db: Connection, row: tuple[Any, ...], token: int, now: float) -> Message | None:
        """Lease one item; None if it can't be read: that one is buried, with its bytes as they are."""
        id, key, receives, attributes, body, again_due, again_attributes, again_body, unanswered = row
        if again_due is not None:  # it was added while the lease was running that ran out since
            attributes, body = again_attributes, again_body
            db.execute(sql.MERGE, (id,))
        try:
            receives, unanswered = counted(receives), counted(unanswered)
            found, text = checked(key or b"", body or b"", self.max_body)  # SQLite says NULL for what is empty
            message = Message(found, text, receives + 1, token, unwrapped(attributes), unanswered=unanswered)
        except ValueError as error:
            db.execute(sql.BURY, (self._store.clock.wall(), *UNREADABLE.because(error), id))
            return None
        db.execute(sql.LEASE, (now + self._lease, token, receives + 1, unanswered, id))
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
                row = db.execute(sql.HELD, held).fetchone()
                if row is None:
                    lost.append(message)
                else:
                    waiting += self._settled(db, row, verdict, now)
            return lost, waiting

        lost, waiting = self._file.transaction(settle)
        if waiting:
            self._store.bells.ring(self.name, waiting)
        return lost

    def _settled(self, db: Connection, row: tuple[Any, ...], verdict: Done | Back | Bury, now: float) -> bool:
        """Carry out one verdict on an item whose lease holds: does it wait again?"""
        id, receives, again_due, again_priority = row
        added = None  # it could not be ready before this instant
        if again_due is not None:
            added = max(now, again_due) if isinstance(again_due, float) else now
        if type(again_priority) is not int or again_priority < 0:  # another program may have written anything
            again_priority = 0
        if added is not None:
            db.execute(sql.MERGE, (id,))
        match verdict:
            case Bury(kind, reason, trace) if added is None:
                db.execute(sql.BURY, (self._store.clock.wall(), kind, reason, trace, id))
                return False
            case Done(None) | Bury():  # and it was added meanwhile, so it begins anew as what was added
                db.execute(sql.BEGIN_ANEW, (added, again_priority, id))
            case Done(float() | int() as again):
                db.execute(sql.BACK, (_earlier(now + again, added), 0, id))
            case Back(after, touched=True):
                db.execute(sql.BACK, (_earlier(now + after, added), receives, id))
            case Back(after):
                db.execute(sql.UNTOUCHED, (_earlier(now + after, added), id))
        return True

    # -- what there is

    def depth(self) -> Depth:
        return depths(self._file, self._store.now(), self.name).get(self.name, Depth())

    def _dead(self, limit: int) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        before: tuple[Any, Any] = (inf, 0)
        while len(letters) < limit:
            most = min(limit - len(letters), BATCH)
            asked = {"queue": self.name, "due": before[0], "id": before[1], "most": most}
            bounds = {"longest": self._shown, "longest_attributes": LONGEST}
            rows = self._file.read(sql.DEAD_LETTERS, {**asked, **bounds})
            letters += [_letter(row, self._shown) for row in rows]
            if len(rows) < most:
                break
            before = rows[-1][-2:]
        return letters

    def _redrive(self, keys: Sequence[str] | None) -> int:
        return self._exhumed(True, keys)

    def _purge(self, keys: Sequence[str] | None) -> int:
        return self._exhumed(False, keys)

    def _exhumed(self, redrive: bool, keys: Sequence[str] | None) -> int:
        """Redrive or purge dead letters in the order in which they died, a batch in each transaction: how many."""
        last = self._file.read(sql.DIED_LAST, (self.name,))
        behind, until = (-inf, 0), last[0] if last else (-inf, 0)  # those that die meanwhile are left alone
        total = start = 0
        while True:
            some = None if keys is None else keys[start : start + BATCH]
            start += BATCH
            rows, many = self._file.transaction(partial(self._exhume, redrive, some, behind, until))
            total += many
            if redrive and many:
                self._store.bells.ring(self.name, many)
            if len(rows) < BATCH if keys is None else start >= len(keys):
                return total
            behind = rows[-1] if rows else behind
            sleep(PAUSE)

    def _exhume(
        self,
        redrive: bool,
        keys: Sequence[str] | None,
        behind: tuple[float, int],
        until: tuple[float, int],
        db: Connection,
    ) -> tuple[list[tuple[float, int]], int]:
        """One batch: when each died, and its id, and how many there were."""
        if keys is None:
            rows = db.execute(sql.DIED_FIRST, (self.name, *behind, *until, BATCH)).fetchall()
        else:
            rows = sorted(row for key in keys for row in db.execute(sql.DEAD, (self.name, key)))
        now = self._store.now()
        if redrive:
            return rows, sum(db.execute(sql.REDRIVE, (now, id)).rowcount for _, id in rows)
        return rows, sum(db.execute(sql.PURGE, (id,)).rowcount for _, id in rows)


def depths(file: File, now: float, name: str | None = None) -> dict[str, Depth]:
    """How many messages there are in a queue, or in each queue."""
    return {
        readable(queue, LONGEST_BODY): Depth(ready, delayed, leased, dead, None if oldest is None else now - oldest)
        for queue, ready, delayed, leased, dead, oldest in file.read(sql.DEPTHS, {"now": now, "queue": name})
    }


def _earlier(instant: float, other: float | None) -> float:
    return instant if other is None else min(instant, other)


def _letter(row: tuple[Any, ...], longest: int) -> DeadLetter:
    key, body, attributes, kind, reason, trace, receives, died, _ = row
    return DeadLetter(
        readable(key, longest),
        readable(body, longest),
        shown(attributes),
        readable(kind, LONGEST_REASON),
        readable(reason, LONGEST_REASON),
        readable(trace, LONGEST_REASON),
        receives if isinstance(receives, int) else 0,
        died if isinstance(died, float) and isfinite(died) else 0.0,
    )
