"""A message's attributes as stores write them: JSON, or nothing where there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping

from abate.work.source import NOTHING


def wrapped(attributes: Mapping[str, str]) -> str | None:
    """Attributes as they are kept: JSON on one line.

    >>> wrapped({"from": "me"}), wrapped({})
    ('{"from": "me"}', None)
    """
    return json.dumps(dict(attributes), ensure_ascii=False) if attributes else None


def unwrapped(kept: bytes | None) -> Mapping[str, str]:
    """Attributes that were kept; ValueError for what another program may have written, and are none.

    >>> unwrapped(b'{"from": "me"}')
    {'from': 'me'}
    """
    if not kept:
        return NOTHING
    try:
        found = json.loads(kept)
    except RecursionError:
        raise ValueError("attributes are nested too deeply") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("attributes must be strings by name")
    return found


def shown(kept: bytes | None) -> Mapping[str, str]:
    """The attributes of a dead letter; none where they can't be read.

    >>> dict(shown(b"garbage"))
    {}
    """
    try:
        return unwrapped(kept)
    except ValueError:
        return NOTHING
