"""PL/pgSQL functions for the dead letters of a queue: list, redrive and purge, in batches."""

from __future__ import annotations

from abate.stores.postgres.queue_functions import INDEXED

# Return the latest dead letters before a position (an instant and an id), latest first.
DEAD_LETTERS = f"""
    CREATE OR REPLACE FUNCTION @.letters(p_queue text, p_most integer, p_died float8, p_id bigint)
    RETURNS TABLE (
        o_key text, o_body text, o_attributes text, o_kind text, o_reason text, o_trace text, o_receives integer,
        o_died float8, o_id bigint
    ) LANGUAGE plpgsql {INDEXED} AS $$
    BEGIN
        -- another program may have written texts of any length: a megabyte of each is enough to be read by people
        RETURN QUERY SELECT key, left(body, 1048577), left(attributes, 1572865), left(kind, 16385),
            left(reason, 16385), left(trace, 16385), receives, due, id FROM @.item
            WHERE queue = p_queue AND state = 2 AND (due, id) < (p_died, p_id)
            ORDER BY due DESC, id DESC LIMIT p_most;
    END $$
"""

# Redrive or purge dead letters, the earliest first: those of `p_keys`, or up to `p_most` after one position (an instant
# and an id) and up to another. Return the number changed, the number read, and the position of the last.
REDRIVE_OR_PURGE = f"""
    CREATE OR REPLACE FUNCTION @.exhume(
        p_queue text, p_purge boolean, p_keys json, p_most integer,
        p_behind float8, p_behind_id bigint, p_until float8, p_until_id bigint, p_now float8,
        OUT o_many integer, OUT o_looked_at integer, OUT o_died float8, OUT o_id bigint
    ) LANGUAGE plpgsql {INDEXED} AS $$
    DECLARE
        v_now float8;
        v_keys text[];
        v_key text;
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(@.bell(p_queue));
        v_now := @.keep_pace(p_queue, p_now);
        v_now := v_now + @.instant(p_now);
        IF p_keys IS NULL THEN
            SELECT array_agg(key), (array_agg(due))[count(*)], (array_agg(id))[count(*)] INTO v_keys, o_died, o_id
            FROM (
                SELECT key, due, id FROM @.item WHERE queue = p_queue AND state = 2
                    AND (due, id) > (p_behind, p_behind_id) AND (due, id) <= (p_until, p_until_id)
                ORDER BY due, id LIMIT p_most
            ) AS dead;
        ELSE
            SELECT array_agg(key ORDER BY due, id) INTO v_keys FROM @.item WHERE queue = p_queue
                AND key = ANY (ARRAY(SELECT json_array_elements_text(p_keys))) AND state + 0 = 2;
        END IF;
        o_many := 0;
        o_looked_at := coalesce(cardinality(v_keys), 0);
        FOREACH v_key IN ARRAY coalesce(v_keys, '{{}}') LOOP
            -- somebody else may have been first, and it may have died anew since
            IF p_purge THEN
                DELETE FROM @.item WHERE queue = p_queue AND key = v_key
                    AND state + 0 = 2 AND (due, id) <= (p_until, p_until_id);
            ELSE
                UPDATE @.item SET
                    id = DEFAULT, state = 0, due = v_now, receives = 0, unanswered = 0,
                    kind = NULL, reason = NULL, trace = NULL
                WHERE queue = p_queue AND key = v_key AND state + 0 = 2 AND (due, id) <= (p_until, p_until_id);
            END IF;
            o_many := o_many + FOUND::integer;
        END LOOP;
        IF o_many > 0 AND NOT p_purge THEN
            PERFORM @.ring(p_queue);
        END IF;
    END $$
"""

FUNCTIONS = (DEAD_LETTERS, REDRIVE_OR_PURGE)
