"""What holds for every call, whatever its policy, its outcomes and the moment it ends."""

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate import Policy, Refused, Ruling
from abate.call import Call, Stop, Wait
from abate.schedule.hints import SPREAD
from abate.testing import VirtualClock
from tests.call.strategies import backoffs

SLACK = 1e-6  # adding a delay to an instant and taking the instant off again costs a few digits


@dataclass
class Step:
    """One attempt: admitted or not, how long it takes and how it ends, how late the wait after it ends."""

    ruling: Ruling | None
    admitted: bool
    takes: float
    late: float


rulings = st.builds(
    Ruling,
    retry=st.sampled_from([True, True, True, False]),
    reason=st.sampled_from(["blip", "overload"]),
    hint=st.none() | st.floats(0.0, 400.0) | st.just(math.inf),
    reached=st.booleans(),
    safe=st.sampled_from([None, None, True, False]),
)
steps = st.builds(
    Step,
    ruling=st.none() | rulings | rulings | rulings,
    admitted=st.sampled_from([True, True, True, True, False]),
    takes=st.floats(0.0, 5.0),
    late=st.floats(0.0, 1.0),
)


@dataclass
class Story:
    """A call played from beginning to end, and what was seen of it."""

    call: Call
    now: float
    attempts: int = 0
    waits: list = field(default_factory=list)  # (failed at, its ruling, number of the retry, until)
    ending: str = "left"

    def play(self, script):
        for step in script:
            try:
                begun = self.call.begin()
            except Refused:
                self.ending = "refused"
                return self
            if isinstance(begun, Stop):
                return self._stopped(begun)
            self.attempts += 1
            self.now += step.takes
            if step.ruling is None:
                self.call.succeeded()
                self.ending = "succeeded"
                return self
            answer = self.call.failed(ConnectionError(step.ruling), self.now)
            if isinstance(answer, Stop):
                return self._stopped(answer)
            assert isinstance(answer, Wait)
            self.waits.append((self.now, step.ruling, self.attempts, answer.until))
            self.now = answer.until + step.late
        self.call.broken_off(KeyboardInterrupt())
        return self

    def _stopped(self, stop):
        self.ending = stop.reason
        self.call.give_up(stop, ConnectionError())
        return self


@pytest.fixture(scope="module")
def play(counting_budget, scripted_gate):
    """Play a call; its story, its budget and its gate."""

    def play(script, *, timeout=None, funds=10.0, funded_by="success", seed=0, **changes):
        budget = counting_budget(ratio=0.0, reserve=funds, window=1.0, funded_by=funded_by)
        gate = scripted_gate(*(step.admitted for step in script))
        policy = Policy(
            on=lambda error: error.args[0],
            name="orders",
            budget=budget,
            gate=gate,
            rng=random.Random(seed),
            **changes,
        )
        with VirtualClock():
            start = 1000.0
            story = Story(Call(policy, None if timeout is None else start + timeout), start).play(script)
        return story, budget, gate

    return play


calls = given(
    script=st.lists(steps, max_size=8),
    timeout=st.none() | st.floats(0.0, 120.0),
    max_attempts=st.integers(1, 6),
    backoff=backoffs(),
    idempotent=st.sampled_from([None, True, False]),
    max_hint=st.floats(0.0, 300.0),
    funds=st.integers(0, 8),
    funded_by=st.sampled_from(["success", "request"]),
    seed=st.integers(0, 1000),
)


@calls
@settings(deadline=None, max_examples=200)
def test_what_every_call_can_rely_on(play, script, max_attempts, timeout, backoff, max_hint, **rest):
    """Attempts, deadline, hints, delays: no call oversteps any of its bounds."""
    story, _, _ = play(script, max_attempts=max_attempts, timeout=timeout, backoff=backoff, max_hint=max_hint, **rest)
    call = story.call
    assert story.attempts <= max_attempts
    assert call.attempts <= max_attempts
    for failed_at, ruling, retry, until in story.waits:
        assert call.deadline is None or until < call.deadline
        hint = ruling.hint or 0.0
        assert hint <= max_hint
        assert until >= failed_at + hint
        # a decorrelated delay follows from the one before, and that one may have come from the wider base
        wide = ruling.reason == "overload" or backoff.jitter == "decorrelated"
        plan = call.policy.overload_backoff if wide else backoff
        spread = min(SPREAD * hint, backoff.cap) if backoff.jittered else 0.0
        assert -SLACK <= until - failed_at - hint <= max(plan.ceiling(retry), spread) + SLACK
    assert call.waited == pytest.approx(sum(until - failed_at for failed_at, _, _, until in story.waits), abs=1e-4)


@calls
@settings(deadline=None, max_examples=200)
def test_what_is_withdrawn_and_not_refunded_was_used(play, script, funded_by, funds, **rest):
    """Withdrawals minus refunds are the retries made; deposits are at most one; what entered the gate has left it."""
    story, budget, gate = play(script, funded_by=funded_by, funds=funds, **rest)
    retries = max(0, story.attempts - 1)
    assert budget.granted - budget.refunded == retries
    assert budget.refunded <= 1
    assert retries <= funds
    paid = story.attempts > 0 if funded_by == "request" else story.ending == "succeeded"
    assert budget.deposited == paid
    assert len(gate.entered) == len(gate.left) == story.attempts


@calls
@settings(deadline=None, max_examples=200)
def test_every_ending_is_one_that_the_last_step_explains(play, script, idempotent, max_attempts, max_hint, **rest):
    """A call stops for a reason that holds, and goes on only if none does."""
    story, budget, _ = play(script, idempotent=idempotent, max_attempts=max_attempts, max_hint=max_hint, **rest)
    for _, ruling, retry, _ in story.waits:
        assert ruling.retry
        assert retry < max_attempts
        assert not ruling.reached or idempotent or (idempotent is None and ruling.safe is not False)
    last = script[min(story.attempts, len(script)) - 1].ruling if story.attempts else None
    match story.ending:
        case "fatal":
            assert not last.retry
        case "attempts":
            assert story.attempts == max_attempts
        case "unsafe":
            assert last.reached
            assert idempotent is False or last.safe is False
        case "hint":
            deadline = story.call.deadline
            assert last.hint > max_hint or story.now + last.hint >= deadline
        case "deadline":
            assert story.call.deadline is not None
        case "budget":
            refused_by_gate = not script[story.attempts].admitted if story.attempts < len(script) else False
            assert refused_by_gate or budget.requested > budget.granted
        case "refused":
            assert story.attempts == 0
            assert not script[0].admitted
        case "succeeded":
            assert last is None
        case _:
            assert story.ending == "left"
            assert len(story.waits) == len(script)
