"""A thousand transfers between a few accounts by sixteen workers, who lock in any order: real deadlocks, no money lost.

Each transfer has its own number, which the ledger takes once. In the end every number stands there, and every balance
is what the ledger says.
"""

import asyncio
import random
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count

import asyncmy
import asyncpg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from abate import Backoff, Budget
from abate.clients.databases import retry_on_db_conflict
from abate.clients.sqlalchemy import transaction
from tests.greenlets import needs_greenlet

WORKERS, TRANSFERS, ACCOUNTS, BALANCE = 16, 1000, 8, 1000
WITHIN = 120.0
"""Seconds; only to fail instead of hanging."""

TAKE = "UPDATE accounts SET balance = balance - {amount} WHERE id = {source}"
GIVE = "UPDATE accounts SET balance = balance + {amount} WHERE id = {target}"
NOTE = "INSERT INTO ledger VALUES ({number}, {source}, {target}, {amount})"


class Bank:
    """The transfers to make, and how often one was begun."""

    def __init__(self, transfers=TRANSFERS):
        chance = random.Random(7)
        self.transfers = transfers
        self.orders = []
        for number in range(transfers):
            source, target = chance.sample(range(1, ACCOUNTS + 1), 2)
            self.orders.append({"number": number, "source": source, "target": target, "amount": chance.randint(1, 9)})
        self.begun = count()
        self.lock = threading.Lock()

    @property
    def conflicts(self):
        return next(self.begun) - self.transfers

    def statements(self, order):
        """The statements of a transfer, when it is begun."""
        next(self.begun)
        return [statement.format(**order) for statement in (TAKE, GIVE, NOTE)]

    def take(self):
        with self.lock:
            return self.orders.pop() if self.orders else None

    def by_threads(self, worker):
        """Run `worker` sixteen times at once; each takes orders until there are none."""
        with ThreadPoolExecutor(WORKERS) as pool:
            for done in [pool.submit(worker) for _ in range(WORKERS)]:
                done.result(WITHIN)

    def by_tasks(self, worker):
        async def main():
            async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(worker())

        asyncio.run(main())

    def audit(self, balances, ledger):
        """Nothing lost, nothing twice, and there were conflicts to survive."""
        assert sorted(number for number, *_ in ledger) == list(range(self.transfers))
        expected = Counter(dict.fromkeys(range(1, ACCOUNTS + 1), BALANCE))
        for _, source, target, amount in ledger:
            expected[source] -= amount
            expected[target] += amount
        assert dict(balances) == dict(expected)
        assert sum(dict(balances).values()) == ACCOUNTS * BALANCE
        assert self.conflicts > 0

    def audit_at(self, server):
        self.audit(server.run("SELECT id, balance FROM accounts"), server.run("SELECT * FROM ledger"))


SETTINGS = {"max_attempts": 100, "backoff": Backoff(base=0.01, cap=0.2), "budget": Budget.unlimited()}
patiently = retry_on_db_conflict(**SETTINGS)


@pytest.fixture
def bank():
    return Bank()


@pytest.fixture
def small_bank():
    """For the same servers through another layer."""
    return Bank(TRANSFERS // 4)


def test_transfers_in_postgresql_by_threads(bank, postgres):
    """psycopg."""
    postgres.accounts(ACCOUNTS, BALANCE)

    @patiently
    def transfer(connection, order):
        with connection.transaction():
            for statement in bank.statements(order):
                connection.execute(statement)

    def worker():
        with postgres.connect() as connection:
            while order := bank.take():
                transfer(connection, order)

    bank.by_threads(worker)
    bank.audit_at(postgres)


def test_transfers_in_postgresql_by_tasks(bank, postgres):
    """asyncpg."""
    postgres.accounts(ACCOUNTS, BALANCE)

    @patiently
    async def transfer(connection, order):
        async with connection.transaction():
            for statement in bank.statements(order):
                await connection.execute(statement)

    async def worker():
        connection = await asyncpg.connect(host="127.0.0.1", port=postgres.port, user="postgres")
        try:
            while order := bank.take():
                await transfer(connection, order)
        finally:
            await connection.close()

    bank.by_tasks(worker)
    bank.audit_at(postgres)


def test_transfers_in_postgresql_through_sqlalchemy(small_bank, postgres):
    """Serializable transactions that read before they write: these fail at the update or at the commit."""
    postgres.accounts(ACCOUNTS, BALANCE)
    engine = sa.create_engine(postgres.url("psycopg2"), isolation_level="SERIALIZABLE", pool_size=WORKERS)

    @transaction(engine, **SETTINGS)
    def transfer(connection, order):
        *_, note = small_bank.statements(order)
        balances = dict(connection.exec_driver_sql("SELECT * FROM accounts").all())
        for account, change in ((order["source"], -order["amount"]), (order["target"], order["amount"])):
            connection.exec_driver_sql(
                f"UPDATE accounts SET balance = {balances[account] + change} WHERE id = {account}"
            )
        connection.exec_driver_sql(note)

    def worker():
        while order := small_bank.take():
            transfer(order)

    small_bank.by_threads(worker)
    engine.dispose()
    small_bank.audit_at(postgres)


def test_transfers_in_mariadb_by_threads(bank, mariadb):
    """PyMySQL."""
    mariadb.accounts(ACCOUNTS, BALANCE)

    @patiently
    def transfer(connection, order):
        try:
            connection.begin()
            with connection.cursor() as cursor:
                for statement in bank.statements(order):
                    cursor.execute(statement)
            connection.commit()
        except pymysql.Error:
            connection.rollback()
            raise

    def worker():
        with mariadb.connect() as connection:
            while order := bank.take():
                transfer(connection, order)

    bank.by_threads(worker)
    bank.audit_at(mariadb)


def test_transfers_in_mariadb_by_tasks(bank, mariadb):
    """asyncmy."""
    mariadb.accounts(ACCOUNTS, BALANCE)

    @patiently
    async def transfer(connection, order):
        try:
            await connection.begin()
            async with connection.cursor() as cursor:
                for statement in bank.statements(order):
                    await cursor.execute(statement)
            await connection.commit()
        except asyncmy.errors.Error:
            await connection.rollback()
            raise

    async def worker():
        connection = await asyncmy.connect(host="127.0.0.1", port=mariadb.port, user="root", database="abate")
        try:
            while order := bank.take():
                await transfer(connection, order)
        finally:
            await connection.ensure_closed()

    bank.by_tasks(worker)
    bank.audit_at(mariadb)


@needs_greenlet
def test_transfers_in_mariadb_through_sqlalchemy(small_bank, mariadb):
    """aiomysql, in asyncio transactions."""
    mariadb.accounts(ACCOUNTS, BALANCE)

    async def main():
        engine = create_async_engine(mariadb.url("aiomysql"), pool_size=WORKERS)

        @transaction(engine, **SETTINGS)
        async def transfer(connection, order):
            for statement in small_bank.statements(order):
                await connection.exec_driver_sql(statement)

        async def worker():
            while order := small_bank.take():
                await transfer(order)

        async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(worker())
        await engine.dispose()

    asyncio.run(main())
    small_bank.audit_at(mariadb)


def test_transfers_in_sqlite(bank, tmp_path):
    """Transactions that read first, so that their snapshot may be too old when they write."""
    path = tmp_path / "bank.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
        connection.execute("CREATE TABLE ledger (id INTEGER PRIMARY KEY, source, target, amount)")
        connection.executemany("INSERT INTO accounts VALUES (?, ?)", [(n, BALANCE) for n in range(1, ACCOUNTS + 1)])

    @patiently
    def transfer(connection, order):
        with connection:
            connection.execute("BEGIN")
            connection.execute("SELECT sum(balance) FROM accounts").fetchone()
            for statement in bank.statements(order):
                connection.execute(statement)

    def worker():
        with closing(sqlite3.connect(path, timeout=0.01, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            while order := bank.take():
                transfer(connection, order)

    bank.by_threads(worker)
    with closing(sqlite3.connect(path)) as connection:
        balances = connection.execute("SELECT id, balance FROM accounts").fetchall()
        bank.audit(balances, connection.execute("SELECT * FROM ledger").fetchall())
