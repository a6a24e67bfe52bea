"""Rules put together: groups of errors, what is known by type, and rules that are wider for a time."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.decide import Outcome, Rule, Ruling, http, on_error, widen
from abate.decide.outcome import BLIP, FATAL, LAYER, OVERLOAD, UNREACHED
from abate.decide.rules import MAX_CACHED_TYPES, build_rules
from abate.errors import AttemptTimeout

types = st.sampled_from(
    [Exception, OSError, ConnectionRefusedError, TimeoutError, socket.gaierror, LookupError, KeyError, ValueError]
)
errors = types.map(lambda kind: kind("it failed"))


def decide(rule, error, elapsed=0.0, unless=()):
    return build_rules(rule, unless).decide(Outcome(error, elapsed=elapsed))


# -- groups


class Ruled(Exception):
    """An error that brings its own ruling along."""

    def __init__(self, ruling):
        super().__init__(ruling)
        self.ruling = ruling


seconds = st.floats(0.0, 1e6) | st.just(float("inf"))
rulings = st.builds(
    Ruling,
    st.just(True),
    st.sampled_from(["blip", "overload"]),
    st.none() | seconds,
    st.booleans(),
    st.sampled_from([True, False, None]),
) | st.sampled_from([FATAL, Ruling.fatal(reached=False)])
leaves = rulings.map(Ruled)
groups = st.recursive(
    st.lists(leaves, min_size=1, max_size=4).map(lambda members: ExceptionGroup("several", members)),
    lambda inner: st.lists(leaves | inner, min_size=1, max_size=4).map(lambda all_: ExceptionGroup("more", all_)),
    max_leaves=8,
)


def leaves_of(error):
    if isinstance(error, ExceptionGroup):
        for member in error.exceptions:
            yield from leaves_of(member)
    else:
        yield error.ruling


@given(groups)
def test_a_group_is_retried_if_every_error_in_it_is(group):
    """However deep: one fatal leaf is enough to stop, one overload to slow down, and the longest hint counts."""
    ruling, inside = decide(lambda error: error.ruling, group), list(leaves_of(group))
    assert ruling.retry == all(leaf.retry for leaf in inside)
    assert ruling.reached == any(leaf.reached for leaf in inside)
    if ruling.retry:
        assert ruling.overloaded == any(leaf.overloaded for leaf in inside)
        assert ruling.hint == max((leaf.hint for leaf in inside if leaf.hint is not None), default=None)
        assert (ruling.safe is False) == any(leaf.safe is False for leaf in inside)
    else:
        assert ruling == Ruling.fatal(reached=ruling.reached)


def test_members_of_a_group_are_judged_like_errors_alone():
    """Types, `unless` and the time since the first failure count for each of them."""
    rule = widen(OSError, by=KeyError, seconds=5.0)

    def ruling(*members, elapsed=0.0):
        return decide(rule, ExceptionGroup("all", members), elapsed=elapsed, unless=FileNotFoundError)

    assert ruling(OSError(), TimeoutError(), KeyError()) == OVERLOAD
    assert ruling(OSError(), KeyError(), elapsed=5.0) == FATAL
    assert ruling(OSError(), FileNotFoundError()) == FATAL
    assert ruling(ConnectionRefusedError(), ExceptionGroup("dns", [socket.gaierror()])) == UNREACHED


# -- what is known by type


@given(
    on=st.lists(types, min_size=1, max_size=4),
    unless=st.lists(types, max_size=2),
    history=st.lists(
        errors
        | st.just(AttemptTimeout(1.0))
        | st.lists(errors | st.just(AttemptTimeout(1.0)), min_size=1, max_size=3).map(
            lambda members: ExceptionGroup("several", members)
        ),
        max_size=20,
    ),
)
def test_the_cache_never_changes_a_ruling(on, unless, history):
    """The cached ruling by type equals that of new rules."""
    seasoned = build_rules(on, unless)
    for error in history:
        answer = seasoned.rulings_by_type.get(type(error)) or seasoned.decide(Outcome(error))
        assert answer == decide(on, error, unless=unless)


def test_only_rulings_by_type_are_cached():
    """Nothing is cached where a predicate or the elapsed time decides."""
    for on, unless in [
        ((KeyError, lambda error: False), ()),
        (KeyError, lambda error: False),
        (http.transient, ()),
        (widen(KeyError, by=OSError, seconds=1.0), ()),
    ]:
        seasoned = build_rules(on, unless)
        seasoned.decide(Outcome(KeyError()))
        assert seasoned.rulings_by_type == {}
    seasoned = build_rules(KeyError, unless=OSError)
    seasoned.decide(Outcome(KeyError()))
    assert seasoned.rulings_by_type == {KeyError: BLIP}


def test_the_cache_is_bounded():
    """A program that creates types at run time does not fill the memory, and gets correct rulings."""
    seasoned = build_rules(LookupError)
    kinds = [type(f"Lookup{number}", (LookupError if number % 2 else OSError,), {}) for number in range(300)]
    answers = [seasoned.decide(Outcome(kind())).retry for kind in kinds]
    assert answers == [bool(number % 2) for number in range(300)]
    assert len(seasoned.rulings_by_type) == MAX_CACHED_TYPES


def test_the_cache_is_not_part_of_equality():
    """Rules that have judged are equal to those that have not."""
    seasoned = build_rules((KeyError, OSError))
    seasoned.decide(Outcome(KeyError()))
    assert seasoned == build_rules((KeyError, OSError))
    assert hash(seasoned) == hash(build_rules((KeyError, OSError)))
    assert seasoned != build_rules((OSError, KeyError))
    assert "rulings_by_type" not in repr(seasoned)


def test_an_attempt_that_was_cut_off_is_an_overload():
    """The policy's own timeout is worth another attempt, alone and in a group, whatever `on` names."""
    assert decide(KeyError, AttemptTimeout(2.0)) == OVERLOAD
    assert decide(KeyError, ExceptionGroup("all", [KeyError(), AttemptTimeout(2.0)])) == OVERLOAD


# -- widening


@given(elapsed=st.floats(0.0, 20.0), limit=st.floats(0.1, 10.0), error=errors)
def test_widening_adds_for_a_time(elapsed, limit, error):
    """For the first seconds either of both retries; afterwards only the first does."""
    widened = widen(OSError, by=LookupError, seconds=limit)
    assert decide(widened, error, elapsed) == decide((OSError, LookupError) if elapsed < limit else OSError, error)


def test_widening_overrules_a_fatal_ruling_and_no_other():
    """What the rule retries is left to it; what it calls fatal is put to the other one."""
    strict = on_error(lambda error: Ruling.fatal() if isinstance(error, KeyError) else 7.0)
    eased = widen(strict, by=lambda error: Ruling.overload() if error.args else None, seconds=1.0)
    assert decide(eased, OSError("x")) == Ruling(True, "blip", 7.0)
    assert decide(eased, KeyError("x")) == OVERLOAD
    assert eased.judge(Outcome(KeyError())) == FATAL
    assert decide(eased, KeyError("x"), elapsed=1.0) == FATAL


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rule": "OSError"}, TypeError, "rule must be exception types, predicates or rules, not 'OSError'"),
        ({"by": KeyboardInterrupt}, TypeError, "by must be .*; KeyboardInterrupt asks the program to end .*"),
        ({"by": (OSError, KeyError)}, TypeError, "by must be .*, not \\(<class 'OSError'>, <class 'KeyError'>\\)"),
        ({"seconds": 0}, ValueError, "seconds must be a number above 0, not 0"),
        ({"seconds": None}, TypeError, "seconds must be a number above 0, not None"),
    ],
)
def test_bad_widening_is_refused(arguments, error, message):
    """The error names the argument."""
    with pytest.raises(error, match=f"^{message}$"):
        widen(**{"rule": OSError, "by": KeyError, "seconds": 1.0} | arguments)


def test_a_layer_ruling_is_not_widened():
    """A wider rule would repeat retries that an inner policy has made."""
    inner = on_error(lambda error: Ruling(False, "layer"))
    wider = widen(inner, by=OSError, seconds=5.0)
    assert wider.judge(Outcome(error=OSError())).reason == "layer"


# -- groups as a whole


class Several(ExceptionGroup):
    """A group of the user's own."""

    def derive(self, members):
        return Several(self.message, members)


NAMED = [
    ExceptionGroup,
    Several,
    lambda error: isinstance(error, ExceptionGroup),
    lambda error: isinstance(error, Several) and len(error.exceptions) == 1,
    widen(KeyError, by=ExceptionGroup, seconds=5.0),
    widen(ExceptionGroup, by=KeyError, seconds=5.0),
    build_rules((KeyError, ExceptionGroup)),
]


@pytest.mark.parametrize("on", NAMED)
def test_a_rule_that_names_groups_is_asked_about_the_group(on):
    """Its members are not, where nothing else says that they are worth another attempt."""
    assert decide(on, Several("one", [ValueError()])) == BLIP


def test_a_rule_that_names_another_group_leaves_the_members_to_decide():
    """A plain group is no group of the user's own."""
    assert decide(Several, ExceptionGroup("one", [ValueError()])) == FATAL
    assert decide((Several, ValueError), ExceptionGroup("one", [ValueError()])) == BLIP
    assert decide(widen(KeyError, by=ExceptionGroup, seconds=5.0), Several("one", [ValueError()]), 5.0) == FATAL


def test_a_wide_type_does_not_name_groups():
    """`on=Exception` retries a group because of its members, so that `unless` is heard about each of them."""
    group = ExceptionGroup("two", [KeyError(), ValueError()])
    assert decide(Exception, group) == BLIP
    assert decide(Exception, group, unless=ValueError) == FATAL


@pytest.mark.parametrize("on", [ExceptionGroup, lambda error: True])
@pytest.mark.parametrize("unless", [ValueError, ExceptionGroup, lambda error: isinstance(error, ValueError)])
def test_unless_wins_over_a_rule_that_names_groups(on, unless):
    """Be it about the group, or about one error in it, however deep."""
    group = ExceptionGroup("outer", [KeyError(), ExceptionGroup("inner", [ValueError()])])
    assert decide(on, group, unless=unless) == FATAL
    assert decide(on, group, unless=RuntimeError) == BLIP


def test_the_hints_of_the_members_count_for_the_group():
    """A retry of the whole does not come back before the time that one of them was asked to wait for."""
    busy = Ruled(Ruling.overload(7.0))
    on = (ExceptionGroup, on_error(lambda error: getattr(error, "ruling", None)))
    assert decide(on, ExceptionGroup("two", [busy, ValueError()])) == Ruling.overload(7.0)


def test_a_member_that_was_retried_further_in_stops_the_group():
    """Whatever is said about the group: the retries would multiply."""
    group = ExceptionGroup("two", [Ruled(LAYER), Ruled(BLIP)])
    assert decide((ExceptionGroup, lambda error: error.ruling), group) == LAYER


def test_a_predicate_that_knows_single_errors_only_is_asked_about_these():
    """What it raises about a group says nothing; what it raises about a member is the user's mistake."""
    assert decide(lambda error: error.ruling, ExceptionGroup("one", [Ruled(BLIP)])) == BLIP
    with pytest.raises(AttributeError):
        decide(lambda error: error.ruling, ExceptionGroup("one", [ValueError()]))


@given(groups, st.booleans())
def test_a_group_is_never_retried_early(group, named):
    """Named or not: where a group is retried, it waits for the longest hint of its members."""
    on = (ExceptionGroup, lambda error: error.ruling) if named else (lambda error: error.ruling,)
    found = decide(on, group)
    hints = [ruling.hint for ruling in leaves_of(group) if ruling.retry and ruling.hint is not None]
    if found.retry:
        assert (found.hint or 0.0) >= max(hints, default=0.0)
    assert found.retry or not named


def test_a_rule_of_ones_own_is_asked_about_the_members():
    """Unless it has something to say about groups."""

    class Anything(Rule):
        def judge(self, outcome):
            return BLIP if isinstance(outcome.error, ValueError) else None

    assert decide(Anything(), ExceptionGroup("one", [ValueError()])) == BLIP
    assert decide(Anything(), ExceptionGroup("two", [ValueError(), KeyError()])) == FATAL


def test_a_wide_type_does_not_overrule_what_is_said_of_a_member():
    """A 404 that one rule calls fatal is not retried because `Exception` is in the list as well."""

    class NotFound(Exception):
        status_code = 404

    assert decide((http.transient, Exception), ExceptionGroup("one", [NotFound()])) == FATAL
