"""The loop that works: takes messages from a source, hands them to workers, and settles them.

    receive ──► in hand ──► worker ──► judge ──► outbox ──► settle ──► its place is free
                  │ every third of a lease
                  └► extend

* No more messages are in hand than there are workers, so none waits while its lease runs.
* Messages of one group are worked on one after the other. One that has to come back takes with it those of its group
  that are in hand behind it.
* A lease is extended while the work lasts. One that is lost is not settled; its worker, if it is a task, is cancelled.
* A source that fails is asked again after a backoff, and what could not be settled is kept until it can.
* A worker that ends by something that is no answer (an exit, a cancellation of its own making) has crashed: its message
  has failed once, and another worker takes its place.
* Stopping: nothing more is taken, but what waits in a source that doesn't outlive the process is worked off. What is
  not done when the grace is over is cancelled, and given back as if it had not been touched; a plain function can't be
  cancelled, and its lease runs out.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from inspect import isawaitable
from math import inf
from typing import Any, cast

from abate import clock as clocks
from abate import events
from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.schedule.backoff import Backoff
from abate.work.crew import Crew
from abate.work.fuse import Fuse
from abate.work.hands import Hands, Work
from abate.work.judge import Judge, Judgement
from abate.work.pauses import Pauses
from abate.work.source import Back, Bury, Done, Message, Settlement, Source, Verdict
from abate.work.worker import Handler, Worker

log = logging.getLogger("abate.work")

BEATS = 3
"""Times that a lease is extended while it lasts."""
PATIENCE = 1.0
"""Seconds that one receive waits for a message, unless the source has a `patience` of its own."""
SHORTEST_LOOK = 0.05
"""Seconds between two looks at a source that does not wait, or can't be waited for as the clock is virtual."""
TROUBLE = Backoff(0.5, 30.0)
"""How long a source that fails is left alone."""
TRIES = 8
"""Times that a verdict is sent off by itself before its message is left to its lease."""
LAST_WORDS = 5.0
"""Seconds for settling what is left when the grace is over."""


class Loop:
    """One run of a controller or consumer over one source."""

    def __init__(
        self,
        name: str,
        source: Source,
        handle: Handler,
        judge: Judge,
        *,
        workers: int,
        asynchronous: bool,
        fuse: Fuse | None = None,
        pauses: Pauses | None = None,
        timeout: float | None = None,
    ) -> None:
        self.name = name
        self.source = source
        self.workers = workers
        self.fuse = fuse
        self.pauses = pauses
        self.crew = Crew(workers + 3)  # beside the workers: one who receives, one who extends, one who settles
        self.tally: Counter[str] = Counter()
        self.worker = Worker(name, handle, judge, asynchronous, timeout, self.crew, self.tally)
        self.clock: Clock = clocks.current()
        self.in_hand = Hands()
        self.outbox: list[Settlement] = []
        self._settling: frozenset[Message] = frozenset()
        """On the way to the source: what it says of their leases meanwhile may be said after they were settled."""
        self.failing: str | None = None
        """What the source's last error said; None while it answers."""
        self.stopping = asyncio.Event()
        self._changed = asyncio.Event()

    # -- from outside, in the event loop

    async def run(self, grace: float, drain: bool = False) -> None:
        """Work until `stop`, or with `drain` until nothing is left; then finish what is in hand within the grace."""
        self.clock = clocks.current()
        taking = asyncio.create_task(self._take(drain))
        tasks = {taking, *map(asyncio.ensure_future, (self._settle(), self._beat(), self.stopping.wait()))}
        try:
            ended, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
            for task in ended:
                task.result()  # where one of them has broken, so has the loop
            await self._finish(taking, grace)
        except asyncio.CancelledError:
            self.stop()
            await self._finish(taking, 0.0)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.crew.dismiss()

    def stop(self) -> None:
        """Take no more."""
        self.stopping.set()
        self._changed.set()

    # -- the tasks

    async def _take(self, drain: bool) -> None:
        """Receive messages as workers become free."""
        patience = getattr(self.source, "patience", PATIENCE)
        failures = 0
        while not (self.stopping.is_set() and self.source.durable):
            free = min(self.workers - len(self.in_hand), self._room())
            if free < 1:
                await self._change(self._pause())
                continue
            ending = drain or self.stopping.is_set()
            asked = self.clock.now()
            try:
                messages = await self._receive(int(free), 0.0 if ending else patience)
            except Exception as error:
                failures += 1
                await self._change(self._trouble(error, failures))
                continue
            failures, self.failing = 0, None
            for message in messages:
                self._accept(message)
            if ending and not messages:
                if not self.in_hand:
                    return
                await self._change(None)  # what is in hand may bring something back
            elif not messages and self.clock.now() < asked + SHORTEST_LOOK:
                await self._change(SHORTEST_LOOK)  # a source that doesn't wait must not be asked without a pause

    def _room(self) -> float:
        """How many more the fuse allows."""
        if self.fuse is None:
            return inf
        room = self.fuse.room(self.clock.now())
        return room if room == inf else room - len(self.in_hand)

    def _pause(self) -> float | None:
        """Seconds until the fuse lets something through; None where it is not what is waited for."""
        left = -inf if self.fuse is None else self.fuse.opens - self.clock.now()
        return left if left > 0 else None

    async def _receive(self, most: int, wait: float) -> Sequence[Message]:
        """Ask the source; a stop breaks it off if it is a task, and gives back what a thread still brings."""
        if clocks.entered() is not None and not asyncio.iscoroutinefunction(self.source.receive):
            # a plain function that waits on a virtual clock would move it past everybody else's instants
            messages = cast("Sequence[Message]", self.source.receive(most, 0.0))
            if not messages and wait:
                await self._change(SHORTEST_LOOK)
            return messages
        asking = asyncio.ensure_future(self._call(self.source.receive, most, wait))
        stopped = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({asking} if self.stopping.is_set() else {asking, stopped}, return_when="FIRST_COMPLETED")
            if not asking.done() and asyncio.iscoroutinefunction(self.source.receive):
                asking.cancel()
                await asyncio.wait({asking})
                if asking.cancelled():
                    return ()
            return cast("Sequence[Message]", await asking)
        finally:
            stopped.cancel()
            asking.cancel()

    async def _beat(self) -> None:
        """Extend the leases of what is in hand."""
        if self.source.lease is None:
            await asyncio.Event().wait()
        assert self.source.lease is not None
        while True:
            await self.clock.asleep(self.source.lease / BEATS)
            messages = [work.message for work in self.in_hand if not work.lost and work.message not in self._settling]
            if not messages:
                continue
            try:
                lost = await self._call(self.source.extend, messages)
            except Exception as error:
                self._trouble(error, 1)
            else:
                self.failing = None
                for message in lost:
                    if message not in self._settling:
                        self._lose(message)

    async def _settle(self) -> None:
        """Send off the verdicts, together where there are several."""
        failures = 0
        while True:
            if not self.outbox:
                await self._change(None)
                continue
            # after a failure one by one, so that one that can't be settled doesn't hold up the others
            batch = self.outbox[:1] if failures else self.outbox[:]
            self._settling = frozenset(message for message, _ in batch)
            try:
                lost = await self._call(self.source.settle, batch)
            except Exception as error:
                self._settling = frozenset()
                failures += 1
                self.outbox = [*self.outbox[len(batch) :], *batch]
                await self.clock.asleep(self._trouble(error, failures))
                if len(batch) == 1:
                    self._tried(batch[0])
                continue
            self._settling = frozenset()
            failures, self.failing = 0, None
            del self.outbox[: len(batch)]
            for message in lost:
                self._lose(message)
            for message, _ in batch:
                self._free(message)

    def _tried(self, settlement: Settlement) -> None:
        """A verdict could not be carried out, by itself: one that never can be must not hold a place for ever."""
        message, verdict = settlement
        work = self.in_hand.of(message)
        if work is None:
            return
        work.tries += 1
        if work.tries >= TRIES and self.source.lease is not None:
            log.error("%s: %r could not be settled (%r): it is left to its lease", self.name, message.key, verdict)
            self.tally["unsettled"] += 1
            self.outbox.remove(settlement)
            self._let_go(work)

    async def _finish(self, taking: asyncio.Task[None], grace: float) -> None:
        """Wait for what is in hand, and cancel what is not done in time."""
        try:
            async with self.clock.within(grace):
                await asyncio.wait({taking})  # a thread may still bring something, which is to be given back
                await self._empty()
                return
        except AttemptTimeout:
            pass
        taking.cancel()
        stuck: list[str] = []
        for work in self.in_hand:
            if work.verdict is None:
                self._break_off(work, stuck)
        try:
            async with self.clock.within(LAST_WORDS):
                await self._empty()
        except AttemptTimeout:
            stuck = [str(work.message.key) for work in self.in_hand]
        if stuck:
            log.error("%s: %s not done within the grace of %g s: left to their leases", self.name, stuck[:10], grace)
            self.in_hand.drop()

    def _break_off(self, work: Work, stuck: list[str]) -> None:
        if work.task is None:
            self._return(work, 0.0)
        elif self.worker.asynchronous:
            work.broken_off = True
            work.task.cancel()
        else:  # it goes on, for nobody
            work.lost = True
            stuck.append(str(work.message.key))
            self.in_hand.free(work.message)

    # -- one message

    def _accept(self, message: Message) -> None:
        """A message has come: to a worker, or in line behind others of its group."""
        work = self.in_hand.take(message)
        if work is not None:
            self._start(work)

    def _start(self, work: Work) -> None:
        if self.stopping.is_set() and self.source.durable:
            self._return(work, 0.0)
            return
        rest = 0.0 if self.pauses is None else self.pauses.rest(work.message, self.clock.now())
        if rest > 0:
            self._return(work, rest, "held")
            return
        work.task = asyncio.create_task(self._work(work))

    async def _work(self, work: Work) -> None:
        judgement = await self.worker.work(work, self.clock)
        if judgement is None and work.broken_off:
            self._return(work, 0.0)
        elif judgement is None:
            self._let_go(work)
        else:
            self._tell_fuse(judgement)
            if self.pauses is not None:
                self.pauses.settled(work.message, judgement.verdict, self.clock.now())
            self._deliver(work, judgement.verdict)

    def _tell_fuse(self, judgement: Judgement) -> None:
        if self.fuse is None or judgement.failed is None:
            return
        pause = self.fuse.record(not judgement.failed, self.clock.now())
        if pause:
            log.warning("%s: most messages fail: none are taken for %.3g s", self.name, pause)
            events.emit(events.FuseBlown(self.name, pause))

    def _return(self, work: Work, after: float, ending: str = "returned") -> None:
        """A message goes back as if it had not been touched."""
        self.tally[ending] += 1
        self._deliver(work, Back(after, touched=False))

    def _deliver(self, work: Work, verdict: Verdict) -> None:
        work.verdict = verdict
        self.outbox.append((work.message, verdict))
        match verdict:
            case Done(None):
                pass
            case Done(float() | int() as again):
                self._return_behind(work, again)
            case Back(after):
                self._return_behind(work, after)
            case Bury():
                if not getattr(self.source, "buries", True):  # it will be handed out again
                    self._return_behind(work, 0.0)
        self._changed.set()

    def _return_behind(self, work: Work, after: float) -> None:
        """What comes back holds its group: those of it that wait in hand go back as well."""
        for behind in self.in_hand.behind(work)[:1]:  # which takes the next along
            self._return(behind, after)

    def _lose(self, message: Message) -> None:
        """The lease has run out."""
        work = self.in_hand.of(message)
        if work is None or work.lost:
            return
        work.lost = True
        self.tally["lost"] += 1
        log.warning("%s: the lease of %r ran out", self.name, message.key)
        events.emit(events.LeaseLost(self.name, message.key))
        if work.task is None or work.verdict is not None:
            self._let_go(work)
        elif self.worker.asynchronous:
            work.task.cancel()

    def _let_go(self, work: Work) -> None:
        """A message is not ours any more, and will come again: before those of its group that wait in hand."""
        self._return_behind(work, 0.0)
        self._free(work.message)

    def _free(self, message: Message) -> None:
        """The place of a message is free, and the next of its group has its turn."""
        following = self.in_hand.free(message)
        self._changed.set()
        if following is not None:
            self._start(following)

    # -- waiting

    async def _call(self, method: Callable[..., Any], *args: object) -> Any:
        """Ask the source, in a thread if it can't be awaited."""
        if asyncio.iscoroutinefunction(method):
            return await method(*args)
        answer = await self.crew.run(method, *args)
        return await answer if isawaitable(answer) else answer

    def _trouble(self, error: Exception, failures: int) -> float:
        """The source has failed: seconds to leave it alone."""
        delay = TROUBLE.delay(failures, random)
        self.failing = f"{type(error).__name__}: {error}"[:200]
        log.warning("%s: %s failed, next try in %.3g s: %r", self.name, self.source.name, delay, error)
        events.emit(events.SourceFailed(self.name, self.source.name, error, delay))
        return delay

    async def _change(self, seconds: float | None) -> None:
        """Wait until something has changed, or so many seconds."""
        self._changed.clear()
        if seconds is None:
            await self._changed.wait()
            return
        try:
            async with self.clock.within(seconds):
                await self._changed.wait()
        except AttemptTimeout:
            pass

    async def _empty(self) -> None:
        while self.in_hand:
            await self._change(None)
