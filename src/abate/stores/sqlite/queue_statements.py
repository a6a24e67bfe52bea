"""SQL statements of a queue in SQLite. An item is leased while ``state = 1`` and its `due` is in the future."""

from __future__ import annotations

from abate.stores.encoding import MAX_REASON_BYTES


def _cut(column: str, longest: object) -> str:
    """Return an expression for the first `longest` + 1 bytes of a column; the extra byte shows that it is too long.

    Another program may have written a value of any length. Bytes, since SQLite's text functions stop at U+0000.
    """
    return f"substr(CAST({column} AS BLOB), 1, {longest} + 1)"


# -- adding

INSERT = (
    "INSERT INTO item (queue, key, due, priority, attributes, body) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)

KNOWN = "SELECT id, state, due, again_due FROM item WHERE queue = ? AND key = ?"

# add to a waiting item: keep the earlier due, the higher priority, the newest body. An expired lease ends here.
COALESCE = """
    UPDATE item SET
        unanswered = unanswered + (state = 1 AND receives > 0), receives = max(receives, state = 1),
        state = 0, token = 0, due = min(due, ?), priority = max(priority, ?), attributes = ?, body = ?,
        again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
    WHERE id = ?
"""

# add to a leased item: keep the new content in the again_ columns. If the item returns without being done, it has the
# higher priority of both.
ADD_WHILE_LEASED = """
    UPDATE item SET
        priority = max(priority, ?), again_due = min(coalesce(again_due, 9e999), ?),
        again_priority = max(coalesce(again_priority, 0), ?), again_attributes = ?, again_body = ?
    WHERE id = ?
"""

# add to a dead item
REVIVE = """
    UPDATE item SET
        state = 0, due = ?, priority = ?, attributes = ?, body = ?,
        receives = 0, unanswered = 0, kind = NULL, reason = NULL, trace = NULL
    WHERE id = ?
"""

CANCEL_ADD_WHILE_LEASED = """
    UPDATE item SET again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
    WHERE queue = ? AND key = ? AND state = 1 AND due > ? AND again_due > ?
"""

COUNT_WAITING = """
    SELECT coalesce((SELECT alive FROM queue WHERE name = :queue), 0)
        - (SELECT count(*) FROM item WHERE queue = :queue AND state = 1 AND due > :now)
"""

# -- receiving and settling

NEXT_DUE = """
    SELECT min(due) FROM (
        SELECT min(due) AS due FROM item WHERE queue = ? AND state = 0
        UNION ALL SELECT min(due) FROM item WHERE queue = ? AND state = 1
    )
"""

# another program may have disabled the checks of the table
FIX_PRIORITIES = """
    UPDATE item SET priority = 0
    WHERE queue = ? AND state IN (0, 1) AND (typeof(priority) <> 'integer' OR priority < 0)
"""

LEASE = "UPDATE item SET state = 1, due = ?, token = ?, receives = ?, unanswered = ? WHERE id = ?"

EXTEND = "UPDATE item SET due = ? WHERE queue = ? AND key = ? AND token = ? AND due > ? AND state = 1"

SELECT_LEASED = """
    SELECT id, receives, again_due, again_priority FROM item
    WHERE queue = ? AND key = ? AND token = ? AND due > ? AND state = 1
"""

DONE = """
    DELETE FROM item
    WHERE queue = ? AND key = ? AND token = ? AND due > ? AND state = 1 AND again_due IS NULL
"""

# replace the content by what was added during the lease
MERGE = """
    UPDATE item SET
        attributes = again_attributes, body = coalesce(again_body, ''),
        again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
    WHERE id = ?
"""

BACK = "UPDATE item SET state = 0, token = 0, due = ?, receives = ?, unanswered = 0 WHERE id = ?"

UNTOUCHED = "UPDATE item SET state = 0, token = 0, due = ?, receives = max(0, receives - 1) WHERE id = ?"

BEGIN_ANEW = "UPDATE item SET state = 0, token = 0, receives = 0, unanswered = 0, due = ?, priority = ? WHERE id = ?"

BURY = """
    UPDATE item SET state = 2, token = 0, due = ?, receives = max(?, receives), kind = ?, reason = ?, trace = ?
    WHERE id = ?
"""

# -- depths and dead letters

# of one queue, or of all
DEPTHS = """
    SELECT
        queue.name,
        count(CASE WHEN state < 2 AND due <= :now THEN 1 END),
        count(CASE WHEN state = 0 AND due > :now THEN 1 END),
        count(CASE WHEN state = 1 AND due > :now THEN 1 END),
        count(CASE WHEN state = 2 THEN 1 END),
        min(CASE WHEN state < 2 AND due <= :now THEN due END)
    FROM queue LEFT JOIN item ON item.queue = queue.name
    WHERE :queue IS NULL OR queue.name = :queue GROUP BY queue.name
"""

# the latest dead letters before a position (an instant and an id), latest first
DEAD_LETTERS = f"""
    SELECT
        {_cut("key", ":longest")}, {_cut("body", ":longest")}, {_cut("attributes", ":longest_attributes")},
        {_cut("kind", MAX_REASON_BYTES)}, {_cut("reason", MAX_REASON_BYTES)}, {_cut("trace", MAX_REASON_BYTES)},
        receives, due, id
    FROM item
    WHERE queue = :queue AND state = 2 AND (due, id) < (:due, :id) ORDER BY due DESC, id DESC LIMIT :most
"""

DIED_LAST = "SELECT due, id FROM item WHERE queue = ? AND state = 2 ORDER BY due DESC, id DESC LIMIT 1"

# the earliest dead letters after one position and up to another
DIED_FIRST = """
    SELECT due, id FROM item
    WHERE queue = ? AND state = 2 AND (due, id) > (?, ?) AND (due, id) <= (?, ?) ORDER BY due, id LIMIT ?
"""

DEAD = "SELECT due, id FROM item WHERE queue = ? AND key = ? AND state = 2"

# a new id: of items that are due at the same instant, the lowest id is received first
REDRIVE = """
    UPDATE item SET
        id = (SELECT max(id) FROM item) + 1, state = 0, due = ?, receives = 0, unanswered = 0,
        kind = NULL, reason = NULL, trace = NULL
    WHERE id = ?
"""

PURGE = "DELETE FROM item WHERE id = ?"

# -- the order of delivery

# an expired lease counts as a receive without a verdict, unless it was received ahead; last, whether it was received
# before
COLUMNS = f"""
    id, CASE WHEN typeof(key) = 'text' THEN {_cut("key", ":longest_key")} END, receives,
    {_cut("attributes", ":longest_attributes")}, {_cut("body", ":longest")},
    again_due, {_cut("again_attributes", ":longest_attributes")}, {_cut("again_body", ":longest")},
    unanswered + (state = 1 AND receives > 0), (state = 1 OR receives <> 0)
"""

# without INDEXED BY, SQLite would sort all waiting items
NEXT_LOWER_PRIORITY = """
    SELECT priority FROM item INDEXED BY item_by_priority
    WHERE queue = ? AND state < 2 AND priority < ? ORDER BY priority DESC LIMIT 1
"""

OF_PRIORITY = f"""
    SELECT {COLUMNS} FROM item INDEXED BY item_by_priority
    WHERE queue = :queue AND state < 2 AND priority = :priority AND due <= :now ORDER BY due, id LIMIT :most
"""

OLDEST = f"""
    SELECT * FROM (
        SELECT {COLUMNS}, due FROM item WHERE queue = :queue AND state = 0 AND due <= :now ORDER BY due, id LIMIT :most
    ) UNION ALL SELECT * FROM (
        SELECT {COLUMNS}, due FROM item WHERE queue = :queue AND state = 1 AND due <= :now ORDER BY due, id LIMIT :most
    ) ORDER BY due, id LIMIT :most
"""
