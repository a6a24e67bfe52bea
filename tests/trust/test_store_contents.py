"""What another program, or an attacker, wrote into a store is buried or left out; what is good beside it is served.

Rows, fields and keys are written into the engines directly, as abate itself never would.
"""

import json
import math
import sqlite3
import time
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abate.cli import main
from abate.stores import open_store
from abate.stores.encoding import DEFAULT_MAX_BODY, MAX_BODY_BYTES, MAX_SHOWN_BYTES
from abate.stores.fleet.sync_requests import BucketRequest, BudgetRequest, ShelterReport
from abate.testing import VirtualClock
from abate.work.source import Done
from tests.conformance.conftest import STORES

FUZZED = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
MAX_ROUNDS = 20


@pytest.fixture(params=STORES)
def url(request, tmp_path):
    return STORES[request.param](tmp_path)


@pytest.fixture
def store(url):
    with open_store(url) as opened:
        yield opened


def serve(queue, good):
    """Work through a queue: every good message is handed out and settled, and the rest ends in a few rounds."""
    done = set()
    for _ in range(MAX_ROUNDS):
        messages = queue.receive(10)
        if not messages:
            break
        assert queue.settle([(message, verdict_of(message)) for message in messages]) == []
        done |= {message.body for message in messages}
    else:
        pytest.fail("it does not come to an end")
    assert good <= done
    queue.depth()
    json.dumps([vars_of(letter) for letter in queue.dead()])
    return done


def verdict_of(message):
    return Done()


def vars_of(letter):
    return {name: str(getattr(letter, name)) for name in letter.__match_args__}


# -- bodies


def test_a_body_that_is_too_long_is_refused(store):
    """By `add` and `send`, with an error that names the bound; the bound is the user's to set."""
    queue = store.queue("orders", max_body=10)
    for send in (queue.send, lambda body: queue.add("a", body)):
        with pytest.raises(ValueError, match="a body must be a string of at most 10 bytes, not of 12"):
            send("é" * 6)
    queue.send("é" * 5)
    assert [message.body for message in queue.receive()] == ["é" * 5]
    large = store.queue("large", max_body=2 * DEFAULT_MAX_BODY)
    large.send("x" * 2 * DEFAULT_MAX_BODY)
    assert [len(message.body) for message in large.receive()] == [2 * DEFAULT_MAX_BODY]


@pytest.mark.parametrize("bound", [0, -1, 1.5, "10", MAX_BODY_BYTES + 1, None, True])
def test_a_bound_that_is_none_is_refused(store, bound):
    """When the queue is made."""
    with pytest.raises((TypeError, ValueError), match="max_body must be"):
        store.queue("orders", max_body=bound)


def test_a_body_that_is_too_long_is_buried(store):
    """By a consumer with a lower bound; its dead letter says why, shows its beginning, and can be redriven."""
    store.queue("orders").add("long", "x" * 1000)
    store.queue("orders").add("good", "y" * 10)
    queue = store.queue("orders", max_body=10)
    assert serve(queue, set()) == {"y" * 10}
    (letter,) = queue.dead()
    assert (letter.key, letter.kind) == ("long", "unreadable")
    assert "longer than 10 bytes (max_body)" in letter.reason
    assert letter.body == "x" * 10 + " … (cut) … "
    assert queue.redrive() == 1
    assert [message.body for message in store.queue("orders").receive()] == ["x" * 1000]


def test_of_a_long_dead_letter_the_beginning_is_shown(store):
    """A megabyte of it; the store keeps all."""
    queue = store.queue("orders", max_body=3 * MAX_SHOWN_BYTES)
    queue.add("long", "x" * 2 * MAX_SHOWN_BYTES)
    queue.bury(queue.receive()[0], "why")
    assert queue.dead()[0].body == "x" * MAX_SHOWN_BYTES + " … (cut) … "
    queue.redrive()
    assert len(queue.receive()[0].body) == 2 * MAX_SHOWN_BYTES


@pytest.mark.parametrize("body", ["", "\0", "a\0b" * 10, "\1\2", "\1", "é\n\n"])
def test_odd_bodies_are_bodies(store, body):
    """The bounds cut nothing that is within them."""
    queue = store.queue("orders", max_body=40)
    queue.send(body, attributes={"a\0": body})
    (message,) = queue.receive()
    assert (message.body, dict(message.attributes)) == (body, {"a\0": body})
    queue.bury(message, "why")
    assert queue.dead()[0].body == body


# -- SQLite

CELLS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.binary(max_size=30),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from([2**63 - 1, -1, math.inf, -math.inf, 1e300, "[" * 5000, b"\xff", '{"a": 5}', "{}", '{"a": "b"}']),
)
COLUMNS = ("state", "due", "priority", "receives", "token", "again_due", "again_priority", "kind", "reason", "trace")
TEXTS = ("attributes", "body", "again_attributes", "again_body", "unanswered")


@FUZZED
@given(rows=st.lists(st.dictionaries(st.sampled_from(COLUMNS + TEXTS), CELLS, max_size=6), max_size=4), data=st.data())
def test_any_row_of_sqlite(tmp_path_factory, rows, data):
    """Values of any type in any column, past the checks of the tables."""
    path = tmp_path_factory.mktemp("rows") / "work.db"
    with open_store(f"sqlite:///{path}") as store:
        queue = store.queue("orders")
        queue.add("good", "good")
        queue.add("urgent", "urgent", priority=3)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            for number, row in enumerate(rows):
                key = data.draw(st.one_of(st.just(f"bad-{number}"), st.binary(max_size=8), st.just("k" * 600)))
                names = ["queue", "key", *row]
                places = ", ".join("?" * len(names))
                try:
                    db.execute(
                        f"INSERT INTO item ({', '.join(names)}) VALUES ({places})", ("orders", key, *row.values())
                    )
                except sqlite3.IntegrityError:
                    pass  # NOT NULL, or the key is there already
        db.close()
        serve(queue, {"good", "urgent"})
        assert "orders" in store.queues()
        queue.redrive()
        serve(queue, set())
        queue.purge()


@FUZZED
@given(
    token=CELLS,
    instant=st.tuples(CELLS, CELLS, CELLS),
    turns=CELLS,
    slot=st.tuples(CELLS, CELLS),
    member=st.tuples(CELLS, CELLS, CELLS),
    weather=st.lists(CELLS, min_size=7, max_size=7),
)
def test_any_state_of_sqlite(tmp_path_factory, token, instant, turns, slot, member, weather):
    """The counters beside the rows: tokens, the time, turns, budgets, members and the weather."""
    path = tmp_path_factory.mktemp("state") / "work.db"
    with open_store(f"sqlite:///{path}") as store:
        queue = store.queue("orders")
        queue.add("good", "good")
        queue.add("urgent", "urgent", priority=3)
        now = store.now()
    statements = [
        ("UPDATE lease SET token = ?", (token,)),
        ("UPDATE instant SET start = ?, origin = ?, mark = ?", instant),
        ("UPDATE queue SET turns = ?", (turns,)),
        ("INSERT INTO slot VALUES ('tenant', ?, 9e999, ?, ?)", (now, *slot)),
        ("INSERT INTO member VALUES ('bucket:mails', 'x', ?, ?, ?, 'bad')", member),
        ("INSERT INTO weather VALUES ('api', ?, ?, ?, ?, ?, ?, ?)", weather),
    ]
    db = sqlite3.connect(path, isolation_level=None)
    for statement, values in statements:
        try:
            db.execute(statement, values)
        except sqlite3.IntegrityError:
            pass  # NOT NULL
    db.close()
    with open_store(f"sqlite:///{path}") as store:
        queue = store.queue("orders")
        serve(queue, {"good", "urgent"})
        assert store.ledger("tenant").try_withdraw() in (True, False)
        things = [store.budget("tenant"), store.bucket("mails", rate=5.0), store.shelter("api")]
        assert not store.degraded
        del things


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("receives", "many"),
        ("receives", 2**63 - 1),
        ("receives", -5),
        ("receives", 1.5),
        ("unanswered", 2**63 - 1),
        ("unanswered", -7),
        ("attributes", "[" * 100_000),
        ("attributes", '{"a": 5}'),
        ("attributes", b"\xff"),
        ("body", b"\xff"),
        ("body", "x" * (DEFAULT_MAX_BODY + 1)),
        ("key", "k" * 600),
        ("key", b"\xff".decode("latin-1") * 300),
    ],
    ids=str,
)
def test_a_row_of_sqlite_that_is_no_message_is_buried(tmp_path, column, value):
    """With a reason, and the good one beside it is served."""
    path = tmp_path / "work.db"
    with open_store(f"sqlite:///{path}") as store:
        queue = store.queue("orders")
        row = {"key": "bad", column: value}
        with closing(sqlite3.connect(path)) as db, db:
            names = ", ".join(["queue", *row])
            db.execute(f"INSERT INTO item ({names}) VALUES (?{', ?' * len(row)})", ("orders", *row.values()))
        db.close()
        queue.add("good", "good")
        assert serve(queue, {"good"}) == {"good"}
        (letter,) = queue.dead()
        assert letter.kind == "unreadable"


@pytest.mark.parametrize("priority", ["high", b"high", math.inf, -5])
def test_a_row_of_sqlite_without_a_priority_is_served(tmp_path, priority):
    """As one of the lowest: consumers that wait would look for it again and again."""
    path = tmp_path / "work.db"
    with open_store(f"sqlite:///{path}") as store:
        queue = store.queue("orders")
        queue.add("later", after=600.0)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            db.execute("INSERT INTO item (queue, key, priority) VALUES ('orders', 'odd', ?)", (priority,))
        db.close()
        assert [message.key for message in queue.receive()] == ["odd"]
        assert queue.receive(wait=0.05) == []


def test_what_was_written_beside_a_lease_of_sqlite_does_not_stop_a_settlement(tmp_path):
    """Neither an instant that is none, nor a priority that is none, nor a body that is missing."""
    path = tmp_path / "work.db"
    with open_store(f"sqlite:///{path}") as store:
        queue = store.queue("orders")
        queue.add("a")
        for due, priority in [("soon", "high"), (5.0, -3), (math.inf, None)]:
            (message,) = queue.receive()
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("UPDATE item SET again_due = ?, again_priority = ?, again_body = NULL", (due, priority))
            db.close()
            queue.done(message)
            depth = queue.depth()
            assert depth.ready + depth.delayed == 1


def test_tables_that_were_emptied(tmp_path):
    """The rows that there is one of each are made anew, or done without."""
    path = tmp_path / "work.db"
    with open_store(f"sqlite:///{path}") as store:
        store.queue("orders").add("good", "good")
        store.queue("orders").add("urgent", "urgent", priority=1)
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("lease", "instant", "queue"):
            db.execute(f"DELETE FROM {table}")
    db.close()
    with open_store(f"sqlite:///{path}") as store:
        serve(store.queue("orders"), {"good", "urgent"})


# -- Redis

REDIS = "redis"
RECORDS = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"w 000000000000009 0 0 0 0",
            b"w 000000000000009 nan 0 0 0",
            b"w 000000000000009 -inf 0 0 0",
            b"l 000000000000009 0 0 99999999999999999999999999 1",
            b"a 000000000000009 0 99999999999999999999 1 1",
            b"w 9 0 0 0 0",
            b"d 000000000000009 0 0 0 0",
            b"l 000000000000009 1 1 1 9999999999999999999999999",
            b"z 000000000000009 1 1 1 1",
        ]
    ),
)
CONTENTS = st.one_of(
    st.none(),
    st.binary(max_size=30),
    st.sampled_from([b"\nfine", b"[" * 5000 + b"\n", b'{"a": 5}\n', b"\n\xff", b'{"a": "b"}\nfine']),
)
NUMBERS = st.sampled_from([b"", b"abc", b"nan", b"inf", b"-inf", b"1e300", b"-1", b"3", b"99999999999999999999"])


def redis_of(url):
    redis = pytest.importorskip("redis")
    return redis.Redis.from_url(url.partition("?")[0])


@pytest.fixture
def redis_store(tmp_path):
    url = STORES[REDIS](tmp_path)
    with open_store(url) as store:
        yield store, redis_of(url)


@FUZZED
@given(
    items=st.lists(
        st.tuples(
            st.one_of(st.binary(max_size=8), st.just(b"bad")),
            RECORDS,
            CONTENTS,
            st.binary(max_size=20),
            CONTENTS,
            st.floats(allow_nan=False),
        ),
        max_size=4,
    ),
    line=st.lists(st.binary(max_size=30), max_size=2),
    turns=NUMBERS,
    mark=NUMBERS,
    token=NUMBERS,
    why=st.one_of(st.binary(max_size=20), st.sampled_from([b"5", b"[" * 5000, b"{}", b"[1,2,3]", b'["a"]', b"null"])),
)
def test_any_fields_of_redis(redis_store, items, line, turns, mark, token, why):
    """Records, contents, members and counters of any shape."""
    store, server = redis_store
    server.flushdb()
    queue = store.queue("orders")
    queue.add("good", "good")
    queue.add("urgent", "urgent", priority=3)
    item, line_key, _, _, dead, meta, _, token_key, *_ = [key.decode() for key in queue._keys]
    for key, record, content, unanswered, again, score in items:
        server.hset(item, b"r" + key, record)
        server.hset(item, b"u" + key, unanswered)
        for letter, value in ((b"c", content), (b"a", again)):
            if value is not None:
                server.hset(item, letter + key, value)
        server.zadd(line_key, {record.split(b" ")[1:2][0][:15].rjust(15, b"0") + key if b" " in record else key: score})
        server.hset(item, b"w" + key, why)
        server.zadd(dead, {b"000000000000009" + key: 5.0})
    for member in line:
        server.zadd(line_key, {member: 0.0})
    server.hset(meta, "turns", turns)
    server.hset(meta, "mark", mark)
    server.set(token_key, token)
    server.sadd(store.names.queues, b"\xff", b"", b"x" * 600)
    for _ in range(MAX_ROUNDS):
        messages = queue.receive(10)
        if not messages:
            break
        queue.settle([(message, verdict_of(message)) for message in messages])
    else:
        pytest.fail("it does not come to an end")
    queue.depth()
    queue.dead()
    assert "orders" in store.queues()
    queue.redrive()
    queue.receive(10)
    queue.purge()
    queue.add("after", "after", after=0.0)
    assert "after" in {message.key for message in queue.receive(100)}


@pytest.mark.parametrize("record", [b"garbage", b"w 000000000000001 nan 0 0 0", b"w 000000000000001 0 0 99999999999 0"])
def test_a_message_of_redis_whose_record_is_garbage_is_buried(redis_store, record):
    """With its content as it is, and a reason; it can be redriven."""
    store, server = redis_store
    queue = store.queue("orders")
    queue.add("bad", "what it holds")
    queue.add("good", "good")
    server.hset(queue._keys[0].decode(), b"rbad", record)
    assert serve(queue, {"good"}) == {"good"}
    (letter,) = queue.dead()
    assert (letter.key, letter.body, letter.kind) == ("bad", "what it holds", "unreadable")
    assert queue.redrive() == 1
    assert [message.body for message in queue.receive()] == ["what it holds"]


SHARED_BYTES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"", b"nan nan nan", b"inf 1 1", b"9e16 1 1", b"-1 -1 -1", b"1e999 99999999999999999999 9", b"0"]),
)


@FUZZED
@given(
    fields=st.dictionaries(
        st.one_of(st.binary(max_size=8), st.sampled_from([b"nan", b"inf", b"1e300", b"5"])), SHARED_BYTES, max_size=4
    ),
    weather=st.fixed_dictionaries(
        dict.fromkeys(["state", "closed_until", "turn", "limit", "base", "grown"], SHARED_BYTES)
    ),
    score=st.floats(allow_nan=False),
)
def test_any_state_of_redis(redis_store, fields, weather, score):
    """Of budgets, buckets and shelters: what can't be read is left out, and the store goes on being shared."""
    store, server = redis_store
    server.flushdb()
    store.ledger("tenant").deposit()
    (slots, members), (bucket,) = store.names.budget_keys("tenant"), store.names.bucket_keys("mails")
    for field, value in fields.items():
        server.hset(slots, field, value)
        server.hset(bucket, field, value)
    server.zadd(members, {b"x": score})
    server.hset(store.names.shelter_keys("api")[-1], mapping=weather)
    assert store.ledger("tenant").try_withdraw() in (True, False)
    assert math.isfinite(store.ledger("tenant").balance())
    requests = [
        BudgetRequest("tenant", store.ledger("tenant").terms, 1, 0, 0, 1),
        BucketRequest("mails", 1.0),
        ShelterReport("api", "calm", 1, 0, 0.0),
    ]
    tokens, share, forecast = store.sync_members("me", requests)
    assert (tokens.members >= 1, 0 <= share.share <= 1, forecast.state in ("calm", "storm", "recovering")) == (
        True,
    ) * 3


def joined(store, url, path, wanted, part):
    """Have a row say that another member of a bucket wants this, and has that part."""
    now = store.now() if url.startswith("sqlite") else 1000.0
    if url.startswith("redis"):
        redis_of(url).hset(store.names.bucket_keys("mails")[0], "other", f"{now} {wanted} {part}")
    elif url.startswith("postgres"):
        store.pool.run(f"INSERT INTO @.member VALUES ('bucket:mails', 'other', {now}, '{wanted}', '{part}', 'nothing')")
    else:
        with closing(sqlite3.connect(path)) as db, db:
            try:
                row = ("other", now, wanted, part)
                db.execute("INSERT INTO member VALUES ('bucket:mails', ?, ?, ?, ?, 'nothing')", row)
            except sqlite3.IntegrityError:
                pass  # NaN is NULL there
        db.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
@pytest.mark.parametrize(
    ("wanted", "part"), [(math.nan, math.nan), (math.inf, 0.0), (-5.0, 0.0), (5.0, math.inf), (5.0, -5.0)]
)
def test_a_bad_member_of_a_bucket_takes_nothing_from_the_others(kind, wanted, part, tmp_path):
    """What it wants and has is left out: NaN would be handed on from one process to the next."""
    url = STORES[kind](tmp_path)
    with open_store(url, clock=VirtualClock(start=1000.0)) as store:
        joined(store, url, tmp_path / "work.db", wanted, part)
        (share,) = store.sync_members("me", [BucketRequest("mails", 5.0)])
        assert share.share == pytest.approx(0.9)


def recovering_at_nothing(store, url, path):
    """Have a shelter's row say that a dependency recovers, and that no call may be sent."""
    now = store.now()
    if url.startswith("redis"):
        fields = {"state": "recovering", "limit": 0, "base": 0, "grown": now, "turn": now, "prober": "x"}
        redis_of(url).hset(store.names.shelter_keys("api")[-1], mapping=fields)
    elif url.startswith("postgres"):
        store.pool.run("INSERT INTO @.weather VALUES ('api', 'recovering', 0, 'x', 0, 0, 0, 9e15)")
    else:
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("INSERT INTO weather VALUES ('api', 'recovering', 0, 'x', ?, 0, 0, ?)", (now, now))
        db.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_a_limit_of_nothing_in_a_store_stops_no_fleet(kind, tmp_path):
    """A shelter that recovers lets one call through at least: from none its limit would never grow."""
    url = STORES[kind](tmp_path)
    clock = VirtualClock(start=1000.0)
    with open_store(url, clock=clock) as store:
        recovering_at_nothing(store, url, tmp_path / "work.db")
        (forecast,) = store.sync_members("me", [ShelterReport("api", "calm", 0, 0, 0.0)])
        assert (forecast.state, forecast.limit) == ("recovering", 1.0)


# -- PostgreSQL


@pytest.fixture
def postgres_store(tmp_path):
    with open_store(STORES["postgres"](tmp_path)) as store:
        yield store


INTEGERS = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([2**31 - 1, -(2**31)]))
LETTERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
PLAIN = st.one_of(st.none(), LETTERS, st.sampled_from(["\1", "\1\3", "\1\1\1", "[" * 5000, '{"a": 5}', '{"a": "b"}']))
INSTANTS = st.sampled_from([None, "-infinity", "infinity", "NaN", "0", "1e300", "-1e300"])
KINDS = {
    "state": st.sampled_from(["0", "1", "2"]),
    "due": INSTANTS,
    "priority": INTEGERS,
    "receives": INTEGERS,
    "unanswered": INTEGERS,
    "token": st.integers(-(2**63), 2**63 - 1),
    "again_due": INSTANTS,
    "again_priority": INTEGERS,
    **dict.fromkeys(["kind", "reason", "trace", "attributes", "body", "again_attributes", "again_body"], PLAIN),
}


@FUZZED
@given(
    rows=st.lists(
        st.tuples(LETTERS | st.sampled_from(["\1", "\1\3"]), st.fixed_dictionaries({}, optional=KINDS)), max_size=4
    )
)
def test_any_row_of_postgres(postgres_store, rows):
    """Whatever its columns take."""
    store = postgres_store
    from abate.stores.errors import StoreError

    queue = store.queue("orders")
    store.pool.run("DELETE FROM @.item")
    store.pool.run("DELETE FROM @.lane")
    queue.add("good", "good")
    queue.add("urgent", "urgent", priority=3)
    for key, row in rows:
        names = ", ".join(["queue", "key", *row])
        places = ", ".join(f"${place}" for place in range(1, len(row) + 3))
        values = [None if value is None else str(value) for value in row.values()]
        try:
            store.pool.run(f"INSERT INTO @.item ({names}) VALUES ({places})", "orders", key, *values)
        except StoreError:
            pass  # NOT NULL, a check, or the key is there already
    for _ in range(MAX_ROUNDS):
        messages = queue.receive(10)
        if not messages:
            break
        assert queue.settle([(message, verdict_of(message)) for message in messages]) == []
    else:
        pytest.fail("it does not come to an end")
    queue.depth()
    queue.dead()
    assert "orders" in store.queues()
    queue.redrive()
    queue.receive(10)
    queue.purge()


BIGINTS = st.sampled_from([0, 5, -1, 2**63 - 1, -(2**63), 2**52, 2**53])
FLOATS = st.sampled_from(["NaN", "infinity", "-infinity", "0", "-5", "999.5", "1e308", "-1e308", "1e-320"])


@FUZZED
@given(
    slots=st.dictionaries(FLOATS, st.tuples(FLOATS, BIGINTS, BIGINTS), max_size=3),
    current=st.tuples(BIGINTS, BIGINTS),
    members=st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=4, max_size=4),
    weather=st.tuples(st.sampled_from(["calm", "storm", "recovering", "x"]), *[FLOATS] * 5),
)
def test_any_state_of_postgres(tmp_path_factory, slots, current, members, weather):
    """Of budgets, buckets and shelters: one bad row ends the sharing of nothing else."""
    with open_store(STORES["postgres"](tmp_path_factory), clock=VirtualClock(start=1000.0)) as store:
        run = store.pool.run
        terms = store.ledger("tenant").terms
        for begins, (forgotten, deposits, withdrawals) in {**slots, "1000": ("infinity", *current)}.items():
            run(f"INSERT INTO @.slot VALUES ('tenant', '{begins}', '{forgotten}', {deposits}, {withdrawals})")
        scopes = [("bucket:mails", "x"), ("bucket:mails", "me"), ("shelter:api", "y"), ("budget:tenant", "y")]
        for (scope, member), row in zip(scopes, members, strict=True):
            values = ", ".join(f"'{value}'" for value in row)
            run(f"INSERT INTO @.member VALUES ('{scope}', '{member}', {values}, 'bad')")
        state, until, *rest = weather
        values = ", ".join(f"'{value}'" for value in rest)
        run(f"INSERT INTO @.weather VALUES ('api', '{state}', '{until}', 'me', {values})")
        assert math.isfinite(store.ledger("tenant").balance())
        assert store.ledger("tenant").balance() < 2**53
        assert store.ledger("tenant").try_withdraw() in (True, False)
        for seen in ("calm", "probing"):
            requests = [
                BudgetRequest("tenant", terms, 1, 1, 1, 1),
                BucketRequest("mails", 1.0),
                ShelterReport("api", seen, 1, 3, 1.0),
                BudgetRequest("other", terms, 1, 0, 0, 1),
            ]
            tokens, share, forecast, other = store.sync_members("me", requests)
            assert (0 <= tokens.granted <= 1, 0 <= share.share <= 1, other.granted) == (True, True, 1)
            assert forecast.state in ("calm", "storm", "recovering")
            assert forecast.limit >= 0.0


@pytest.mark.parametrize(
    ("column", "value", "buried"),
    [
        ("receives", "2147483647", False),
        ("receives", "-2147483648", False),
        ("unanswered", "2147483647", False),
        ("due", "-infinity", False),
        ("key", "\1\3", True),
        ("key", "k" * 600, True),
        ("attributes", "[" * 100_000, True),
        ("attributes", '{"a": 5}', True),
        ("body", "x" * (DEFAULT_MAX_BODY + 1), True),
    ],
    ids=str,
)
def test_a_row_of_postgres_does_not_stop_the_others(postgres_store, column, value, buried):
    """One that is no message is buried with a reason; one with odd numbers is handed out."""
    queue = postgres_store.queue("orders")
    row = {"key": "bad", "body": "odd", column: value}
    places = ", ".join(f"${place}" for place in range(1, len(row) + 2))
    postgres_store.pool.run(f"INSERT INTO @.item (queue, {', '.join(row)}) VALUES ({places})", "orders", *row.values())
    queue.add("good", "good")
    assert serve(queue, {"good"}) == ({"good"} if buried else {"good", "odd"})
    assert [letter.kind for letter in queue.dead()] == ["unreadable"] * buried


@pytest.mark.parametrize(
    "again", [("'NaN'", "5", "'x'"), ("'infinity'", "-5", "NULL"), ("'-infinity'", "NULL", "NULL"), ("0", "5", "NULL")]
)
def test_what_was_written_beside_a_lease_of_postgres_does_not_stop_a_settlement(postgres_store, again):
    """Neither an instant that is none, nor a priority below 0, nor a body that is missing."""
    queue = postgres_store.queue("orders")
    queue.add("a")
    (message,) = queue.receive()
    due, priority, body = again
    postgres_store.pool.run(f"UPDATE @.item SET again_due = {due}, again_priority = {priority}, again_body = {body}")
    queue.done(message)
    depth = queue.depth()
    assert depth.ready + depth.delayed == 1


# -- the command line


def test_the_command_shows_what_can_be_shown(tmp_path, capsys):
    """Instants beyond the calendar, names that are none, texts of any kind: a line for each, and exit code 0."""
    path = tmp_path / "work.db"
    with open_store(f"sqlite:///{path}") as store:
        store.queue("orders").add("good", "good")
    with closing(sqlite3.connect(path)) as db, db:
        for number, died in enumerate([1e300, -1e300, 1e18, 0.0, -math.inf]):
            db.execute(
                "INSERT INTO item (queue, key, state, due, body, reason, receives) VALUES (?, ?, 2, ?, ?, ?, 'many')",
                ("orders", f"dead-{number}", died, b"\xff", b"\x1b[31m\xff\n"),
            )
        db.execute("INSERT INTO item (queue, key, due) VALUES ('', 'of no queue', -9e999)")
        db.execute("INSERT INTO item (queue, key, state) VALUES (?, 'of no queue', 2)", ("q" * 600,))
    db.close()
    url = f"sqlite:///{path}"
    assert main(["queue", "ls", url]) == 0
    assert main(["queue", "ls", url, "--json"]) == 0
    assert main(["queue", "dead", url, "--trace"]) == 0
    told = capsys.readouterr()
    assert told.out.count("dead-") == 5
    assert "\x1b" not in told.out
    assert "is left out: a queue's name must be" in told.err
    assert main(["queue", "dead", url, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 5
    assert main(["queue", "redrive", url, "orders", "--all"]) == 0


# -- addresses of stores


@settings(max_examples=200, deadline=None)
@given(
    url=st.one_of(
        st.text(max_size=40),
        st.builds(
            "{}:{}".format,
            st.sampled_from(["redis", "rediss", "unix", "postgresql", "postgres", "memory", "mysql", ""]),
            st.text(max_size=40),
        ),
        st.builds(
            "{}://{}@{}:{}/{}?{}".format,
            st.sampled_from(["redis", "rediss", "postgresql"]),
            st.text(max_size=5),
            st.sampled_from(["[::1", "", "127.0.0.1", "%00", "a b"]),
            st.sampled_from(["99999", "-1", "x", "0", ""]),
            st.text(max_size=5),
            st.sampled_from(["timeout=nan", "timeout=inf", "cluster=maybe", "a=b", "=", "prefix=", "schema=%22"]),
        ),
    )
)
def test_any_address_is_a_store_or_a_clear_error(url):
    """`ValueError` for what is no address, `StoreError` for what can't be reached."""
    from abate.stores import StoreError

    try:
        open_store(url, required=False).close()
    except (ValueError, StoreError, ImportError):
        pass


@pytest.mark.parametrize(
    "pace",
    ["'infinity', 0", "'-infinity', 0", "'NaN', 0", "0, 'NaN'", "1e308, 1e308", "extract(epoch FROM now()) + 5, 'NaN'"],
)
def test_any_pace_of_postgres(postgres_store, pace):
    """What is no instant of these years is none: a queue goes by the clock, and leases hold."""
    queue = postgres_store.queue("orders")
    queue.add("a")
    postgres_store.pool.run(f"UPDATE @.pace SET (mark, ahead) = ({pace})")
    queue.add("b")
    messages = queue.receive(10)
    assert {message.key for message in messages} == {"a", "b"}
    assert queue.receive(10) == []
    assert queue.depth().leased == 2
    assert queue.settle([(message, Done()) for message in messages]) == []
    ((mark, ahead),) = postgres_store.pool.run("SELECT mark, ahead FROM @.pace")
    assert abs(float(mark) - time.time()) < 60.0
    assert 0.0 <= float(ahead) <= 5.0
