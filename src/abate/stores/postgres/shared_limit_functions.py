"""PL/pgSQL functions of a fleet's shared limits, by the rules in `stores.budget` and `stores.fleet`.

The conformance suite checks that SQLite, Redis and PostgreSQL give the same replies.

* All requests of one member are answered in one round trip. Requests of several members for the same limit are
  serialized by advisory locks, which are taken in a fixed order.
* Commits are asynchronous (`synchronous_commit=off`): a crash of the server may lose the latest counts.
* Exact numbers are integers (numeric); floating-point operations are the same as in Python, in the same order.
* The constants of the rules (`p_numbers`: when a member expires, how fast a limit grows) are passed with the requests,
  so each is defined once, and a release that changes one needs no migration.
"""

from __future__ import annotations

from abate.stores.postgres.queue_functions import INDEXED

LOCK = """
    CREATE OR REPLACE FUNCTION @.hold(p_scopes text[]) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        v_lock bigint;
    BEGIN
        PERFORM set_config('synchronous_commit', 'off', true);
        FOR v_lock IN
            SELECT DISTINCT hashtextextended('abate @name shared ' || scope, 0) AS lock FROM unnest(p_scopes) AS scope
            ORDER BY lock
        LOOP
            PERFORM pg_advisory_xact_lock(v_lock);
        END LOOP;
    END $$
"""

# -- budgets

# the start of the oldest slot in the window
SINCE = """
    CREATE OR REPLACE FUNCTION @.since(p_window float8, p_now float8) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
        SELECT (floor(p_now / (p_window / 50)) - 49) * (p_window / 50)
    $$
"""

VALID_COUNTS = f"(deposits BETWEEN 0 AND {2**52} AND withdrawals BETWEEN 0 AND {2**52})"
"""Condition for valid slots: those of another program would overflow, or grant without bound."""

# Deposit, take back the newest withdrawals, and withdraw as much as the balance allows. Return the granted number.
# A slot that begins more than a window ahead was written before the clock was set back.
DRAW = f"""
    CREATE OR REPLACE FUNCTION @.draw(
        p_name text, p_window float8, p_one numeric, p_per_deposit numeric, p_reserved numeric,
        p_deposits bigint, p_spent bigint, p_returned bigint, p_want bigint, p_members bigint, p_now float8
    ) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        v_width float8 := p_window / 50;
        v_place float8 := floor(p_now / v_width);
        v_since float8 := @.since(p_window, p_now);
        v_returned bigint := p_returned;
        v_slot record;
        v_paid numeric;
        v_drawn numeric;
        v_left bigint;
        v_granted bigint;
    BEGIN
        DELETE FROM @.slot WHERE budget = p_name
            AND (forgotten <= p_now OR begins > v_place * v_width + p_window OR NOT {VALID_COUNTS});
        -- and those of names that are not used any more, without waiting for anybody
        FOR v_slot IN
            SELECT budget, begins FROM @.slot WHERE forgotten <= p_now ORDER BY forgotten LIMIT 100
            FOR UPDATE SKIP LOCKED
        LOOP
            DELETE FROM @.slot WHERE budget = v_slot.budget AND begins = v_slot.begins;
        END LOOP;
        FOR v_slot IN
            SELECT begins, withdrawals FROM @.slot
            WHERE budget = p_name AND begins >= v_since AND withdrawals > 0 ORDER BY begins DESC
        LOOP
            EXIT WHEN v_returned = 0;
            UPDATE @.slot SET withdrawals = withdrawals - least(v_returned, v_slot.withdrawals)
                WHERE budget = p_name AND begins = v_slot.begins;
            v_returned := v_returned - least(v_returned, v_slot.withdrawals);
        END LOOP;
        SELECT coalesce(sum(deposits), 0) + p_deposits, coalesce(sum(withdrawals), 0) + p_spent INTO v_paid, v_drawn
            FROM @.slot WHERE budget = p_name AND begins >= v_since;
        v_left := greatest(0, least(1000000000, div(p_reserved + p_per_deposit * v_paid - p_one * v_drawn, p_one)));
        v_granted := least(p_want, (v_left + p_members - 1) / p_members);
        IF p_deposits > 0 OR p_spent + v_granted > 0 THEN
            INSERT INTO @.slot AS known (budget, begins, forgotten, deposits, withdrawals) VALUES (
                p_name, v_place * v_width, (v_place + 51) * v_width,
                least(p_deposits, 4294967295), least(p_spent + v_granted, 4294967295)
            ) ON CONFLICT (budget, begins) DO UPDATE SET
                forgotten = greatest(known.forgotten, excluded.forgotten),
                deposits = known.deposits + excluded.deposits,
                withdrawals = known.withdrawals + excluded.withdrawals;
        END IF;
        RETURN v_granted;
    END $$
"""

EXCHANGE = f"""
    CREATE OR REPLACE FUNCTION @.exchange(
        p_name text, p_window float8, p_one numeric, p_per_deposit numeric, p_reserved numeric,
        p_deposits bigint, p_returned bigint, p_want bigint, p_now float8
    ) RETURNS bigint LANGUAGE plpgsql {INDEXED} AS $$
    BEGIN
        PERFORM @.hold(ARRAY['budget:' || p_name]);
        RETURN @.draw(
            p_name, p_window, p_one, p_per_deposit, p_reserved, p_deposits, 0, p_returned, p_want, 1, @.instant(p_now)
        );
    END $$
"""

# -- members

# record that a member is active; return the number of members
CAME = """
    CREATE OR REPLACE FUNCTION @.came(
        p_scope text, p_member text, p_wanted float8, p_sees text, p_numbers json, p_now float8
    ) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        v_gone float8 := p_numbers->>'gone';
    BEGIN
        DELETE FROM @.member WHERE scope = p_scope AND (seen <= p_now - v_gone OR seen > p_now + v_gone);
        INSERT INTO @.member (scope, member, seen, wanted, sees) VALUES (p_scope, p_member, p_now, p_wanted, p_sees)
            ON CONFLICT (scope, member) DO UPDATE SET
                seen = excluded.seen, wanted = excluded.wanted, sees = excluded.sees;
        RETURN (SELECT count(*) FROM @.member WHERE scope = p_scope);
    END $$
"""

# -- buckets

SOUND = "(member = p_member OR (wanted BETWEEN 0 AND 1e15 AND part BETWEEN 0 AND 1))"
"""Condition for valid rows of members: a NaN from another program would spread to all shares."""

# return one member's share of a bucket's rate, given the demands and the shares of the others
SHARE = f"""
    CREATE OR REPLACE FUNCTION @.share(p_scope text, p_member text, p_wanted float8, p_numbers json) RETURNS float8
    LANGUAGE plpgsql AS $$
    DECLARE
        v_idle float8 := p_numbers->>'idle';
        v_kept float8 := p_numbers->>'kept';
        v_least float8;
        v_part float8;
    BEGIN
        SELECT v_idle * sum(wanted) / count(*) INTO v_least FROM @.member WHERE scope = p_scope AND {SOUND};
        v_least := CASE WHEN v_least = 0 THEN 1.0 ELSE v_least END;
        SELECT greatest(0.0, least(
            greatest(p_wanted, v_least) / sum(greatest(wanted, v_least)) * (1.0 - v_kept),
            1.0 - coalesce(sum(part) FILTER (WHERE member <> p_member), 0.0)
        )) INTO v_part FROM @.member WHERE scope = p_scope AND {SOUND};
        UPDATE @.member SET part = v_part WHERE scope = p_scope AND member = p_member;
        RETURN v_part;
    END $$
"""

# -- shelters

# update the state of a dependency by a member's report, and return the advice for the member
HEARD = """
    CREATE OR REPLACE FUNCTION @.heard(
        p_offer json, p_member text, p_members bigint, p_numbers json, p_now float8,
        OUT o_state text, OUT o_closed float8, OUT o_probe boolean, OUT o_limit float8
    ) LANGUAGE plpgsql AS $$
    DECLARE
        v_name text := p_offer->>'name';
        v_sees text := p_offer->>'sees';
        v_answered float8 := p_offer->>'answered';
        v_failed float8 := p_offer->>'failed';
        v_lately float8 := p_now - (p_numbers->>'lately')::float8;
        v_turn float8 := p_now + (p_numbers->>'turn')::float8;
        v_turned_away boolean := v_failed > (p_numbers->>'shed')::float8 * (v_answered + v_failed);
        v_first float8 := p_numbers->>'first';
        v_growth float8;
        v_good bigint;
        v_bad bigint;
        v_place bigint;
        known @.weather;
    BEGIN
        SELECT count(*) FILTER (WHERE sees = 'good' AND seen > v_lately),
            count(*) FILTER (WHERE sees = 'bad' AND seen > v_lately),
            count(*) FILTER (WHERE member < p_member)
            INTO v_good, v_bad, v_place FROM @.member WHERE scope = 'shelter:' || v_name;
        SELECT * INTO known FROM @.weather WHERE name = v_name;
        IF NOT FOUND THEN
            known := (v_name, 'calm', '-infinity', '', '-infinity', 0.0, 0.0, '-infinity');
        END IF;
        IF known.state <> 'calm' AND p_now >= greatest(known.turn, known.grown) + (p_numbers->>'stale')::float8 THEN
            known := (v_name, 'calm', '-infinity', '', '-infinity', 0.0, 0.0, '-infinity');
        END IF;
        -- another program may have written anything, and from nothing a limit would never grow
        IF known.state NOT IN ('calm', 'storm', 'recovering') THEN
            known.state := 'calm';
        ELSIF known.state = 'recovering' THEN
            known.highest := greatest(1.0, known.highest);
            known.base := greatest(1.0, known.base);
        END IF;
        known.until := least(known.until, p_now + (p_numbers->>'longest')::float8);
        known.turn := least(known.turn, v_turn);
        known.grown := least(known.grown, p_now);
        CASE known.state
            WHEN 'calm' THEN
                IF v_bad > v_good AND v_sees = 'bad' THEN
                    known.state := 'storm'; known.prober := p_member; known.turn := v_turn;
                END IF;
            WHEN 'storm' THEN
                IF v_answered > v_failed THEN
                    known.state := 'recovering';
                    known.highest := greatest(v_first, p_members * (p_numbers->>'eighth')::float8);
                    known.base := known.highest; known.grown := p_now; known.until := '-infinity';
                ELSIF p_now >= known.turn AND p_offer->>'state' <> 'calm' THEN
                    known.prober := p_member; known.turn := v_turn;
                END IF;
            ELSE
                IF v_sees = 'bad' AND v_bad > v_good THEN
                    known.state := 'storm'; known.prober := p_member; known.turn := v_turn;
                ELSE
                    IF p_now >= known.grown + (p_numbers->>'every')::float8 THEN
                        IF v_turned_away THEN
                            known.highest := greatest(v_first, known.highest / 2);
                        END IF;
                        known.base := known.highest; known.grown := p_now;
                    END IF;
                    IF NOT v_turned_away THEN
                        v_growth := p_numbers->>(CASE WHEN known.base < p_members THEN 'growth' ELSE 'gently' END);
                        known.highest := least(known.highest + v_answered, known.base * v_growth);
                    END IF;
                    IF known.highest >= (p_numbers->>'plenty')::float8 * p_members THEN
                        known := (v_name, 'calm', '-infinity', '', '-infinity', 0.0, 0.0, '-infinity');
                    END IF;
                END IF;
        END CASE;
        IF known.state = 'storm' AND (p_offer->>'closed')::float8 > 0 THEN
            known.until := greatest(
                known.until,
                p_now + least((p_offer->>'closed')::float8, (p_numbers->>'longest')::float8)
            );
        END IF;
        DELETE FROM @.weather WHERE name = v_name;
        IF known.state <> 'calm' THEN
            INSERT INTO @.weather SELECT known.*;
        END IF;
        o_state := known.state;
        o_closed := greatest(0.0, known.until - p_now);
        o_probe := known.state = 'storm' AND known.prober = p_member;
        o_limit := CASE
            WHEN known.state = 'calm' THEN 'infinity'
            WHEN known.state = 'storm' THEN 0.0
            WHEN known.highest / p_members >= 1 THEN known.highest / p_members
            WHEN (v_place + floor(p_now / (p_numbers->>'every')::float8)::bigint) % p_members < known.highest THEN 1.0
            ELSE 0.0
        END;
    END $$
"""

# Answer the requests of a member, in their order. A request is an object with its `scope` (budget:a, bucket:b,
# shelter:c), its `name`, and its values. One in a hundred calls also deletes members that were inactive for an hour.
TRADE = f"""
    CREATE OR REPLACE FUNCTION @.trade(p_member text, p_offers json, p_numbers json, p_now float8)
    RETURNS TABLE (
        o_members bigint, o_granted bigint, o_part float8, o_state text, o_closed float8, o_probe boolean,
        o_limit float8
    ) LANGUAGE plpgsql {INDEXED} AS $$
    DECLARE
        v_now float8;
        v json;
        v_gone record;
    BEGIN
        PERFORM @.hold(ARRAY(SELECT value->>'scope' FROM json_array_elements(p_offers)));
        v_now := @.instant(p_now);
        FOR v IN SELECT value FROM json_array_elements(p_offers) LOOP
            o_granted := NULL; o_part := NULL; o_state := NULL; o_closed := NULL; o_probe := NULL; o_limit := NULL;
            o_members := @.came(
                v->>'scope', p_member, coalesce((v->>'wanted')::float8, 0), coalesce(v->>'sees', 'nothing'),
                p_numbers, v_now
            );
            CASE split_part(v->>'scope', ':', 1)
                WHEN 'budget' THEN
                    o_granted := @.draw(
                        v->>'name', (v->>'window')::float8, (v->>'one')::numeric, (v->>'per_deposit')::numeric,
                        (v->>'reserved')::numeric, (v->>'earned')::bigint, (v->>'spent')::bigint,
                        (v->>'held')::bigint, (v->>'want')::bigint, o_members, v_now
                    );
                WHEN 'bucket' THEN
                    o_part := @.share(v->>'scope', p_member, (v->>'wanted')::float8, p_numbers);
                ELSE
                    SELECT * INTO o_state, o_closed, o_probe, o_limit
                        FROM @.heard(v, p_member, o_members, p_numbers, v_now);
            END CASE;
            RETURN NEXT;
        END LOOP;
        IF random() < 0.01 THEN
            FOR v_gone IN
                SELECT scope, member FROM @.member WHERE seen <= v_now - 3600 LIMIT 1000 FOR UPDATE SKIP LOCKED
            LOOP
                DELETE FROM @.member WHERE scope = v_gone.scope AND member = v_gone.member;
            END LOOP;
        END IF;
    END $$
"""

FUNCTIONS = (LOCK, SINCE, DRAW, EXCHANGE, CAME, SHARE, HEARD, TRADE)
