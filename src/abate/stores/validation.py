"""Validate the arguments of stores and queues. The errors say what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from abate.errors import number
from abate.redact import redacted
from abate.work.source import NO_ATTRIBUTES, Back, Bury, Done, Message, Verdict

MAX_KEY_BYTES = 512
"""Maximum bytes of a key, and of the name of a queue or budget."""
DEFAULT_MAX_BODY = 262_144
"""Maximum bytes of a body, unless a queue sets another limit; and of all attributes of a message together."""
MAX_BODY_BYTES = 268_435_456
"""Bytes; the highest `max_body`: every engine can store it."""
MAX_SHOWN_BYTES = 1_048_576
"""Maximum bytes of a dead letter's body that are shown; the store keeps all of it."""
MAX_REASON_BYTES = 16_384
"""Maximum bytes of a dead letter's kind, reason and trace, each; a longer text is cut."""
MAX_PRIORITY = 2**31 - 1
"""The highest priority."""
CUT = " … (cut) … "

T = TypeVar("T")


def checked_text(what: str, value: Any, max_bytes: int, *, empty: bool = True) -> str:
    """Return `value` if it is text of at most `max_bytes` in UTF-8, or raise an error."""
    expected = f"{what} must be a {'' if empty else 'non-empty '}string of at most {max_bytes} bytes"
    if not isinstance(value, str):
        raise TypeError(f"{expected}, not {value!r:.80}")
    try:
        length = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{expected} in UTF-8; character {error.start} can't be encoded") from None
    if length > max_bytes:
        raise ValueError(f"{expected}, not of {length}")
    if not value and not empty:
        raise ValueError(f"{expected}, not ''")
    return value


def checked_attributes(attributes: Any) -> Mapping[str, str]:
    """Return attributes if they are strings by name, or raise an error."""
    if not attributes:
        return NO_ATTRIBUTES
    if not isinstance(attributes, Mapping):
        raise TypeError(f"attributes must be strings by name, not {attributes!r:.80}")
    left = DEFAULT_MAX_BODY
    for name, value in attributes.items():
        for part, what in ((name, "an attribute's name"), (value, f"the attribute {name!r:.80}")):
            left -= len(checked_text(what, part, DEFAULT_MAX_BODY, empty=part is value).encode())
    if left < 0:
        raise ValueError(
            f"attributes must be of at most {DEFAULT_MAX_BODY} bytes together, not of {DEFAULT_MAX_BODY - left}"
        )
    return attributes


def checked_keys(keys: Any) -> Sequence[str] | None:
    """Return a list of keys, or None for all. Refuse a single string, which is a likely mistake."""
    if keys is None:
        return None
    if isinstance(keys, str):
        raise TypeError(f"keys must be a list of keys, or None for all, not {keys!r:.80}")
    return [checked_text("a key", key, MAX_KEY_BYTES, empty=False) for key in keys]


def checked_message(message: Any) -> Message:
    """Return a message whose key is a string, or raise an error."""
    if not isinstance(message, Message) or not isinstance(message.key, str):
        raise TypeError(f"expected a message that was received from this queue, not {message!r:.80}")
    return message


def checked_verdict(verdict: Any) -> Verdict:
    """Return a verdict with valid numbers, and with its texts redacted and cut to the stored length."""
    match verdict:
        case Done(again):
            if again is not None:
                number("again", again, least=0)
            return verdict
        case Back():
            return verdict
        case Bury(kind, reason, trace):
            return Bury(shorten(redacted(kind)), shorten(redacted(reason)), shorten(redacted(trace)))
    raise TypeError(f"a verdict must be Done, Back or Bury, not {verdict!r:.80}")


def shorten(words: str, max_bytes: int = MAX_REASON_BYTES) -> str:
    """Cut the middle out of a text longer than `max_bytes`, and mark the place.

    >>> shorten("once upon a time, and so on", 21)
    'onc … (cut) …  on'
    """
    encoded = str(words).encode(errors="backslashreplace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    kept = max_bytes - len(CUT.encode())
    end = kept // 2
    return encoded[: kept - end].decode(errors="ignore") + CUT + encoded[len(encoded) - end :].decode(errors="ignore")


def batches(several: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split a sequence into batches of at most `size`."""
    return (several[start : start + size] for start in range(0, len(several), size))
