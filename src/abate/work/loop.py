"""The loop that works: takes messages from a source, hands them to workers, and settles them.

    receive ──► in hand ──► worker ──► judge ──► outbox ──► settle ──► its place is free
                  │ every third of a lease
                  └► extend

* No more messages are in hand than there are workers, so none waits while its lease runs.
* Messages of one group are worked on one after the other. One that has to come back takes with it those of its group
  that are in hand behind it.
* A lease is extended while the work lasts. One that is lost is not settled; its worker, if it is a task, is cancelled.
* A source that fails is asked again after half of the time for which it has failed, at least 1 and at most 10 seconds,
  less up to half of that by chance. What could not be settled is kept until it can.
* A worker that ends by something that is no answer (an exit, a cancellation of its own making) has crashed: its message
  has failed once, and another worker takes its place.
* A handler that goes on after its `timeout` hangs: a plain function, or a coroutine that ignores its cancellation. Its
  lease is extended no more, so that another process can take the message, and its place is given to another worker.
  There are up to as many of these replacements as there are workers; then the loop is not ready any more.
* A message that may have killed the process that had it is a suspect (see `Judge.suspect`), and is worked on alone:
  nothing more is taken, what is in hand ends first, and other suspects go back untouched. One that is at work for
  long is joined by others again.
* Stopping: nothing more is taken, but what waits in a source that doesn't outlive the process is worked off. What is
  not done when the grace is over is cancelled, and given back as if it had not been touched; a plain function can't be
  cancelled, and its lease runs out. `LAST_WORDS` seconds later the run ends, whatever still hangs.
* What changes comes first, what is told about it (logs, sinks) after it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from inspect import isawaitable, iscoroutinefunction
from math import inf
from typing import Any, cast

from abate import clock as clocks
from abate import events
from abate.clock import Clock
from abate.errors import AttemptTimeout
from abate.logs import Log
from abate.redact import described
from abate.work.crew import Crew
from abate.work.fuse import Fuse
from abate.work.hands import Hands, Work
from abate.work.judge import Failed, Judge
from abate.work.pauses import Pauses
from abate.work.source import Back, Bury, Done, Message, Settlement, Source, Verdict
from abate.work.worker import Handler, Worker, report_buried

log = Log("abate.work")

BEATS = 3
"""Times that a lease is extended while it lasts."""
PATIENCE = 1.0
"""Seconds that one receive waits for a message, unless the source has a `patience` of its own."""
SHORTEST_LOOK = 0.05
"""Seconds between two looks at a source that does not wait, or can't be waited for as the clock is virtual."""
SHORT_REST, LONG_REST = 1.0, 10.0
"""Seconds; a source that fails is left alone for half of the time for which it has failed, within these bounds."""
HASTE = 1.0
"""Seconds; the longest time for which a source that fails is left alone while the loop stops."""
TRIES = 8
"""Times that a verdict is sent off by itself, over a lease at least, before its message is left to its lease."""
LAST_WORDS = 5.0
"""Seconds for settling what is left when the grace is over."""
MOMENT = 0.1
"""Seconds for tasks to end that are cancelled when no time is left."""
LATE = 1.0
"""Seconds, or a tenth of the timeout where that is longer: how late a handler may be before it is taken to hang."""
APART = 10.0
"""Seconds, or a lease where that is shorter: over how long suspects that came together are spread when they go back."""
COMPANY = 30.0
"""Seconds, or a lease or the timeout where one is longer: for how long a suspect waits for others to end. And seconds
for which others wait for a suspect that is at work."""


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
        self.timeout = timeout
        self.crew = Crew(3)  # for the source: one thread receives, one extends, one settles
        self.handlers = Crew(workers)  # apart from these, so that no handler keeps a lease from being extended
        self.tally: Counter[str] = Counter()
        redrives = getattr(source, "redrives", False)
        self.worker = Worker(name, handle, judge, asynchronous, timeout, self.handlers, self.tally, redrives)
        self.clock: Clock = clocks.current()
        self.in_hand = Hands()
        self.outbox: list[Settlement] = []
        self._settling: frozenset[Message] = frozenset()
        """Being settled now: 'lost' is ignored for these, as the extend may have run after the settle."""
        self.failing: str | None = None
        """What the source's last error said; None while it answers."""
        self.stopping = asyncio.Event()
        self.ends = inf
        """The instant at which the run ends, whatever hangs."""
        self._changed = asyncio.Event()
        self._replaced = 0
        """Messages in hand whose handlers hang, and whose places others have."""
        self._suspect: Work | None = None
        """It is worked on alone, or waits for that."""
        self._draining = False
        """Does the run end when nothing is left?"""
        self._careful = False
        """Did the last receive bring a suspect? The next one asks for one message, so that fewer have to go back."""

    # -- from outside, in the event loop

    async def run(self, grace: float, drain: bool = False) -> None:
        """Work until `stop`, or with `drain` until nothing is left; then finish what is in hand within the grace."""
        self.clock = clocks.current()
        self._draining = drain
        taking = asyncio.create_task(self._take())
        beside = (self._settle(), self._beat(), self._watch(), self.stopping.wait())
        tasks = {taking, *map(asyncio.ensure_future, beside)}
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
            await cancelled(tasks, self.left(), self.clock)
            self.crew.dismiss()
            self.handlers.dismiss()

    def stop(self) -> None:
        """Take no more."""
        self.stopping.set()
        self._changed.set()

    def left(self) -> float:
        """Seconds for what is cancelled at the end."""
        return max(MOMENT, min(LAST_WORDS, self.ends - self.clock.now()))

    # -- how it is; any thread may ask

    @property
    def stuck(self) -> int:
        """How many handlers hang."""
        return sum(work.stuck for work in self.in_hand)

    @property
    def ready(self) -> bool:
        """Does it take work?"""
        return self.failing is None and not self.stopping.is_set() and self.stuck < self.workers

    def oldest(self) -> float | None:
        """For how many seconds the handler that began first has been at work; None where none is."""
        began = min((work.began for work in self.in_hand if work.runs), default=None)
        return None if began is None else max(0.0, self.clock.now() - began)

    def blown(self) -> float | None:
        """For how many more seconds the fuse lets nothing through; 0 on trial; None where it is whole, or none."""
        return None if self.fuse is None else self.fuse.blown(self.clock.now())

    # -- the tasks

    async def _take(self) -> None:
        """Receive messages as workers become free."""
        patience = getattr(self.source, "patience", PATIENCE)
        failing_since: float | None = None
        while not (self.stopping.is_set() and self.source.durable):
            if self._suspect is not None:
                await self._work_alone(self._suspect)
                continue
            free = min(self._places(), self._room())
            if free < 1:
                await self._change(self._pause())
                continue
            ending = self._draining or self.stopping.is_set()
            asked = self.clock.now()
            try:
                messages = await self._receive(int(free), 0.0 if ending else patience)
            except Exception as error:
                failing_since = self.clock.now() if failing_since is None else failing_since
                await self._rest(self._trouble("receive from", error, self._pause_of(failing_since)))
                continue
            failing_since = self.failing = None
            self._accept(messages)
            if messages:
                self._careful = any(map(self.worker.suspects, messages))
            elif ending:
                if not self._busy():
                    return
                await self._change(None)  # what is in hand may bring something back
            elif self.clock.now() < asked + SHORTEST_LOOK:
                await self._change(SHORTEST_LOOK)  # a source that doesn't wait must not be asked without a pause
        if self._suspect is not None and self._waits(self._suspect):
            self._return(self._suspect, 0.0)

    def _places(self) -> int:
        """How many more workers could begin; after a suspect one by one."""
        taken = len(self.in_hand) - self._replaced
        return min(self.workers - taken, 1 if self._careful else self.workers)

    def _busy(self) -> bool:
        """Is anything in hand but handlers that hang?"""
        return any(not work.stuck for work in self.in_hand)

    def _room(self) -> float:
        """How many more the fuse allows."""
        if self.fuse is None:
            return inf
        room = self.fuse.room(self.clock.now())
        return room if room == inf else room - len(self._trials(self.fuse))

    def _trials(self, fuse: Fuse) -> list[float]:
        """Until when each trial of the fuse is waited for: those that last for longer than a pause are not."""
        now = self.clock.now()
        until = [work.began + fuse.pause for work in self.in_hand if work.blows == fuse.blows and work.began < inf]
        return [instant for instant in until if now < instant]

    def _pause(self) -> float | None:
        """Seconds until the fuse lets something through; None where it is not what is waited for."""
        if self.fuse is None:
            return None
        now = self.clock.now()
        if now < self.fuse.opens:
            return self.fuse.opens - now
        trials = () if self.fuse.room(now) == inf else self._trials(self.fuse)
        return min(trials) - now if trials else None

    async def _receive(self, most: int, wait: float) -> Sequence[Message]:
        """Ask the source; a stop breaks it off if it is a task, and gives back what a thread still brings."""
        if not self.worker.asynchronous:
            most = self.handlers.prepare(most)
        if clocks.entered() is not None and not iscoroutinefunction(self.source.receive):
            # a plain function that waits on a virtual clock would move it past everybody else's instants
            messages = cast("Sequence[Message]", self.source.receive(most, 0.0))
            if not messages and wait:
                await self._change(SHORTEST_LOOK)
            return messages
        asking = asyncio.ensure_future(self._call(self.source.receive, most, wait))
        stopped = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({asking} if self.stopping.is_set() else {asking, stopped}, return_when="FIRST_COMPLETED")
            if not asking.done() and iscoroutinefunction(self.source.receive):
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
            held = [work for work in self.in_hand if not (work.lost or work.stuck)]
            messages = [work.message for work in held if work.message not in self._settling]
            if not messages:
                continue
            try:
                lost = await self._call(self.source.extend, messages)
            except Exception as error:
                self._trouble("extend leases in", error, self.source.lease / BEATS)
            else:
                self.failing = None
                for message in lost:
                    if message not in self._settling:
                        self._lose(message)

    async def _watch(self) -> None:
        """Find handlers that hang."""
        if self.timeout is None:
            await asyncio.Event().wait()
        assert self.timeout is not None
        limit = self.timeout + max(LATE, 0.1 * self.timeout)
        while True:
            # one that begins meanwhile is not late before this sleep is over
            began = min((work.began for work in self.in_hand if work.runs and not work.stuck), default=self.clock.now())
            await self.clock.asleep(began + limit - self.clock.now())
            for work in self.in_hand:
                if work.runs and not work.stuck and work.began + limit <= self.clock.now():
                    self._give_up_on(work)

    async def _settle(self) -> None:
        """Send off the verdicts, together where there are several."""
        failing_since: float | None = None
        while True:
            if not self.outbox:
                await self._change(None)
                continue
            # after a failure one by one, so that one that can't be settled doesn't hold up the others
            batch = self.outbox[:] if failing_since is None else self.outbox[:1]
            self._settling = frozenset(message for message, _ in batch)
            try:
                lost = await self._call(self.source.settle, batch)
            except Exception as error:
                self._settling = frozenset()
                failing_since = self.clock.now() if failing_since is None else failing_since
                self.outbox = [*self.outbox[len(batch) :], *batch]
                await self._rest(self._trouble("settle messages in", error, self._pause_of(failing_since)))
                if len(batch) == 1:
                    self._tried(batch[0])
                continue
            self._settling = frozenset()
            failing_since = self.failing = None
            del self.outbox[: len(batch)]
            for message in lost:
                self._lose(message)
            for message, verdict in batch:
                self._free(message)
                if message not in lost:
                    report_buried(self.name, message, verdict)

    def _tried(self, settlement: Settlement) -> None:
        """A verdict could not be carried out, by itself: one that never can be must not hold a place for ever."""
        message, verdict = settlement
        work = self.in_hand.of(message)
        if work is None:
            return
        now, lease = self.clock.now(), self.source.lease
        work.tries += 1
        work.tried = min(work.tried, now)
        if work.tries >= TRIES and lease is not None and now - work.tried >= lease:
            self.tally["unsettled"] += 1
            self.outbox.remove(settlement)
            self._let_go(work)
            log.error("%s: %r could not be settled (%r): it is left to its lease", self.name, message.key, verdict)

    async def _finish(self, taking: asyncio.Task[None], grace: float) -> None:
        """Wait for what is in hand, and cancel what is not done in time."""
        self.ends = self.clock.now() + grace + LAST_WORDS
        try:
            cut = self.clock.within(grace)
            async with cut:
                await asyncio.wait({taking})  # a thread may still bring something, which is to be given back
                await self._empty()
        except AttemptTimeout:
            taking.cancel()
            self._break_off()
            try:
                cut = self.clock.within(LAST_WORDS)
                async with cut:
                    await self._empty()
            except AttemptTimeout:
                pass
        stuck = [str(work.message.key) for work in self.in_hand]
        if stuck:
            for work in self.in_hand:
                work.lost = True
            self.in_hand.drop()
            log.error("%s: %s not done within the grace of %g s: left to their leases", self.name, stuck[:10], grace)

    def _break_off(self) -> None:
        """The grace is over: cancel what can be cancelled, and give back what nobody has begun with."""
        for work in self.in_hand:
            if work.waits:
                self._return(work, 0.0)
            elif work.runs and self.worker.asynchronous and work.task is not None:
                work.broken_off = True
                work.task.cancel()
            elif work.runs:  # it goes on, for nobody
                work.lost = work.stuck = True
                self._changed.set()

    # -- one message

    def _accept(self, messages: Sequence[Message]) -> None:
        """Messages have come: to workers, or in line behind others of their groups.

        All are in hand before the first has its turn: one that goes back takes those behind it along.
        """
        for work in [self.in_hand.take(message) for message in messages]:
            if work is not None and work.waits:
                self._start(work)

    def _start(self, work: Work) -> None:
        """It is the turn of a message: let a worker begin, unless this is no time for it."""
        now = self.clock.now()
        if work is self._suspect:
            return  # it has its turn, and waits to be alone
        if self.stopping.is_set() and self.source.durable:
            self._return(work, 0.0)
        elif self.fuse is not None and now < self.fuse.opens:  # it has blown while this one was on its way
            self._return(work, self.fuse.opens - now)
        elif (suspect := self.worker.suspects(work.message)) and self._suspect is not None:
            # a run that is to end when nothing is left takes one by one from here on, and must not end before the last
            ending = self._draining or self.stopping.is_set()
            apart = 0.0 if ending else min(APART, self.source.lease or APART)
            self._return(work, random.random() * apart)
        elif self.pauses is not None and (rest := self.pauses.rest(work.message, now)) > 0:
            self._return(work, rest, "held")  # asked last, as it pays for what may begin
        elif suspect:
            self._suspect = work
            self._return_behind(work, 0.0)
            self._changed.set()
            self._say_alone(work.message)
        else:
            self._begin(work)

    def _say_alone(self, message: Message) -> None:
        """Say why the other workers have nothing to do."""
        if message.unanswered is None:
            why = f"it was handed out {message.receives} times, and is not settled"
        else:
            why = f"receives in a row that ended without an answer: {message.unanswered}"
        log.warning("%s: %r is worked on alone: %s", self.name, message.key, why)

    def _begin(self, work: Work) -> None:
        work.began = self.clock.now()
        work.blows = 0 if self.fuse is None else self.fuse.blows
        work.task = asyncio.create_task(self._work(work))

    async def _work_alone(self, work: Work) -> None:
        """Let a suspect work while nothing else is in hand; nothing is taken meanwhile.

        It doesn't wait for ever: after a while it begins beside what is left. Nor do others wait for it for ever:
        after `COMPANY` seconds at work it is one among others. If that kills an innocent, it becomes a suspect and is
        tried alone before it is buried.
        """
        until = self.clock.now() + max(COMPANY, self.source.lease or 0.0, self.timeout or 0.0)
        while self._waits(work) and self.clock.now() < until and not self.stopping.is_set():
            if all(other is work or other.stuck for other in self.in_hand):
                break
            await self._change(until - self.clock.now())
        if self._waits(work) and not (self.stopping.is_set() and self.source.durable):
            self._begin(work)
            until = self.clock.now() + COMPANY
            while work.runs and not work.stuck and self.in_hand.of(work.message) is work and self.clock.now() < until:
                await self._change(until - self.clock.now())
        if not self._waits(work):
            self._suspect = None

    def _waits(self, work: Work) -> bool:
        return work.waits and self.in_hand.of(work.message) is work

    async def _work(self, work: Work) -> None:
        ended = await self.worker.work(work, self.clock)
        if work.replaced:
            work.replaced = False
            self._replaced -= 1
            if not self.worker.asynchronous:
                self.handlers.shrink()
        if self.in_hand.of(work.message) is not work:
            return  # the loop has ended without it
        if ended is None and work.broken_off:
            self._return(work, 0.0)
        elif ended is None:
            self._let_go(work)
        else:
            verdict = ended.judgement.verdict
            if self.pauses is not None:
                self.pauses.settled(work.message, verdict, self.clock.now())
            self._deliver(work, verdict)
            pause = self._tell_fuse(work, ended.judgement.failed)
            self.worker.tell(work.message, ended)
            self._say_blown(pause)

    def _tell_fuse(self, work: Work, failed: Failed) -> float:
        """For how many seconds does this blow the fuse? A handler that hangs has failed already."""
        if self.fuse is None or failed is None or work.stuck:
            return 0.0
        return self.fuse.record(not failed, self.clock.now(), work.blows, failed == "answered")

    def _say_blown(self, pause: float) -> None:
        if pause:
            log.warning("%s: most messages fail: none are taken for %.3g s", self.name, pause)
            events.emit(events.FuseBlown(self.name, pause))

    def _give_up_on(self, work: Work) -> None:
        """A handler hangs: its message is left to its lease, and its place is given to another while there are any."""
        pause = self._tell_fuse(work, True)
        work.stuck = True
        self.tally["stuck"] += 1
        hanging = self.stuck
        if hanging <= self.workers:
            work.replaced = True
            self._replaced += 1
            if not self.worker.asynchronous:
                self.handlers.grow()
        self._return_behind(work, 0.0)
        self._changed.set()
        log.error(
            "%s: the handler of %r has not ended %.3g s after its timeout of %g s, and can't be stopped: its lease is"
            " not extended any more",
            self.name,
            work.message.key,
            self.clock.now() - work.began - (self.timeout or 0.0),
            self.timeout,
        )
        if hanging == self.workers:
            log.error(
                "%s: %d handlers hang, as many as there are workers: it is not ready, and those that hang from here on"
                " are not replaced. Restart it.",
                self.name,
                hanging,
            )
        self._say_blown(pause)

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
        if work.task is None or work.verdict is not None:
            self._let_go(work)
        elif self.worker.asynchronous:
            work.task.cancel()
        log.warning("%s: the lease of %r ran out", self.name, message.key)
        events.emit(events.LeaseLost(self.name, message.key))

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
        if iscoroutinefunction(method):
            return await method(*args)
        answer = await self.crew.run(method, *args)
        return await answer if isawaitable(answer) else answer

    def _pause_of(self, failing_since: float) -> float:
        """Seconds to leave a source alone that fails: half of its outage so far, within bounds."""
        longest = min(LONG_REST, max(SHORT_REST, (self.clock.now() - failing_since) / 2))
        return longest * (0.5 + random.random() / 2)

    def _trouble(self, what: str, error: Exception, delay: float) -> float:
        """The source has failed, not the handler: say so, and return the delay."""
        self.failing = described(error)
        text = "%s: could not %s the queue %s, next try in %.3g s: %r"
        log.warning(text, self.name, what, self.source.name, delay, error)
        events.emit(events.SourceFailed(self.name, self.source.name, error, delay))
        return delay

    async def _rest(self, seconds: float) -> None:
        """Leave the source alone for so many seconds. A stop ends that; after it, for no more than `HASTE`."""
        if self.stopping.is_set():
            await self.clock.asleep(min(seconds, HASTE))
            return
        try:
            cut = self.clock.within(seconds)
            async with cut:
                await self.stopping.wait()
        except AttemptTimeout:
            pass

    async def _change(self, seconds: float | None) -> None:
        """Wait until something has changed, or so many seconds."""
        self._changed.clear()
        if seconds is None:
            await self._changed.wait()
            return
        try:
            cut = self.clock.within(seconds)
            async with cut:
                await self._changed.wait()
        except AttemptTimeout:
            pass

    async def _empty(self) -> None:
        while self._busy():
            await self._change(None)


async def cancelled(tasks: Collection[asyncio.Future[Any]], seconds: float, clock: Clock) -> bool:
    """Cancel tasks: have they all ended within so many seconds? One that ignores its cancellation is left behind."""
    for task in tasks:
        task.cancel()
    try:
        cut = clock.within(seconds)
        async with cut:
            if tasks:
                await asyncio.wait(tasks)
    except AttemptTimeout:
        pass
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # or asyncio would complain that nobody has asked for it
    return all(task.done() for task in tasks)
