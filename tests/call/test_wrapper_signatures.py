"""A decorated function takes what the bare one takes, refuses what it refuses, and looks the same."""

import asyncio
import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abate import Budget, Policy

# names that the stand-in, its template or its maker could stumble over
NAMES = ["x", "order", "self", "cls", "result", "args", "kwargs", "function", "policy", "stand_in", "Exception", "é"]
RESERVED = ["_a_x", "_a_function", "_a_result", "_a_policy"]

PLAIN = Policy(on=ConnectionError, backoff=[0.0], budget=Budget.unlimited())
FULL = PLAIN.replace(timeout=60.0)


@st.composite
def signatures(draw):
    """The parameters of a function, as source."""
    names = draw(st.lists(st.sampled_from(NAMES + RESERVED[: draw(st.integers(0, 4))]), max_size=7, unique=True))
    places = sorted(draw(st.lists(st.integers(0, len(names)), min_size=2, max_size=2)))
    only, either, keywords = names[: places[0]], names[places[0] : places[1]], names[places[1] :]
    star = keywords.pop() if keywords and draw(st.booleans()) else None
    double = keywords.pop() if keywords and draw(st.booleans()) else None
    positional = only + either
    defaults = draw(st.integers(0, len(positional)))

    def parameter(name, with_default):
        annotation = draw(st.sampled_from(["", ": int", ": 'Order'"]))
        return f"{name}{annotation}" + (f" = {draw(st.integers(0, 9))}" if with_default else "")

    source = [parameter(name, place >= len(positional) - defaults) for place, name in enumerate(positional)]
    if only:
        source.insert(len(only), "/")
    if star or keywords:
        source.append(f"*{star}" if star else "*")
    if star and not keywords and draw(st.booleans()):
        source[-1] += ": str"
    source += [parameter(name, draw(st.booleans())) for name in keywords]
    return ", ".join(source + ([f"**{double}"] if double else []))


def made(parameters, asynchronous):
    """A function with these parameters, which returns all that it was given; its first attempt may fail."""
    source = f'''
{"async " if asynchronous else ""}def echo({parameters}) -> dict:
    """Say what was given."""
    given = dict(locals())
    if failures:
        raise failures.pop()
    return given
'''
    space = {"failures": [], "__name__": "shop.orders"}
    exec(source, space)
    return space["echo"], space["failures"]


def outcome(function, args, kwargs):
    """The result of a call, or the text of its TypeError."""
    try:
        result = function(*args, **kwargs)
        return asyncio.run(result) if inspect.iscoroutine(result) else result
    except TypeError as error:
        return str(error)


arguments = st.lists(st.integers(100, 200), max_size=5)
named = st.dictionaries(st.sampled_from([*NAMES, *RESERVED, "unknown"]), st.integers(300, 400), max_size=5)


@pytest.mark.parametrize("policy", [PLAIN, FULL], ids=["plain", "full"])
@given(parameters=signatures(), calls=st.lists(st.tuples(arguments, named), min_size=1, max_size=6))
@settings(deadline=None)
def test_a_decorated_function_behaves_like_the_bare_one(policy, parameters, calls):
    """The same result or the same TypeError, whatever the signature; also when the first attempt fails."""
    bare, failures = made(parameters, asynchronous=False)
    decorated = policy(bare)
    # some calls that are certain to fit: every parameter given, the way its kind asks for
    fitting = inspect.signature(bare).parameters.values()
    by_place = [number for number, one in enumerate(fitting) if one.kind <= one.POSITIONAL_OR_KEYWORD]
    by_name = {one.name: number for number, one in enumerate(fitting) if one.kind == one.KEYWORD_ONLY}
    for args, kwargs in [*calls, (by_place, by_name)]:
        expected = outcome(bare, args, kwargs)
        assert outcome(decorated, args, kwargs) == expected
        if not isinstance(expected, str):
            failures.append(ConnectionError())
            assert outcome(decorated, args, kwargs) == expected
            assert failures == []


@pytest.mark.parametrize("policy", [PLAIN, FULL], ids=["plain", "full"])
@given(parameters=signatures(), args=arguments, kwargs=named)
@settings(deadline=None, max_examples=25)  # each call runs an event loop
def test_a_decorated_coroutine_function_behaves_like_the_bare_one(policy, parameters, args, kwargs):
    """The same for coroutine functions."""
    bare, failures = made(parameters, asynchronous=True)
    decorated = policy(bare)
    assert inspect.iscoroutinefunction(decorated)
    expected = outcome(bare, args, kwargs)
    assert outcome(decorated, args, kwargs) == expected
    if not isinstance(expected, str):
        failures.append(ConnectionError())
        assert outcome(decorated, args, kwargs) == expected


@pytest.mark.parametrize("policy", [PLAIN, FULL], ids=["plain", "full"])
@given(parameters=signatures(), asynchronous=st.booleans())
def test_a_decorated_function_looks_like_the_bare_one(policy, parameters, asynchronous):
    """Signature, name, module, docstring, annotations and defaults are those of the original."""
    bare, _ = made(parameters, asynchronous)
    bare.marked = "by another decorator"
    decorated = policy(bare)
    assert inspect.signature(decorated) == inspect.signature(bare)
    assert inspect.get_annotations(decorated) == inspect.get_annotations(bare)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "marked"):
        assert getattr(decorated, name) == getattr(bare, name)
    assert decorated.__wrapped__ is bare
    assert inspect.unwrap(decorated) is bare
    if policy is PLAIN:
        assert (decorated.__defaults__, decorated.__kwdefaults__) == (bare.__defaults__, bare.__kwdefaults__)


def test_defaults_are_the_same_objects():
    """A default that identifies itself, like a sentinel, arrives as it is."""
    missing = object()

    @PLAIN
    def load(order=missing, *, also=missing):
        return order is missing and also is missing

    assert load()
    assert not load(None)
