"""Tables of a TOML document: checked, laid over each other, changed by a path, made into values.

Each function takes the place that its errors begin with: the file, and the table where that is known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from abate.call.toml import DEEPEST, TooDeep, parsed

Document = dict[str, Any]


def table(place: str, name: str, found: object) -> Mapping[str, Any]:
    """What was found below a name, which must be a table.

    >>> table("f.toml", "run", 3)
    Traceback (most recent call last):
    ValueError: f.toml: [run] must be a table, not 3
    """
    if not isinstance(found, dict):
        raise ValueError(f"{place}: [{name}] must be a table, not {found!r}")
    return found


def only(place: str, found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse keys that are not known.

    >>> only("f.toml: [run]", {"sede": 1}, ("seeds", "horizon"))
    Traceback (most recent call last):
    ValueError: f.toml: [run] has an unknown key 'sede'; known are seeds, horizon
    """
    for key in found:
        if key not in known:
            raise ValueError(f"{place} has an unknown key {key!r}; known are {', '.join(known)}")


def fielded(place: str, make: Callable[..., Any], found: object) -> Any:
    """A value out of a table of its fields.

    >>> from abate.sim import Limit
    >>> fielded("f.toml: [services.api] limit", Limit, 5)
    Traceback (most recent call last):
    ValueError: f.toml: [services.api] limit must be a table, not 5
    """
    if not isinstance(found, dict):
        raise ValueError(f"{place} must be a table, not {found!r}")
    only(place, found, make.__match_args__)  # type: ignore[attr-defined]
    return made(place, make, found)


def made(place: str, make: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """A value of these fields; what it refuses is told with its place.

    >>> from abate.sim import Clients
    >>> made("f.toml: [clients]", Clients, {"count": 0})
    Traceback (most recent call last):
    ValueError: f.toml: [clients]: count must be a whole number of at least 1, not 0
    """
    try:
        return make(**fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def overlaid(base: Document, overlay: Mapping[str, Any]) -> Document:
    """One document laid over another: tables are merged, everything else is replaced.

    >>> overlaid({"run": {"seeds": 3, "horizon": 9.0}}, {"run": {"seeds": 5}})
    {'run': {'seeds': 5, 'horizon': 9.0}}
    """
    found = copy.deepcopy(base)
    for key, value in overlay.items():
        mine = found.get(key)
        found[key] = (
            overlaid(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else copy.deepcopy(value)
        )
    return found


def put(place: str, document: Document, path: str, value: Any) -> None:
    """Set what a path leads to. A number in it counts the entries of a list, from 0; services are never made by it.

    >>> document = {"triggers": [{"for": 5.0}], "services": {"db": {}}}
    >>> put("f.toml", document, "triggers.0.for", 20.0); document["triggers"]
    [{'for': 20.0}]
    >>> put("f.toml", document, "services.dbb.workers", 3)
    Traceback (most recent call last):
    ValueError: f.toml: services.dbb.workers must name one of the services db, not 'dbb'
    """
    keys = path.split(".")
    if len(keys) > DEEPEST:
        raise ValueError(f"{place}: {path[:80]!r} … must lead through at most {DEEPEST} tables, not {len(keys)}")
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
            raise ValueError(f"{place}: {above} is no table, so {path} can't be set")
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


def has(document: object, keys: list[str]) -> bool:
    """Does a path lead somewhere?

    >>> has({"triggers": [{"for": 5.0}]}, ["triggers", "0", "for"]), has({"run": {}}, ["run", "seeds"])
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


def value_of(text: str) -> Any:
    """A value as TOML writes it; what is no TOML is a string.

    >>> value_of("[1, 2]"), value_of("lifo")
    ([1, 2], 'lifo')
    """
    try:
        return parsed(f"value = {text}")["value"]
    except TooDeep as error:
        raise ValueError(f"a value {error}") from None
    except ValueError:
        return text
