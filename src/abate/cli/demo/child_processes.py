"""Child processes that exchange lines of JSON with the parent, and end when the parent ends, however it ends.

A child ends as soon as its stdin is closed, which also happens when the parent is killed. Each child has a session of
its own, so that Ctrl-C reaches the parent only; the parent ends the children.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import abate
from abate.errors import AbateError

GRACE = 5.0
"""Seconds for a child to end by itself."""


class ChildExited(AbateError):
    """A child process has ended too early."""


class Child:
    """The parent's side of a child: ``python -m MODULE SETTINGS``."""

    def __init__(self, module: str, process: Process) -> None:
        self._module = module
        self._process = process

    @classmethod
    async def start(cls, module: str, settings: object) -> Child:
        """Start it; the settings must be JSON."""
        # it imports this abate, and nothing from the working directory (-P)
        source = str(Path(abate.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module, json.dumps(settings)),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        return cls(module, process)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, word: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    async def receive(self) -> Any:
        """Return the next message of the child."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise ChildExited(f"{self._module} ended with code {await self._process.wait()} before it was told to")
        return json.loads(line)

    async def end(self) -> None:
        """End it, and wait until it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await asyncio.gather(self._process.stdout.read(), self._process.wait())
                return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


async def receive_all(children: Sequence[Child]) -> list[Any]:
    """Return the next message of each child. If one has ended, stop waiting for the others."""
    receiving = [asyncio.ensure_future(child.receive()) for child in children]
    try:
        return await asyncio.gather(*receiving)
    finally:
        for task in receiving:
            task.cancel()
        await asyncio.wait(receiving)


def send_to_parent(message: object) -> None:
    """Send a message from a child."""
    print(json.dumps(message), flush=True)


def receive_from_parent(received: Callable[[str], object], leave: Callable[[], object] = lambda: None) -> None:
    """Call `received` in the child's event loop with each line; when stdin is closed, call `leave` and exit.

    It runs in a thread, so that a busy event loop does not keep the process alive.
    """
    loop = asyncio.get_running_loop()

    def follow() -> None:
        rest = b""
        while piece := os.read(0, 4096):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                loop.call_soon_threadsafe(received, line.decode())
        leave()
        os._exit(0)

    threading.Thread(target=follow, name="parent", daemon=True).start()
