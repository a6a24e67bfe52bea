"""PL/pgSQL functions for the time of a queue, which never goes back.

The clock of the server may be set back, or a failover may lead to a server whose clock is behind. While the clock is
before the latest recorded instant (the table `pace`), the time of a queue continues from that instant at the clock's
pace, so it is ahead of the clock by some seconds. Normally these are 0. So ready messages stay ready, delays and leases
take no longer than requested, and expired leases stay expired; all within a second, which is the interval of recording.

If a queue is not used until the clock has caught up, it follows the clock again: an unused queue can't be distinguished
from a corrected clock. A delay requested while the queue's time was ahead then takes longer by that many seconds.

Shared limits use the clock directly: their data is valid for seconds, and data from the future is dropped.
"""

from __future__ import annotations

INSTANT = """
    CREATE OR REPLACE FUNCTION @.instant(p_now float8) RETURNS float8 LANGUAGE sql VOLATILE AS $$
        SELECT coalesce(p_now, extract(epoch FROM clock_timestamp())::float8)
    $$
"""

FARTHEST = 3e8
"""Seconds, about ten years. Another program may have written anything into the table, including infinity and NaN: an
instant further ahead of the clock is ignored and overwritten."""

# the seconds that a queue's time is ahead of the clock, given the recorded instant
LEAD = f"""
    CREATE OR REPLACE FUNCTION @.lead(p_clock float8, p_mark float8, p_ahead float8) RETURNS float8
    LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE WHEN p_mark > p_clock AND p_mark < p_clock + {FARTHEST}
            THEN greatest(CASE WHEN p_ahead < {FARTHEST} THEN p_ahead END, p_mark - p_clock) ELSE 0 END
    $$
"""

AHEAD = """
    CREATE OR REPLACE FUNCTION @.ahead(p_queue text, p_now float8) RETURNS float8 LANGUAGE plpgsql AS $$
    BEGIN
        RETURN coalesce((SELECT @.lead(@.instant(p_now), mark, ahead) FROM @.pace WHERE queue = p_queue), 0);
    END $$
"""

# Like `ahead`; also record the time, about once a second. It never waits for a row of `pace`: if another transaction is
# writing the row, that is sufficient.
KEEP_PACE = f"""
    CREATE OR REPLACE FUNCTION @.keep_pace(p_queue text, p_now float8) RETURNS float8 LANGUAGE plpgsql AS $$
    DECLARE
        v_clock float8 := @.instant(p_now);
        v_ahead float8;
        v_known record;
    BEGIN
        SELECT mark, ahead INTO v_known FROM @.pace WHERE queue = p_queue;
        v_ahead := @.lead(v_clock, v_known.mark, v_known.ahead);
        IF v_known.mark IS NULL THEN
            IF pg_try_advisory_xact_lock(hashtextextended('abate @name pace ' || p_queue, 0)) THEN
                INSERT INTO @.pace VALUES (p_queue, v_clock, 0) ON CONFLICT DO NOTHING;
            END IF;
        ELSIF v_ahead <> v_known.ahead OR v_clock + v_ahead > v_known.mark + 1
            OR v_known.mark >= v_clock + {FARTHEST}
        THEN
            SELECT mark, ahead INTO v_known FROM @.pace WHERE queue = p_queue FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                v_ahead := @.lead(v_clock, v_known.mark, v_known.ahead);
                UPDATE @.pace SET mark = v_clock + v_ahead, ahead = v_ahead WHERE queue = p_queue;
            END IF;
        END IF;
        RETURN v_ahead;
    END $$
"""

FUNCTIONS = (INSTANT, LEAD, AHEAD, KEEP_PACE)
