"""Is there room for one more that waits? To count them at every add would take longer the more there are.

* While there is plenty of room: what was counted is kept, with the newest id of then. Whatever has come since has an id
  of its own, so there are no more than that. Nobody else needs to be kept out while there is room for as many as could
  be adding at this moment, each on a connection of its own; twice, as others were adding while it was counted.
* Else one at a time looks, and counts those that wait. Where the capacity is at most `EXACT`, it counts at every add. A
  count of more is kept for a while, of a second for a capacity of `COUNTED`. Those that have come since are added to
  it, those that have left are not known: no more are let in than there is room for, and room is noticed that much
  later.
"""

from __future__ import annotations

EXACT = 10_000
COUNTED = 500_000
FULL = f"""
    CREATE OR REPLACE FUNCTION @.full(p_queue text, p_capacity integer, p_now float8) RETURNS boolean
    LANGUAGE plpgsql AS $$
    DECLARE
        v_at_once bigint := 2 * current_setting('max_connections')::bigint;
        v_lock bigint := hashtextextended('abate @name room ' || p_queue, 0);
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
        IF p_capacity > {EXACT} AND p_capacity = v_known.waiting_most
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
