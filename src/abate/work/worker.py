"""A worker with one message: calls the handler, and has judged what it answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import NamedTuple, cast

from abate import events
from abate.clock import Clock
from abate.logs import Log
from abate.schedule.deadlines import carry_deadline, deadline
from abate.work.crew import Crew
from abate.work.hands import Work
from abate.work.judge import Judge, Judgement
from abate.work.source import Bury, Message, Verdict

log = Log("abate.work")

Handler = Callable[[Message], object]


class Ended(NamedTuple):
    """How the work on a message has ended, after how many seconds, and by what error."""

    judgement: Judgement
    seconds: float
    error: BaseException | None


def report(name: str, message: Message, judgement: Judgement, seconds: float, error: BaseException | None) -> None:
    """Tell sinks how the work on a message has ended."""
    if events.sinks:
        events.emit(events.Worked(name, message.key, judgement.ending, seconds, message.receives, error))


def report_buried(name: str, message: Message, verdict: Verdict) -> None:
    """Tell sinks and the log of a message that its source has buried: not before, as that may fail."""
    if isinstance(verdict, Bury):
        log.error("%s: %r is buried (%s): %s", name, message.key, verdict.kind, verdict.reason)
        events.emit(events.Buried(name, message.key, verdict.kind, verdict.reason))


def warn_of_value(name: str, answer: object) -> None:
    """A handler has returned a value that says nothing to us."""
    log.warning(
        "%s: the handler returned a value of type %s, which is ignored: its work counts as done. A handler returns None"
        " or abate.Again(after), and raises an error if the work is not done. Further values are not reported.",
        name,
        type(answer).__name__,
    )


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
        redrives: bool = False,
    ) -> None:
        self.name = name
        self._handle = handle
        self._judge = judge
        self.asynchronous = asynchronous
        """Is the handler a coroutine function, which can be cancelled?"""
        self._timeout = timeout
        self._crew = crew
        self._tally = tally
        self._redrives = redrives
        """Does the source itself take away what is received too often?"""

    def suspects(self, message: Message) -> bool:
        """Must it be worked on alone?"""
        if self._left_to_the_source(message):
            return self._judge.doubtful(message.receives)
        return self._judge.suspect(message.receives, message.unanswered)

    def _left_to_the_source(self, message: Message) -> bool:
        """May other processes have given it back untouched? Then it is not buried unless it was handled and failed."""
        return self._redrives and message.unanswered is None

    async def work(self, work: Work, clock: Clock) -> Ended | None:
        """Work on a message: how it has ended; None where it was taken out of our hands."""
        message, began = work.message, clock.now()
        error: BaseException | None = None
        judgement = None
        if not self._left_to_the_source(message):
            judgement = self._judge.hopeless(message.receives, message.unanswered)
        if judgement is None:
            try:
                answer = await self._handled(message, clock)
                judgement = self._judge.returned(answer)
                if self._judge.surprised(answer):
                    warn_of_value(self.name, answer)
            except BaseException as raised:
                if not isinstance(raised, Exception):
                    if work.lost or work.broken_off:
                        return None
                    self._say(raised, message)
                error = raised
                judgement = self._judge.judged(raised, message.receives)
        return None if work.lost else Ended(judgement, clock.now() - began, error)

    def tell(self, message: Message, ended: Ended) -> None:
        """Count and report how a message has ended."""
        judgement, seconds, error = ended
        self._tally[judgement.ending] += 1
        report(self.name, message, judgement, seconds, error)

    async def _handled(self, message: Message, clock: Clock) -> object:
        """Call the handler, within its time."""
        if self._timeout is None:
            return await self._answer(message)
        with deadline(self._timeout):
            if not self.asynchronous:
                return await self._answer(message)
            cut = clock.within(self._timeout)
            async with cut:
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
