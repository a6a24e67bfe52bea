"""One real Valkey for all tests of the session; each gets a prefix of its own, and so an empty store."""

import atexit
import functools
import itertools
import tempfile

import redis

from tests.clients.valkey_server import Valkey

numbers = itertools.count()


@functools.cache
def server():
    """The server, started when it is first asked for."""
    folder = tempfile.TemporaryDirectory(prefix="abate-valkey-")
    valkey = Valkey(folder.name).start()
    atexit.register(folder.cleanup)
    atexit.register(valkey.kill)
    return valkey


@functools.cache
def connection():
    """The tests' own."""
    opened = redis.Redis.from_url(server().url)
    atexit.register(opened.close)
    return opened


def empty_store():
    """The URL of a store that holds nothing."""
    return f"{server().url}/0?prefix=test-{next(numbers)}"
