"""PL/pgSQL functions that add messages to a queue in PostgreSQL, and cancel delayed ones; see `queue_functions`."""

from __future__ import annotations

from abate.stores.postgres import queue_capacity_functions
from abate.stores.postgres.queue_functions import INDEXED

ADD = f"""
    CREATE OR REPLACE FUNCTION @.add(
        p_queue text, p_key text, p_body text, p_attributes text, p_priority integer, p_after float8,
        p_revive boolean, p_capacity integer, p_now float8
    ) RETURNS text LANGUAGE plpgsql {INDEXED} AS $$
    DECLARE
        v_known record;
        v_now float8;
        v_ahead float8;
        v_new boolean := true;
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(@.bell(p_queue));
        v_ahead := @.keep_pace(p_queue, p_now);
        LOOP
            SELECT state, due, priority, again_due INTO v_known FROM @.item
                WHERE queue = p_queue AND key = p_key FOR UPDATE;
            v_now := @.instant(p_now) + v_ahead;
            IF v_known.state IS NULL THEN
                IF @.full(p_queue, p_capacity, p_now) THEN
                    RETURN 'full';
                END IF;
                INSERT INTO @.queue (name) VALUES (p_queue) ON CONFLICT DO NOTHING;
                INSERT INTO @.item (queue, key, due, priority, attributes, body)
                    VALUES (p_queue, p_key, v_now + p_after, p_priority, p_attributes, p_body) ON CONFLICT DO NOTHING;
                CONTINUE WHEN NOT FOUND;  -- somebody else was first
            ELSIF v_known.state = 2 THEN
                IF NOT p_revive THEN
                    RETURN 'known';
                END IF;
                IF @.full(p_queue, p_capacity, p_now) THEN
                    RETURN 'full';
                END IF;
                UPDATE @.item SET
                    id = DEFAULT, state = 0, due = v_now + p_after, priority = p_priority,
                    attributes = p_attributes, body = p_body, receives = 0, unanswered = 0,
                    kind = NULL, reason = NULL, trace = NULL
                WHERE queue = p_queue AND key = p_key;
            ELSIF v_known.state = 1 AND v_known.due > v_now THEN
                -- what is added is kept beside what is in hand. The item's own priority counts when it comes back
                -- without being done, and is the higher one then.
                v_new := v_known.again_due IS NULL;
                UPDATE @.item SET
                    priority = greatest(priority, p_priority), again_due = least(again_due, v_now + p_after),
                    again_priority = greatest(again_priority, p_priority), again_attributes = p_attributes,
                    again_body = p_body
                WHERE queue = p_queue AND key = p_key;
            ELSE
                -- the earlier instant, the higher priority, the newest body. A lease that ran out is over by this.
                v_new := false;
                UPDATE @.item SET
                    unanswered = unanswered + (state = 1 AND receives > 0)::integer,
                    receives = greatest(receives, (state = 1)::integer),
                    state = 0, token = 0, due = least(due, v_now + p_after), priority = greatest(priority, p_priority),
                    attributes = p_attributes, body = p_body,
                    again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
                WHERE queue = p_queue AND key = p_key;
                IF p_priority > v_known.priority THEN
                    -- it may be older than all that is known of its new lane
                    UPDATE @.lane SET since = v_known.due
                    WHERE queue = p_queue AND priority = p_priority AND since > v_known.due;
                END IF;
            END IF;
            PERFORM @.ring(p_queue);
            RETURN CASE WHEN v_new THEN 'new' ELSE 'known' END;
        END LOOP;
    END $$
"""

# Add messages with different keys, all or none. `p_messages` is a JSON array of [key, body, place], sorted by key so
# that two calls can't deadlock; messages get their ids in the order of their places. Return the places of those whose
# key is not new; -1 if the queue is full, with nothing added.
ADD_MANY = f"""
    CREATE OR REPLACE FUNCTION @.add_many(
        p_queue text, p_messages json, p_attributes text, p_priority integer, p_after float8,
        p_revive boolean, p_capacity integer, p_now float8
    ) RETURNS SETOF integer LANGUAGE plpgsql {INDEXED} AS $$
    DECLARE
        v_ids bigint[];
        v_started bigint;
        v record;
        v_dues float8;
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(@.bell(p_queue));
        IF p_capacity IS NOT NULL THEN  -- adds that see the capacity wait until this one has committed
            PERFORM pg_advisory_xact_lock(@.capacity_lock(p_queue));
        END IF;
        v_dues := @.keep_pace(p_queue, p_now);
        v_dues := v_dues + @.instant(p_now) + p_after;
        INSERT INTO @.queue (name) VALUES (p_queue) ON CONFLICT DO NOTHING;
        SELECT array_agg(nextval('@.item_id_seq')) INTO v_ids FROM generate_series(1, json_array_length(p_messages));
        INSERT INTO @.item (id, queue, key, due, priority, attributes, body)
            SELECT v_ids[(said->>2)::integer + 1], p_queue, said->>0, v_dues, p_priority, p_attributes, said->>1
            FROM json_array_elements(p_messages) AS said
            ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS v_started = ROW_COUNT;
        IF v_started < cardinality(v_ids) THEN
            FOR v IN
                SELECT said->>0 AS key, said->>1 AS body, (said->>2)::integer AS place
                FROM json_array_elements(p_messages) AS said
            LOOP
                CONTINUE WHEN EXISTS (
                    SELECT FROM @.item WHERE queue = p_queue AND key = v.key AND id = v_ids[v.place + 1]);
                IF @.add(p_queue, v.key, v.body, p_attributes, p_priority, p_after, p_revive, NULL, p_now) = 'known'
                THEN
                    RETURN NEXT v.place;
                ELSIF NOT EXISTS (SELECT FROM @.item WHERE queue = p_queue AND key = v.key AND state + 0 = 1) THEN
                    v_started := v_started + 1;
                END IF;
            END LOOP;
        END IF;
        IF v_started > 0 AND @.full(p_queue, p_capacity + 1, p_now) THEN
            RAISE EXCEPTION USING ERRCODE = 'AB001';
        END IF;
        PERFORM @.ring(p_queue);
    EXCEPTION WHEN SQLSTATE 'AB001' THEN
        RETURN QUERY SELECT -1;
    END $$
"""

CANCEL = f"""
    CREATE OR REPLACE FUNCTION @.cancel(p_queue text, p_key text, p_now float8) RETURNS boolean
    LANGUAGE plpgsql {INDEXED} AS $$
    DECLARE
        v_ahead float8 := @.ahead(p_queue, p_now);
    BEGIN
        DELETE FROM @.item WHERE queue = p_queue AND key = p_key AND state + 0 = 0
            AND due > @.instant(p_now) + v_ahead;
        IF FOUND THEN
            RETURN true;
        END IF;
        UPDATE @.item SET again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
        WHERE queue = p_queue AND key = p_key AND state + 0 = 1
            AND due > @.instant(p_now) + v_ahead AND again_due > @.instant(p_now) + v_ahead;
        RETURN FOUND;
    END $$
"""

FUNCTIONS = (*queue_capacity_functions.FUNCTIONS, ADD, ADD_MANY, CANCEL)
