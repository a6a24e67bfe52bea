"""The time of a queue in PostgreSQL: it never goes back.

The clock of the server may be set back, or that of its successor may be behind. Behind the latest instant that was
written down (the table `pace`), the time of a queue goes on from there, at the clock's pace: it is some seconds ahead
of the clock. These are 0 while nothing has happened to the clock. So what was ready stays ready, no delay and no lease
takes longer than was asked for, and none that is over begins again; to within a second, which is how often it is
written down.

A queue that nothing uses until the clock has caught up goes by the clock again: a pause cannot be told from a clock
that was put right. A delay that was asked for while the queue's time was ahead takes longer then, by as many seconds.

What a fleet shares goes by the clock itself: it is of seconds, and is forgotten where it lies ahead.
"""

from __future__ import annotations

INSTANT = """
    CREATE OR REPLACE FUNCTION @.instant(p_now float8) RETURNS float8 LANGUAGE sql VOLATILE AS $$
        SELECT coalesce(p_now, extract(epoch FROM clock_timestamp())::float8)
    $$
"""

FARTHEST = 3e8
"""Seconds, about ten years. Another program may have written anything into the table, infinity and NaN among them:
what is no instant within ten years of the clock is none, and is written anew."""

# how many seconds a queue's time is ahead of the clock, by what was written down
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

# The same; and write down how late it is, about once a second. Nobody waits for a row of `pace`: where somebody else is
# writing at this moment, that is enough.
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
