"""The policy as a value: what it takes, what it refuses, how it is compared, changed and shown."""

import asyncio
import copy
import inspect
import math
import random
import re
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate import Backoff, Budget, ConcurrencyLimit, Policy, Shelter
from abate.call.policy_settings import SETTINGS
from abate.testing import Script, VirtualClock


def test_retry_is_policy():
    """The everyday name is the same class."""
    assert abate.retry is Policy


def test_on_is_mandatory():
    """`on` has no default, so that no policy retries everything by accident."""
    with pytest.raises(TypeError, match="on"):
        Policy()


def test_settings_are_given_by_name():
    """A policy takes no positional arguments, which a decorator without parentheses would pass."""
    with pytest.raises(TypeError):
        Policy(ConnectionError)


def test_the_defaults():
    """Three attempts, full jitter from 0.2 s up to 30 s, a budget of a fifth and ten retries per second."""
    policy = Policy(on=OSError)
    assert policy.max_attempts == 3
    assert policy.backoff == Backoff(base=0.2, cap=30.0, factor=2.0, jitter="full")
    assert policy.budget.settings() == (0.2, 10.0, 10.0, "success")
    assert (policy.timeout, policy.attempt_timeout, policy.gate, policy.idempotent) == (None, None, None, None)
    assert (policy.max_hint, policy.raises, policy.name) == (300.0, "original", "")
    assert policy.random_source is random


def test_every_policy_has_a_budget_of_its_own():
    """Two policies that name none don't drain each other."""
    assert Policy(on=OSError).budget is not Policy(on=OSError).budget


# -- what is refused

NOT_A_COUNT = [0, -1, True, False, 2.0, 1.5, math.nan, "3", None]
NOT_SECONDS = [0, -1.0, math.nan, math.inf, True, "30", 10**400]

BAD = [
    *[("max_attempts", value) for value in NOT_A_COUNT],
    *[("timeout", value) for value in NOT_SECONDS],
    *[("attempt_timeout", value) for value in NOT_SECONDS],
    *[("max_hint", value) for value in [-1, math.nan, math.inf, True, "30", None]],
    *[("on", value) for value in ["ConnectionError", b"x", OSError("gone"), int, KeyboardInterrupt, 42, None]],
    *[("on", value) for value in [(), [], ["OSError"], [OSError, "TimeoutError"], (OSError, OSError())]],
    *[("unless", value) for value in ["ConnectionError", OSError("gone"), str, SystemExit, 42, None, [OSError, 1]]],
    *[("budget", value) for value in [0.2, "unlimited", Budget, ConcurrencyLimit(1), {"ratio": 0.2}]],
    *[("gate", value) for value in [5, "door", ConcurrencyLimit, lambda retry: True]],
    *[("idempotent", value) for value in [1, 0, "yes", []]],
    *[("raises", value) for value in ["error", "Original", None, True, ConnectionError]],
    *[("name", value) for value in [None, 5, b"orders"]],
    *[("backoff", value) for value in ["1", 0.5, [], [-1.0], ["1"], Backoff, iter([1.0])]],
    *[("clock", value) for value in [5, "now", VirtualClock]],
]
NAMES = [f"{setting}-{value!r:.30}".partition(" at 0x")[0] for setting, value in BAD]
"""What a test is called is the same in every process: no addresses."""


@pytest.mark.parametrize(("setting", "value"), BAD, ids=NAMES)
def test_a_bad_value_is_refused_by_name(setting, value):
    """Every setting is checked when the policy is made, and the error names it."""
    with pytest.raises((TypeError, ValueError), match=setting):
        Policy(**{"on": OSError, setting: value})


@pytest.mark.parametrize(("setting", "value"), BAD, ids=NAMES)
def test_a_bad_value_is_refused_by_replace_too(setting, value):
    """A changed policy is checked like a new one."""
    with pytest.raises((TypeError, ValueError), match=setting):
        Policy(on=OSError).replace(**{setting: value})


def test_an_instance_in_on_is_told_what_to_write_instead():
    """The error shows the way out of a common slip."""
    with pytest.raises(TypeError, match="not the instance OSError\\('gone'\\): give its type OSError"):
        Policy(on=OSError("gone"))


def test_what_may_be_given_for_on():
    """A type, a predicate, a rule, or several of them in any iterable, which is read once."""
    for on in (OSError, (OSError,), [OSError], {OSError}, (kind for kind in (OSError,))):
        policy = Policy(on=on, backoff=[0.0])
        for same in (policy, policy.replace(max_attempts=2)):
            assert same.call(Script(OSError(), "fine")) == "fine"
    for on in (lambda error: True, abate.on_error(lambda error: True), [KeyError, lambda error: True]):
        assert Policy(on=on, backoff=[0.0]).call(Script(OSError(), "fine")) == "fine"


def test_unless_is_asked_before_on():
    """What `unless` names is fatal, though `on` names it too."""
    policy = Policy(on=OSError, unless=(kind for kind in (FileNotFoundError,)), backoff=[0.0])
    for same in (policy, policy.replace(max_attempts=2)):
        assert same.call(Script(OSError(), "fine")) == "fine"
        with pytest.raises(FileNotFoundError):
            same.call(Script(FileNotFoundError(), "never"))


# -- frozen


@pytest.mark.parametrize("setting", [*SETTINGS, "anything"])
def test_a_policy_is_frozen(setting):
    """Nothing can be set or deleted; the error says how to make a changed one."""
    policy = Policy(on=OSError)
    with pytest.raises(AttributeError, match=rf"a Policy is frozen: use replace\({setting}="):
        setattr(policy, setting, 1)
    with pytest.raises(AttributeError, match="a Policy is frozen"):
        delattr(policy, setting)
    assert policy == Policy(on=OSError)


# -- equality

RNG, GATE, SHELTER, CLOCK = random.Random(1), ConcurrencyLimit(1), Shelter(), VirtualClock()

CHANGES = {
    "on": KeyError,
    "unless": FileNotFoundError,
    "name": "orders",
    "max_attempts": 4,
    "max_attempts_by_kind": {"blip": 2},
    "timeout": 30.0,
    "attempt_timeout": 3.0,
    "backoff": Backoff(0.1),
    "budget": Budget(ratio=0.5),
    "gate": GATE,
    "shelter": SHELTER,
    "idempotent": True,
    "max_hint": 60.0,
    "raises": "exhausted",
    "before_retry": print,
    "resume": dict,
    "idle": 5.0,
    "content": bool,
    "keys": 5,
    "clock": CLOCK,
    "rng": RNG,
}


def test_every_setting_is_tested_here():
    """A new setting needs a line above."""
    assert set(CHANGES) == set(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_policy_with_one_other_setting_is_another(setting):
    """Every setting has a part in equality and hash, and in what `replace` keeps."""
    before = Policy(on=OSError)
    after = before.replace(**{setting: CHANGES[setting]})
    assert before != after
    assert hash(before) != hash(after)
    assert after == after.replace() == Policy(**{"on": OSError, setting: CHANGES[setting]})
    assert hash(after) == hash(after.replace())


@given(st.sets(st.sampled_from(SETTINGS)), st.sets(st.sampled_from(SETTINGS)))
def test_policies_are_equal_by_their_settings(some, others):
    """Two policies are equal, with equal hashes, exactly if all their settings are."""
    one = Policy(**{"on": OSError, **{name: CHANGES[name] for name in some}})
    other = Policy(on=OSError).replace(**{name: CHANGES[name] for name in others})
    assert (one == other) is (some == others)
    if some == others:
        assert hash(one) == hash(other)
        assert len({one, other}) == 1


def test_budgets_are_compared_by_their_settings():
    """What a budget holds at the moment makes no difference."""
    one, other = (Policy(on=OSError, budget=Budget(ratio=0.5)) for _ in range(2))
    one.budget.deposit()
    assert one == other
    assert one != Policy(on=OSError, budget=Budget(ratio=0.4))
    assert one != Policy(on=OSError, budget=Budget(ratio=0.5, funded_by="request"))


def test_a_policy_equals_nothing_but_policies():
    """Other things compare as different, without an error."""
    assert Policy(on=OSError) != "Policy"
    assert Policy(on=OSError) is not None


# -- replace


def test_replace_keeps_what_is_not_changed():
    """The budget and the gate are the same objects: both policies draw from one budget."""
    before = Policy(**CHANGES)
    after = before.replace(name="invoices")
    assert after.name == "invoices"
    assert (after.budget, after.gate, after.clock, after.rng) == (before.budget, GATE, CLOCK, RNG)
    assert after.budget is before.budget
    assert after.replace(name="orders") == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attempts": 5}, "Policy has no setting 'attempts': did you mean 'max_attempts'?"),
        ({"max_attempts": 5, "bakcoff": [1.0]}, "Policy has no setting 'bakcoff': did you mean 'backoff'?"),
        ({"zeal": 1}, "Policy has no setting 'zeal'; known are on, unless, name, max_attempts, timeout"),
    ],
)
@pytest.mark.parametrize("make", [Policy(on=OSError).replace, partial(Policy, on=OSError)], ids=["replace", "Policy"])
def test_unknown_settings_are_refused(make, changes, said):
    """The error names the setting that was probably meant; without one, it lists them all."""
    with pytest.raises(TypeError, match=re.escape(said)):
        make(**changes)


def test_a_bare_decorator_says_what_to_write():
    """So does a setting that is given by position."""
    said = r"^Policy takes its settings by keyword: write @abate\.retry\(on=\.\.\.\), with the errors to retry$"
    with pytest.raises(TypeError, match=said):

        @abate.retry
        def load(): ...

    with pytest.raises(TypeError, match=said):
        Policy(OSError)


def test_the_signature_is_the_true_one():
    """`inspect` and `help` show every setting, though they are checked by a wrapper."""
    parameters = inspect.signature(abate.Policy).parameters
    assert list(parameters)[:4] == ["on", "unless", "name", "max_attempts"]
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert set(parameters) == set(SETTINGS)


def test_also_adds_to_what_is_retried():
    """The policy is the same but for that: its own rules come first, and the budget is shared."""
    before = Policy(on=lambda error: 1.0 if isinstance(error, OSError) else None, name="orders", backoff=[0.0])
    after = before.also(KeyError, OSError)
    with VirtualClock() as clock:
        assert after.call(Script(KeyError(), OSError(), "fine")) == "fine"
    assert clock.waits == [1.0]  # the hint of the policy's own rule, which was asked before the one added
    assert after.budget is before.budget
    assert after.name == "orders"


# -- repr


def test_a_repr_can_be_read_and_run():
    """What a policy shows is how it could be written; with plain settings it evaluates to an equal policy."""
    for policy in (
        Policy(on=ConnectionError),
        Policy(on=(ConnectionError, TimeoutError), unless=BrokenPipeError, name="orders", max_attempts=4, timeout=30.0),
        Policy(on=OSError, backoff=Backoff(0.1, jitter="none"), budget=Budget(0.5), raises="exhausted"),
        Policy(on=OSError, attempt_timeout=1.5, idempotent=False, max_hint=5.0),
    ):
        assert eval(repr(policy), {"Policy": Policy, "Backoff": Backoff, "Budget": Budget}) == policy


def test_a_repr_leaves_out_what_was_not_given():
    """Settings that few policies have are shown only where they are set."""
    shown = repr(Policy(on=OSError))
    assert shown == (
        "Policy(on=(OSError,), name='', max_attempts=3, timeout=None, attempt_timeout=None,"
        " backoff=Backoff(base=0.2, cap=30.0, factor=2.0, jitter='full', minimum=0.0),"
        " budget=Budget(ratio=0.2, reserve=10, window=10, funded_by='success'), max_hint=300.0, raises='original')"
    )
    full = repr(Policy(**CHANGES))
    for part in ("unless=(FileNotFoundError,)", "gate=ConcurrencyLimit(1", "idempotent=True", "clock=", "rng="):
        assert part in full
        assert part.partition("=")[0] + "=" not in shown


def test_a_copy_is_the_policy_itself():
    """It is frozen, and its budget is meant to be one."""
    policy = Policy(on=OSError)
    assert copy.copy(policy) is policy
    assert copy.deepcopy({"policy": policy})["policy"] is policy


@pytest.mark.parametrize("way", ["call", "acall", "decorated", "hedged", "ahedged", "hedge", "script"])
def test_a_functions_arguments_may_have_any_name(way):
    """`function`, `self`, `policy`: what a call is given belongs to the function."""
    policy = Policy(on=OSError)
    names = {"function": 1, "self": 2, "policy": 3, "args": 4, "kwargs": 5, "call": 6}

    async def aload(**kwargs):
        return kwargs

    if way == "call":
        assert policy.call(dict, **names) == names
    elif way == "acall":
        assert asyncio.run(policy.acall(aload, **names)) == names
    elif way == "decorated":
        assert policy(dict)(**names) == names
        assert policy.replace(timeout=9.0)(dict)(**names) == names
    elif way == "hedged":
        assert abate.Hedge(policy, abate.Timeouts()).call(dict, **names) == names
    elif way == "ahedged":
        assert asyncio.run(abate.Hedge(policy, abate.Timeouts()).acall(aload, **names)) == names
    elif way == "hedge":
        assert abate.Hedge(policy, abate.Timeouts())(dict)(**names) == names
    else:
        script = abate.testing.Script("fine", "fine")
        script(**names)
        asyncio.run(script.acall(**names))
        assert script.calls == [((), names)] * 2


@pytest.mark.parametrize("form", ["call", "acall", "block"])
def test_a_rule_that_raises_shows_the_error_it_was_asked_about(form):
    """A mistake in a predicate must not hide what has failed."""
    policy = Policy(on=lambda error: error.no_such_attribute)
    failing = Script(ConnectionError("the real error"))
    with pytest.raises(AttributeError) as raised:
        if form == "call":
            policy.call(failing)
        elif form == "acall":
            asyncio.run(policy.acall(failing.acall))
        else:
            for attempt in policy.attempts():
                with attempt:
                    failing()
    assert str(raised.value.__context__) == "the real error"


def test_a_refused_first_attempt_has_a_report():
    """As every other call that ends without success has; it names the policy, and that nothing was sent."""
    policy = Policy(name="orders", on=OSError, gate=abate.TokenBucket(rate=0.001, burst=1, name="rate"))
    policy.call(Script("fine"))
    with pytest.raises(abate.Refused, match="rate refused") as raised:
        policy.call(Script("fine"))
    assert abate.report(raised.value) == abate.errors.Report("orders", 0, 0.0, "budget")
