"""The tables of a store in a SQLite file, version by version.

One row of `item` is one key of one queue. Its `due` is the instant that its state has to do with: since when, or from
when, a waiting one is ready; when the lease of a leased one runs out; when a dead one died. So what is ready, whether
it waited for its time or its lease ran out, is what is due.

Another program may add a message: ``INSERT INTO item (queue, key, body) VALUES ('orders', 'orders/42', '')``.
"""

from __future__ import annotations

from sqlite3 import Connection

APPLICATION = 0x61626174
"""Says that a file is abate's: ``abat``."""
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
    # the oldest, the next one due, what is leased, what has died
    "CREATE INDEX item_by_due ON item (queue, state, due)",
    # the first of each priority
    "CREATE INDEX item_by_priority ON item (queue, priority, due) WHERE state < 2",
    # alive: how many items are not dead. Counting them at every add would take longer the more there are.
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
    # the token of the newest lease, over all queues: it grows even when every item is gone
    "CREATE TABLE lease (token INTEGER NOT NULL)",
    "INSERT INTO lease VALUES (0)",
    # the counts of budgets, in slots that begin at an instant
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
    # who has come lately, for each thing that is shared: what it wants and has of a bucket, or sees of a dependency
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
    # what is known of a dependency that is not calm
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
    # of which start of the machine the file was told last, when that was, and the latest instant that was written down
    "CREATE TABLE instant (start TEXT NOT NULL, origin REAL NOT NULL, mark REAL NOT NULL)",
    "INSERT INTO instant VALUES ('', 0, 0)",
    # how many of its last receives ended without an answer: the lease ran out
    "ALTER TABLE item ADD COLUMN unanswered INTEGER NOT NULL DEFAULT 0",
)

STEPS: tuple[tuple[str, ...], ...] = (FIRST, SECOND, THIRD)
"""The statements that lead from each version to the next. What has been released is never changed, only added to."""


class Foreign(Exception):
    """The file is a database, and not one that this version of abate can use; the message says why."""


def migrate(db: Connection, new: bool = True) -> None:
    """Bring a database to the newest version; needs a transaction that may write. An empty one must be `new`."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION and (application or version or tables):
        raise Foreign("is the database of another program: nothing in it was touched")
    if not (new or tables):
        raise Foreign("was replaced by an empty file, which is left as it is")
    if version > len(STEPS):
        raise Foreign(
            f"was written by a newer abate: its schema has version {version}, and this one knows {len(STEPS)} at most"
        )
    for number, step in enumerate(STEPS[version:], version + 1):
        for statement in step:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {number}")
