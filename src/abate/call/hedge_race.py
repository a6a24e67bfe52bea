"""The race of two attempts for one answer, without I/O: when the second one is sent, and which of them counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from abate.call.cut_short import DEADLINE_TOLERANCE
from abate.call.off_switch import is_off
from abate.call.policy import Policy
from abate.clock import Clock, ever_used
from abate.decide.outcome import Outcome
from abate.schedule.deadlines import remaining
from abate.schedule.timeouts import Timeouts

FIRST, SECOND = 1, 2


class Race:
    """Two attempts at one answer, without I/O: drivers report events, and it decides when the race is over."""

    def __init__(self, policy: Policy, timeouts: Timeouts, clock: Clock) -> None:
        self._policy = policy
        self._timeouts = timeouts
        self._clock = clock
        self._started = clock.now()
        self._running = 1
        self._answer: Outcome | None = None
        self._interrupted: BaseException | None = None
        self._late = self._known = self._second_begun = False
        self._admission: Iterator[bool] = iter(())
        """One item while the second attempt is paid for and has not begun. It is taken once: to begin, or to refund."""
        self.second: Outcome | None = None
        self.over = False

    def hedge(self) -> bool:
        """Return whether a second attempt may be sent, as the first one is late; if so, pay for it."""
        self._late = True
        policy = self._policy
        if self.over or remaining() == 0.0 or (ever_used.off and is_off()):
            return False
        if policy.shelter is not None and not policy.shelter.dispatcher().calm:
            return False
        admission = iter((True,))
        if not policy.budget.try_withdraw():
            return False
        try:
            if policy.gate is None or policy.gate.enter(True) is None:
                self._admission = admission  # no call in between: a signal handler may raise
                self._running += 1
        finally:
            if self._admission is not admission:
                policy.budget.refund()
        return self._admission is admission

    def begin(self, which: int) -> bool:
        """Return whether an attempt may begin: not a second one that was refunded, as its caller was interrupted."""
        if which == FIRST:
            return True
        for _ in self._admission:
            self._second_begun = True
            return True
        return False

    def unsent(self) -> None:
        """Refund the second attempt, if it was admitted and has not begun."""
        for _ in self._admission:
            self._running -= 1
            self._policy.budget.refund()
            if self._policy.gate is not None:
                self._policy.gate.refund()

    def second_ended(self, outcome: Outcome | None) -> None:
        """Leave the gate: the second attempt has ended with this outcome, or was cut off (None)."""
        gate = self._policy.gate
        if gate is None or not self._second_begun:
            return
        accepted: bool | None = None
        tell = gate.leave
        try:
            if outcome is not None:
                ruling = None if self._good(outcome) else self._policy.rules.decide(outcome)
                accepted = ruling is None or ruling.taken
                if ruling is not None and ruling.retry:
                    tell = gate.failed
        finally:
            tell(accepted)

    def ended(self, which: int, outcome: Outcome) -> None:
        """An attempt has ended by itself."""
        self._running -= 1
        good = self._good(outcome)
        if which == FIRST:
            self._learn(outcome, good)
        else:
            self.second = outcome
        if self.over:
            return
        if good or self._answer is None:
            self._answer = outcome
        self.over = good or not self._running

    def broken(self, error: BaseException) -> None:
        """End the race: an attempt ended by an exit or a cancellation."""
        if not self.over:
            self._interrupted, self.over = error, True

    def close(self) -> None:
        """End the race. If the first attempt is still unanswered, record that it takes longer than this."""
        self.unsent()
        if self._late and not self._known:
            self._timeouts.timed_out(self._elapsed())

    def _good(self, outcome: Outcome) -> bool:
        return outcome.error is None and (not self._policy.reads_results or self._policy.rules.is_good(outcome.result))

    def _learn(self, outcome: Outcome, good: bool) -> None:
        self._known = True
        if good:
            self._timeouts.observe(self._elapsed())
        elif self._late or (isinstance(outcome.error, TimeoutError) and not self._was_cut_short()):
            self._timeouts.timed_out(self._elapsed())  # an immediate refusal says nothing about latency

    def _was_cut_short(self) -> bool:
        """Return whether a deadline cut the attempt off before the learned timeout."""
        left = remaining()
        return left is not None and left <= DEADLINE_TOLERANCE and self._elapsed() < self._timeouts.request()

    def _elapsed(self) -> float:
        return max(0.0, self._clock.now() - self._started)

    def result(self) -> Any:
        """Return the answer, or raise the first error."""
        outcome, error = self._answer, self._interrupted
        self._answer = self._interrupted = self.second = None
        try:
            if error is None:
                assert outcome is not None
                if outcome.error is None:
                    return outcome.result
                error = outcome.error
            raise error
        finally:
            del outcome, error  # its traceback holds this frame: don't hold it back
