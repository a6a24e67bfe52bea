"""Policies from a TOML file: one table per policy, the keys that `Policy` takes.

    [orders]
    on = ["TimeoutError", "abate.http.transient", "shop.errors:Busy"]
    max_attempts = 4
    timeout = 30.0
    backoff = { base = 0.1, cap = 5.0 }
    budget = { ratio = 0.2, reserve = 10 }
    shelter = "orders"

    [shelters.orders]
    capacity = 500
    patience = 20.0

The tables of policies may also be inside a table ``policies``. Policies that name the same shelter share it; a shelter
without a table has the default settings.

TOML has no null: ``max_attempts = "none"`` stands for None, attempts that only `timeout` bounds.

A file names exception classes and rules, and runs no code (see `abate.call.named_rules`); modules of the program's own,
and the functions in them (predicates, `before_retry`, `resume`, `content`), are allowed by `code`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from abate.admit.budget import Budget
from abate.admit.shelter import Shelter
from abate.call import bounded_toml
from abate.call.named_rules import checked_code, resolve, resolve_function
from abate.call.policy import Policy
from abate.call.policy_settings import SETTINGS
from abate.errors import unknown
from abate.redact import escaped
from abate.schedule.backoff import Backoff

if TYPE_CHECKING:
    from pathlib import Path

KEYS = tuple(name for name in SETTINGS if name not in ("name", "gate", "clock", "rng"))
BACKOFF_KEYS = ("base", "cap", "factor", "jitter", "minimum")
FUNCTIONS = ("before_retry", "resume", "content")
UNBOUNDED = "none"
BUDGET_KEYS = ("ratio", "reserve", "window", "funded_by")
SHELTER_KEYS = ("capacity", "patience")
NAMESPACES = ("policies", "policy")
SHELTERS = "shelters"
MAX_COMPARED = 10_000
"""Pairs of names that are compared at most, to find a misspelt one."""
PolicyTable: TypeAlias = tuple[str, str, Mapping[str, Any]]
"""Where a policy's table is, the policy's name, and its settings."""


def load_policies(path: str | Path, *, code: Sequence[str] = ()) -> dict[str, Policy]:
    """Return the policies in a TOML file by name; every error names the file, the table and the key.

    `code` lists modules of the program's own: the file may name what is in them and below them, and they are imported
    for it. Of other modules it may name exception classes and rules, if they are imported already or installed.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "policies.toml")
    ...     _ = file.write_text('[orders]\\non = "TimeoutError"\\nmax_attempts = 4')
    ...     load_policies(file)["orders"].describe().attempts
    4
    """
    from pathlib import Path

    code = checked_code(code)
    document = bounded_toml.read(Path(path))
    file = escaped(str(path))
    found: dict[str, Policy] = {}
    shelters = parse_shelters(file, document.pop(SHELTERS, {}))
    tables = _policy_tables(file, document)
    _check_shelter_names(file, tables, shelters)
    for place, name, table in tables:
        if name in found:
            raise ValueError(f"{file}: [{escaped(place)}] is the second policy called {name!r}")
        found[name] = parse_policy(f"{file}: [{escaped(place)}]", name, table, shelters, code)
    return found


def _check_shelter_names(file: str, tables: Sequence[PolicyTable], described: Mapping[str, Shelter]) -> None:
    """Reject shelter names without a table that look like misspelt ones: they would silently get the defaults.

    Each name is compared with all others, so a file with very many of both is not checked.
    """
    from difflib import get_close_matches

    places: dict[str, str] = {}
    for place, _, table in tables:
        name = table.get("shelter")
        if isinstance(name, str) and name not in described:
            places.setdefault(name, place)
    if len(places) * len(described) > MAX_COMPARED:
        return
    for name, place in places.items():
        if get_close_matches(name, described, 1):
            where = f"{file}: [{escaped(place)}]"
            raise ValueError(unknown(f"{where} names a shelter without a table:", name, tuple(described)))


def parse_shelters(file: str, tables: object) -> dict[str, Shelter]:
    """Return the shelters in the tables below ``shelters``, by name."""
    if not isinstance(tables, dict):
        raise ValueError(f"{file}: {SHELTERS} = {tables!r} stands outside a table; expected [{SHELTERS}.NAME]")
    made: dict[str, Shelter] = {}
    for name, table in tables.items():
        place = f"{file}: [{SHELTERS}.{escaped(name)}]"
        if not isinstance(table, dict):
            raise ValueError(f"{place} must be a table, not {table!r}")
        _check_keys(place, table, SHELTER_KEYS)
        made[name] = _construct(place, Shelter, {**table, "name": name}, (*SHELTER_KEYS, "name"))
    return made


def _policy_tables(file: str, document: Mapping[str, Any]) -> list[PolicyTable]:
    found: list[PolicyTable] = []
    for name, table in document.items():
        if not isinstance(table, dict):
            key = escaped(name)
            raise ValueError(f"{file}: {key} = {table!r} stands outside a table; expected [{key}]")
        if name in NAMESPACES and table and all(isinstance(inner, dict) for inner in table.values()):
            found += [(f"{name}.{inner}", inner, settings) for inner, settings in table.items()]
        else:
            found.append((name, name, table))
    return found


def parse_policy(
    place: str, name: str, table: Mapping[str, Any], shelters: dict[str, Shelter], code: Sequence[str] = ()
) -> Policy:
    """Return the policy in one table; errors show its `place`.

    >>> parse_policy("app.toml: [orders]", "orders", {"on": "OSError", "max_attempts": 0}, {})
    Traceback (most recent call last):
    ValueError: app.toml: [orders]: max_attempts must be a whole number of at least 1, not 0
    """
    _check_keys(place, table, KEYS)
    if "on" not in table:
        raise ValueError(f"{place} has no `on`: name the errors to retry")
    settings = dict(table)
    for key in ("on", "unless"):
        if key in settings:
            settings[key] = _resolve_names(f"{place} {key}", settings[key], code)
    for key in FUNCTIONS:
        if key in settings:
            settings[key] = resolve_function(f"{place} {key}", settings[key], code)
    if settings.get("max_attempts") == UNBOUNDED:
        settings["max_attempts"] = None
    if "backoff" in settings:
        settings["backoff"] = _parse_backoff(f"{place} backoff", settings["backoff"])
    if "budget" in settings:
        if not isinstance(settings["budget"], dict):
            raise ValueError(f"{place} budget must be a table, not {settings['budget']!r}")
        settings["budget"] = _construct(f"{place} budget", Budget, settings["budget"], BUDGET_KEYS)
    if "shelter" in settings:
        named = settings["shelter"]
        if not isinstance(named, str) or not named:
            raise ValueError(f"{place} shelter must be the name of a shelter, not {named!r}")
        settings["shelter"] = shelters.setdefault(named, Shelter(name=named))
    policy: Policy = _construct(place, Policy, {**settings, "name": name}, SETTINGS)
    return policy


def _parse_backoff(place: str, given: object) -> object:
    """Return a Backoff for a table; a list of seconds is returned unchanged."""
    if isinstance(given, dict):
        return _construct(place, Backoff, given, BACKOFF_KEYS)
    if not isinstance(given, list):
        raise ValueError(f"{place} must be a table or a list of seconds, not {given!r}")
    return given


def _check_keys(place: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise ValueError(unknown(f"{place} has an unknown key", key, known))


def _construct(place: str, make: Callable[..., Any], settings: Mapping[str, Any], known: tuple[str, ...]) -> Any:
    _check_keys(place, settings, known)
    try:
        return make(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def _resolve_names(place: str, names: object, code: Sequence[str]) -> list[Any]:
    """Return what names stand for: ``TimeoutError``, ``shop.errors:Busy``, ``abate.http.transient``."""
    several = names if isinstance(names, list) else [names]
    return [resolve(place, name, code) for name in several]
