"""One real PostgreSQL for all tests of the session; each gets a schema of its own, and so an empty store."""

import atexit
import functools
import itertools
import signal
import tempfile
from pathlib import Path

from tests.clients.databases.servers import start_postgres

TABLES = ("item", "queue", "pace", "lane", "listener", "slot", "member", "weather")
numbers = itertools.count()
schemas = []


@functools.cache
def server():
    """The server, started when it is first asked for."""
    folder = tempfile.TemporaryDirectory(prefix="abate-postgres-")
    postgres = start_postgres(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(postgres.stop, signal.SIGINT)
    return postgres


@functools.cache
def connection():
    """The tests' own."""
    opened = server().connect()
    atexit.register(opened.close)
    return opened


def database():
    """The URL of a database, without options."""
    return f"postgresql://postgres@127.0.0.1:{server().port}/postgres"


def new_store():
    """The URL of a store that is not there yet."""
    return f"{database()}?schema=new_{next(numbers)}"


def empty_store():
    """The URL of a store that holds nothing; an unused one is emptied, as making one takes a while."""
    used = {name for (name,) in connection().execute("SELECT application_name FROM pg_stat_activity")}
    there = {name for (name,) in connection().execute("SELECT nspname FROM pg_namespace")}
    schema = next((schema for schema in schemas if schema in there - used), None)
    if schema is None:
        schema = f"test_{next(numbers)}"
        schemas.append(schema)
    else:
        connection().execute(";".join(f"DELETE FROM {schema}.{table}" for table in TABLES))
    return f"{database()}?schema={schema}&application_name={schema}"
