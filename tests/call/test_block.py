"""The block form: leaving the loop, unused attempts, and deadlines inside the body."""

import asyncio
import gc
import sys
import weakref

import pytest

import abate
from abate import Policy, Refused, RetryExhausted
from abate.call import Attempts
from abate.events import GaveUp
from abate.testing import VirtualClock

pytestmark = pytest.mark.usefixtures("either_time")


class Gone(ConnectionError):
    """A retryable error."""


class Exit(BaseException):
    """A BaseException, as KeyboardInterrupt and SystemExit are."""


@pytest.fixture
def budget(counting_budget):
    return counting_budget()


@pytest.fixture
def policy(budget):
    return Policy(on=ConnectionError, name="orders", backoff=[0.0], budget=budget)


def loop(block, policy, body):
    """Run `body` with each attempt of a loop, in a thread or a task; leave the loop when it returns True."""
    if block.loop == "threads":
        for attempt in policy.attempts():
            if body(attempt):
                break
        return

    async def main():
        async for attempt in policy.attempts():
            if body(attempt):
                break

    block.run(main)


def test_attempts_are_numbered_from_one(block, policy):
    """`attempt.number` counts the attempts of a call."""
    numbers = []

    def body(attempt):
        with attempt as entered:
            assert entered is attempt
            numbers.append(attempt.number)
            if attempt.number < 3:
                raise Gone

    loop(block, policy, body)
    assert numbers == [1, 2, 3]


def test_a_loop_ends_after_its_first_success(block, policy, budget):
    """The body runs once, and the call makes one deposit."""
    runs = []

    def body(attempt):
        with attempt:
            runs.append(attempt.number)

    loop(block, policy, body)
    assert runs == [1]
    assert (budget.deposited, budget.requested) == (1, 0)


def test_leaving_the_loop_inside_the_attempt_is_a_success(block, policy, budget):
    """`break` or `return` inside the attempt makes the call a success."""

    def body(attempt):
        with attempt:
            return True

    loop(block, policy, body)
    assert (budget.deposited, budget.refunded) == (1, 0)


def test_a_loop_that_is_left_after_a_failure_refunds_at_once(block, policy, budget, abate_events):
    """Leaving the loop refunds the withdrawal for the next attempt, without a collection."""

    def body(attempt):
        with attempt:
            raise Gone
        return True

    gc.disable()
    try:
        loop(block, policy, body)
        assert (budget.granted, budget.refunded, budget.deposited) == (1, 1, 0)
    finally:
        gc.enable()
    assert abate_events.of(GaveUp) == []


def test_an_error_between_attempts_refunds(block, policy, budget):
    """An error raised outside `with attempt:` propagates, and the withdrawal is refunded."""

    def body(attempt):
        with attempt:
            raise Gone
        raise KeyError

    with pytest.raises(KeyError):
        loop(block, policy, body)
    assert (budget.granted, budget.refunded) == (1, 1)


def test_a_loop_that_is_left_before_its_attempt_leaves_the_gate(block, policy, scripted_gate):
    """An admitted attempt that is not used leaves its gate without an outcome."""
    gate = scripted_gate()
    loop(block, policy.replace(gate=gate), lambda attempt: True)
    assert (gate.entered, gate.left) == ([False], [None])


def test_errors_of_a_loop_that_is_left_are_freed_at_once(block, policy):
    """A loop keeps no reference to its last error after it ends."""
    errors = []

    def error():
        made = Gone()
        errors.append(weakref.ref(made))
        return made

    def body(attempt):
        with attempt:
            raise error()
        return True

    gc.disable()
    try:
        loop(block, policy, body)
        assert [reference() for reference in errors] == [None]
    finally:
        gc.enable()


def succeeds(attempts):
    for attempt in attempts:
        with attempt:
            pass


def is_left_after_its_success(attempts):
    for attempt in attempts:
        with attempt:
            break


def fails(attempts):
    with pytest.raises(KeyError):
        for attempt in attempts:
            with attempt:
                raise KeyError


def is_exhausted(attempts):
    with pytest.raises(Gone):
        for attempt in attempts:
            with attempt:
                raise Gone


def is_interrupted(attempts):
    with pytest.raises(KeyboardInterrupt):
        for attempt in attempts:
            with attempt:
                raise KeyboardInterrupt


@pytest.mark.parametrize("end", [succeeds, is_left_after_its_success, fails, is_exhausted, is_interrupted])
def test_freeing_a_loop_that_has_ended_runs_no_code(policy, end):
    """An exception that a signal handler raises inside a finalizer would be lost."""
    attempts, called = policy.attempts(), []
    end(attempts)
    freed = weakref.ref(attempts)
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        del attempts
    finally:
        sys.setprofile(None)
    assert freed() is None
    assert called == []


def test_collecting_a_loop_in_a_reference_cycle_refunds(policy, budget):
    """A suspended generator that only a cycle references refunds when it is collected."""

    def suspended():
        for attempt in policy.attempts():
            with attempt:
                raise Gone
            yield

    class Holder:
        pass

    holder = Holder()
    holder.own, holder.generator = holder, suspended()
    next(holder.generator)
    freed = weakref.ref(holder.generator)
    del holder
    gc.collect()
    assert freed() is None
    assert (budget.granted, budget.refunded) == (1, 1)


def test_dropping_the_loop_inside_its_attempt_prevents_retries(policy, budget):
    """The attempt's error is raised, and nothing is withdrawn for a retry."""
    attempts = policy.attempts()
    with pytest.raises(Gone), next(attempts):
        del attempts
        raise Gone
    assert budget.granted == 0
    attempts = policy.attempts()
    with pytest.raises(KeyboardInterrupt), next(attempts):
        del attempts
        raise KeyboardInterrupt


def test_an_attempt_that_is_not_used_is_an_error(block, policy, scripted_gate):
    """A body outside `with attempt:` raises an error instead of looping forever, and leaves the gate."""
    gate, runs = scripted_gate(), []
    with pytest.raises(RuntimeError, match="put the body of the loop into `with attempt:`"):
        loop(block, policy.replace(gate=gate), lambda attempt: runs.append(attempt.number))
    assert runs == [1]
    assert gate.left == [None]


def test_an_attempt_is_used_once(block, policy, budget):
    """Entering the same attempt twice raises an error, and the call makes one deposit."""

    def body(attempt):
        with attempt:
            pass
        with attempt:
            raise AssertionError("never run")

    with pytest.raises(RuntimeError, match="an attempt is used once, within its loop"):
        loop(block, policy, body)
    assert budget.deposited == 1


def test_an_attempt_is_used_within_its_loop(policy, budget):
    """Entering an attempt whose loop is gone raises an error before the body runs."""
    attempt = next(policy.attempts())
    with pytest.raises(RuntimeError, match="an attempt is used once, within its loop"), attempt:
        raise AssertionError("never run")
    assert budget.deposited == 0


def test_a_finished_loop_stays_finished(policy):
    """Iterating again after the end yields no attempts."""
    attempts = policy.attempts()
    for attempt in attempts:
        with attempt:
            pass
    assert list(attempts) == []

    async def rest():
        return [attempt async for attempt in attempts]

    assert asyncio.run(rest()) == []


def test_constructing_attempts_without_a_policy_fails_cleanly():
    """The finalizer of an instance whose construction failed raises nothing."""
    with pytest.raises(AttributeError):
        Attempts(None)
    gc.collect()  # an error in a finalizer would fail this test


def test_a_refused_first_attempt_raises_before_the_body_runs(block, policy, scripted_gate, budget):
    """The call raises `Refused` with the gate's name and withdraws nothing."""
    with pytest.raises(Refused, match="scripted_gate"):
        loop(block, policy.replace(gate=scripted_gate(False)), pytest.fail)
    assert (budget.requested, budget.refunded) == (0, 0)


def test_a_refused_retry_raises_the_last_error_from_the_loop(block, policy, scripted_gate, budget):
    """The loop itself raises the error, and the withdrawal is refunded."""
    gone = Gone()

    def body(attempt):
        with attempt:
            raise gone

    with pytest.raises(Gone) as caught:
        loop(block, policy.replace(gate=scripted_gate(True, False)), body)
    assert caught.value is gone
    assert abate.report(gone).reason == "budget"
    assert (budget.granted, budget.refunded) == (1, 1)


def test_a_base_exception_propagates_through_the_block(block, policy, scripted_gate, budget, abate_events):
    """The gate is left without an outcome, and the withdrawal for this attempt is not refunded."""
    gate, end = scripted_gate(), Exit()

    def body(attempt):
        with attempt:
            raise Gone if attempt.number == 1 else end

    with pytest.raises(Exit):
        loop(block, policy.replace(gate=gate), body)
    assert gate.left == [False, None]
    assert (budget.granted, budget.refunded) == (1, 0)
    assert abate_events.of(GaveUp) == [GaveUp("orders", "cancelled", 1, 0.0, end)]


def test_an_interrupted_wait_refunds(block, policy, budget):
    """Ctrl-C between two attempts refunds the withdrawal for the second."""

    class Interrupted(VirtualClock):
        def sleep(self, seconds):
            raise Exit

        async def asleep(self, seconds):
            raise Exit

    def body(attempt):
        with attempt:
            raise Gone

    with pytest.raises(Exit):
        loop(block, policy.replace(clock=Interrupted(), backoff=[1.0]), body)
    assert (budget.granted, budget.refunded) == (1, 1)


@pytest.mark.parametrize("raises", ["original", "exhausted"])
def test_the_body_of_the_last_attempt_raises(block, policy, raises):
    """The last error is raised from its own block, as it is or wrapped."""
    errors, numbers = [], []

    def body(attempt):
        with attempt:
            numbers.append(attempt.number)
            errors.append(Gone())
            raise errors[-1]

    with pytest.raises(Gone if raises == "original" else RetryExhausted) as caught:
        loop(block, policy.replace(raises=raises), body)
    assert numbers == [1, 2, 3]
    assert (caught.value if raises == "original" else caught.value.__cause__) is errors[-1]
    assert abate.report(caught.value).attempts == 3


def test_a_loop_that_catches_its_last_error_ends(block, policy):
    """Catching the last error inside the loop does not start another attempt."""
    numbers = []

    def body(attempt):
        try:
            with attempt:
                numbers.append(attempt.number)
                raise Gone
        except Gone:
            numbers.append("caught")

    loop(block, policy, body)
    assert numbers == [1, 2, 3, "caught"]


def test_the_deadline_applies_inside_the_attempt_only(block, policy):
    """Code inside `with attempt:` sees the remaining time; code between attempts sees no deadline."""
    inside, around = [], []

    def body(attempt):
        around.append(abate.remaining())
        with attempt:
            inside.append(abate.remaining())
            if attempt.number < 3:
                raise Gone
        around.append(abate.remaining())

    with VirtualClock():
        loop(block, policy.replace(timeout=10.0, attempt_timeout=8.0, backoff=[1.0, 3.0]), body)
    assert inside == [8.0, 8.0, 6.0]
    assert around == [None] * 6


def test_time_spent_between_attempts_counts_towards_the_wait(block, policy):
    """Time that the loop body spends after a failure is subtracted from the wait."""

    def body(attempt):
        with attempt:
            if attempt.number < 3:
                raise Gone
            return
        clock.advance(1.0 if attempt.number == 1 else 100.0)

    with VirtualClock() as clock:
        loop(block, policy.replace(backoff=[5.0, 5.0]), body)
        assert clock.now() == 105.0
        assert [wait for wait in clock.waits if wait > 0.0] == [4.0]


class InterruptedGate(abate.Gate):
    """A gate whose `leave` is interrupted by an exception of a signal handler."""

    name = "interrupted_gate"

    def __init__(self):
        self.errors = [KeyboardInterrupt]

    def enter(self, retry):
        return None

    def leave(self, accepted):
        if self.errors:
            raise self.errors.pop()


def test_an_exception_while_recording_a_success_ends_the_loop():
    """The attempt's permit is released, and no further attempt follows."""
    permits = abate.ConcurrencyLimit(1)
    attempts = Policy(on=OSError, gate=permits & InterruptedGate()).attempts()
    with pytest.raises(KeyboardInterrupt):
        for attempt in attempts:
            with attempt:
                pass
    assert permits.held == 0
    assert list(attempts) == []


def test_an_exception_while_judging_a_failure_ends_the_loop():
    """The attempt's permit is released, and no further attempt follows."""
    permits = abate.ConcurrencyLimit(1)

    def interrupted_rule(error):
        raise KeyboardInterrupt

    attempts = Policy(on=interrupted_rule, gate=permits).attempts()
    with pytest.raises(KeyboardInterrupt):
        for attempt in attempts:
            with attempt:
                raise OSError
    assert permits.held == 0
    assert list(attempts) == []
