"""PL/pgSQL functions of a queue in PostgreSQL: each operation is one round trip and one transaction.

Those that add messages are in `adding_functions`.

* No lock outlives a statement, so a worker that hangs or loses its connection blocks no other.
* `lease_out` never waits for a row: it skips rows locked by others (``SKIP LOCKED``). Functions that may wait for
  several rows lock them in a fixed order, so that they can't deadlock: `extend` and `settle` by key (the client sorts
  them), and those of dead letters by time of death.
* `p_now` is NULL if PostgreSQL's clock applies, which is read after waiting for a row; tests pass their own instant.
  The time of a queue may be ahead of the clock (`monotonic_time_functions`).
* Plans are forced, because cached plans are made for an almost empty table and are wrong when a backlog arrives. A
  session caches its plans, so a plan made for ten rows would later be used for millions. A table that was empty at its
  last vacuum is assumed to be empty until the next one, by new sessions too. So functions called by clients have the
  settings `INDEXED`, and each statement on `item` matches exactly one index and has no join. Either it names queue and
  key, and hides its condition on the state (``state + 0 = 1``, since ``state = 1`` would also match the index by turn),
  or it is sorted like its index.
* A transaction that makes messages wait holds the queue's advisory lock `bell` in shared mode until it commits; a
  process that starts to listen takes it exclusively. So the process either finds an added message or is notified of it.

An item is leased while ``state = 1`` and its `due` is in the future.
"""

from __future__ import annotations

from abate.stores.postgres import monotonic_time_functions

INDEXED = (
    "SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off "
    "SET plan_cache_mode = force_generic_plan"
)
"""Settings of a function and its callees: read an index in its order, and plan once. They are set on the functions,
since a pooler loses the settings of a session."""

# -- notifications

BELL = """
    CREATE OR REPLACE FUNCTION @.bell(p_queue text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
        SELECT hashtextextended('abate @name bell ' || p_queue, 0)
    $$
"""

# notify only if a process listens, since a notification serializes all commits
RING = """
    CREATE OR REPLACE FUNCTION @.ring(p_queue text) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT FROM @.listener WHERE queue = p_queue AND until > @.instant(NULL)) THEN
            PERFORM pg_notify('@name', p_queue);
        END IF;
    END $$
"""

LISTEN = f"""
    CREATE OR REPLACE FUNCTION @.listen(p_queue text, p_seconds float8) RETURNS void LANGUAGE plpgsql {INDEXED} AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(@.bell(p_queue));
        INSERT INTO @.listener AS known VALUES (p_queue, @.instant(NULL) + p_seconds)
            ON CONFLICT (queue) DO UPDATE SET until = greatest(known.until, excluded.until);
    END $$
"""

# -- receiving and settling

# Return the earliest known due in a lane, and whether to scan the lane anew. Leased items leave dead entries in the
# index, and until the next vacuum every receiver would scan over them: so once in two seconds one receiver scans from
# the beginning, and the others start where it found the first item. No item is written with a due before the instant of
# writing, except a key whose priority is raised, and `add` then updates `since` of its new lane; `since` is one second
# earlier than the first item, to allow for concurrent writes. Items committed later than that, or written by another
# program, are found by the next scan.
BEGINS = """
    CREATE OR REPLACE FUNCTION @.begins(
        p_queue text, p_lane integer, p_now float8, OUT o_since float8, OUT o_look boolean
    ) LANGUAGE plpgsql AS $$
    DECLARE
        v_looked float8;
    BEGIN
        SELECT since, looked INTO o_since, v_looked FROM @.lane WHERE queue = p_queue AND priority = p_lane;
        o_look := v_looked IS NULL OR o_since > p_now;
        IF abs(p_now - v_looked) > 2 THEN
            PERFORM FROM @.lane WHERE queue = p_queue AND priority = p_lane FOR UPDATE SKIP LOCKED;
            o_look := FOUND;
        END IF;
        IF o_look THEN
            o_since := '-infinity';
        END IF;
    END $$
"""

# Lease items: the highest priority first, then the oldest; one of eight turns goes to the oldest of all. Turns are
# counted only if there is more than one priority. Each priority takes one query, so there should be few. If no item is
# ready, return one row without a key, with the seconds until one will be.
# After the first `p_counted` items, lease only those that were never received, and none behind another one: their
# receive counts when they are settled, so until then `receives` is 0.
RECEIVE = f"""
    CREATE OR REPLACE FUNCTION @.lease_out(
        p_queue text, p_most integer, p_counted integer, p_lease float8, p_now float8
    )
    RETURNS TABLE (
        o_key text, o_body text, o_attributes text, o_receives integer, o_token bigint, o_pause float8,
        o_unanswered integer
    )
    LANGUAGE plpgsql {INDEXED} AS $$
    DECLARE
        v_now float8;
        v_lanes integer[] := '{{}}';
        v_begins float8[] := '{{}}';  -- since when there is anything in each of them
        v_place integer := 1;  -- in the lanes, from the highest priority down
        v_lane integer;
        v_turn integer;
        v_since float8;
        v_look boolean;
        v_first float8;
        v_next float8;
        v_many integer;
        v_got integer;
        v_left integer := p_most;
        v_counted integer := p_counted;
        v_blocked integer;  -- the place of the first that would have to count, and can't
        v_keys text[];
        v_seen boolean[];
        v_tokens bigint[];
    BEGIN
        SELECT priority INTO v_lane FROM @.item
            WHERE queue = p_queue AND state < 2 ORDER BY priority DESC LIMIT 1;
        IF v_lane IS NOT NULL THEN  -- who looks into an empty queue writes nothing
            v_now := @.keep_pace(p_queue, p_now);
            v_now := v_now + @.instant(p_now);
        END IF;
        WHILE v_lane IS NOT NULL LOOP
            SELECT * INTO v_since, v_look FROM @.begins(p_queue, v_lane, v_now);
            SELECT due INTO v_first FROM @.item
                WHERE queue = p_queue AND state < 2 AND priority = v_lane AND due >= v_since ORDER BY due, id LIMIT 1;
            IF v_look THEN
                v_since := least(v_first, v_now) - 1;
                INSERT INTO @.lane VALUES (p_queue, v_lane, v_since, v_now)
                    ON CONFLICT (queue, priority) DO UPDATE SET since = excluded.since, looked = excluded.looked;
            END IF;
            v_lanes := v_lanes || v_lane;
            v_begins := v_begins || v_since;
            v_next := least(v_next, v_first);
            EXIT WHEN v_lane = 0;
            SELECT priority INTO v_lane FROM @.item
                WHERE queue = p_queue AND state < 2 AND priority < v_lane ORDER BY priority DESC LIMIT 1;
        END LOOP;
        IF v_next <= v_now AND cardinality(v_lanes) > 1 THEN
            INSERT INTO @.queue (name) VALUES (p_queue) ON CONFLICT DO NOTHING;
            SELECT turns INTO v_turn FROM @.queue WHERE name = p_queue FOR UPDATE;
        END IF;
        WHILE v_next <= v_now AND v_left > 0 AND v_place <= cardinality(v_lanes) LOOP
            IF v_turn = 7 THEN
                v_many := 1;
                SELECT lane, since INTO v_lane, v_since FROM unnest(v_lanes, v_begins) AS lanes (lane, since), LATERAL (
                    SELECT due, id FROM @.item
                    WHERE queue = p_queue AND state < 2 AND priority = lane AND due >= since AND due <= v_now
                    ORDER BY due, id LIMIT 1
                ) AS oldest ORDER BY due, id LIMIT 1;
            ELSE
                v_many := least(v_left, coalesce(7 - v_turn, v_left));
                v_lane := v_lanes[v_place];
                v_since := v_begins[v_place];
            END IF;
            SELECT array_agg(key), array_agg(nextval('@.token')), array_agg(state = 1 OR receives <> 0)
            INTO v_keys, v_tokens, v_seen FROM (
                SELECT key, state, receives FROM @.item
                WHERE queue = p_queue AND state < 2 AND priority = v_lane AND due >= v_since AND due <= v_now
                ORDER BY due, id LIMIT v_many FOR UPDATE SKIP LOCKED
            ) AS picked;
            SELECT min(place) INTO v_blocked FROM unnest(v_seen) WITH ORDINALITY AS picked (seen, place)
                WHERE seen AND place > v_counted;
            v_keys := v_keys[:coalesce(v_blocked - 1, v_many)];
            RETURN QUERY WITH leased AS (
                UPDATE @.item SET
                    state = 1, due = v_now + p_lease, token = v_tokens[array_position(v_keys, key)],
                    -- another program may have written any number
                    receives = greatest(0, least(receives, 2147483646))
                        + (array_position(v_keys, key) <= v_counted)::integer,
                    -- a lease that ran out had no answer
                    unanswered = greatest(0, least(unanswered, 2147483646)) + (state = 1 AND receives > 0)::integer,
                    -- it may have been added while the lease was running that ran out since
                    attributes = CASE WHEN again_due IS NULL THEN attributes ELSE again_attributes END,
                    body = CASE WHEN again_due IS NULL THEN body ELSE coalesce(again_body, '') END,
                    again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL
                WHERE queue = p_queue AND key = ANY (v_keys)
                RETURNING key, body, attributes, greatest(1, receives), token, NULL::float8, unanswered
            ) SELECT * FROM leased ORDER BY token;
            GET DIAGNOSTICS v_got = ROW_COUNT;
            v_left := v_left - v_got;
            v_counted := greatest(0, v_counted - v_got);
            EXIT WHEN v_blocked IS NOT NULL;
            IF v_turn = 7 THEN
                v_turn := 0;
            ELSE
                v_turn := v_turn + v_got;
                IF v_got < v_many THEN
                    v_place := v_place + 1;
                END IF;
            END IF;
        END LOOP;
        IF v_turn IS NOT NULL THEN
            UPDATE @.queue SET turns = v_turn WHERE name = p_queue;
        END IF;
        IF v_left = p_most THEN
            o_key := NULL;
            o_pause := v_next - v_now;
            RETURN NEXT;
        END IF;
    END $$
"""

# restart leases; return the indexes of those that were lost
EXTEND = f"""
    CREATE OR REPLACE FUNCTION @.extend(p_queue text, p_held json, p_lease float8, p_now float8) RETURNS SETOF integer
    LANGUAGE plpgsql {INDEXED} AS $$
    DECLARE
        v_held record;
        v_ahead float8 := @.keep_pace(p_queue, p_now);
    BEGIN
        FOR v_held IN SELECT value->>0 AS key, (value->>1)::bigint AS token, ordinality::integer - 1 AS place
            FROM json_array_elements(p_held) WITH ORDINALITY
        LOOP
            UPDATE @.item SET due = @.instant(p_now) + v_ahead + p_lease
            WHERE queue = p_queue AND key = v_held.key AND token = v_held.token
                AND state + 0 = 1 AND due > @.instant(p_now) + v_ahead;
            IF NOT FOUND THEN
                RETURN NEXT v_held.place;
            END IF;
        END LOOP;
    END $$
"""

# Carry out verdicts. A verdict is [key, token, what, seconds, touched, kind, reason, trace], with seconds for 'again'
# and 'back'. Return the indexes of those whose lease was lost. Content added during the lease replaces the old one, and
# can't be ready before now.
SETTLE = f"""
    CREATE OR REPLACE FUNCTION @.settle(p_queue text, p_verdicts json, p_now float8) RETURNS SETOF integer
    LANGUAGE plpgsql {INDEXED} AS $$
    DECLARE
        v record;
        v_held record;
        v_now float8;
        v_ahead float8;
        v_ring boolean := false;
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(@.bell(p_queue));
        v_ahead := @.keep_pace(p_queue, p_now);
        FOR v IN SELECT value->>0 AS key, (value->>1)::bigint AS token, value->>2 AS what,
                (value->>3)::float8 AS seconds, value AS said, ordinality::integer - 1 AS place
            FROM json_array_elements(p_verdicts) WITH ORDINALITY
        LOOP
            IF v.what = 'done' THEN
                DELETE FROM @.item WHERE queue = p_queue AND key = v.key AND token = v.token
                    AND state + 0 = 1 AND due > @.instant(p_now) + v_ahead AND again_due IS NULL;
                CONTINUE WHEN FOUND;
            END IF;
            -- another program may have written any instant, infinity and NaN among them
            SELECT due, CASE WHEN again_due IS NOT NULL THEN least(again_due, @.instant(p_now) + 3e9) END AS again_due
                INTO v_held FROM @.item
                WHERE queue = p_queue AND key = v.key AND token = v.token AND state + 0 = 1 FOR UPDATE;
            v_now := @.instant(p_now) + v_ahead;
            IF v_held.due > v_now THEN
                UPDATE @.item SET
                    attributes = CASE WHEN again_due IS NULL THEN attributes ELSE again_attributes END,
                    body = CASE WHEN again_due IS NULL THEN body ELSE coalesce(again_body, '') END,
                    again_due = NULL, again_priority = NULL, again_attributes = NULL, again_body = NULL,
                    token = 0,
                    state = CASE WHEN v.what = 'bury' AND again_due IS NULL THEN 2 ELSE 0 END,
                    due = CASE
                        WHEN v.seconds IS NULL THEN greatest(v_now, v_held.again_due)
                        WHEN again_due IS NULL THEN v_now + v.seconds
                        ELSE least(v_now + v.seconds, greatest(v_now, v_held.again_due))
                    END,
                    priority = CASE WHEN v.seconds IS NULL THEN greatest(0, coalesce(again_priority, priority))
                        ELSE priority END,
                    receives = CASE
                        -- 0 if it was received ahead
                        WHEN v.what = 'back' AND v.said->>4 = '0' THEN greatest(0, receives - 1)
                        WHEN v.what = 'back' OR again_due IS NULL AND v.what = 'bury' THEN greatest(1, receives)
                        ELSE 0
                    END,
                    unanswered = CASE WHEN v.what = 'back' AND v.said->>4 = '0' THEN unanswered ELSE 0 END,
                    kind = CASE WHEN again_due IS NULL THEN v.said->>5 END,
                    reason = CASE WHEN again_due IS NULL THEN v.said->>6 END,
                    trace = CASE WHEN again_due IS NULL THEN v.said->>7 END
                WHERE queue = p_queue AND key = v.key;
                v_ring := v_ring OR v.what <> 'bury' OR v_held.again_due IS NOT NULL;
            ELSE
                RETURN NEXT v.place;
            END IF;
        END LOOP;
        IF v_ring THEN
            PERFORM @.ring(p_queue);
        END IF;
    END $$
"""

FUNCTIONS = (
    *monotonic_time_functions.FUNCTIONS,
    *(BELL, RING, LISTEN),
    *(BEGINS, RECEIVE, EXTEND, SETTLE),
)
