"""Waits between attempts, as other libraries describe them, and the ``backoff`` that waits as long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from abate.migrate.plan import NotMapped, Number, Plan

MAX_LISTED = 12
"""The most waits that are written out as a list."""
HOUR = 3600.0
"""The cap for waits that grew without a bound."""
ZERO = Number("0.0", 0.0)
NO_WAIT = "there is no wait between the attempts, as before: a Backoff gives the service time"
NO_JITTER = "the waits have no jitter, as before: a Backoff with jitter spreads processes that failed together"


@dataclass(frozen=True)
class Fixed:
    """The same wait before every retry."""

    seconds: Number


@dataclass(frozen=True)
class Listed:
    """One wait per retry, as the items of a list; the last is repeated."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Uniform:
    """A random wait between two bounds."""

    low: Number
    high: Number


@dataclass(frozen=True)
class Linear:
    """A wait that grows by the same step before every retry."""

    start: Number
    step: Number
    cap: Number | None


@dataclass(frozen=True)
class Exponential:
    """A wait that grows by a factor: as it is, drawn between nothing and it, or with `extra` added up to the cap."""

    start: Number
    factor: Number
    cap: Number | None
    minimum: Number = ZERO
    jitter: Literal["none", "full", "extra"] = "none"
    extra: Number = ZERO


Wait: TypeAlias = Fixed | Listed | Uniform | Linear | Exponential


def added(first: Wait, second: Wait) -> Wait:
    """Return the sum of two waits.

    >>> added(Fixed(Number.of(3)), Uniform(ZERO, Number.of(2)))
    Uniform(low=Number('3.0'), high=Number('5.0'))
    """
    if isinstance(second, Fixed) and not isinstance(first, Fixed):
        first, second = second, first
    if isinstance(first, Fixed) and isinstance(second, Fixed):
        return Fixed(first.seconds + second.seconds)
    if isinstance(first, Fixed) and isinstance(second, Uniform):
        return Uniform(first.seconds + second.low, first.seconds + second.high)
    if isinstance(first, Uniform) and isinstance(second, Exponential):
        first, second = second, first
    match first, second:
        case Exponential(jitter="none", minimum=Number(value=float())), Uniform(low=Number(value=0)):
            return replace(first, jitter="extra", extra=second.high)
    raise NotMapped("this sum of waits has no equivalent: give a Backoff, or a function of the retry's number")


def write_backoff(wait: Wait, retries: int | None, plan: Plan) -> None:
    """Put the ``backoff`` of a wait into a plan; `retries` is how many there are at most, if that is known."""
    plan.settings["backoff"] = _backoff(wait, retries, plan)


def _backoff(wait: Wait, retries: int | None, plan: Plan) -> str:
    match wait:
        case Fixed(seconds):
            plan.advice.append(NO_WAIT if seconds.value == 0 else NO_JITTER)
            if seconds.value is not None and seconds.value < 0:
                raise NotMapped(f"a wait of {seconds.code} s has no equivalent")
            return f"[{seconds.code}]"
        case Listed(items):
            return f"[{', '.join(items)}]"
        case Uniform(low, high):
            return _uniform(low, high)
        case Linear():
            return _linear(wait, retries)
        case Exponential():
            return _exponential(wait, retries, plan)


def _uniform(low: Number, high: Number) -> str:
    if low.value is not None and high.value is not None and low.value > high.value:
        raise NotMapped(f"a wait between {low.code} and {high.code} is reversed")
    if high.value == 0:
        return "[0.0]"
    minimum = "" if low.value == 0 else f", minimum={low.code}"
    return f"abate.Backoff(base={high.code}, cap={high.code}{minimum})"


def _linear(wait: Linear, retries: int | None) -> str:
    start, step, cap = wait.start.value, wait.step.value, None if wait.cap is None else wait.cap.value
    if start is not None and step is not None and (wait.cap is None or cap is not None):
        listed = _listed(lambda retry: max(0.0, min(start + step * (retry - 1), cap or float("inf"))), retries)
        if listed is not None:
            return listed
    bound, (first, grows, top) = bound_numbers(start=wait.start, step=wait.step, cap=wait.cap)
    grown = f"{first} + {grows} * (retry - 1)"
    if top:
        grown = f"min({grown}, {top})"
    return f"{bound}: max(0, {grown})" if step is None or step < 0 or start is None else f"{bound}: {grown}"


def bound_numbers(**numbers: Number | None) -> tuple[str, list[str]]:
    """Return the head of a function of the retry's number, and the numbers as they are written in it.

    What is not a literal is the default of a parameter: it is read once, when the policy is made.
    """
    given = {name: number.code for name, number in numbers.items() if number is not None and number.value is None}
    head = "".join(f", {name}={code}" for name, code in given.items())
    written = ["" if one is None else name if name in given else one.code for name, one in numbers.items()]
    return f"lambda retry{head}", written


def _exponential(wait: Exponential, retries: int | None, plan: Plan) -> str:
    start, factor, cap = wait.start, wait.factor, wait.cap
    if factor.value is not None and factor.value < 1:
        raise NotMapped(f"a wait that shrinks (by the factor {factor.code}) has no equivalent: give a list of seconds")
    if start.value == 0:
        return f"[{wait.minimum.code}]" if wait.minimum.value else "[0.0]"
    if cap is None:
        cap = _reached(start, factor, retries)
        if cap is None:
            cap = Number.of(HOUR)
            plan.safer.append("waits grow to an hour at most: they grew without a bound")
    if start.value is not None and cap.value is not None and cap.value < start.value:
        start = cap
    if wait.jitter == "none" and wait.minimum.value != 0:
        return _raised(wait, start, cap, retries)
    written = [f"base={start.code}", f"cap={cap.code}"]
    if factor.value != 2.0:
        written.append(f"factor={factor.code}")
    if wait.jitter == "none":
        written.append('jitter="none"')
        plan.advice.append(NO_JITTER)
        _say_overload(start, plan)
    elif wait.jitter == "extra":
        return _spread(wait, start, cap, plan)
    else:
        if wait.minimum.value != 0:
            written.append(f"minimum={wait.minimum.code}")
            if start.value is None or wait.minimum.value is None or start.value < 2 * wait.minimum.value:
                plan.changed.append(
                    f"the first waits are between {wait.minimum.code} and twice that: they were shorter, or all alike"
                )
        _say_overload(start, plan)
    return f"abate.Backoff({', '.join(written)})"


def _say_overload(start: Number, plan: Plan) -> None:
    if start.value is None or start.value < 1:
        plan.safer.append("after an overload (429, 503, a timeout) the waits start from 1 s")


def _spread(wait: Exponential, start: Number, cap: Number, plan: Plan) -> str:
    """Return a backoff instead of a growing wait to which a bounded random one is added."""
    base = start + wait.extra
    if base.value is not None and cap.value is not None and base.value > cap.value:
        base = cap
    written = [f"base={base.code}", f"cap={cap.code}"]
    if wait.factor.value != 2.0:
        written.append(f"factor={wait.factor.code}")
    written.append('jitter="equal"')
    if wait.minimum.value:
        written.append(f"minimum={wait.minimum.code}")
    plan.changed.append(
        f"waits are drawn from the upper half of {base.code} s growing to {cap.code} s; they were"
        f" {wait.start.code} s growing by {wait.factor.code}, plus up to {wait.extra.code} s"
    )
    plan.safer.append("waits are spread at the cap too, where the jitter was lost")
    return f"abate.Backoff({', '.join(written)})"


def _reached(start: Number, factor: Number, retries: int | None) -> Number | None:
    """Return the longest wait that is reached at all, if it can be computed."""
    if start.value is None or factor.value is None or retries is None:
        return None
    try:
        longest = start.value * factor.value ** max(0, retries - 1)
    except OverflowError:
        return None
    return Number.of(longest) if longest <= HOUR else None


def _raised(wait: Exponential, start: Number, cap: Number, retries: int | None) -> str:
    """Return a backoff whose early waits are all raised to a minimum."""
    low, first, factor, top = wait.minimum.value, start.value, wait.factor.value, cap.value
    if None not in (low, first, factor, top):
        assert low is not None
        assert first is not None
        assert factor is not None
        assert top is not None
        if low <= first:
            grown = "" if factor == 2.0 else f", factor={wait.factor.code}"
            return f'abate.Backoff(base={start.code}, cap={cap.code}{grown}, jitter="none")'
        listed = _listed(lambda retry: max(low, min(first * factor ** min(retry - 1, 512), top)), retries)
        if listed is not None:
            return listed
    bound, (least, begin, grows, most) = bound_numbers(low=wait.minimum, start=start, factor=wait.factor, cap=cap)
    return f"{bound}: max({least}, min({begin} * {grows} ** (retry - 1), {most}))"


def _listed(seconds: Callable[[int], float], retries: int | None) -> str | None:
    """Return waits as a list, if it is short: up to the last retry, or until they stay the same."""
    waits: list[float] = []
    for retry in range(1, MAX_LISTED + 2):
        if retries is not None and retry > max(1, retries):
            break
        waits.append(seconds(retry))
        if len(waits) > 1 and waits[-1] == waits[-2] and seconds(retry + MAX_LISTED) == waits[-1]:
            waits.pop()
            break
    if len(waits) > MAX_LISTED:
        return None
    return f"[{', '.join(Number.of(wait).code for wait in waits)}]"
