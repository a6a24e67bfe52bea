"""Calls of plain functions: what only threads have, and what is refused."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

import abate
from abate import Policy
from abate.testing import Script, VirtualClock, after

PLAIN = Policy(on=ConnectionError, name="orders", backoff=[0.0])
BOUNDED = PLAIN.replace(timeout=60.0)


async def coroutine_function():
    """Never awaited by these tests; an unawaited coroutine would fail them."""


@pytest.mark.parametrize("policy", [PLAIN, BOUNDED], ids=["plain", "bounded"])
@pytest.mark.parametrize("thing", [42, None, "load"])
def test_what_cannot_be_called_is_refused(policy, thing):
    """`call` takes the function and its arguments apart: the result of a call is a mistake."""
    with pytest.raises(TypeError, match=r"call takes the function, then its arguments, as in .*, not"):
        policy.call(thing)


def test_a_coroutine_is_refused():
    """The coroutine itself is not a function; it stays the caller's to close."""
    coroutine = coroutine_function()
    with pytest.raises(TypeError, match=r"call takes the function, then its arguments, as in .*, not <coroutine"):
        PLAIN.call(coroutine)
    coroutine.close()


@pytest.mark.parametrize("policy", [PLAIN, BOUNDED], ids=["plain", "bounded"])
def test_a_coroutine_function_is_refused(policy):
    """Its result would not be awaited: use `acall`."""
    with pytest.raises(TypeError, match=r"coroutine_function .*is a coroutine function: use acall, or decorate it"):
        policy.call(coroutine_function)


def test_a_function_that_returns_a_coroutine_after_a_failure_is_refused():
    """Also where the first attempt failed before it came to that."""
    script = Script(ConnectionError(), coroutine_function())
    with pytest.raises(TypeError, match="returned a coroutine, which `call` does not await"):
        PLAIN.call(script)


def test_an_awaitable_that_runs_by_itself_is_a_result_like_any_other():
    """A function may return futures: they are no forgotten coroutines."""

    async def main():
        future = asyncio.get_running_loop().create_future()
        assert PLAIN.call(lambda: future) is future
        future.cancel()

    asyncio.run(main())


def test_a_slow_attempt_is_not_cut_off_in_a_thread():
    """An attempt timeout is a deadline that clients inside keep; a function that ignores it runs to its end."""
    policy = PLAIN.replace(attempt_timeout=1.0)
    with VirtualClock() as clock:
        assert policy.call(Script(after(5.0, "late"))) == "late"
    assert clock.now() == 5.0


def test_a_client_that_keeps_the_attempt_timeout_is_retried():
    """A client that cuts itself to what remains raises a timeout of its own, which the policy may retry."""
    waited = []

    def client():
        waited.append(abate.remaining())
        if len(waited) < 3:
            raise TimeoutError
        return "fine"

    policy = PLAIN.replace(on=TimeoutError, attempt_timeout=1.5)
    with VirtualClock():
        assert policy.call(client) == "fine"
    assert waited == [1.5, 1.5, 1.5]


@pytest.mark.parametrize("failures", [0, 1])
def test_an_interrupted_wait_refunds_its_withdrawal(counting_budget, failures):
    """Control-C during a wait gives back what was withdrawn for the retry that is not made."""

    class Interrupted(VirtualClock):
        def sleep(self, seconds):
            if seconds == 7.0:
                raise KeyboardInterrupt
            super().sleep(seconds)

    budget = counting_budget()
    policy = PLAIN.replace(backoff=[7.0] if failures == 0 else [1.0, 7.0], clock=Interrupted(), budget=budget)
    with pytest.raises(KeyboardInterrupt):
        policy.call(Script(ConnectionError(), ConnectionError(), "never"))
    assert (budget.granted, budget.refunded) == (failures + 1, 1)


def test_a_rule_that_raises_is_heard():
    """An error in the user's own predicate is not swallowed, nor mistaken for the function's."""

    def broken(error):
        raise ZeroDivisionError("in the predicate")

    for policy in (PLAIN.replace(on=broken), BOUNDED.replace(on=broken)):
        with pytest.raises(ZeroDivisionError, match="in the predicate"):
            policy.call(Script(ConnectionError()))


def test_calls_of_many_threads_share_nothing_but_the_budget(counting_budget):
    """Eight threads make their calls at once; each sees its own arguments, and every retry is counted."""
    budget = counting_budget(ratio=0.0, reserve=1e6)
    policy = PLAIN.replace(budget=budget)

    def load(order):
        script = Script(ConnectionError(order), ConnectionError(order), order)
        return policy.call(script, order), len(script.calls)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(load, range(400))) == [(order, 3) for order in range(400)]
    assert budget.balance() == 1e7 - 800
