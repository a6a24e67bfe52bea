"""A PostgreSQL server for one test, which can be frozen, killed and restarted with its data."""

import contextlib
import os
import signal
import time
from pathlib import Path

from tests.clients.databases.servers import Server, start_postgres
from tests.conformance.postgres_server import connection
from tests.stores.processes import until

LIMIT = 30.0
"""Seconds after which a broken test fails instead of hanging."""


def children(pid):
    """Return the child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Cluster:
    """A server with a fixed port and data directory, across restarts."""

    def __init__(self, folder, **settings):
        self.folder = folder
        self.server = start_postgres(folder)
        self.url = f"postgresql://postgres@127.0.0.1:{self.server.port}/postgres"
        self._command = list(self.server.process.args)
        if settings:
            for name, value in settings.items():
                self._command += ["-c", f"{name}={value}"]  # the last value of a setting wins
            self.stop()
            self.start()

    def start(self):
        """Start the server; after a kill, wait until its orphaned processes have ended."""
        end = time.monotonic() + LIMIT
        while True:
            try:
                port, log = self.server.port, self.folder / "log"
                self.server = Server("postgres", self._command, log, port, "postgres", "postgres")
                return
            except RuntimeError:
                assert time.monotonic() < end, "the server does not come up"
                time.sleep(0.1)

    def stop(self, sign=signal.SIGINT):
        """Shut the server down: SIGINT is fast, SIGQUIT immediate, as in a crash."""
        self.server.stop(sign)

    def kill(self):
        """kill -9 of the postmaster; its children end when they notice."""
        self.server.process.kill()
        self.server.process.wait(LIMIT)

    @contextlib.contextmanager
    def frozen(self):
        """Stop all processes of the server for the block; its sockets stay open."""
        postmaster = self.server.process.pid
        os.kill(postmaster, signal.SIGSTOP)
        until(lambda: is_stopped(postmaster))
        pids = [postmaster, *children(postmaster)]
        try:
            for pid in pids[1:]:
                os.kill(pid, signal.SIGSTOP)
            until(lambda: all(map(is_stopped, pids)))
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def backends(self, application="abate"):
        """Return the server's processes for connections with that application name."""
        query = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{application}' ORDER BY pid"
        return [pid for (pid,) in self.server.run(query)]


def sessions(url):
    """Return pid and last query of each session of a store on the tests' shared server."""
    query = "SELECT pid, query FROM pg_stat_activity WHERE application_name = %s"
    return connection().execute(query, (url.rpartition("=")[2],)).fetchall()
