"""A PostgreSQL of a test's own, that can be frozen, killed and started anew with what it holds."""

import contextlib
import os
import signal
import time
from pathlib import Path

from tests.clients.databases.servers import Server, start_postgres
from tests.conformance.postgres_server import connection
from tests.stores.processes import until

LIMIT = 30.0
"""Seconds; nothing here takes as long, it only keeps a broken test from hanging."""


def children(pid):
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def standing_still(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Cluster:
    """A server on one port with one data directory, whatever happens to its processes."""

    def __init__(self, folder, **settings):
        self.folder = folder
        self.server = start_postgres(folder)
        self.url = f"postgresql://postgres@127.0.0.1:{self.server.port}/postgres"
        self._command = list(self.server.process.args)
        if settings:
            for name, value in settings.items():
                self._command += ["-c", f"{name}={value}"]  # of two, the last counts
            self.stop()
            self.start()

    def start(self):
        """Start it; after a kill, its orphans have to end first."""
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
        """Shut it down: SIGINT is fast, SIGQUIT immediate, as after a crash."""
        self.server.stop(sign)

    def kill(self):
        """kill -9 of the postmaster; its children end when they notice."""
        self.server.process.kill()
        self.server.process.wait(LIMIT)

    @contextlib.contextmanager
    def frozen(self):
        """Nothing of it moves, for the block: its sockets stay open."""
        postmaster = self.server.process.pid
        os.kill(postmaster, signal.SIGSTOP)
        until(lambda: standing_still(postmaster))
        pids = [postmaster, *children(postmaster)]
        try:
            for pid in pids[1:]:
                os.kill(pid, signal.SIGSTOP)
            until(lambda: all(map(standing_still, pids)))
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def backends(self, application="abate"):
        """The server's processes behind connections of that name."""
        query = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{application}' ORDER BY pid"
        return [pid for (pid,) in self.server.run(query)]


def sessions(url):
    """Those of the processes of a store on the tests' common server."""
    query = "SELECT pid, query FROM pg_stat_activity WHERE application_name = %s"
    return connection().execute(query, (url.rpartition("=")[2],)).fetchall()
