"""Decorating: functions, methods and what else can be called; what cannot be; what a success costs the budget."""

import asyncio
import contextlib
import functools
import inspect
import math
import operator
import traceback
from unittest.mock import AsyncMock

import pytest

import abate
from abate import Budget, Policy
from abate.call.counters import wrapper_versions
from abate.clock import ever_used
from abate.events import BudgetRefused, Recovered
from abate.testing import Script, VirtualClock

PLAIN = Policy(on=ConnectionError, backoff=[0.0])
FULL = PLAIN.replace(timeout=60.0)
BOTH = pytest.mark.parametrize("policy", [PLAIN, FULL], ids=["plain", "full"])


class Flaky:
    """Fails the first time, and has methods of every kind that do."""

    def __init__(self):
        self.failures = [ConnectionError()]

    def _answer(self, *answer):
        if self.failures:
            raise self.failures.pop()
        return (self, *answer)


def shop(policy):
    """A class whose methods are decorated, in every order of decorators."""

    class Shop(Flaky):
        shared = None

        @policy
        def method(self, order, *, urgent=False):
            return self._answer(order, urgent)

        @policy
        async def async_method(self, order):
            return self._answer(order)

        @policy
        @classmethod
        def outside_classmethod(cls, order):
            return cls.shared._answer(cls, order)

        @classmethod
        @policy
        def inside_classmethod(cls, order):
            return cls.shared._answer(cls, order)

        @policy
        @staticmethod
        def outside_staticmethod(shop, order):
            return shop._answer(order)

        @staticmethod
        @policy
        def inside_staticmethod(shop, order):
            return shop._answer(order)

        @policy
        @classmethod
        async def async_classmethod(cls, order):
            return cls.shared._answer(cls, order)

        @policy
        @staticmethod
        async def async_staticmethod(shop, order):
            return shop._answer(order)

        @property
        @policy
        def attribute(self):
            return self._answer("attribute")

    Shop.shared = Shop()
    return Shop


# -- what can be decorated


@BOTH
def test_methods(policy):
    """A decorated method is bound like a bare one, to each object of its class."""
    one, other = shop(policy)(), shop(policy)()
    assert one.method(1, urgent=True) == (one, 1, True)
    assert other.method(order=2) == (other, 2, False)
    assert one.attribute == (one, "attribute")
    assert asyncio.run(other.async_method(3)) == (other, 3)


@BOTH
@pytest.mark.parametrize("name", ["outside_classmethod", "inside_classmethod"])
@pytest.mark.parametrize("on_class", [True, False], ids=["class", "object"])
def test_class_methods(policy, name, on_class):
    """The policy may stand above or below `classmethod`."""
    kind = shop(policy)
    assert getattr(kind if on_class else kind.shared, name)(5) == (kind.shared, kind, 5)
    assert isinstance(inspect.getattr_static(kind, name), classmethod)


@BOTH
@pytest.mark.parametrize("name", ["outside_staticmethod", "inside_staticmethod"])
@pytest.mark.parametrize("on_class", [True, False], ids=["class", "object"])
def test_static_methods(policy, name, on_class):
    """The policy may stand above or below `staticmethod`."""
    kind = shop(policy)
    assert getattr(kind if on_class else kind.shared, name)(kind.shared, 5) == (kind.shared, 5)
    assert isinstance(inspect.getattr_static(kind, name), staticmethod)


@BOTH
def test_async_class_and_static_methods(policy):
    """Coroutine functions among them stay coroutine functions."""
    kind = shop(policy)
    assert asyncio.run(kind.async_classmethod(5)) == (kind.shared, kind, 5)
    kind.shared.failures.append(ConnectionError())
    assert asyncio.run(kind.async_staticmethod(kind.shared, 5)) == (kind.shared, 5)
    assert inspect.iscoroutinefunction(kind.async_classmethod)
    assert inspect.iscoroutinefunction(kind.async_staticmethod)


@BOTH
def test_bound_methods_partials_objects_and_lambdas(policy):
    """Whatever can be called can be decorated."""
    flaky = [Flaky() for _ in range(4)]
    assert policy(flaky[0]._answer)(1) == (flaky[0], 1)
    assert policy(functools.partial(flaky[1]._answer, 1))(2) == (flaky[1], 1, 2)
    assert policy(functools.partial(functools.partial(flaky[2]._answer, 1), 2))(3) == (flaky[2], 1, 2, 3)
    assert policy(lambda order: flaky[3]._answer(order))(1) == (flaky[3], 1)
    assert policy(Script(ConnectionError(), "fine"))() == "fine"


@BOTH
def test_builtins_and_classes(policy):
    """Those without a signature of their own too."""
    assert policy(max)(1, 3, 2) == 3
    assert policy(str.upper)("a") == "A"
    assert policy("a".upper)() == "A"
    assert policy(operator.itemgetter(1))("ab") == "b"
    assert policy(dict)(a=1) == {"a": 1}


class Asynchronous:
    """An object whose ``__call__`` is a coroutine function."""

    def __init__(self):
        self.script = Script(ConnectionError(), "fine")

    async def __call__(self):
        return await self.script.acall()


@BOTH
@pytest.mark.parametrize(
    "make",
    [
        lambda: Script(ConnectionError(), "fine").acall,
        lambda: functools.partial(functools.partial(Script(ConnectionError(), "fine").acall)),
        Asynchronous,
        lambda: functools.partial(Asynchronous()),
        lambda: AsyncMock(side_effect=[ConnectionError(), "fine"]),
    ],
    ids=["method", "partial", "object", "partial object", "mock"],
)
def test_whatever_is_a_coroutine_function_inside_stays_one(policy, make):
    """Bound methods, partials, objects and mocks that must be awaited are awaited, and retried."""
    decorated = policy(make())
    assert inspect.iscoroutinefunction(decorated)
    assert asyncio.run(decorated()) == "fine"


@pytest.mark.parametrize("mark", [getattr(inspect, "markcoroutinefunction", None)])
@BOTH
def test_a_function_that_was_marked_as_a_coroutine_function_is_one(policy, mark):
    """Where Python lets a plain function be marked so (from 3.12 on), the mark is believed; elsewhere nothing is."""
    script = Script(ConnectionError(), "fine")

    def load():
        return script.acall()

    decorated = policy(mark(load) if mark else load)
    assert inspect.iscoroutinefunction(decorated) is (mark is not None)
    if mark:
        assert asyncio.run(decorated()) == "fine"


# -- what cannot


def generator():
    yield


@BOTH
@pytest.mark.parametrize("thing", [42, None, "load", property(generator), [len]])
def test_what_cannot_be_called_is_refused(policy, thing):
    """A policy decorates functions."""
    with pytest.raises(TypeError, match="a policy decorates functions, not"):
        policy(thing)


# -- the policy's name


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Flaky._answer, f"{__name__}.Flaky._answer"),
        (Flaky()._answer, f"{__name__}.Flaky._answer"),
        (Script("fine"), "abate.testing.script.Script"),
        (functools.partial(len), "functools.partial"),
        (math.sqrt, "math.sqrt"),
        (len, "builtins.len"),
        (str.upper, "str.upper"),
        ("a".upper, "str.upper"),
    ],
)
def test_a_policy_without_a_name_takes_the_functions(function, name, scripted_gate, abate_events):
    """Reports and labels then tell which function it was."""
    with pytest.raises(abate.Refused):
        PLAIN.replace(gate=scripted_gate(False))(function)()
    assert abate_events == [BudgetRefused(name, "scripted_gate", 0)]


def test_a_policy_with_a_name_keeps_it(abate_events):
    """Functions that share a named policy are counted as one."""
    PLAIN.replace(name="orders")(Script(ConnectionError(), "fine"))()
    assert abate_events.of(Recovered) == [Recovered("orders", 2, 0.0)]


def test_functions_that_share_a_policy_without_a_name_share_its_budget():
    """The name is the function's, the budget is the policy's."""
    policy = PLAIN.replace(budget=Budget(ratio=0.0, reserve=0.1))  # one retry in ten seconds
    assert policy(Script(ConnectionError(), "fine"))() == "fine"
    with pytest.raises(ConnectionError) as caught:
        policy(Script(ConnectionError(), "never"))()
    assert abate.report(caught.value).reason == "budget"


# -- deposits


@pytest.fixture
def without_virtual_time(monkeypatch):
    """As in a process that has never entered a virtual clock."""
    monkeypatch.setattr(ever_used, "virtual", False)


def successes(policy, count):
    """Call a decorated function and a decorated coroutine function, the given number of times each."""
    decorated, asynchronous = policy(lambda: "fine"), policy(Script(*["fine"] * count).acall)

    async def main():
        return [await asynchronous() for _ in range(count)]

    assert [decorated() for _ in range(count)] + asyncio.run(main()) == ["fine"] * (2 * count)


@pytest.mark.usefixtures("without_virtual_time")
@pytest.mark.parametrize("count", [1, 2, 500])
def test_every_success_deposits_once(count):
    """One deposit per call, however fast they come."""
    policy = PLAIN.replace(budget=Budget(ratio=1.0, reserve=0.0, window=3600.0))
    successes(policy, count)
    assert policy.budget.balance() == 2 * count


def test_a_success_in_virtual_time_deposits_into_that_clocks_ledger():
    """What tests do in virtual time funds no retries of the process, and the other way round."""
    policy = PLAIN.replace(budget=Budget(ratio=1.0, reserve=0.0))
    decorated = policy(lambda: "fine")
    with VirtualClock() as clock:
        successes(policy, 3)
        decorated()
        assert policy.budget.balance() == 7.0
        clock.advance(20.0)
        assert policy.budget.balance() == 0.0
    assert policy.budget.balance() == 0.0
    decorated()
    assert policy.budget.balance() == 1.0
    with clock:
        assert policy.budget.balance() == 0.0


def test_a_budget_with_a_clock_of_its_own_is_deposited_into_by_it():
    """Such a budget has one ledger, wherever it is called from."""
    own = VirtualClock()
    policy = PLAIN.replace(budget=Budget(ratio=1.0, reserve=0.0, clock=own))
    with VirtualClock():
        successes(policy, 2)
    successes(policy, 1)
    assert policy.budget.balance() == 6.0
    own.advance(20.0)
    assert policy.budget.balance() == 0.0


def test_an_unlimited_budget_needs_no_deposits():
    """Decorated functions work the same with it, and every retry is admitted."""
    policy = PLAIN.replace(budget=Budget.unlimited())
    successes(policy, 2)
    assert policy(Script(*[ConnectionError()] * 2, "fine"))() == "fine"
    assert policy.budget.balance() == math.inf


def test_a_failure_deposits_nothing():
    """A call that recovers deposits once, one that gives up not at all."""
    policy = PLAIN.replace(budget=Budget(ratio=1.0, reserve=1.0))
    with VirtualClock():
        policy(Script(ConnectionError(), "fine"))()
        assert policy.budget.balance() == 10.0
        with pytest.raises(KeyError):
            policy(Script(KeyError()))()
        assert policy.budget.balance() == 10.0


# -- tracebacks and profiles


@pytest.mark.parametrize("counted", [False, True])
def test_a_traceback_shows_the_wrapper_under_the_functions_name_with_its_source(counted):
    """So a reader finds the decorated function in tracebacks and profiles, also while calls are counted."""

    @Policy(on=OSError)
    def load(order):
        raise KeyError(order)

    with contextlib.ExitStack() as stack:
        if counted:
            wrapper_versions.start_counting()
            stack.callback(wrapper_versions.stop_counting)
        with pytest.raises(KeyError) as caught:
            load(42)
    frames = [(frame.name, frame.line) for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert ("load", "_a_result = _a_function(order)") in frames
    assert load.__code__.co_qualname == load.__qualname__


def test_an_async_wrapper_has_the_functions_name():
    """And so has a callable without a name, under the name of wrappers."""

    @Policy(on=OSError)
    async def load(order):
        return order

    assert load.__code__.co_name == "load"
    assert Policy(on=OSError)(functools.partial(max, 1)).__code__.co_name == "wrapper"
