"""A queue in PostgreSQL: each operation is one statement. The functions it calls are in `queue_functions`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias, assert_never

from abate.stores.encoding import (
    MAX_REASON_BYTES,
    decode_attributes,
    decode_message,
    encode_attributes,
    preview,
    preview_attributes,
    unreadable_reason,
)
from abate.stores.postgres.encoding import decode_text, encode_text
from abate.stores.postgres.listener import ListeningWaiter
from abate.stores.postgres.pool import Pool
from abate.stores.postgres.session import Row
from abate.stores.queue_contract import DeadLetter, Depth, Queue
from abate.work.key_queue import QueueFull
from abate.work.source import Back, Bury, Done, Message, Settlement, Verdict

if TYPE_CHECKING:
    from abate.stores.postgres.store import PostgresStore

MAX_BATCH = 1000
"""Maximum number of messages that one statement receives, redrives or purges."""
LETTERS_AT_ONCE = 100
"""Maximum number of dead letters that one statement reads; each may be a megabyte long."""

DeadLetterPosition: TypeAlias = tuple[str, str]
"""When a message became a dead letter, and its id."""
FIRST, LAST = ("-infinity", "0"), ("infinity", "0")
"""Positions before and after all dead letters."""

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

ADD_MANY = "SELECT @.add_many($1, $2, $3, $4, $5, $6, $7, $8)"
FULL = -1
"""What `add_many` returns, instead of places, if the queue is full."""

DIED_LAST = "SELECT o_died, o_id FROM @.letters($1, 1, 'infinity', 0)"
DEAD_LETTERS = "SELECT * FROM @.letters($1, $2, $3, $4)"
REDRIVE_OR_PURGE = "SELECT * FROM @.exhume($1, $2, $3, $4, $5, $6, $7, $8, $9)"


class PostgresQueue(Queue):
    """A queue in a store in PostgreSQL."""

    durable = True
    _batch_size = MAX_BATCH

    def __init__(self, store: PostgresStore, name: str, lease: float, capacity: int | None, max_body: int) -> None:
        super().__init__(store, name, lease, capacity, max_body)
        self._store = store
        self._pool: Pool = store.pool
        self._name = encode_text(self.name)

    # -- adding

    def _add_many(
        self, messages: list[tuple[str, str]], priority: int, after: float, attributes: Mapping[str, str], revive: bool
    ) -> list[bool]:
        shared = encode_attributes(attributes), str(priority), repr(after), str(revive)
        limits = None if self.capacity is None else str(self.capacity), self._store.now()
        if len(messages) == 1:
            content = map(encode_text, messages[0])
            ((answer,),) = self._pool.run(
                "SELECT @.add($1, $2, $3, $4, $5, $6, $7, $8, $9)", self._name, *content, *shared, *limits
            )
            full, new = answer == b"full", [answer == b"new"]
        else:
            ordered = sorted([encode_text(key), encode_text(body), place] for place, (key, body) in enumerate(messages))
            rows = self._pool.run(ADD_MANY, self._name, json.dumps(ordered, ensure_ascii=False), *shared, *limits)
            known = {int(place or 0) for (place,) in rows}
            full, new = FULL in known, [place not in known for place in range(len(messages))]
        if full:
            raise QueueFull(f"the queue {self.name!r} is full: it holds {self.capacity} messages")
        return new

    def _cancel(self, key: str) -> bool:
        ((gone,),) = self._pool.run("SELECT @.cancel($1, $2, $3)", self._name, encode_text(key), self._store.now())
        return gone == b"t"

    # -- working

    @contextmanager
    def _waiting(self) -> Iterator[ListeningWaiter]:
        wakeups = self._store.wakeups
        with wakeups.waiting(self._name) as wait_list:
            yield ListeningWaiter(wakeups, wait_list, self._store.listener, self._name)

    def interrupt(self) -> None:
        self._store.wakeups.interrupt(self._name)

    def _take(self, max_messages: int, ahead: int, waiter: object) -> tuple[list[Message], float | None]:
        messages: list[Message] = []
        pause: float | None = None
        while len(messages) < max_messages + ahead:
            wanted = min(max_messages + ahead - len(messages), MAX_BATCH)
            rows = self._pool.run(
                "SELECT * FROM @.lease_out($1, $2, $3, $4, $5)",
                self._name,
                str(wanted),
                str(max(0, min(wanted, max_messages - len(messages)))),
                repr(self._lease),
                self._store.now(),
            )
            if rows[0][0] is None:
                pause = None if rows[0][5] is None else float(rows[0][5])
                break
            unreadable = self._decode(rows, messages)
            if unreadable:
                # with the key as it is stored: a key that can't be decoded can't be encoded the same way
                self._pool.run("SELECT @.settle($1, $2, $3)", self._name, json.dumps(unreadable), self._store.now())
            elif len(rows) < wanted:
                break
        return messages, pause

    def _decode(self, rows: Sequence[Row], messages: list[Message]) -> list[list[object]]:
        """Decode received rows into `messages`. Return verdicts that bury the rows that can't be decoded."""
        unreadable: list[list[object]] = []
        for key, body, attributes, receives, token, _, unanswered in rows:
            leased = int(receives or 0), int(token or 0)
            try:
                if encode_text(decode_text(key)) != (key or b"").decode():
                    raise ValueError("its key has a U+0001 that is not part of an escape")
                found, text = decode_message(decode_text(key).encode(), decode_text(body).encode(), self.max_body)
                message = Message(found, text, *leased, decode_attributes(attributes), unanswered=int(unanswered or 0))
            except ValueError as error:
                why = map(encode_text, unreadable_reason(error))
                unreadable.append([(key or b"").decode(), leased[1], "bury", None, None, *why])
            else:
                messages.append(message)
        return sorted(unreadable, key=lambda verdict: str(verdict[0]))

    def _extend(self, messages: Sequence[Message]) -> list[Message]:
        ordered = sorted(messages, key=_key)  # as in `_settle`
        held = json.dumps([[encode_text(_key(message)), message.token] for message in ordered])
        rows = self._pool.run(
            "SELECT @.extend($1, $2, $3, $4)", self._name, held, repr(self._lease), self._store.now(), safe=True
        )
        return [ordered[int(place or 0)] for (place,) in rows]

    def _settle(self, settlements: Sequence[Settlement]) -> list[Message]:
        # rows are locked in the order of their keys, so that two settlements can't deadlock
        ordered = sorted(enumerate(settlements), key=lambda one: _key(one[1][0]))
        verdicts = json.dumps([_encode_verdict(message, verdict) for _, (message, verdict) in ordered])
        rows = self._pool.run("SELECT @.settle($1, $2, $3)", self._name, verdicts, self._store.now())
        lost = sorted(ordered[int(place or 0)][0] for (place,) in rows)
        return [settlements[place][0] for place in lost]

    # -- looking, and dead letters

    def depth(self) -> Depth:
        return depths(self._pool, self._store.now(), self._name).get(self.name, Depth())

    def _dead_page(
        self, position: DeadLetterPosition | None, max_letters: int
    ) -> tuple[dict[bytes | None, DeadLetter], DeadLetterPosition | None]:
        wanted = min(max_letters, LETTERS_AT_ONCE)
        rows = self._pool.run(DEAD_LETTERS, self._name, str(wanted), *(position or LAST), safe=True)
        letters = {row[-1]: _dead_letter(row, self._max_shown) for row in rows}
        return letters, None if len(rows) < wanted else _position(rows[-1][-2:])

    def _oldest_dead_letters(self) -> tuple[DeadLetterPosition, DeadLetterPosition] | None:
        last = self._pool.run(DIED_LAST, self._name, safe=True)  # dead letters that come later are not touched
        return (FIRST, _position(last[0])) if last else None

    def _redrive_or_purge_batch(
        self,
        purge: bool,
        keys: Sequence[str] | None,
        position: tuple[DeadLetterPosition, DeadLetterPosition] | None,
    ) -> tuple[int, tuple[DeadLetterPosition, DeadLetterPosition] | None]:
        listed = None if keys is None else json.dumps([encode_text(key) for key in keys])
        after, until = position or (FIRST, LAST)
        ((changed, looked_at, *last),) = self._pool.run(
            REDRIVE_OR_PURGE, self._name, str(purge), listed, str(self._batch_size), *after, *until, self._store.now()
        )
        ended = position is None or int(looked_at or 0) < self._batch_size
        return int(changed or 0), None if ended else (_position(last), until)


def depths(pool: Pool, now: str | None, name: str | None = None) -> dict[str, Depth]:
    """Count the messages of one queue, or of each queue."""
    return {
        decode_text(queue): Depth(
            int(ready or 0), int(delayed or 0), int(leased or 0), int(dead or 0), None if age is None else float(age)
        )
        for queue, ready, delayed, leased, dead, age in pool.run(DEPTHS, name, now, safe=True)
    }


def _key(message: Message) -> str:
    return str(message.key)


def _encode_verdict(message: Message, verdict: Verdict) -> list[object]:
    held = [encode_text(str(message.key)), message.token]
    match verdict:
        case Done(None):
            return [*held, "done"]
        case Done(again):
            return [*held, "again", again]
        case Back(after, touched):
            return [*held, "back", after, int(touched)]
        case Bury(kind, reason, trace):
            return [*held, "bury", None, None, encode_text(kind), encode_text(reason), encode_text(trace)]
        case other:
            assert_never(other)


def _dead_letter(row: Row, max_bytes: int) -> DeadLetter:
    key, body, attributes, kind, reason, trace, receives, died, _ = row
    instant = float(died or 0)
    return DeadLetter(
        preview(decode_text(key), max_bytes),
        preview(decode_text(body), max_bytes),
        preview_attributes(attributes),
        preview(decode_text(kind), MAX_REASON_BYTES),
        preview(decode_text(reason), MAX_REASON_BYTES),
        preview(decode_text(trace), MAX_REASON_BYTES),
        int(receives or 0),
        instant if isfinite(instant) else 0.0,
    )


def _position(row: Sequence[bytes | None]) -> DeadLetterPosition:
    died, id = row
    return (died or b"").decode(), (id or b"").decode()
