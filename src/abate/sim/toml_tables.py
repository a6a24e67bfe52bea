"""Tables of a TOML document: check, merge, set by path, build values.

`place` is the beginning of error messages: the file, and the table if known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from abate.call.bounded_toml import MAX_DEPTH, TooDeep, parse

Document = dict[str, Any]


def table(place: str, name: str, found: object) -> Mapping[str, Any]:
    """Return the value below a name, which must be a table.

    >>> table("f.toml", "run", 3)
    Traceback (most recent call last):
    ValueError: f.toml: [run] must be a table, not 3
    """
    if not isinstance(found, dict):
        raise ValueError(f"{place}: [{name}] must be a table, not {found!r}")
    return found


def check_keys(place: str, found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse unknown keys.

    >>> check_keys("f.toml: [run]", {"sede": 1}, ("seeds", "horizon"))
    Traceback (most recent call last):
    ValueError: f.toml: [run] has an unknown key 'sede'; known are seeds, horizon
    """
    for key in found:
        if key not in known:
            raise ValueError(f"{place} has an unknown key {key!r}; known are {', '.join(known)}")


def value_from_table(place: str, make: Callable[..., Any], found: object) -> Any:
    """Build a value from a table of its fields.

    >>> from abate.sim import Limit
    >>> value_from_table("f.toml: [services.api] limit", Limit, 5)
    Traceback (most recent call last):
    ValueError: f.toml: [services.api] limit must be a table, not 5
    """
    if not isinstance(found, dict):
        raise ValueError(f"{place} must be a table, not {found!r}")
    check_keys(place, found, make.__match_args__)  # type: ignore[attr-defined]
    return build(place, make, found)


def build(place: str, make: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """Build a value, and add the place to its errors.

    >>> from abate.sim import Clients
    >>> build("f.toml: [clients]", Clients, {"count": 0})
    Traceback (most recent call last):
    ValueError: f.toml: [clients]: count must be a whole number of at least 1, not 0
    """
    try:
        return make(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def merge(base: Document, overlay: Mapping[str, Any]) -> Document:
    """Return the base with the overlay: tables are merged, other values are replaced.

    >>> merge({"run": {"seeds": 3, "horizon": 9.0}}, {"run": {"seeds": 5}})
    {'run': {'seeds': 5, 'horizon': 9.0}}
    """
    found = copy.deepcopy(base)
    for key, value in overlay.items():
        mine = found.get(key)
        found[key] = merge(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else copy.deepcopy(value)
    return found


def set_path(place: str, document: Document, path: str, value: Any) -> None:
    """Set the value at a path. List entries are numbered from 0; services are never created.

    >>> document = {"triggers": [{"for": 5.0}], "services": {"db": {}}}
    >>> set_path("f.toml", document, "triggers.0.for", 20.0); document["triggers"]
    [{'for': 20.0}]
    >>> set_path("f.toml", document, "services.dbb.workers", 3)
    Traceback (most recent call last):
    ValueError: f.toml: services.dbb.workers must name one of the services db, not 'dbb'
    """
    keys = path.split(".")
    if len(keys) > MAX_DEPTH:
        raise ValueError(f"{place}: {path[:80]!r} … must lead through at most {MAX_DEPTH} tables, not {len(keys)}")
    at: Any = document
    for depth, key in enumerate(keys):
        found: Any = at
        above = ".".join(keys[:depth])
        entry: str | int = key
        if isinstance(found, list):
            if not key.isdecimal() or int(key) >= len(found):
                raise ValueError(
                    f"{place}: {path} must name one of the {len(found)} entries of {above}, from 0 on, not {key!r}"
                )
            entry = int(key)
        elif not isinstance(found, dict):
            raise ValueError(f"{place}: {above} is not a table, so that {path} can't be set")
        elif above == "services" and key not in found:
            raise ValueError(
                f"{place}: {path} must name one of the services {', '.join(found) or '(none)'}, not {key!r}"
            )
        elif depth < len(keys) - 1:
            found.setdefault(key, [] if path.startswith("triggers.") and not depth else {})
        if depth == len(keys) - 1:
            at[entry] = value
        else:
            at = at[entry]


def has_path(document: object, keys: list[str]) -> bool:
    """Return whether a path exists.

    >>> has_path({"triggers": [{"for": 5.0}]}, ["triggers", "0", "for"]), has_path({"run": {}}, ["run", "seeds"])
    (True, False)
    """
    for key in keys:
        if isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        elif isinstance(document, dict) and key in document:
            document = document[key]
        else:
            return False
    return True


def parse_value(text: str) -> Any:
    """Parse a value as TOML; other text is a string.

    >>> parse_value("[1, 2]"), parse_value("lifo")
    ([1, 2], 'lifo')
    """
    try:
        return parse(f"value = {text}")["value"]
    except TooDeep as error:
        raise ValueError(f"a value {error}") from None
    except ValueError:
        return text
