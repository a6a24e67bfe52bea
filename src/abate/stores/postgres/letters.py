"""How keys, bodies and attributes are written in PostgreSQL.

They are text, so that they can be read and written by SQL. Its text holds every character but U+0000; that one is
written as U+0001 U+0002, and U+0001 as itself twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from abate.work.source import NOTHING


def written(text: str) -> str:
    """A text as it is kept.

    >>> written("orders/42"), written("\\0"), read(written("\\1\\0\\2").encode()) == "\\1\\0\\2"
    ('orders/42', '\\x01\\x02', True)
    """
    if "\0" in text or "\1" in text:
        return text.replace("\1", "\1\1").replace("\0", "\1\2")
    return text


def read(kept: bytes | None) -> str:
    """A text that was kept; nothing where there is none."""
    text = (kept or b"").decode()
    if "\1" in text:
        return "\1".join(part.replace("\1\2", "\0") for part in text.split("\1\1"))
    return text


def wrapped(attributes: Mapping[str, str]) -> str | None:
    """Attributes as JSON, in which no character needs to be written otherwise; None for none."""
    return json.dumps(dict(attributes), ensure_ascii=False) if attributes else None


def unwrapped(kept: bytes | None) -> Mapping[str, str]:
    """Attributes that were kept; another program may have written what are none."""
    if kept is None:
        return NOTHING
    try:
        found = json.loads(kept)
    except RecursionError:
        raise ValueError("attributes are nested too deeply") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("attributes must be strings by name")
    return found


def shown(kept: bytes | None) -> Mapping[str, str]:
    """The attributes of a dead letter; none where they can't be read."""
    try:
        return unwrapped(kept)
    except ValueError:
        return NOTHING
