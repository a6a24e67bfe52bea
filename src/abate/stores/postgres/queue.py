"""A queue in PostgreSQL: what is asked of it is said in one statement each. The rules are in `rules`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias, assert_never

from abate.clock import MachineClock
from abate.stores.contract import DeadLetter, Depth, Queue
from abate.stores.envelope import UNREADABLE, checked, readable, shown, unwrapped, wrapped
from abate.stores.input import LONGEST_REASON
from abate.stores.postgres.letters import read, written
from abate.stores.postgres.pool import Pool
from abate.stores.postgres.session import Row
from abate.work.keys import QueueFull
from abate.work.source import Back, Bury, Done, Message, Settlement, Verdict

if TYPE_CHECKING:
    from abate.stores.postgres.store import PostgresStore

SHORTEST_PAUSE = 1e-6
"""Seconds; a shorter one might not move a clock that counts from 1970 at all."""
MOST = 1000
"""Messages that are taken, redriven or purged by one statement."""
LETTERS_AT_ONCE = 100
"""Dead letters that are read by one statement; each may be a quarter of a megabyte long."""

Place: TypeAlias = tuple[str, str]
"""Of a dead letter among the others: when it died, and its id."""

# of one queue, or of all
DEPTHS = """
    WITH clock AS MATERIALIZED (SELECT @.instant($2) AS now),
    paced AS MATERIALIZED (
        SELECT queue, now + @.lead(now, mark, ahead) AS now
        FROM @.pace CROSS JOIN clock WHERE $1::text IS NULL OR queue = $1
    )
    SELECT coalesce(name, queue), ready, delayed, leased, dead, age
    FROM (SELECT name FROM @.queue WHERE $1::text IS NULL OR name = $1) AS named FULL JOIN (
        SELECT
            queue,
            count(*) FILTER (WHERE state < 2 AND due <= now) AS ready,
            count(*) FILTER (WHERE state = 0 AND due > now) AS delayed,
            count(*) FILTER (WHERE state = 1 AND due > now) AS leased,
            count(*) FILTER (WHERE state = 2) AS dead,
            max(now - due) FILTER (WHERE state < 2 AND due <= now) AS age
        FROM (
            SELECT item.queue, state, due, coalesce(paced.now, clock.now) AS now
            FROM @.item AS item CROSS JOIN clock LEFT JOIN paced USING (queue)
            WHERE $1::text IS NULL OR item.queue = $1
        ) AS told GROUP BY queue
    ) AS counted ON queue = name ORDER BY 1
"""

DIED_LAST = "SELECT o_died, o_id FROM @.letters($1, 1, 'infinity', 0)"
LETTERS = "SELECT * FROM @.letters($1, $2, $3, $4)"
EXHUME = "SELECT * FROM @.exhume($1, $2, $3, $4, $5, $6, $7, $8, $9)"


class PostgresQueue(Queue):
    """The items of one queue in a store in PostgreSQL."""

    durable = True

    def __init__(self, store: PostgresStore, name: str, lease: float, capacity: int | None, max_body: int) -> None:
        super().__init__(name, lease, capacity, max_body)
        self._store = store
        self._pool: Pool = store.pool
        self._name = written(self.name)

    # -- in

    def _add(
        self, key: str, body: str, priority: int, after: float, attributes: Mapping[str, str], revive: bool
    ) -> bool:
        ((answer,),) = self._pool.run(
            "SELECT @.add($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            self._name,
            written(key),
            written(body),
            wrapped(attributes),
            str(priority),
            repr(after),
            str(revive),
            None if self.capacity is None else str(self.capacity),
            self._store.now(),
        )
        if answer == b"full":
            raise QueueFull(f"the queue {self.name!r} holds {self.capacity} messages, and no more")
        return answer == b"new"

    def _cancel(self, key: str) -> bool:
        ((gone,),) = self._pool.run("SELECT @.cancel($1, $2, $3)", self._name, written(key), self._store.now())
        return gone == b"t"

    # -- out

    def _receive(self, most: int, wait: float) -> list[Message]:
        if not wait:
            return self._take(most)[0]
        clock = self._store.clock
        real = isinstance(clock, MachineClock)
        end = clock.now() + wait
        with self._store.bells.line(self._name) as line:
            while True:
                seen = line.rung
                messages, pause = self._take(most)
                left = end - clock.now()
                if messages or left <= 0:
                    return messages
                pause = left if pause is None else min(left, pause)
                if not real:
                    clock.sleep(max(SHORTEST_PAUSE, pause))
                elif not self._store.ears.attend(self._name):
                    self._store.bells.wait(line, seen, self._store.ears.patience(pause))

    def _take(self, most: int) -> tuple[list[Message], float | None]:
        """What is ready, up to so many; where nothing is, the seconds until something will be."""
        messages: list[Message] = []
        pause: float | None = None
        while len(messages) < most:
            many = min(most - len(messages), MOST)
            rows = self._pool.run(
                "SELECT * FROM @.hand_out($1, $2, $3, $4)", self._name, str(many), repr(self._lease), self._store.now()
            )
            if rows[0][0] is None:
                pause = None if rows[0][5] is None else float(rows[0][5])
                break
            unreadable = self._read(rows, messages)
            if unreadable:
                # by its key as it is: what can't be read can't be written the same either
                self._pool.run("SELECT @.settle($1, $2, $3)", self._name, json.dumps(unreadable), self._store.now())
            elif len(rows) < many:
                break
        return messages, pause

    def _read(self, rows: Sequence[Row], messages: list[Message]) -> list[list[object]]:
        """Read what was received; the answer is the verdicts on what can't be read, which is buried as it is."""
        unreadable: list[list[object]] = []
        for key, body, attributes, receives, token, _, unanswered in rows:
            leased = int(receives or 0), int(token or 0)
            try:
                if written(read(key)) != (key or b"").decode():
                    raise ValueError("its key holds U+0001 as no key does")
                found, text = checked(read(key).encode(), read(body).encode(), self.max_body)
                message = Message(found, text, *leased, unwrapped(attributes), unanswered=int(unanswered or 0))
            except ValueError as error:
                why = map(written, UNREADABLE.because(error))
                unreadable.append([(key or b"").decode(), leased[1], "bury", None, None, *why])
            else:
                messages.append(message)
        return sorted(unreadable, key=lambda verdict: str(verdict[0]))

    def _extend(self, messages: Sequence[Message]) -> list[Message]:
        ordered = sorted(messages, key=_key)  # as in a settlement
        held = json.dumps([[written(_key(message)), message.token] for message in ordered])
        rows = self._pool.run(
            "SELECT @.extend($1, $2, $3, $4)", self._name, held, repr(self._lease), self._store.now(), safe=True
        )
        return [ordered[int(place or 0)] for (place,) in rows]

    def _settle(self, settlements: Sequence[Settlement]) -> list[Message]:
        # rows are taken in the order of their keys, so that nobody waits for another in a circle
        ordered = sorted(enumerate(settlements), key=lambda one: _key(one[1][0]))
        verdicts = json.dumps([_verdict(message, verdict) for _, (message, verdict) in ordered])
        rows = self._pool.run("SELECT @.settle($1, $2, $3)", self._name, verdicts, self._store.now())
        lost = sorted(ordered[int(place or 0)][0] for (place,) in rows)
        return [settlements[place][0] for place in lost]

    # -- what there is

    def depth(self) -> Depth:
        return depths(self._pool, self._store.now(), self._name).get(self.name, Depth())

    def _dead(self, limit: int) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        died, id = "infinity", "0"
        while len(letters) < limit:
            most = min(limit - len(letters), LETTERS_AT_ONCE)
            rows = self._pool.run(LETTERS, self._name, str(most), died, id, safe=True)
            letters += [_letter(row, self._shown) for row in rows]
            if len(rows) < most:
                break
            died, id = _place(rows[-1][-2:])
        return letters

    def _redrive(self, keys: Sequence[str] | None) -> int:
        return self._exhumed("false", keys)

    def _purge(self, keys: Sequence[str] | None) -> int:
        return self._exhumed("true", keys)

    def _exhumed(self, purge: str, keys: Sequence[str] | None) -> int:
        if keys is not None:
            batches = (keys[start : start + MOST] for start in range(0, len(keys), MOST))
            return sum(self._exhume(purge, batch, ("-infinity", "0"), ("infinity", "0"))[0] for batch in batches)
        last = self._pool.run(DIED_LAST, self._name, safe=True)
        if not last:
            return 0
        behind, until = ("-infinity", "0"), _place(last[0])  # those that die meanwhile are left alone, so this ends
        total = 0
        while True:
            many, looked_at, behind = self._exhume(purge, None, behind, until)
            total += many
            if looked_at < MOST:
                return total

    def _exhume(self, purge: str, keys: Sequence[str] | None, behind: Place, until: Place) -> tuple[int, int, Place]:
        """One batch, in a transaction of its own: how many, how many were looked at, and the place of the last."""
        listed = None if keys is None else json.dumps([written(key) for key in keys])
        ((many, looked_at, *last),) = self._pool.run(
            EXHUME, self._name, purge, listed, str(MOST), *behind, *until, self._store.now()
        )
        return int(many or 0), int(looked_at or 0), _place(last)


def depths(pool: Pool, now: str | None, name: str | None = None) -> dict[str, Depth]:
    """How many messages there are in a queue, or in each queue."""
    return {
        read(queue): Depth(
            int(ready or 0), int(delayed or 0), int(leased or 0), int(dead or 0), None if age is None else float(age)
        )
        for queue, ready, delayed, leased, dead, age in pool.run(DEPTHS, name, now, safe=True)
    }


def _key(message: Message) -> str:
    return str(message.key)


def _verdict(message: Message, verdict: Verdict) -> list[object]:
    held = [written(str(message.key)), message.token]
    match verdict:
        case Done(None):
            return [*held, "done"]
        case Done(again):
            return [*held, "again", again]
        case Back(after, touched):
            return [*held, "back", after, int(touched)]
        case Bury(kind, reason, trace):
            return [*held, "bury", None, None, written(kind), written(reason), written(trace)]
        case other:
            assert_never(other)


def _letter(row: Row, longest: int) -> DeadLetter:
    key, body, attributes, kind, reason, trace, receives, died, _ = row
    instant = float(died or 0)
    return DeadLetter(
        readable(read(key), longest),
        readable(read(body), longest),
        shown(attributes),
        readable(read(kind), LONGEST_REASON),
        readable(read(reason), LONGEST_REASON),
        readable(read(trace), LONGEST_REASON),
        int(receives or 0),
        instant if isfinite(instant) else 0.0,
    )


def _place(row: Sequence[bytes | None]) -> Place:
    died, id = row
    return (died or b"").decode(), (id or b"").decode()
