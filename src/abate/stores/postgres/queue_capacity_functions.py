"""PL/pgSQL function for the capacity check of a queue, which avoids counting all messages at every add.

* Far below the capacity, adds use a stored count together with the newest id at that time. Every later message has a
  new id, so the count plus the growth of the id is an upper bound. Adds need not exclude each other while twice
  `max_connections` more messages fit: each connection can be adding one now, and another one during the count.
* Near the capacity, adds are serialized and count the waiting messages. If the capacity is at most `EXACT`, every add
  counts. A count for a larger capacity is reused for a while, one second for a capacity of `COUNTED`. Messages added
  since are included, messages that left are not: the capacity is never exceeded, and free capacity is noticed late by
  that interval at most.
* `add_many` adds first, asks whether more messages wait than the capacity (`full` for one more), and takes them back if
  so. It excludes all other adds from the start, as an add that has the lock may wait for one of its keys.
"""

from __future__ import annotations

EXACT = 10_000
COUNTED = 500_000

CAPACITY_LOCK = """
    CREATE OR REPLACE FUNCTION @.capacity_lock(p_queue text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
        SELECT hashtextextended('abate @name room ' || p_queue, 0)
    $$
"""

FULL = f"""
    CREATE OR REPLACE FUNCTION @.full(p_queue text, p_capacity integer, p_now float8) RETURNS boolean
    LANGUAGE plpgsql AS $$
    DECLARE
        v_at_once bigint := 2 * current_setting('max_connections')::bigint;
        v_lock bigint := @.capacity_lock(p_queue);
        v_newest bigint;
        v_known record;
        v_now float8;
        v_many bigint;
    BEGIN
        IF p_capacity IS NULL THEN
            RETURN false;
        END IF;
        SELECT last_value INTO v_newest FROM @.item_id_seq;
        SELECT counted + v_newest - counted_at AS most INTO v_known FROM @.queue WHERE name = p_queue;
        -- an add that does not count is waited for by those that do, until it has committed
        IF v_known.most + v_at_once <= p_capacity AND pg_try_advisory_xact_lock_shared(v_lock) THEN
            RETURN false;
        END IF;
        PERFORM pg_advisory_xact_lock(v_lock);
        v_now := @.instant(p_now) + @.ahead(p_queue, p_now);
        SELECT last_value INTO v_newest FROM @.item_id_seq;
        SELECT counted + v_newest - counted_at AS most, waiting + v_newest - waiting_at AS waiting, waiting_since,
            waiting_most INTO v_known FROM @.queue WHERE name = p_queue;
        IF v_known.most + v_at_once <= p_capacity THEN  -- somebody else has counted meanwhile
            RETURN false;
        END IF;
        IF p_capacity > {EXACT} AND abs(p_capacity - v_known.waiting_most) <= 1
            AND v_now < v_known.waiting_since + p_capacity / {COUNTED}::float8
        THEN
            RETURN v_known.waiting >= p_capacity;
        END IF;
        SELECT count(*) INTO v_many FROM (
            SELECT FROM @.item WHERE queue = p_queue AND state < 2 AND NOT (state = 1 AND due > v_now)
            ORDER BY priority, due, id LIMIT p_capacity
        ) AS waiting;
        IF p_capacity > {EXACT} THEN
            UPDATE @.queue SET
                waiting = v_many, waiting_at = v_newest, waiting_since = v_now, waiting_most = p_capacity
            WHERE name = p_queue;
        END IF;
        IF v_many + v_at_once > p_capacity THEN
            RETURN v_many >= p_capacity;
        END IF;
        SELECT count(*) INTO v_many FROM (
            SELECT FROM @.item WHERE queue = p_queue AND state < 2 ORDER BY priority, due, id LIMIT p_capacity
        ) AS alive;
        IF v_many + v_at_once <= p_capacity THEN
            UPDATE @.queue SET counted = v_many, counted_at = v_newest WHERE name = p_queue;
        END IF;
        RETURN false;
    END $$
"""

FUNCTIONS = (CAPACITY_LOCK, FULL)
