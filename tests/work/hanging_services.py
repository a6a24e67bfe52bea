"""Services in which something hangs and ignores its cancellation: what keeps a process from ending at a SIGTERM?

Each says on a pipe that it has "began" when the thing hangs, and "returned" when `run` has returned.
"""

import asyncio
import os
import threading
import time

import abate
from abate.work import Message, loop

GRACE, FINAL_SETTLE_TIMEOUT = 0.1, 0.2
FOR_EVER = 3600.0
pipe = 1


def began():
    os.write(pipe, b"began\n")


async def deaf():
    began()
    while True:
        try:
            await asyncio.sleep(FOR_EVER)
        except asyncio.CancelledError:
            pass


def hang():
    began()
    time.sleep(FOR_EVER)


class Source:
    """One message, and then nothing."""

    name, lease, durable, brought = "source", 30.0, True, False

    async def receive(self, most, wait):
        if self.brought:
            await asyncio.sleep(wait)
            return ()
        self.brought = True
        return [Message("a")]

    async def extend(self, messages):
        return ()

    async def settle(self, settlements):
        return ()


class DeafReceive(Source):
    async def receive(self, most, wait):
        await deaf()


class DeafSettle(Source):
    async def settle(self, settlements):
        await deaf()


class HungReceive(Source):
    def receive(self, most, wait):
        hang()


class HungSettle(Source):
    def settle(self, settlements):
        hang()


class HungExtend(Source):
    lease = 0.01

    def extend(self, messages):
        hang()


def consume(source, handle=lambda message: None, **settings):
    abate.consumer(grace=GRACE, **settings)(handle).run(source)


async def patient(message):
    await asyncio.sleep(FOR_EVER)


async def deaf_handler(message):
    await deaf()


async def in_thread(message):
    began()
    await asyncio.to_thread(threading.Event().wait)


def deaf_feed():
    @abate.controller(grace=GRACE)
    def reconcile(key): ...

    @reconcile.source
    async def watch():
        await deaf()
        yield

    reconcile.run()


def hung_poll():
    @abate.controller(grace=GRACE)
    def reconcile(key): ...

    reconcile.poll(every=60.0)(hang)
    reconcile.run()


def deaf_task():
    """Something that a handler has begun, and nobody waits for."""
    tasks = []

    async def handle(message):
        tasks.append(asyncio.create_task(deaf()))

    consume(Source(), handle)


CASES = {
    "a handler that ignores its cancellation": lambda: consume(Source(), deaf_handler),
    "a handler that ignores it twice": lambda: consume(Source(), deaf_handler, timeout=0.01),
    "a plain handler that hangs": lambda: consume(Source(), lambda message: hang()),
    "a handler that waits for a thread": lambda: consume(Source(), in_thread),
    "a receive that ignores it": lambda: consume(DeafReceive()),
    "a settle that ignores it": lambda: consume(DeafSettle()),
    "a receive that hangs in its thread": lambda: consume(HungReceive()),
    "a settle that hangs in its thread": lambda: consume(HungSettle()),
    "an extend that hangs in its thread": lambda: consume(HungExtend(), patient),
    "a feed that ignores it": deaf_feed,
    "a poller that hangs in its thread": hung_poll,
    "a task that a handler left behind": deaf_task,
}


def run(case, written):
    """In a process of its own: run one, and end without a word of the parent's."""
    global pipe
    pipe, loop.FINAL_SETTLE_TIMEOUT = written, FINAL_SETTLE_TIMEOUT
    CASES[case]()
    os.write(pipe, b"returned\n")
