"""What is put into a store, looked at once for all stores: how long, of what kind; the error says what was expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from abate.errors import number
from abate.redact import redacted
from abate.work.source import NOTHING, Back, Bury, Done, Message, Verdict

LONGEST_KEY = 512
"""Bytes of a key, and of the names of queues and budgets."""
LONGEST_BODY = 262_144
"""Bytes of a body, unless a queue says otherwise; of all attributes together."""
MOST_BODY = 268_435_456
"""Bytes of a body, whatever a queue says: what every store can hold."""
LONGEST_SHOWN = 1_048_576
"""Bytes of the body of a dead letter that are read to be shown; the store keeps all of it."""
LONGEST_REASON = 16_384
"""Bytes of what a dead letter says in each of its fields; what is longer is cut."""
HIGHEST = 2**31 - 1
"""The highest priority."""
CUT = " … (cut) … "


def text(what: str, value: Any, most: int, *, empty: bool = True) -> str:
    """Return `value` if it is text of at most so many bytes of UTF-8, or raise an error that says what it is."""
    expected = f"{what} must be a {'' if empty else 'non-empty '}string of at most {most} bytes"
    if not isinstance(value, str):
        raise TypeError(f"{expected}, not {value!r:.80}")
    try:
        length = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{expected} in UTF-8; character {error.start} can't be written in it") from None
    if length > most:
        raise ValueError(f"{expected}, not of {length}")
    if not value and not empty:
        raise ValueError(f"{expected}, not ''")
    return value


def envelope(attributes: Any) -> Mapping[str, str]:
    """Return attributes that are strings by name, or raise an error that says which are not."""
    if not attributes:
        return NOTHING
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes must be strings by name, not {attributes!r:.80}")
    left = LONGEST_BODY
    for name, value in attributes.items():
        for part, what in ((name, "an attribute's name"), (value, f"the attribute {name!r:.80}")):
            left -= len(text(what, part, LONGEST_BODY, empty=part is value).encode())
    if left < 0:
        raise ValueError(f"attributes must be of at most {LONGEST_BODY} bytes together, not of {LONGEST_BODY - left}")
    return attributes


def several(keys: Any) -> Sequence[str] | None:
    """Return a list of keys, or None for all; a single string is taken for a mistake."""
    if keys is None:
        return None
    if isinstance(keys, str):
        raise TypeError(f"keys must be a list of keys, or None for all, not {keys!r:.80}")
    return [text("a key", key, LONGEST_KEY, empty=False) for key in keys]


def of_ours(message: Any) -> Message:
    """Return what is a message with a key of this kind of queue."""
    if not isinstance(message, Message) or not isinstance(message.key, str):
        raise TypeError(f"expected a message that this queue handed out, not {message!r:.80}")
    return message


def bounded(verdict: Any) -> Verdict:
    """Return a verdict that a store can write down: of valid numbers, its texts redacted and cut to their length."""
    match verdict:
        case Done(again):
            if again is not None:
                number("again", again, least=0)
            return verdict
        case Back():
            return verdict
        case Bury(kind, reason, trace):
            return Bury(cut(redacted(kind)), cut(redacted(reason)), cut(redacted(trace)))
    raise TypeError(f"a verdict must be Done, Back or Bury, not {verdict!r:.80}")


def cut(words: str, most: int = LONGEST_REASON) -> str:
    """As much of a text as fits into so many bytes: its beginning and its end, with a mark where it was cut.

    >>> cut("once upon a time, and so on", 21)
    'onc … (cut) …  on'
    """
    encoded = str(words).encode(errors="backslashreplace")
    if len(encoded) <= most:
        return encoded.decode()
    kept = most - len(CUT.encode())
    end = kept // 2
    return encoded[: kept - end].decode(errors="ignore") + CUT + encoded[len(encoded) - end :].decode(errors="ignore")
