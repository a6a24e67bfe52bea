"""What the values of a simulated world refuse: each check names the value and what was expected."""

from __future__ import annotations

from collections.abc import Iterable

from abate.errors import number, whole
from abate.sim.durations import Duration

MOST_CLIENTS = 100_000_000
MOST_CALLS = 1_000_000_000
"""That a world makes at most: some hours of the exact engine, and some minutes of the fleet."""
LONGEST = 1_000_000
"""Seconds that are simulated at most: some twelve days. Each tenth of a second has a place in every series."""


def counted(name: str, value: object) -> None:
    """A number of clients."""
    if whole(name, value, least=1) > MOST_CLIENTS:
        raise ValueError(f"{name} must be at most {MOST_CLIENTS:,}, not {value!r}")


def lasting(name: str, value: object) -> None:
    """The seconds that are simulated.

    >>> lasting("horizon", 1e15)
    Traceback (most recent call last):
    ValueError: horizon must be at most 1,000,000 s, not 1000000000000000.0
    """
    if number(name, value, above=0) > LONGEST:
        raise ValueError(f"{name} must be at most {LONGEST:,} s, not {value!r}")


def named(what: str, name: object) -> None:
    """A word."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"{what} must be a word, not {name!r}")


def names(key: str, names: object) -> tuple[str, ...]:
    """One word, or several."""
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, Iterable):
        raise TypeError(f"{key} must be names of services, not {names!r}")
    found = tuple(several)
    for name in found:
        named(f"a name in {key}", name)
    return found


def several(key: str, values: object, kinds: tuple[type, ...]) -> tuple[object, ...]:
    """One value, or several, of these kinds."""
    several = (values,) if isinstance(values, kinds) else values
    expected = f"{key} must be a list of {' or '.join(kind.__name__ for kind in kinds)}"
    if not isinstance(several, Iterable):
        raise TypeError(f"{expected}, not {values!r}")
    found = tuple(several)
    for value in found:
        if not isinstance(value, kinds):
            raise TypeError(f"{expected}; {value!r} is none")
    return found


def duration(name: str, value: object) -> Duration:
    """A duration; a number is a constant one."""
    try:
        return Duration.of(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def truth(name: str, value: object) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def hint(value: object) -> None:
    """The seconds of a Retry-After header, if any."""
    if value is not None and number("retry_after", value, least=0) % 1:
        raise ValueError(f"retry_after must be whole seconds, as the header has them, not {value!r}")


def status(value: object) -> None:
    """The status of an answer that says no."""
    if whole("status", value, least=400) > 599:
        raise ValueError(f"status must be from 400 to 599, not {value!r}")
