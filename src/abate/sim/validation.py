"""Checks for the values of a simulated world: each names the value and what was expected."""

from __future__ import annotations

from collections.abc import Iterable

from abate.errors import number, whole

MAX_CLIENTS = 100_000_000
MAX_CALLS = 1_000_000_000
"""Of one world: hours of the exact engine, minutes of the fleet engine."""
MAX_HORIZON = 1_000_000
"""Seconds, about twelve days. Each tenth of a second has a slot in every series."""


def check_client_count(name: str, value: object) -> None:
    """Check a number of clients."""
    if whole(name, value, least=1) > MAX_CLIENTS:
        raise ValueError(f"{name} must be at most {MAX_CLIENTS:,}, not {value!r}")


def check_horizon(name: str, value: object) -> None:
    """Check the seconds that are simulated.

    >>> check_horizon("horizon", 1e15)
    Traceback (most recent call last):
    ValueError: horizon must be at most 1,000,000 s, not 1000000000000000.0
    """
    if number(name, value, above=0) > MAX_HORIZON:
        raise ValueError(f"{name} must be at most {MAX_HORIZON:,} s, not {value!r}")


def check_name(what: str, name: object) -> None:
    """Check a name: printable and not empty."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError(f"{what} must be a word, not {name!r}")


def as_names(key: str, names: object) -> tuple[str, ...]:
    """Return one name, or several, as a tuple."""
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, Iterable):
        raise TypeError(f"{key} must be names of services, not {names!r}")
    found = tuple(several)
    for name in found:
        check_name(f"a name in {key}", name)
    return found


def as_values(key: str, values: object, kinds: tuple[type, ...]) -> tuple[object, ...]:
    """Return one value, or several, of these kinds as a tuple."""
    several = (values,) if isinstance(values, kinds) else values
    expected = f"{key} must be a list of {' or '.join(kind.__name__ for kind in kinds)}"
    if not isinstance(several, Iterable):
        raise TypeError(f"{expected}, not {values!r}")
    found = tuple(several)
    for value in found:
        if not isinstance(value, kinds):
            raise TypeError(f"{expected}; {value!r} is not")
    return found


def as_seconds(key: str, values: object) -> tuple[float, ...]:
    """Return several durations above 0 as a tuple.

    >>> as_seconds("timeouts", [1, 2.5])
    (1.0, 2.5)
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{key} must be a list of seconds, not {values!r}")
    return tuple(number(f"each of {key}", value, above=0) for value in values)


def check_bool(name: str, value: object) -> None:
    """Check True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def check_retry_after(value: object) -> None:
    """Check the seconds of a Retry-After header, or None."""
    if value is not None and number("retry_after", value, least=0) % 1:
        raise ValueError(f"retry_after must be whole seconds, as the header has them, not {value!r}")


def check_status(value: object) -> None:
    """Check the status code of an error."""
    if whole("status", value, least=400) > 599:
        raise ValueError(f"status must be from 400 to 599, not {value!r}")
