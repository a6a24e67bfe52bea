"""The settings of a policy: their names, their checks, and how its repr shows them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from abate.call.keyed import MAX_KEYS
from abate.errors import whole
from abate.events import FAILURE_KINDS
from abate.functions import is_coroutine_function, is_generator_function
from abate.redact import short_repr
from abate.schedule.backoff import MAX_DELAYS, FunctionSchedule, Schedule

if TYPE_CHECKING:
    from abate.admit.shelter import Shelter

Resume: TypeAlias = "Callable[[Any], Mapping[str, Any]]"

OVERLOAD_BASE = 1.0
"""The backoff after an overload starts from at least this many seconds."""

SETTINGS = (
    "on",
    "unless",
    "name",
    "max_attempts",
    "timeout",
    "attempt_timeout",
    "backoff",
    "budget",
    "gate",
    "shelter",
    "idempotent",
    "max_hint",
    "raises",
    "max_attempts_by_kind",
    "before_retry",
    "resume",
    "idle",
    "content",
    "keys",
    "clock",
    "rng",
)


def check_type(name: str, value: Any, kinds: Any, expected: str) -> Any:
    """Return the value of a setting if it is of one of these types."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be {expected}, not {short_repr(value)}")
    return value


def check_shelter(shelter: object) -> Shelter:
    """Return the shelter of a policy, if it is one."""
    from abate.admit.shelter import Shelter

    for module in ("abate.admit.waiting", "abate.call.shelter_visit"):
        importlib.import_module(module)  # here, because calls may be made where an import could deadlock
    checked: Shelter = check_type("shelter", shelter, Shelter, "a Shelter")
    return checked


def check_stream_function(name: str, function: object) -> object:
    """Return the checked ``resume`` or ``content`` of a policy."""
    if function is not None and not callable(function):
        raise TypeError(f"{name} must be a function of an item, not {short_repr(function)}")
    if is_coroutine_function(function) or is_generator_function(function):
        raise TypeError(f"{name} must be a plain function of an item, not {function!r}")
    return function


def check_bounded_by_time(plan: Schedule, timeout: float | None) -> None:
    """Refuse an unlimited number of attempts without a timeout, or without waits between them."""
    if timeout is None:
        raise ValueError("max_attempts=None is bounded by time only: give a timeout")
    if not isinstance(plan, FunctionSchedule) and plan.ceiling(MAX_DELAYS) == 0.0:
        raise ValueError("max_attempts=None needs a backoff that waits, or attempts would follow at once until timeout")


def check_kinds(bounds: Mapping[str, int] | None) -> dict[str, int]:
    """Return the bounds per kind of failure, as a checked copy."""
    expected = f"max_attempts_by_kind must be a mapping of {' and '.join(FAILURE_KINDS)} to numbers of attempts"
    if bounds is None:
        return {}
    if not isinstance(bounds, Mapping):
        raise TypeError(f"{expected}, not {short_repr(bounds)}")
    for kind in bounds:
        if kind not in FAILURE_KINDS:
            raise ValueError(f"{expected}, not of {short_repr(kind)}")
    return {kind: whole(f"max_attempts_by_kind[{kind!r}]", bound, least=1) for kind, bound in bounds.items()}


def changed_settings(settings: Mapping[str, object]) -> str:
    """Return the settings as the repr of a policy shows them, without rare ones that have their default value."""
    defaults: dict[str, object] = {"unless": (), "keys": MAX_KEYS, "clock": None, "rng": None}
    defaults |= {"gate": None, "shelter": None, "idempotent": None, "max_attempts_by_kind": {}}
    defaults |= dict.fromkeys(("before_retry", "resume", "idle", "content"))
    shown = {name: value for name, value in settings.items() if name not in defaults or value != defaults[name]}
    return ", ".join(f"{name}={_value_repr(value)}" for name, value in shown.items())


def _value_repr(value: object) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(_value_repr(part) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return value.__qualname__ if isinstance(value, type) else repr(value)
