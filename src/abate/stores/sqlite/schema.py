"""The tables of a store in a SQLite file, and the migrations between their versions.

One row of `item` is one key of one queue. The meaning of `due` depends on the state: a waiting item is ready from then
on, the lease of a leased item ends then, a dead item died then. So every item that is not dead and is due is ready,
whether its delay or its lease has ended.

Another program may add a message: ``INSERT INTO item (queue, key, body) VALUES ('orders', 'orders/42', '')``.
"""

from __future__ import annotations

from sqlite3 import Connection

APPLICATION = 0x61626174
"""SQLite's application id of abate's files: ``abat``."""
WAITING, LEASED, DEAD = 0, 1, 2

FIRST = (
    """
    CREATE TABLE item (
        id INTEGER PRIMARY KEY,
        queue TEXT NOT NULL CHECK (typeof(queue) = 'text'),
        key TEXT NOT NULL CHECK (typeof(key) = 'text'),
        state INTEGER NOT NULL DEFAULT 0 CHECK (state IN (0, 1, 2)),
        due REAL NOT NULL DEFAULT 0 CHECK (typeof(due) = 'real'),
        priority INTEGER NOT NULL DEFAULT 0 CHECK (typeof(priority) = 'integer' AND priority >= 0),
        receives INTEGER NOT NULL DEFAULT 0,
        token INTEGER NOT NULL DEFAULT 0,
        again_due REAL,  -- added while leased: from when on it is to be ready, with the columns below
        again_priority INTEGER,
        kind TEXT,  -- of a dead one, as are reason and trace
        reason TEXT,
        trace TEXT,
        attributes TEXT,  -- JSON; NULL for none
        body TEXT NOT NULL DEFAULT '',
        again_attributes TEXT,
        again_body TEXT,
        UNIQUE (queue, key)
    )
    """,
    # for the oldest item, the next one due, leased items, dead letters
    "CREATE INDEX item_by_due ON item (queue, state, due)",
    # for the first item of each priority
    "CREATE INDEX item_by_priority ON item (queue, priority, due) WHERE state < 2",
    # alive: the number of items that are not dead. Counting them at every add would be linear in their number.
    """
    CREATE TABLE queue (
        name TEXT PRIMARY KEY,
        alive INTEGER NOT NULL DEFAULT 0,
        turns INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID
    """,
    """
    CREATE TRIGGER item_comes AFTER INSERT ON item BEGIN
        INSERT INTO queue (name, alive) VALUES (new.queue, new.state < 2)
            ON CONFLICT (name) DO UPDATE SET alive = alive + (new.state < 2);
    END
    """,
    """
    CREATE TRIGGER item_goes AFTER DELETE ON item WHEN old.state < 2 BEGIN
        UPDATE queue SET alive = alive - 1 WHERE name = old.queue;
    END
    """,
    """
    CREATE TRIGGER item_dies_or_lives AFTER UPDATE OF state ON item WHEN (old.state < 2) <> (new.state < 2) BEGIN
        UPDATE queue SET alive = alive + (new.state < 2) - (old.state < 2) WHERE name = new.queue;
    END
    """,
    # the token of the newest lease in all queues: it is kept when every item is deleted
    "CREATE TABLE lease (token INTEGER NOT NULL)",
    "INSERT INTO lease VALUES (0)",
    # the counts of budgets, by slot; `begins` is the start of the slot
    """
    CREATE TABLE slot (
        budget TEXT NOT NULL,
        begins REAL NOT NULL,
        forgotten REAL NOT NULL,
        deposits INTEGER NOT NULL DEFAULT 0,
        withdrawals INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (budget, begins)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX slot_by_end ON slot (forgotten)",
    f"PRAGMA application_id = {APPLICATION}",
)

SECOND = (
    # active members of each shared limit: demand and share of a bucket, or the observed state of a dependency
    """
    CREATE TABLE member (
        scope TEXT NOT NULL,
        member TEXT NOT NULL,
        seen REAL NOT NULL,
        wanted REAL NOT NULL DEFAULT 0,
        part REAL NOT NULL DEFAULT 0,
        sees TEXT NOT NULL DEFAULT 'nothing',
        PRIMARY KEY (scope, member)
    ) WITHOUT ROWID
    """,
    # the state of each dependency in an outage or recovering from one
    """
    CREATE TABLE weather (
        name TEXT PRIMARY KEY,
        state TEXT NOT NULL,
        until REAL NOT NULL,
        prober TEXT NOT NULL,
        turn REAL NOT NULL,
        highest REAL NOT NULL,
        base REAL NOT NULL,
        grown REAL NOT NULL
    ) WITHOUT ROWID
    """,
)

THIRD = (
    # the last known boot of the machine, the origin of its clock, and the latest recorded instant
    "CREATE TABLE instant (start TEXT NOT NULL, origin REAL NOT NULL, mark REAL NOT NULL)",
    "INSERT INTO instant VALUES ('', 0, 0)",
    # the number of latest receives that ended without a verdict, because the lease ran out
    "ALTER TABLE item ADD COLUMN unanswered INTEGER NOT NULL DEFAULT 0",
)

STEPS: tuple[tuple[str, ...], ...] = (FIRST, SECOND, THIRD)
"""The statements that migrate each version to the next. Released steps are never changed; new ones are added."""


class UnusableDatabase(Exception):
    """This version of abate can't use the database file; the message says why."""


def migrate(db: Connection, new: bool = True) -> None:
    """Migrate a database to the newest version, in a write transaction. Refuse an empty database unless `new`."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION and (application or version or tables):
        raise UnusableDatabase("is the database of another program: nothing in it was touched")
    if not (new or tables):
        raise UnusableDatabase("was replaced by an empty file, which was not changed")
    if version > len(STEPS):
        raise UnusableDatabase(
            f"was written by a newer abate: its schema has version {version}, and this one knows {len(STEPS)} at most"
        )
    for number, step in enumerate(STEPS[version:], version + 1):
        for statement in step:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {number}")
