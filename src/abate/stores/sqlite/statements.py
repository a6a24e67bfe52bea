"""The SQL of a queue's rules. An item's lease holds while ``state = 1`` and its due lies ahead."""

from __future__ import annotations

from abate.stores.input import LONGEST_REASON


def _cut(column: str, longest: object) -> str:
    """What another program wrote may be of any length: one byte more than is allowed shows that it is too long.

    As bytes, as the text functions of SQLite end at the first U+0000.
    """
    return f"substr(CAST({column} AS BLOB), 1, {longest} + 1)"


# -- in

INSERT = "INSERT INTO item (queue, key, due, priority, attributes, body) VALUES (?, ?, ?, ?, ?, ?)"

# one that waits: the earlier instant, the higher priority, the newest body. A lease that ran out is over by this.
COALESCE = """
    UPDATE item SET
        unanswered = unanswered + (state = 1),
        state = 0, token = 0, due = min(due, ?), priority = max(priority, ?), attributes = ?, body = ?,
        again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
    WHERE id = ?
"""

# one that is leased: what is added is kept beside what is in hand. The item's own priority counts when it comes back
# without being done, and is the higher one then.
AGAIN = """
    UPDATE item SET
        priority = max(priority, ?), again_due = min(coalesce(again_due, 9e999), ?),
        again_priority = max(coalesce(again_priority, 0), ?), again_attributes = ?, again_body = ?
    WHERE id = ?
"""

# one that is dead
LIVE = """
    UPDATE item SET
        state = 0, due = ?, priority = ?, attributes = ?, body = ?,
        receives = 0, unanswered = 0, kind = NULL, reason = NULL, trace = NULL
    WHERE id = ?
"""

FORGET_AGAIN = """
    UPDATE item SET again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
    WHERE queue = ? AND key = ? AND state = 1 AND due > ? AND again_due > ?
"""

COUNT_WAITING = """
    SELECT coalesce((SELECT alive FROM queue WHERE name = :queue), 0)
        - (SELECT count(*) FROM item WHERE queue = :queue AND state = 1 AND due > :now)
"""

# -- out

NEXT_DUE = """
    SELECT min(due) FROM (
        SELECT min(due) AS due FROM item WHERE queue = ? AND state = 0
        UNION ALL SELECT min(due) FROM item WHERE queue = ? AND state = 1
    )
"""

# what another program wrote past the checks of the table
MEND = """
    UPDATE item SET priority = 0
    WHERE queue = ? AND state IN (0, 1) AND (typeof(priority) <> 'integer' OR priority < 0)
"""

LEASE = "UPDATE item SET state = 1, due = ?, token = ?, receives = ?, unanswered = ? WHERE id = ?"

EXTEND = "UPDATE item SET due = ? WHERE queue = ? AND key = ? AND token = ? AND due > ? AND state = 1"

HELD = """
    SELECT id, receives, again_due, again_priority FROM item
    WHERE queue = ? AND key = ? AND token = ? AND due > ? AND state = 1
"""

DONE = """
    DELETE FROM item
    WHERE queue = ? AND key = ? AND token = ? AND due > ? AND state = 1 AND again_due IS NULL
"""

# what was added meanwhile is what there is
MERGE = """
    UPDATE item SET
        attributes = again_attributes, body = coalesce(again_body, ''),
        again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
    WHERE id = ?
"""

BACK = "UPDATE item SET state = 0, token = 0, due = ?, receives = ?, unanswered = 0 WHERE id = ?"

UNTOUCHED = "UPDATE item SET state = 0, token = 0, due = ?, receives = receives - 1 WHERE id = ?"

BEGIN_ANEW = "UPDATE item SET state = 0, token = 0, receives = 0, unanswered = 0, due = ?, priority = ? WHERE id = ?"

BURY = "UPDATE item SET state = 2, token = 0, due = ?, kind = ?, reason = ?, trace = ? WHERE id = ?"

# -- what there is

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

# those that died last, of all that died before a place: an instant and an id
DEAD_LETTERS = f"""
    SELECT
        {_cut("key", ":longest")}, {_cut("body", ":longest")}, {_cut("attributes", ":longest_attributes")},
        {_cut("kind", LONGEST_REASON)}, {_cut("reason", LONGEST_REASON)}, {_cut("trace", LONGEST_REASON)},
        receives, due, id
    FROM item
    WHERE queue = :queue AND state = 2 AND (due, id) < (:due, :id) ORDER BY due DESC, id DESC LIMIT :most
"""

DIED_LAST = "SELECT due, id FROM item WHERE queue = ? AND state = 2 ORDER BY due DESC, id DESC LIMIT 1"

# those that died first, of all that died behind one place and not behind another
DIED_FIRST = """
    SELECT due, id FROM item
    WHERE queue = ? AND state = 2 AND (due, id) > (?, ?) AND (due, id) <= (?, ?) ORDER BY due, id LIMIT ?
"""

DEAD = "SELECT due, id FROM item WHERE queue = ? AND key = ? AND state = 2"

# its id is new, as of those that are due at one instant the lowest is the first
REDRIVE = """
    UPDATE item SET
        id = (SELECT max(id) FROM item) + 1, state = 0, due = ?, receives = 0, unanswered = 0,
        kind = NULL, reason = NULL, trace = NULL
    WHERE id = ?
"""

PURGE = "DELETE FROM item WHERE id = ?"

# -- which is next

# a lease that ran out had no answer
COLUMNS = f"""
    id, CASE WHEN typeof(key) = 'text' THEN {_cut("key", ":longest_key")} END, receives,
    {_cut("attributes", ":longest_attributes")}, {_cut("body", ":longest")},
    again_due, {_cut("again_attributes", ":longest_attributes")}, {_cut("again_body", ":longest")},
    unanswered + (state = 1)
"""

# without being told, SQLite would sort all that wait
LOWER = """
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
