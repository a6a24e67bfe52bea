"""retry_on_db_conflict: what it repeats, what it doesn't, and who retries when it is nested."""

import asyncio
import inspect
import sqlite3
from contextlib import closing

import psycopg
import pytest

import abate
from abate import Backoff, report
from abate.clients.databases import connection_lost, open_transaction, retry_on_db_conflict


@pytest.fixture
def bank(tmp_path):
    """A real file, and a process that holds its lock until told otherwise."""
    with closing(Bank(tmp_path / "bank.db")) as bank:
        yield bank


class Bank:
    def __init__(self, path):
        self.path = path
        self.holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.holder.execute("CREATE TABLE deposits (amount INTEGER)")
        self.attempts = 0

    def hold(self):
        self.holder.execute("BEGIN IMMEDIATE")

    def release(self):
        self.holder.execute("ROLLBACK")

    def deposit(self, amount, free_at=0):
        """One transaction; the lock is let go of before attempt number `free_at`."""
        self.attempts += 1
        if self.attempts == free_at:
            self.release()
        with closing(sqlite3.connect(self.path, timeout=0)) as connection, connection:
            connection.execute("INSERT INTO deposits VALUES (?)", (amount,))
        return amount

    def deposits(self):
        return [amount for (amount,) in self.holder.execute("SELECT amount FROM deposits")]

    def close(self):
        self.holder.close()


def test_a_transaction_is_run_again_until_the_conflict_is_over(bank):
    """Busy twice, then committed, once."""
    bank.hold()
    deposit = retry_on_db_conflict(max_attempts=3, backoff=[0.0])(bank.deposit)
    assert deposit(5, free_at=3) == 5
    assert bank.attempts == 3
    assert bank.deposits() == [5]


def test_a_coroutine_function_is_decorated_as_well(bank):
    """The same, awaited."""
    bank.hold()

    @retry_on_db_conflict(backoff=[0.0])
    async def deposit(amount, free_at):
        await asyncio.sleep(0)
        return bank.deposit(amount, free_at)

    assert inspect.iscoroutinefunction(deposit)
    assert asyncio.run(deposit(5, free_at=2)) == 5
    assert bank.deposits() == [5]


def test_a_conflict_that_stays_is_raised_as_it_is(bank):
    """With the report of a policy that has the function's name."""
    bank.hold()

    @retry_on_db_conflict(max_attempts=2, backoff=[0.0])
    def deposit():
        bank.deposit(5)

    with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
        deposit()
    seen = report(caught.value)
    assert (seen.attempts, seen.reason) == (2, "attempts")
    assert seen.policy.endswith("deposit")


def test_other_errors_are_raised_at_once(bank):
    """One attempt."""

    @retry_on_db_conflict(backoff=[0.0])
    def deposit():
        bank.deposit(object())

    with pytest.raises(sqlite3.Error):
        deposit()
    assert bank.attempts == 1


def test_the_defaults():
    """Three attempts, full jitter, and nothing repeated that may have been committed."""
    policy = retry_on_db_conflict().policy
    assert policy.max_attempts == 3
    assert policy.backoff == Backoff(base=0.05, cap=2.0, jitter="full")
    assert policy.idempotent is False


def test_settings_are_the_policy_s():
    """Whatever a Policy takes."""
    budget = abate.Budget(ratio=0.5)
    policy = retry_on_db_conflict(
        5, budget=budget, name="ledger", timeout=2.0, backoff=[0.1], raises="exhausted"
    ).policy
    assert (policy.max_attempts, policy.name, policy.timeout, policy.raises) == (5, "ledger", 2.0, "exhausted")
    assert policy.budget is budget


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number of at least 1, not 0"),
        ({"max_attempts": "5"}, "max_attempts must be a whole number of at least 1, not .5."),
        ({"timeout": -1}, "timeout must be a number above 0, not -1"),
        ({"on": "OSError"}, "on must be exception types, predicates or rules, not 'OSError'"),
        ({"jitter": "full"}, "jitter"),
    ],
)
def test_bad_settings_are_refused_at_once(settings, message):
    """By name, and with the value."""
    with pytest.raises((TypeError, ValueError), match=message):
        retry_on_db_conflict(**settings)


def test_methods_of_every_kind():
    """Methods, classmethods and staticmethods, above and below."""
    decorate = retry_on_db_conflict()

    class Shop:
        @decorate
        def plain(self, order):
            return self, order

        @decorate
        @classmethod
        def of_class(cls, order):
            return cls, order

        @staticmethod
        @decorate
        def of_none(order: int) -> int:
            """The order."""
            return order

    shop = Shop()
    assert (shop.plain(1), Shop.of_class(order=2), Shop.of_none(3)) == ((shop, 1), (Shop, 2), 3)
    assert str(inspect.signature(Shop.of_none)) == "(order: int) -> int"
    assert Shop.of_none.__doc__ == "The order."


def test_a_generator_function_is_refused():
    """It would be read after its transaction has ended."""
    with pytest.raises(TypeError, match="generator"):

        @retry_on_db_conflict()
        def orders():
            yield 1


# -- lost connections


class Killed:
    """A session of PostgreSQL that is ended before its work, a number of times."""

    def __init__(self, postgres, times):
        self.postgres, self.times, self.attempts = postgres, times, 0

    def __call__(self):
        self.attempts += 1
        with psycopg.connect(host="127.0.0.1", port=self.postgres.port, user="postgres") as connection:
            if self.attempts <= self.times:
                self.postgres.kill(connection.info.backend_pid)
            return connection.execute("SELECT 42").fetchone()[0]


def test_a_lost_connection_is_not_a_conflict(postgres):
    """Nothing is repeated unless asked for."""
    killed = Killed(postgres, 1)
    with pytest.raises(psycopg.OperationalError) as caught:
        retry_on_db_conflict(backoff=[0.0])(killed)()
    assert report(caught.value).reason == "fatal"


def test_a_lost_connection_is_not_repeated_where_that_may_be_unsafe(postgres):
    """What was sent on it may have been committed."""
    killed = Killed(postgres, 1)
    with pytest.raises(psycopg.OperationalError) as caught:
        retry_on_db_conflict(on=connection_lost, backoff=[0.0])(killed)()
    assert report(caught.value).reason == "unsafe"
    assert killed.attempts == 1


def test_a_lost_connection_is_repeated_where_that_is_declared_safe(postgres):
    """The user knows."""
    killed = Killed(postgres, 2)
    assert retry_on_db_conflict(on=connection_lost, idempotent=True, backoff=[0.0])(killed)() == 42
    assert killed.attempts == 3


def test_a_refused_connection_is_repeated_in_any_case(postgres, closed_port):
    """The server never saw the request."""
    ports = iter([closed_port, postgres.port])

    @retry_on_db_conflict(on=[connection_lost], backoff=[0.0])
    def ask():
        with psycopg.connect(host="127.0.0.1", port=next(ports), user="postgres") as connection:
            return connection.execute("SELECT 42").fetchone()[0]

    assert ask() == 42


# -- nested


def test_nested_the_outermost_retries(bank):
    """The transaction is the outer function's: it is repeated from the beginning, and the inner one only with it."""
    runs = []
    bank.hold()

    @retry_on_db_conflict(max_attempts=10, backoff=[0.0])
    def inner():
        runs.append("inner")
        return bank.deposit(5, free_at=3)

    @retry_on_db_conflict(max_attempts=3, backoff=[0.0])
    def outer():
        runs.append("outer")
        return inner()

    assert outer() == 5
    assert runs == ["outer", "inner"] * 3
    assert bank.deposits() == [5]


def test_nested_and_awaited_the_outermost_retries(bank):
    """Also where the inner one runs in a task or a thread that was started inside."""
    runs = []
    bank.hold()

    @retry_on_db_conflict(max_attempts=10, backoff=[0.0])
    async def inner():
        runs.append("inner")
        await asyncio.to_thread(innermost)

    @retry_on_db_conflict(max_attempts=10, backoff=[0.0])
    def innermost():
        runs.append("innermost")
        bank.deposit(5, free_at=3)

    @retry_on_db_conflict(max_attempts=3, backoff=[0.0])
    async def outer():
        runs.append("outer")
        await asyncio.gather(inner())

    asyncio.run(outer())
    assert runs == ["outer", "inner", "innermost"] * 3
    assert bank.deposits() == [5]


def test_after_the_outer_one_is_over_what_it_started_retries_by_itself(bank):
    """A task that outlives the transaction has a copy of its context, and is not misled by it."""
    bank.hold()

    @retry_on_db_conflict(backoff=[0.0])
    async def later(over):
        await over.wait()
        return bank.deposit(5, free_at=2)

    @retry_on_db_conflict(backoff=[0.0])
    async def outer(over):
        return asyncio.create_task(inside(over))

    async def inside(over):
        await over.wait()
        assert open_transaction() is None
        return await later(over)

    async def main():
        over = asyncio.Event()
        task = await outer(over)
        over.set()
        return await task

    assert asyncio.run(main()) == 5
    assert bank.attempts == 2


def test_one_after_another_each_retries(bank):
    """Also after one that has failed."""
    deposit = retry_on_db_conflict(max_attempts=2, backoff=[0.0])(bank.deposit)
    bank.hold()
    with pytest.raises(sqlite3.OperationalError):
        deposit(5)
    assert open_transaction() is None
    assert deposit(6, free_at=4) == 6
    assert bank.attempts == 4
