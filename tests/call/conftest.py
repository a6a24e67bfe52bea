"""Shared fixtures: every way to make a call, budgets and gates that count their uses, fixed random draws."""

import asyncio
import functools

import pytest
import trio

from abate import Budget, Gate
from abate.call import giving_up
from abate.testing import VirtualClock
from tests.event_loops import RUNNERS

LOOPS = ("threads", "asyncio", "trio")
FORMS = ("call", "decorated", "block")


class Way:
    """One way to make a call: in a thread, under asyncio or trio; by call, decorator or block."""

    def __init__(self, loop, form):
        self.loop = loop
        self.form = form

    def __call__(self, policy, function, *args, **kwargs):
        """Call `function`; under a loop, its method `acall`."""
        if self.loop == "threads":
            return self.in_thread(policy, function, *args, **kwargs)
        return self.run(functools.partial(self.in_task, policy, function, *args, **kwargs))

    def run(self, main):
        return trio.run(main) if self.loop == "trio" else asyncio.run(main())

    def in_thread(self, policy, function, *args, **kwargs):
        if self.form == "call":
            return policy.call(function, *args, **kwargs)
        if self.form == "decorated":
            return policy(function)(*args, **kwargs)
        for attempt in policy.attempts():
            with attempt:
                result = function(*args, **kwargs)
        return result

    async def in_task(self, policy, function, *args, **kwargs):
        if self.form == "call":
            return await policy.acall(function.acall, *args, **kwargs)
        if self.form == "decorated":
            return await policy(function.acall)(*args, **kwargs)
        async for attempt in policy.attempts():
            with attempt:
                result = await function.acall(*args, **kwargs)
        return result


WAYS = [Way(loop, form) for loop in LOOPS for form in FORMS]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way.loop}-{way.form}")
def way(request):
    """Every way to make a call."""
    return request.param


@pytest.fixture(params=[way for way in WAYS if way.form != "block"], ids=lambda way: f"{way.loop}-{way.form}")
def way_with_result(request):
    """Every way that sees the function's result."""
    return request.param


@pytest.fixture(params=[way for way in WAYS if way.form == "block"], ids=lambda way: way.loop)
def block(request):
    """The block form, in threads and under both loops."""
    return request.param


@pytest.fixture(params=RUNNERS)
def run(request):
    """Runs an async function without arguments, under asyncio and under trio, in virtual time."""

    def virtual(main):
        with VirtualClock() as clock:
            RUNNERS[request.param](main)
        return clock

    return virtual


@pytest.fixture(params=["virtual", "machine"])
def either_time(request):
    """Run the test in virtual time, and again on the machine's clock."""
    if request.param == "machine":
        yield None
    else:
        with VirtualClock() as clock:
            yield clock


class SyncAndAsync:
    """A plain function, with a coroutine function `acall` that does the same."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *args, **kwargs):
        return self.function(*args, **kwargs)

    async def acall(self, *args, **kwargs):
        return self.function(*args, **kwargs)


class CountingBudget(Budget):
    """A budget that counts withdrawals, refunds and deposits."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.requested = self.granted = self.refunded = self.deposited = 0

    def try_withdraw(self, now=None):
        self.requested += 1
        granted = super().try_withdraw(now)
        self.granted += granted
        return granted

    def refund(self):
        self.refunded += 1
        super().refund()

    def deposit(self):
        self.deposited += 1
        super().deposit()


class ScriptedGate(Gate):
    """A gate that gives the scripted answers in order, then admits every attempt; it records its uses."""

    def __init__(self, *answers, name="scripted_gate"):
        self.name = name
        self.answers = list(answers)
        self.entered = []
        self.left = []

    def enter(self, retry):
        admitted = self.answers.pop(0) if self.answers else True
        if not admitted:
            return self
        self.entered.append(retry)
        return None

    def leave(self, accepted):
        self.left.append(accepted)

    def refusal(self):
        return "it is closed"


class Fixed:
    """A random source that always draws the same number."""

    def __init__(self, drawn):
        self.drawn = drawn

    def random(self):
        return self.drawn


@pytest.fixture
def sync_and_async():
    return SyncAndAsync


@pytest.fixture(scope="session")
def counting_budget():
    return CountingBudget


@pytest.fixture(scope="session")
def scripted_gate():
    return ScriptedGate


@pytest.fixture(scope="session")
def fixed():
    return Fixed


@pytest.fixture
def no_warnings_yet():
    """Start without recorded warnings about layered policies."""
    before = set(giving_up._warned)
    giving_up._warned.clear()
    yield giving_up._warned
    giving_up._warned.clear()
    giving_up._warned.update(before)
