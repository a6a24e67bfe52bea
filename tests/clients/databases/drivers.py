"""Every driver with one face: the statements of an open transaction, awaited."""

import asyncio

import aiomysql
import asyncmy
import asyncpg
import MySQLdb
import psycopg
import psycopg2
import pymysql
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine


class Blocking:
    """A driver that blocks, in a thread."""

    def __init__(self, connection):
        self.connection = connection

    @classmethod
    async def connect(cls, connect, where):
        return cls(await asyncio.to_thread(connect, **where))

    async def run(self, statement):
        return await asyncio.to_thread(self._run, statement)

    def _run(self, statement):
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()[0] if cursor.description else None

    async def commit(self):
        await asyncio.to_thread(self.connection.commit)

    async def rollback(self):
        await asyncio.to_thread(self.connection.rollback)

    async def close(self):
        self.connection.close()


class Awaited(Blocking):
    """A driver that is awaited, with the same methods."""

    @classmethod
    async def connect(cls, connect, where):
        return cls(await connect(**where))

    async def run(self, statement):
        async with self.connection.cursor() as cursor:
            await cursor.execute(statement)
            return (await cursor.fetchone())[0] if cursor.description else None

    async def commit(self):
        await self.connection.commit()

    async def rollback(self):
        await self.connection.rollback()

    async def close(self):
        closing = self.connection.close()
        if closing is not None:
            await closing


class Asyncpg(Awaited):
    """asyncpg, which has no implicit transactions."""

    async def run(self, statement):
        if not self.connection.is_in_transaction():
            await self.connection.execute("BEGIN")
        return await self.connection.fetchval(statement)

    async def commit(self):
        await self.connection.execute("COMMIT")

    async def rollback(self):
        await self.connection.execute("ROLLBACK")


class Alchemy(Blocking):
    """SQLAlchemy over a driver that blocks."""

    @classmethod
    async def connect(cls, connect, where):
        engine = sa.create_engine(where["url"], poolclass=sa.NullPool)
        return cls(await asyncio.to_thread(engine.connect))

    def _run(self, statement):
        result = self.connection.execute(sa.text(statement))
        return result.scalar() if result.returns_rows else None


class AsyncAlchemy(Awaited):
    """SQLAlchemy over a driver that is awaited."""

    @classmethod
    async def connect(cls, connect, where):
        return cls(await create_async_engine(where["url"], poolclass=sa.NullPool).connect())

    async def run(self, statement):
        result = await self.connection.execute(sa.text(statement))
        return result.scalar() if result.returns_rows else None


DRIVERS = {
    "postgres": {
        "psycopg": (Blocking, psycopg.connect, "dbname"),
        "psycopg, awaited": (Awaited, psycopg.AsyncConnection.connect, "dbname"),
        "psycopg2": (Blocking, psycopg2.connect, "dbname"),
        "asyncpg": (Asyncpg, asyncpg.connect, "database"),
        "sqlalchemy+psycopg": (Alchemy, None, "psycopg"),
        "sqlalchemy+psycopg2": (Alchemy, None, "psycopg2"),
        "sqlalchemy+asyncpg": (AsyncAlchemy, None, "asyncpg"),
    },
    "mariadb": {
        "pymysql": (Blocking, pymysql.connect, "database"),
        "mysqlclient": (Blocking, MySQLdb.connect, "database"),
        "aiomysql": (Awaited, aiomysql.connect, "db"),
        "asyncmy": (Awaited, asyncmy.connect, "database"),
        "sqlalchemy+pymysql": (Alchemy, None, "pymysql"),
        "sqlalchemy+mysqldb": (Alchemy, None, "mysqldb"),
        "sqlalchemy+aiomysql": (AsyncAlchemy, None, "aiomysql"),
        "sqlalchemy+asyncmy": (AsyncAlchemy, None, "asyncmy"),
    },
}


class Driver:
    """One driver and the server that it talks to."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.face, self.opens, self.word = DRIVERS[server.kind][name]

    async def connect(self, port=None):
        server, port = self.server, port or self.server.port
        if self.opens is None:
            where = {"url": server.url(self.word, port)}
        else:
            where = {"host": "127.0.0.1", "port": port, "user": server.user, self.word: server.database}
        return await self.face.connect(self.opens, where)
