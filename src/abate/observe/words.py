"""How events are told: a name, a level, a sentence and a few facts, all of bounded length.

Keys, names and errors come from peers: each passes through `abate.redact`, which hides secrets, escapes control
characters and bounds the length.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from abate import events
from abate.events import Event
from abate.redact import line, shown

Level = Literal["debug", "info", "warning", "error"]
Fact: TypeAlias = str | float | bool | None

LONGEST_NAME = 120
"""Characters of a name or a key."""

LEVELS: dict[type[Event], Level] = {
    events.FirstFailure: "debug",
    events.BudgetRefused: "warning",
    events.GaveUp: "warning",
    events.LayeredRetry: "warning",
    events.ShelterChanged: "warning",
    events.Waited: "debug",
    events.Worked: "debug",
    events.Buried: "error",
    events.LeaseLost: "warning",
    events.WorkerCrashed: "error",
    events.FuseBlown: "warning",
    events.SourceFailed: "warning",
    events.StoreDegraded: "warning",
}
"""Of every single event; what is not here is info."""


def level(event: Event) -> Level:
    """How much an event by itself matters."""
    return LEVELS.get(type(event), "info")


def name(event: Event) -> str:
    """The type of an event, as a word for machines.

    >>> name(events.FirstFailure("orders", "blip", None))
    'first_failure'
    """
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__)[1:]


def error_type(error: BaseException) -> str:
    """The full name of an error's type; those that are built in have a short one.

    >>> from abate import QueueFull
    >>> error_type(OSError()), error_type(QueueFull())
    ('OSError', 'abate.work.keys.QueueFull')
    """
    kind = type(error)
    full = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return line(full, LONGEST_NAME)


def facts(event: Event) -> dict[str, Fact]:
    """The fields of an event as plain values: what has an error has its type as well.

    >>> facts(events.GaveUp("orders", "attempts", 3, 1.5, OSError("down")))["error_type"]
    'OSError'
    """
    told: dict[str, Fact] = {}
    for field in event.__match_args__:
        value = getattr(event, field)
        if isinstance(value, BaseException):
            told["error_type"] = error_type(value)
            told[field] = shown(value)
        elif isinstance(value, str):
            told[field] = line(value)
        elif value is None or isinstance(value, (bool, int, float)):
            told[field] = value
        else:
            told[field] = shown(value, LONGEST_NAME)
    if isinstance(event, events.BudgetRefused):
        told["attempt"] = event.attempt + 1  # the one that was refused, as in the sentence: the event has the last made
    return told


def sentence(event: Event) -> str:
    """An event in words.

    >>> sentence(events.Recovered("orders", attempts=2, waited=0.5))
    'orders: succeeded on attempt 2 after 0.5 s of waiting'
    """
    return f"{line(event.policy, LONGEST_NAME)}: {_told(event)}"


def _told(event: Event) -> str:
    match event:
        case events.FirstFailure(_, reason, error):
            return f"first failure ({line(reason)}): {shown(error)}"
        case events.Retry(_, attempt, delay, reason, hint, error):
            asked = "" if hint is None else f", asked for {hint:.3g} s"
            return f"attempt {attempt} failed ({line(reason)}{asked}), next in {delay:.3g} s: {shown(error)}"
        case events.BudgetRefused(_, gate, attempt):
            return f"{line(gate, LONGEST_NAME)} refused attempt {attempt + 1}"
        case events.GaveUp(_, reason, attempts, waited, error):
            return f"gave up after {attempts} attempts and {waited:.3g} s ({line(reason)}): {shown(error)}"
        case events.Recovered(_, attempts, waited):
            return f"succeeded on attempt {attempts} after {waited:.3g} s of waiting"
        case events.LayeredRetry(_, inner):
            return f"did not retry what {line(inner, LONGEST_NAME)} had given up on"
        case events.ShelterChanged(_, shelter, state, waiters, limit):
            name = line(shelter, LONGEST_NAME)
            return f"{name} is {line(state)}, with {waiters} waiting and at most {limit:.3g} in flight"
        case events.Waited(_, seconds):
            return f"waited {seconds:.3g} s for its tokens"
        case events.Worked(_, key, ending, seconds, receives, error):
            failed = "" if error is None else f": {shown(error)}"
            return f"{_key(key)} is {line(ending)} after {seconds:.3g} s (handed out {receives} times){failed}"
        case events.Buried(_, key, kind, reason):
            return f"{_key(key)} is buried ({line(kind)}): {shown(reason)}"
        case events.LeaseLost(_, key):
            return f"the lease of {_key(key)} ran out"
        case events.WorkerCrashed(_, key, error):
            return f"a worker crashed on {_key(key)} and is replaced: {shown(error)}"
        case events.FuseBlown(_, pause):
            return f"most messages fail: none are taken for {pause:.3g} s"
        case events.SourceFailed(_, source, error, delay):
            return (
                f"{line(source, LONGEST_NAME)} could not be read or written, next try in {delay:.3g} s: {shown(error)}"
            )
        case events.StoreDegraded(_, True, error):
            return f"does not answer: each process goes by its own limits now ({shown(error)})"
        case events.StoreDegraded():
            return "answers again: limits are shared"
        case other:
            return shown(other)


def _key(key: object) -> str:
    return shown(key, LONGEST_NAME)
