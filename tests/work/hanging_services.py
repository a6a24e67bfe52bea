"""Services in which one part hangs or ignores its cancellation, to test that SIGTERM still ends the process.

Each writes "started" to a pipe when that part hangs, and "returned" when `run` has returned.
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


def report_started():
    os.write(pipe, b"began\n")


async def ignore_cancellation():
    report_started()
    while True:
        try:
            await asyncio.sleep(FOR_EVER)
        except asyncio.CancelledError:
            pass


def hang():
    report_started()
    time.sleep(FOR_EVER)


class Source:
    """Deliver one message, then none."""

    name, lease, durable, delivered = "source", 30.0, True, False

    async def receive(self, most, wait):
        if self.delivered:
            await asyncio.sleep(wait)
            return ()
        self.delivered = True
        return [Message("a")]

    async def extend(self, messages):
        return ()

    async def settle(self, settlements):
        return ()


class UncancellableReceive(Source):
    async def receive(self, most, wait):
        await ignore_cancellation()


class UncancellableSettle(Source):
    async def settle(self, settlements):
        await ignore_cancellation()


class HangingReceive(Source):
    def receive(self, most, wait):
        hang()


class HangingSettle(Source):
    def settle(self, settlements):
        hang()


class HangingExtend(Source):
    lease = 0.01

    def extend(self, messages):
        hang()


def consume(source, handle=lambda message: None, **settings):
    abate.consumer(grace=GRACE, **settings)(handle).run(source)


async def cancellable_handler(message):
    await asyncio.sleep(FOR_EVER)


async def uncancellable_handler(message):
    await ignore_cancellation()


async def thread_handler(message):
    report_started()
    await asyncio.to_thread(threading.Event().wait)


def uncancellable_feed():
    @abate.controller(grace=GRACE)
    def reconcile(key): ...

    @reconcile.source
    async def watch():
        await ignore_cancellation()
        yield

    reconcile.run()


def hanging_poll():
    @abate.controller(grace=GRACE)
    def reconcile(key): ...

    reconcile.poll(every=60.0)(hang)
    reconcile.run()


def uncancellable_task():
    """Run a handler that starts a task and does not await it."""
    tasks = []

    async def handle(message):
        tasks.append(asyncio.create_task(ignore_cancellation()))

    consume(Source(), handle)


CASES = {
    "a handler that ignores its cancellation": lambda: consume(Source(), uncancellable_handler),
    "a handler that ignores two cancellations": lambda: consume(Source(), uncancellable_handler, timeout=0.01),
    "a plain handler that hangs": lambda: consume(Source(), lambda message: hang()),
    "a handler that waits for a thread": lambda: consume(Source(), thread_handler),
    "a receive that ignores its cancellation": lambda: consume(UncancellableReceive()),
    "a settle that ignores its cancellation": lambda: consume(UncancellableSettle()),
    "a receive that hangs in its thread": lambda: consume(HangingReceive()),
    "a settle that hangs in its thread": lambda: consume(HangingSettle()),
    "an extend that hangs in its thread": lambda: consume(HangingExtend(), cancellable_handler),
    "a feed that ignores its cancellation": uncancellable_feed,
    "a poller that hangs in its thread": hanging_poll,
    "a task that a handler started and did not await": uncancellable_task,
}


def run(case, write_end):
    """Run one case in a child process, and report on the pipe."""
    global pipe
    pipe, loop.FINAL_SETTLE_TIMEOUT = write_end, FINAL_SETTLE_TIMEOUT
    CASES[case]()
    os.write(pipe, b"returned\n")
