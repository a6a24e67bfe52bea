"""Calls the source of a run: receives messages, extends their leases, and settles them with verdicts.

Plain functions are called in threads. A source that fails is called again after half of the time for which it has
failed, at least 1 and at most 10 seconds, with jitter: a random part of up to half is subtracted.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction
from math import inf
from threading import Event, Thread
from typing import Any, cast

from abate import clock as clocks
from abate import event_sinks, events
from abate.logs import Log
from abate.redact import described
from abate.work.message_handler import report_dead_letter
from abate.work.run_state import Delivery, RunState
from abate.work.source import Back, Message, Settlement, Source, Verdict
from abate.work.thread_pool import DaemonThreadPool

log = Log("abate.work")

EXTENDS_PER_LEASE = 3
"""How often per lease it is extended."""
MIN_POLL = 0.05
"""Seconds between two receives of a source that does not wait, or can't because the clock is virtual."""
MIN_SOURCE_DELAY, MAX_SOURCE_DELAY = 1.0, 10.0
"""Minimum and maximum of the seconds between two calls of a source that fails."""
MAX_DELAY_WHILE_STOPPING = 1.0
"""The maximum while the run stops."""
MIN_INTERRUPT_PAUSE = 0.01
"""Seconds after which a receive that has not ended is interrupted again; each time twice as long."""
SETTLE_TRIES = 8
"""Attempts to send a single verdict, over at least one lease, before its message is left to its lease."""


class SourceClient:
    """Calls the source of one run, and records whether it fails."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._source = state.source
        self._threads = DaemonThreadPool(4)  # one for each of receive, interrupt, extend and settle
        self.failing: str | None = None
        """The last error of the source; None while it answers."""

    async def call(self, method: Callable[..., Any], *args: object) -> Any:
        """Call a method of the source, in a thread if it is a plain function."""
        if iscoroutinefunction(method):
            return await method(*args)
        result = await self._threads.run(method, *args)
        return await result if isawaitable(result) else result

    async def receive(self, max_messages: int, wait: float, ahead: int = 0) -> Sequence[Message]:
        """Receive messages, and `ahead` more if the source can do that.

        A stop cancels a coroutine; messages that a thread still receives are returned later. If this call is cancelled,
        the thread itself returns them.
        """
        receive, stopping = self._source.receive, self._state.stopping
        if clocks.entered_clock() is not None and not iscoroutinefunction(receive):
            # a plain function that waits on a virtual clock would move it past the instants of other tasks
            messages = cast("Sequence[Message]", receive(max_messages, 0.0))
            if not messages and wait:
                await self._state.wait_for_change(MIN_POLL)
            return messages
        more = (ahead,) if ahead else ()
        call = None if iscoroutinefunction(receive) else ThreadReceive(self._state.name, self._source)
        receiving = asyncio.ensure_future(self.call(call or receive, max_messages, wait, *more))
        stopped = asyncio.ensure_future(stopping.wait())
        try:
            await asyncio.wait(
                {receiving} if stopping.is_set() else {receiving, stopped}, return_when="FIRST_COMPLETED"
            )
            if not receiving.done() and call is None:
                receiving.cancel()
                await asyncio.wait({receiving})
                if receiving.cancelled():
                    return ()
            await self._interrupt(receiving)
            messages = await receiving
            if call is not None:
                call.taken()
            return cast("Sequence[Message]", messages)
        except (asyncio.CancelledError, GeneratorExit):
            if call is not None:
                call.give_up()
            receiving.cancel()
            raise
        finally:
            stopped.cancel()

    async def _interrupt(self, receiving: asyncio.Future[object]) -> None:
        """Break off the wait of a receive in a thread, if the source can; again if the thread was about to wait."""
        pause, interrupt = MIN_INTERRUPT_PAUSE, getattr(self._source, "interrupt", None)
        while interrupt is not None and not receiving.done():
            with suppress(Exception):  # the wait ends by itself
                await self.call(interrupt)
            await asyncio.wait({receiving}, timeout=pause)
            pause *= 2

    def delay(self, failing_since: float) -> float:
        """Return the seconds until a source that fails is called again."""
        longest = min(MAX_SOURCE_DELAY, max(MIN_SOURCE_DELAY, (self._state.clock.now() - failing_since) / 2))
        return longest * (0.5 + random.random() / 2)

    def on_error(self, what: str, error: Exception, delay: float) -> None:
        """Report an error of the source."""
        name, source = self._state.name, self._source.name
        self.failing = described(error)
        log.warning("%s: could not %s the queue %s, next try in %.3g s: %r", name, what, source, delay, error)
        event_sinks.emit(events.SourceFailed(name, source, error, delay))

    async def back_off(self, what: str, error: Exception, failing_since: float) -> None:
        """Report an error of the source, and wait before the next call. A stop shortens the wait."""
        delay = self.delay(failing_since)
        self.on_error(what, error, delay)
        state = self._state
        if state.stopping.is_set():
            await state.clock.asleep(min(delay, MAX_DELAY_WHILE_STOPPING))
        else:
            await state.wait_for(state.stopping, delay)

    def shutdown(self) -> None:
        """Let the threads end."""
        self._threads.shutdown()


class ThreadReceive:
    """One receive in a thread. If the run gives it up, it is interrupted, and what it has received goes back."""

    def __init__(self, name: str, source: Source) -> None:
        self._name = name
        self._source = source
        self._received: deque[Sequence[Message]] = deque()  # until the run has it; a thread that returns it pops it
        self._begun = self._given_up = False
        self._ended = Event()

    def __call__(self, *args: Any) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        self._begun = True
        try:
            if self._given_up:
                return ()
            messages = self._source.receive(*args)
            if not isawaitable(messages):
                self._received.append(messages)
                if self._given_up:
                    self._return_messages()
            return messages
        finally:
            self._ended.set()

    def taken(self) -> None:
        """Note that the run has the messages."""
        self._received.clear()

    def give_up(self) -> None:
        """Interrupt the receive, and return its messages, in other threads."""
        self._given_up = True
        with suppress(RuntimeError):  # no thread can be started: the receive itself returns what it still gets
            Thread(target=self._break_off, daemon=True).start()

    def _break_off(self) -> None:
        pause, interrupt = MIN_INTERRUPT_PAUSE, getattr(self._source, "interrupt", None)
        while interrupt is not None and self._begun and not self._ended.is_set():
            with suppress(Exception):  # the wait ends by itself
                interrupt()
            self._ended.wait(pause)
            pause *= 2
        self._return_messages()

    def _return_messages(self) -> None:
        try:
            messages = self._received.popleft()
        except IndexError:
            return
        if not messages or iscoroutinefunction(self._source.settle):
            return  # nothing to return, or no event loop to return it in: its lease runs out
        try:
            self._source.settle([(message, Back(0.0, touched=False)) for message in messages])
        except Exception as error:
            keys = [str(message.key) for message in messages[:10]]
            log.warning("%s: %s could not be returned, and are left to their leases: %r", self._name, keys, error)


class LeaseExtender:
    """Extends the leases of the messages in flight."""

    def __init__(
        self, state: RunState, client: SourceClient, settler: Settler, on_lost: Callable[[Message], None]
    ) -> None:
        self._state = state
        self._client = client
        self._settler = settler
        self._on_lost = on_lost

    async def run(self) -> None:
        """Extend the leases several times per lease, until cancelled."""
        state, client, source = self._state, self._client, self._state.source
        if source.lease is None:
            await asyncio.Event().wait()
        assert source.lease is not None
        pause = source.lease / EXTENDS_PER_LEASE
        while True:
            await state.clock.asleep(pause)
            held = [delivery for delivery in state.in_flight if not (delivery.lease_lost or delivery.stuck)]
            held = [delivery for delivery in held if delivery.message not in self._settler.sending]
            if not held:
                continue
            began = state.clock.now()
            try:
                lost = await client.call(source.extend, [delivery.message for delivery in held])
            except Exception as error:
                client.on_error("extend leases in", error, pause)
            else:
                client.failing = None
                for delivery in held:
                    if delivery.message not in lost:
                        delivery.leased = began
                for message in lost:
                    if message not in self._settler.sending:
                        self._on_lost(message)


class Settler:
    """The verdicts of one run that wait to be sent.

    The loop passes the callbacks: `on_lost` for a message whose lease was lost, `release` for a message that is
    settled, `drop` for a message whose verdict can't be sent.
    """

    def __init__(
        self,
        state: RunState,
        client: SourceClient,
        on_lost: Callable[[Message], None],
        release: Callable[[Message], None],
        drop: Callable[[Delivery], None],
    ) -> None:
        self._state = state
        self._client = client
        self._on_lost = on_lost
        self._release = release
        self._drop = drop
        self._outbox: list[Settlement] = []
        self.sending: frozenset[Message] = frozenset()
        """Messages that are being settled. An extend that finds their lease lost may have run after the settle."""

    def add(self, message: Message, verdict: Verdict) -> None:
        """Queue a verdict."""
        self._outbox.append((message, verdict))

    async def run(self) -> None:
        """Send verdicts, all that are queued in one call."""
        failing_since: float | None = None
        while True:
            if not self._outbox:
                await self._state.wait_for_change(None)
                continue
            # one by one after a failure, so that a verdict that the source can't accept does not block the others
            batch = self._outbox[:] if failing_since is None else self._outbox[:1]
            self.sending = frozenset(message for message, _ in batch)
            try:
                lost = await self._client.call(self._state.source.settle, batch)
            except Exception as error:
                self.sending = frozenset()
                failing_since = self._state.clock.now() if failing_since is None else failing_since
                self._outbox = [*self._outbox[len(batch) :], *batch]
                await self._client.back_off("settle messages in", error, failing_since)
                if len(batch) == 1:
                    self._count_failure(batch[0])
                continue
            self.sending = frozenset()
            failing_since = self._client.failing = None
            del self._outbox[: len(batch)]
            for message in lost:
                self._on_lost(message)
            for message, verdict in batch:
                self._release(message)
                if message not in lost:
                    report_dead_letter(self._state.name, message, verdict)

    def _count_failure(self, settlement: Settlement) -> None:
        """Count a failure to send one verdict. After `SETTLE_TRIES`, drop the message, which frees its worker."""
        message, verdict = settlement
        delivery = self._state.in_flight.get(message)
        if delivery is None:
            return
        now, lease = self._state.clock.now(), self._state.source.lease
        delivery.settle_tries += 1
        delivery.first_settle_try = min(delivery.first_settle_try, now)
        enough = delivery.settle_tries >= SETTLE_TRIES and now - delivery.first_settle_try >= (lease or inf)
        if enough:
            self._state.tally["unsettled"] += 1
            self._outbox.remove(settlement)
            self._drop(delivery)
            log.error(
                "%s: %r could not be settled (%r): it is left to its lease", self._state.name, message.key, verdict
            )
