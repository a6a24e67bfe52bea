"""Child processes that talk in lines of JSON, and that end with us, however we end.

A child ends at once when its stdin does, and that happens too when we are killed. It is in a session of its own: Ctrl-C
reaches us alone, and we take the children along.
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


class ChildLost(AbateError):
    """A process of the demo has ended before its time."""


class Child:
    """One child, seen from the parent: ``python -m MODULE SETTINGS``."""

    def __init__(self, module: str, process: Process) -> None:
        self._module = module
        self._process = process

    @classmethod
    async def start(cls, module: str, settings: object) -> Child:
        """Start it; the settings must be what JSON can hold."""
        # it finds the same abate as we did, and nothing that happens to lie in the working directory
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

    def tell(self, word: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())

    async def hear(self) -> Any:
        """The next thing that it says."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise ChildLost(f"{self._module} ended with code {await self._process.wait()}, before it was told to")
        return json.loads(line)

    async def end(self) -> None:
        """Have it end, and wait until it has."""
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


async def hear_all(children: Sequence[Child]) -> list[Any]:
    """The next thing that each of them says. When one is lost the others are not listened to any more."""
    hearing = [asyncio.ensure_future(child.hear()) for child in children]
    try:
        return await asyncio.gather(*hearing)
    finally:
        for task in hearing:
            task.cancel()
        await asyncio.wait(hearing)


def say(what: object) -> None:
    """In a child: tell the parent."""
    print(json.dumps(what), flush=True)


def listen(heard: Callable[[str], object], leave: Callable[[], object] = lambda: None) -> None:
    """In a child: have `heard` called in the event loop with each line, and end at once, by `leave`, with the stdin.

    It is a thread, so that a busy event loop does not keep the process alive.
    """
    loop = asyncio.get_running_loop()

    def follow() -> None:
        rest = b""
        while piece := os.read(0, 4096):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                loop.call_soon_threadsafe(heard, line.decode())
        leave()
        os._exit(0)

    threading.Thread(target=follow, name="parent", daemon=True).start()
