"""The block form: loops that are left, attempts that are not used, deadlines around the body."""

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
    """What fails here."""


class Exit(BaseException):
    """What asks a program to end."""


@pytest.fixture
def budget(counting_budget):
    return counting_budget()


@pytest.fixture
def policy(budget):
    return Policy(on=ConnectionError, name="orders", backoff=[0.0], budget=budget)


def loop(block, policy, body):
    """Run `body` with the attempts of a loop, in a thread or a task; it answers with True to leave the loop."""
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
    """`attempt.number` tells which attempt this is."""
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
    """The body runs once, and the call deposits once."""
    runs = []

    def body(attempt):
        with attempt:
            runs.append(attempt.number)

    loop(block, policy, body)
    assert runs == [1]
    assert (budget.deposited, budget.asked) == (1, 0)


def test_leaving_the_loop_from_within_the_attempt_is_a_success(block, policy, budget):
    """Where the body has what it wanted, `break` or `return` inside the attempt ends the call well."""

    def body(attempt):
        with attempt:
            return True

    loop(block, policy, body)
    assert (budget.deposited, budget.refunded) == (1, 0)


def test_a_loop_that_is_left_after_a_failure_refunds_at_once(block, policy, budget, abate_events):
    """The withdrawal for the attempt that is not made goes back when the loop is left, without the collector."""

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


def test_a_loop_that_an_error_leaves_between_attempts_refunds(block, policy, budget):
    """An error outside of the attempt is not the call's: it passes, and the withdrawal goes back."""

    def body(attempt):
        with attempt:
            raise Gone
        raise KeyError

    with pytest.raises(KeyError):
        loop(block, policy, body)
    assert (budget.granted, budget.refunded) == (1, 1)


def test_a_loop_that_is_left_before_its_attempt_leaves_the_gate(block, policy, scripted_gate):
    """An attempt that was admitted and not used gives its place back."""
    gate = scripted_gate()
    loop(block, policy.replace(gate=gate), lambda attempt: True)
    assert (gate.entered, gate.left) == ([False], [None])


def test_errors_of_a_loop_that_is_left_are_freed_at_once(block, policy):
    """The loop held on to the last error for as long as it ran, and no longer."""
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
def test_a_loop_that_has_ended_runs_no_code_when_it_is_freed(policy, end):
    """What a signal handler raises in a finalizer is lost, be it a soft time limit or Ctrl-C."""
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


def test_the_collector_breaks_off_a_loop_that_is_part_of_a_cycle(policy, budget):
    """A generator that is suspended between two attempts, and reached by itself only, gives back what it holds."""

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


def test_a_loop_that_is_dropped_within_its_attempt_makes_no_other(policy, budget):
    """The error of the attempt is raised, and nothing is spent on a retry."""
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
    """A loop whose body stands outside of `with attempt:` would spin, unseen; it is told, and the gate is left."""
    gate, runs = scripted_gate(), []
    with pytest.raises(RuntimeError, match="put the body of the loop into `with attempt:`"):
        loop(block, policy.replace(gate=gate), lambda attempt: runs.append(attempt.number))
    assert runs == [1]
    assert gate.left == [None]


def test_an_attempt_is_used_once(block, policy, budget):
    """A second `with` around the same attempt would count it twice."""

    def body(attempt):
        with attempt:
            pass
        with attempt:
            raise AssertionError("never run")

    with pytest.raises(RuntimeError, match="an attempt is used once, within its loop"):
        loop(block, policy, body)
    assert budget.deposited == 1


def test_an_attempt_is_used_within_its_loop(policy, budget):
    """Nothing would come after its failure, which must not be swallowed."""
    attempt = next(policy.attempts())
    with pytest.raises(RuntimeError, match="an attempt is used once, within its loop"), attempt:
        raise AssertionError("never run")
    assert budget.deposited == 0


def test_a_finished_loop_stays_finished(policy):
    """An iterator that has ended keeps on ending."""
    attempts = policy.attempts()
    for attempt in attempts:
        with attempt:
            pass
    assert list(attempts) == []

    async def rest():
        return [attempt async for attempt in attempts]

    assert asyncio.run(rest()) == []


def test_attempts_of_no_policy_are_an_error_and_no_more():
    """An object that was never made has nothing to give back when it goes."""
    with pytest.raises(AttributeError):
        Attempts(None)
    gc.collect()  # a complaint from a finalizer would fail this test


def test_refused_on_the_first_attempt(block, policy, scripted_gate, budget):
    """A gate that admits nothing raises its own error, and the body never runs."""
    with pytest.raises(Refused, match="scripted_gate"):
        loop(block, policy.replace(gate=scripted_gate(False)), pytest.fail)
    assert (budget.asked, budget.refunded) == (0, 0)


def test_a_gate_that_refuses_a_retry_raises_the_last_error(block, policy, scripted_gate, budget):
    """Out of the loop itself, as there is no attempt to raise it from."""
    gone = Gone()

    def body(attempt):
        with attempt:
            raise gone

    with pytest.raises(Gone) as caught:
        loop(block, policy.replace(gate=scripted_gate(True, False)), body)
    assert caught.value is gone
    assert abate.report(gone).reason == "budget"
    assert (budget.granted, budget.refunded) == (1, 1)


def test_what_asks_the_program_to_end_passes_through_the_block(block, policy, scripted_gate, budget, abate_events):
    """It is not caught; the gate is left, and what was withdrawn for this attempt is spent."""
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
    """Control-C between two attempts gives back what was withdrawn for the second."""

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
    """The error comes out of the block it happened in: itself, or wrapped."""
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
    """The call is over: there is no attempt beyond the last, and none that a caught error would bring back."""
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


def test_the_deadline_holds_inside_the_attempt_and_not_around_it(block, policy):
    """Clients inside the block can see what remains; the code between two attempts is not theirs."""
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
    """The next attempt is due at an instant: what the loop's body does meanwhile is not waited for again."""

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


class Breaks(abate.Gate):
    """A gate in which a signal handler raises, as the attempt leaves it."""

    name = "breaks"

    def __init__(self):
        self.errors = [KeyboardInterrupt]

    def enter(self, retry):
        return None

    def leave(self, accepted):
        if self.errors:
            raise self.errors.pop()


def test_an_exception_that_comes_as_a_success_is_told_ends_the_loop():
    """What the attempt held is free, whoever goes on."""
    permits = abate.ConcurrencyLimit(1)
    attempts = Policy(on=OSError, gate=permits & Breaks()).attempts()
    with pytest.raises(KeyboardInterrupt):
        for attempt in attempts:
            with attempt:
                pass
    assert permits.held == 0
    assert list(attempts) == []


def test_an_exception_that_comes_as_a_failure_is_told_ends_the_loop():
    """What the attempt held is free, whoever goes on."""
    permits = abate.ConcurrencyLimit(1)

    def asked(error):
        raise KeyboardInterrupt

    attempts = Policy(on=asked, gate=permits).attempts()
    with pytest.raises(KeyboardInterrupt):
        for attempt in attempts:
            with attempt:
                raise OSError
    assert permits.held == 0
    assert list(attempts) == []
