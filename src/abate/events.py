"""Events about calls and work, as frozen values; a sink is a function of one event, and `event_sinks` calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

from abate.frozen import Frozen

__all__ = [
    "BreakerOpened",
    "BudgetRefused",
    "Buried",
    "Event",
    "FirstFailure",
    "GaveUp",
    "LayeredRetry",
    "LeaseLost",
    "Recovered",
    "Retry",
    "ShelterChanged",
    "Sink",
    "SourceFailed",
    "StoreDegraded",
    "Waited",
    "Worked",
    "WorkerCrashed",
    "dropped",
]

FailureKind = Literal["blip", "overload"]
"""What a failure that is retried is taken for: `Retry.reason`."""
GiveUpReason = Literal[
    "fatal", "unsafe", "body", "attempts", "deadline", "hint", "budget", "shelter", "layer", "cancelled"
]
"""Why a call ended without success: `GaveUp.reason`."""
ShelterState = Literal["calm", "storm", "probing", "recovering"]
"""`ShelterChanged.state`."""
Ending = Literal["done", "again", "silent", "retry", "slow", "buried"]
"""How a piece of work has ended: `Worked.ending`."""
DeadLetterReason = Literal["permanent", "fatal", "receives", "unreadable"]
"""Why a key was parked or a message became a dead letter: `Buried.kind`."""

FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
GIVE_UP_REASONS: tuple[GiveUpReason, ...] = get_args(GiveUpReason)
SHELTER_STATES: tuple[ShelterState, ...] = get_args(ShelterState)
ENDINGS: tuple[Ending, ...] = get_args(Ending)
DONE_ENDINGS: tuple[Ending, ...] = ("done", "again", "silent")
FAILED_ENDINGS: tuple[Ending, ...] = ("retry", "slow", "buried")
DEAD_LETTER_REASONS: tuple[DeadLetterReason, ...] = get_args(DeadLetterReason)


class Event(Frozen):
    """Base class of events. `name` is the policy, controller, consumer, bucket or store."""

    name: str


class FirstFailure(Event):
    """The first attempt of a call failed; `reason` is what the ruling said (blip, overload, fatal, body, layer).

    The requests of HTTP clients have a `target`, the method and the URL without user info, query and fragment, as
    in ``"GET https://api.example/orders"``; and a `status`, if there was a response.
    """

    reason: str
    error: Exception | None
    target: str | None = None
    status: int | None = None


class Retry(Event):
    """Attempt number `attempt` failed, and another one follows after `delay` seconds.

    `target` and `status` are those of an HTTP request, as in `FirstFailure`.
    """

    attempt: int
    delay: float
    reason: str
    hint: float | None
    error: Exception | None
    target: str | None = None
    status: int | None = None


class BudgetRefused(Event):
    """A retry was worth making, and `gate` did not admit it; `target` is as in `FirstFailure`."""

    gate: str
    attempt: int
    target: str | None = None


class GaveUp(Event):
    """A call ended without success, for one of the ten reasons.

    `target` and `status` are those of an HTTP request, as in `FirstFailure`; the status is that of the last attempt.
    """

    reason: str
    attempts: int
    waited: float
    error: BaseException | None
    target: str | None = None
    status: int | None = None


class Recovered(Event):
    """A call succeeded after at least one retry; `target` is as in `FirstFailure`."""

    attempts: int
    waited: float
    target: str | None = None


class LayeredRetry(Event):
    """The policy saw an error that the policy `inner` had already given up on."""

    inner: str


class ShelterChanged(Event):
    """A call of the policy has changed the state of a shelter: calm, storm, probing or recovering."""

    shelter: str
    state: str
    waiters: int
    limit: float


class Waited(Event):
    """A call waited `seconds` for the tokens of a bucket, which has this `name`."""

    seconds: float


class Worked(Event):
    """A piece of work has ended after `seconds`: done, again, silent, retry, slow or buried."""

    key: object
    ending: str
    seconds: float
    receives: int
    error: BaseException | None


class Buried(Event):
    """A key was parked, or a message went to the dead letters: permanent, fatal, receives or unreadable."""

    key: object
    kind: str
    reason: str


class LeaseLost(Event):
    """The lease of a message expired while it was being processed: its outcome does not count."""

    key: object


class WorkerCrashed(Event):
    """A worker was ended by an exit or a crash; it was replaced, and the key is processed again."""

    key: object
    error: BaseException


class BreakerOpened(Event):
    """Most messages or attempts fail: the circuit breaker admits none for `pause` seconds.

    `gate` says that it is the gate of policies, and not a consumer's.
    """

    pause: float
    gate: bool = False


class SourceFailed(Event):
    """`source` could not be read or written, and is tried again after `delay` seconds."""

    source: str
    error: Exception
    delay: float


class StoreDegraded(Event):
    """A store doesn't answer, so that each process uses its own limits; or (`degraded` is false) it answers again.

    The `name` is the store's.
    """

    degraded: bool
    error: Exception | None


Sink: TypeAlias = Callable[[Event], object]


def dropped(sink: Sink) -> int:
    """Return how many events an installed sink was not given, because it had failed or blocked.

    >>> import abate
    >>> sink = abate.observe.install([].append)
    >>> dropped(sink)
    0
    >>> abate.observe.remove(sink)
    """
    from abate import event_sinks

    return event_sinks.dropped(sink)
