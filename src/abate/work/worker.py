"""A worker with one message: calls the handler, and has judged what it answers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import cast

from abate import events
from abate.clock import Clock
from abate.schedule.deadlines import carry_deadline, deadline
from abate.work.crew import Crew
from abate.work.hands import Work
from abate.work.judge import Judge, Judgement
from abate.work.source import Bury, Message

log = logging.getLogger("abate.work")

Handler = Callable[[Message], object]


class Worker:
    """How messages are worked on; it keeps nothing between two of them.

    Whatever a handler raises, and whatever the rules make of that, there is a judgement: a worker that ends by
    something that is no answer has crashed, and rules that fail themselves bury the message.
    """

    def __init__(
        self,
        name: str,
        handle: Handler,
        judge: Judge,
        asynchronous: bool,
        timeout: float | None,
        crew: Crew,
        tally: Counter[str],
    ) -> None:
        self.name = name
        self._handle = handle
        self._judge = judge
        self.asynchronous = asynchronous
        """Is the handler a coroutine function, which can be cancelled?"""
        self._timeout = timeout
        self._crew = crew
        self._tally = tally

    async def work(self, work: Work, clock: Clock) -> Judgement | None:
        """Work on a message: what becomes of it, which is counted; None where it was taken out of our hands."""
        message, began = work.message, clock.now()
        error: BaseException | None = None
        judgement = self._judge.hopeless(message.receives)
        if judgement is None:
            try:
                judgement = self._judge.returned(await self._handled(message, clock))
            except BaseException as raised:
                if not isinstance(raised, Exception):
                    if work.lost or work.broken_off:
                        return None
                    self._say(raised, message)
                error = raised
                judgement = self._judge.judged(raised, message.receives)
        if work.lost:
            return None
        self._tally[judgement.ending] += 1
        if events.sinks:
            took = clock.now() - began
            events.emit(events.Worked(self.name, message.key, judgement.ending, took, message.receives, error))
        if isinstance(judgement.verdict, Bury):
            bury = judgement.verdict
            log.error("%s: %r is buried (%s): %s", self.name, message.key, bury.kind, bury.reason)
            events.emit(events.Buried(self.name, message.key, bury.kind, bury.reason))
        return judgement

    async def _handled(self, message: Message, clock: Clock) -> object:
        """Call the handler, within its time."""
        if self._timeout is None:
            return await self._answer(message)
        with deadline(self._timeout):
            if not self.asynchronous:
                return await self._answer(message)
            async with clock.within(self._timeout):
                return await self._answer(message)

    async def _answer(self, message: Message) -> object:
        if self.asynchronous:
            return await cast("Awaitable[object]", self._handle(message))
        # a thread that cannot be ended keeps its deadline, also when nobody waits for it any more
        answer = await self._crew.run(carry_deadline(self._handle), message)
        return await answer if isawaitable(answer) else answer

    def _say(self, crash: BaseException, message: Message) -> None:
        self._tally["crashed"] += 1
        log.error("%s: a worker crashed on %r and is replaced", self.name, message.key, exc_info=crash)
        events.emit(events.WorkerCrashed(self.name, message.key, crash))
