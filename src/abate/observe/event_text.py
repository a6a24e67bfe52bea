"""Write events as text: a type name, a level, a sentence and plain fields, all of bounded length.

Keys, names and errors come from peers: `abate.redact` hides secrets in them, escapes control characters and cuts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from abate import events
from abate.events import Event
from abate.redact import one_line, short_repr

Level = Literal["debug", "info", "warning", "error"]
Fact: TypeAlias = str | float | bool | None

MAX_NAME = 120
"""Characters of a name or a key."""
_OfRequest: TypeAlias = events.FirstFailure | events.Retry | events.BudgetRefused | events.GaveUp | events.Recovered
SHELTER_STATES = {
    "storm": "most attempts fail or answers are slow, so at most {limit:.3g} attempts are in flight",
    "probing": "the server seems to be down, so single attempts test it",
    "recovering": "the server answers again, so at most {limit:.3g} attempts are in flight, soon more",
    "calm": "attempts are not limited any more",
}
"""What the states of a shelter mean, for people who read of them for the first time."""
OF_REQUESTS = ("target", "status")
"""Fields that only the requests of HTTP clients have."""


def level(event: Event) -> Level:
    """Return the log level of a single event."""
    return TEXTS[type(event)][0] if type(event) in TEXTS else "info"


def event_type(event: Event) -> str:
    """Return the type of an event in snake case.

    >>> event_type(events.FirstFailure("orders", "blip", None))
    'first_failure'
    """
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__)[1:]


def error_type(error: BaseException) -> str:
    """Return the full name of an error's type; built-in types have no module.

    >>> from abate import QueueFull
    >>> error_type(OSError()), error_type(QueueFull())
    ('OSError', 'abate.work.key_queue.QueueFull')
    """
    kind = type(error)
    full = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return one_line(full, MAX_NAME)


def facts(event: Event) -> dict[str, Fact]:
    """Return the fields of an event as plain values; an error also adds its type.

    >>> facts(events.GaveUp("orders", "attempts", 3, 1.5, OSError("down")))["error_type"]
    'OSError'
    """
    fields: dict[str, Fact] = {}
    for field in event.__match_args__:
        value = getattr(event, field)
        if value is None and field in OF_REQUESTS:
            continue
        if isinstance(value, BaseException):
            fields["error_type"] = error_type(value)
            fields[field] = short_repr(value)
        elif isinstance(value, str):
            fields[field] = one_line(value)
        elif value is None or isinstance(value, (bool, int, float)):
            fields[field] = value
        else:
            fields[field] = short_repr(value, MAX_NAME)
    if isinstance(event, events.BudgetRefused):
        fields["attempt"] = event.attempt + 1  # the refused attempt, as in the sentence; the event has the one before
    return fields


def sentence(event: Event) -> str:
    """Return an event as a sentence.

    >>> sentence(events.Recovered("orders", attempts=2, waited=0.5))
    'orders: succeeded on attempt 2 after 0.5 s of waiting'
    """
    text = TEXTS[type(event)][1](event) if type(event) in TEXTS else short_repr(event)
    return f"{shown_name(event.name)}: {text}"


def shown_name(name: str) -> str:
    """Return a name as lines begin with it.

    >>> shown_name("orders"), shown_name("")
    ('orders', '(unnamed)')
    """
    return one_line(name, MAX_NAME) or "(unnamed)"


def _key(key: object) -> str:
    return short_repr(key, MAX_NAME)


def _target(event: _OfRequest, word: str) -> str:
    return "" if event.target is None else f" {word} {one_line(event.target)}"


def _status(event: events.FirstFailure | events.Retry | events.GaveUp) -> str:
    return "" if event.status is None else f" with {event.status}"


def _error_suffix(error: BaseException | None) -> str:
    """Return the end of a sentence; nothing if a result failed."""
    return "" if error is None else f": {short_repr(error)}"


def _first_failure(event: events.FirstFailure) -> str:
    failed = f"first failure{_target(event, 'of')}{_status(event)}"
    return f"{failed} ({one_line(event.reason)}){_error_suffix(event.error)}"


def _retry(event: events.Retry) -> str:
    hint = "" if event.hint is None else f", asked for {event.hint:.3g} s"
    failed = f"attempt {event.attempt}{_target(event, 'of')} failed{_status(event)}"
    return f"{failed} ({one_line(event.reason)}{hint}), next in {event.delay:.3g} s{_error_suffix(event.error)}"


def _gave_up(event: events.GaveUp) -> str:
    attempts = "1 attempt" if event.attempts == 1 else f"{event.attempts} attempts"
    waited = f" and {event.waited:.3g} s of waiting" if event.waited else ""
    gave_up = f"gave up{_target(event, 'on')}{_status(event)} after {attempts}{waited}"
    return f"{gave_up} ({one_line(event.reason)}){_error_suffix(event.error)}"


def _shelter_changed(event: events.ShelterChanged) -> str:
    said = f"shelter {one_line(event.shelter, MAX_NAME)} changed to {one_line(event.state)}"
    if event.state in SHELTER_STATES:
        said += f": {SHELTER_STATES[event.state].format(limit=event.limit)}"
    return said if event.state == "calm" else f"{said}; {event.waiters} calls wait"


def _worked(event: events.Worked) -> str:
    error = "" if event.error is None else f": {short_repr(event.error)}"
    spent = f"{event.seconds:.3g} s (handed out {event.receives} times)"
    return f"{_key(event.key)} is {one_line(event.ending)} after {spent}{error}"


def _source_failed(event: events.SourceFailed) -> str:
    source = one_line(event.source, MAX_NAME)
    return f"{source} could not be read or written, next try in {event.delay:.3g} s: {short_repr(event.error)}"


def _store_degraded(event: events.StoreDegraded) -> str:
    if event.degraded:
        return f"does not answer: each process applies local limits now ({short_repr(event.error)})"
    return "answers again: limits are shared"


TEXTS: dict[type[Event], tuple[Level, Callable[[Any], str]]] = {
    events.FirstFailure: ("debug", _first_failure),
    events.Retry: ("info", _retry),
    events.BudgetRefused: (
        "warning",
        lambda event: f"{one_line(event.gate, MAX_NAME)} refused attempt {event.attempt + 1}{_target(event, 'of')}",
    ),
    events.GaveUp: ("warning", _gave_up),
    events.Recovered: (
        "info",
        lambda event: (
            f"succeeded on attempt {event.attempts}{_target(event, 'of')} after {event.waited:.3g} s of waiting"
        ),
    ),
    events.LayeredRetry: (
        "warning",
        lambda event: f"did not retry what {shown_name(event.inner)} had given up on",
    ),
    events.ShelterChanged: ("warning", _shelter_changed),
    events.Waited: ("debug", lambda event: f"waited {event.seconds:.3g} s for its tokens"),
    events.Worked: ("debug", _worked),
    events.Buried: (
        "error",
        lambda event: f"{_key(event.key)} is buried ({one_line(event.kind)}): {short_repr(event.reason)}",
    ),
    events.LeaseLost: ("warning", lambda event: f"the lease of {_key(event.key)} ran out"),
    events.WorkerCrashed: (
        "error",
        lambda event: f"a worker crashed on {_key(event.key)} and is replaced: {short_repr(event.error)}",
    ),
    events.BreakerOpened: (
        "warning",
        lambda event: f"circuit breaker open for {event.pause:.3g} s: most attempts fail",
    ),
    events.SourceFailed: ("warning", _source_failed),
    events.StoreDegraded: ("warning", _store_degraded),
}
"""The level and the sentence of each event."""
