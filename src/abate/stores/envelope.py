"""A message's attributes as stores write them: JSON, or nothing where there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping

from abate.stores.input import CUT, LONGEST_BODY, LONGEST_KEY, LONGEST_REASON
from abate.work.source import NOTHING

LONGEST = 6 * LONGEST_BODY
"""Bytes of attributes as they are kept: JSON writes a character in six bytes at most."""
MOST_RECEIVES = 2**31 - 2
"""More than this, nobody has received anything."""


def checked(key: bytes, body: bytes, longest: int) -> tuple[str, str]:
    """The key and the body of a message; ValueError for what another program may have written, and is none.

    >>> checked(b"orders/42", b"{}", 10)
    ('orders/42', '{}')
    """
    if not 0 < len(key) <= LONGEST_KEY:
        raise ValueError(f"its key has {len(key)} bytes, and 1 to {LONGEST_KEY} are taken")
    if len(body) > longest:
        raise ValueError(f"its body is longer than the {longest} bytes that are taken (max_body)")
    return key.decode(), body.decode()


def counted(found: object) -> int:
    """How often something happened; ValueError for what is no count.

    >>> counted(3)
    3
    """
    if type(found) is not int or not 0 <= found <= MOST_RECEIVES:
        raise ValueError(f"its receives are {found!r:.80}, and no count")
    return found


def readable(words: object, longest: int) -> str:
    """As much of what was found as is shown of a dead letter.

    >>> readable(b"\\xff and so on", 4), readable(None, 4)
    ('\\\\xff an … (cut) … ', '')
    """
    if words is None:
        return ""
    found = words if isinstance(words, bytes) else str(words).encode(errors="backslashreplace")
    shown = found[:longest].decode(errors="backslashreplace")
    return shown + CUT if len(found) > longest else shown


class Unreadable:
    """Why a message is buried that another program wrote, and that can't be read."""

    kind = "unreadable"

    def because(self, error: ValueError) -> tuple[str, str, str]:
        """The kind, the reason and the trace of its dead letter.

        >>> Unreadable().because(ValueError("its body is gone"))
        ('unreadable', 'it is not UTF-8, or not what a message holds: its body is gone', '')
        """
        return self.kind, f"it is not UTF-8, or not what a message holds: {error}"[:LONGEST_REASON], ""


UNREADABLE = Unreadable()


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
    if not isinstance(kept, (bytes, str)) or len(kept) > LONGEST:
        raise ValueError(f"attributes must be of at most {LONGEST} bytes")
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
