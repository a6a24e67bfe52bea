"""TLS that can't work is fatal in redis-py and in every database driver; a handshake that breaks off is retried."""

import asyncio

import aiomysql
import asyncmy
import asyncpg
import MySQLdb
import psycopg
import psycopg2
import pymysql
import pytest
import sqlalchemy as sa

import abate
from abate.clients.databases import connection_lost
from abate.clients.redis import aclient, client, transient
from tests.clients.tls_faults import TlsFaults

WHERE = {"host": "localhost", "user": "root"}


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """The servers of this module."""
    servers = TlsFaults(tmp_path_factory.mktemp("tls"))
    yield servers
    servers.close()


def redis_settings(faults, fault):
    trusted = {} if fault == "untrusted" else {"ssl_ca_certs": faults.trusted(fault)}
    return {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "ssl_check_hostname": True, **trusted}


def sync_redis(port, faults, fault):
    with client(f"rediss://localhost:{port}", **redis_settings(faults, fault)) as connected:
        connected.ping()


async def async_redis(port, faults, fault):
    async with aclient(f"rediss://localhost:{port}", **redis_settings(faults, fault)) as connected:
        await connected.ping()


def libpq(port, faults, fault):
    trusted = faults.directory / "none.pem" if fault == "untrusted" else faults.trusted(fault)
    return f"host=localhost port={port} user=root sslmode=verify-full sslrootcert={trusted} connect_timeout=2"


def with_psycopg(port, faults, fault):
    psycopg.connect(libpq(port, faults, fault))


async def with_psycopg_awaited(port, faults, fault):
    await psycopg.AsyncConnection.connect(libpq(port, faults, fault))


def with_psycopg2(port, faults, fault):
    psycopg2.connect(libpq(port, faults, fault))


async def with_asyncpg(port, faults, fault):
    await asyncpg.connect(**WHERE, port=port, ssl=faults.client_context(fault), timeout=1.0)


def with_pymysql(port, faults, fault):
    pymysql.connect(**WHERE, port=port, ssl=faults.client_context(fault), connect_timeout=1, read_timeout=1)


def with_sqlalchemy(port, faults, fault):
    engine = sa.create_engine(
        f"mysql+pymysql://root@localhost:{port}/",
        connect_args={"ssl": faults.client_context(fault), "connect_timeout": 1, "read_timeout": 1},
    )
    engine.connect()


def with_mysqlclient(port, faults, fault):
    trusted = {} if fault == "untrusted" else {"ca": faults.trusted(fault)}
    where = {"host": "127.0.0.1", "user": "root", "port": port}
    MySQLdb.connect(**where, ssl_mode="VERIFY_IDENTITY", ssl=trusted, connect_timeout=1, read_timeout=1)


async def with_aiomysql(port, faults, fault):
    await aiomysql.connect(**WHERE, port=port, ssl=faults.client_context(fault), connect_timeout=1)


async def with_asyncmy(port, faults, fault):
    await asyncmy.connect(**WHERE, port=port, ssl=faults.client_context(fault), connect_timeout=1)


WAYS = {
    "redis": [sync_redis, async_redis],
    "postgres": [with_psycopg, with_psycopg_awaited, with_psycopg2, with_asyncpg],
    "mysql": [with_pymysql, with_sqlalchemy, with_mysqlclient, with_aiomysql, with_asyncmy],
}
each_way = pytest.mark.parametrize(
    ("protocol", "way"),
    [(protocol, way) for protocol, ways in WAYS.items() for way in ways],
    ids=lambda each: each if isinstance(each, str) else each.__name__.removeprefix("with_"),
)


def report(faults, protocol, way, fault, **settings):
    """Return the report on a call to a server with this fault."""
    on = transient if protocol == "redis" else connection_lost
    policy = abate.Policy(name="data", on=on, max_attempts=2, backoff=[0.0], **settings)
    with faults.serving(protocol, fault) as port, pytest.raises(Exception) as caught:
        if asyncio.iscoroutinefunction(way):
            asyncio.run(policy.acall(way, port, faults, fault))
        else:
            policy.call(way, port, faults, fault)
    return abate.report(caught.value)


@each_way
@pytest.mark.parametrize("fault", ["untrusted", "wrong host", "no TLS"])
def test_tls_that_cannot_work_is_fatal(faults, protocol, way, fault):
    shelter = abate.Shelter(name="data", patience=1.0)
    for _ in range(3):
        told = report(faults, protocol, way, fault, shelter=shelter)
        assert (told.reason, told.attempts) == ("fatal", 1)
    assert shelter.state == "calm"


@each_way
@pytest.mark.parametrize("fault", ["closed", "reset"])
def test_a_handshake_that_breaks_off_is_retried(faults, protocol, way, fault):
    told = report(faults, protocol, way, fault)
    assert (told.reason, told.attempts) == ("attempts", 2)


@pytest.mark.parametrize(
    ("protocol", "way"),
    [
        ("redis", sync_redis),
        ("redis", async_redis),
        ("postgres", with_psycopg),
        ("postgres", with_psycopg2),
        ("mysql", with_mysqlclient),
    ],
)
def test_a_handshake_that_times_out_is_retried(faults, protocol, way):
    """In the drivers that time it themselves, with an error of their own."""
    assert report(faults, protocol, way, "silent").reason == "attempts"
