"""Validate and encode what a store is given, and decode rows that other programs may have written.

Attributes are JSON, or NULL for none. Redis keeps them in one value with the body: a line of JSON (empty for none),
then the body. JSON on one line contains no line break, so the body begins after the first line break.
"""

from __future__ import annotations

import json
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
MAX_ATTRIBUTES_BYTES = 6 * DEFAULT_MAX_BODY
"""Maximum bytes of encoded attributes: JSON encodes a character in up to six bytes."""
MAX_RECEIVES = 2**31 - 2
"""A higher count was written by another program."""
CUT = " … (cut) … "

T = TypeVar("T")


def checked_text(what: str, value: Any, max_bytes: int, *, empty: bool = True) -> str:
    """Return `value` if it is text of at most `max_bytes` in UTF-8, or raise an error."""
    expected = f"{what} must be a {'' if empty else 'non-empty '}string of at most {max_bytes} bytes"
    if not isinstance(value, str):
        advice = ": write json.dumps(...)" if isinstance(value, dict | list) else ""
        raise TypeError(f"{expected}, not {value!r:.80}{advice}")
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


def decode_message(key: bytes, body: bytes, max_body: int) -> tuple[str, str]:
    """Decode the key and the body of a message; raise ValueError if they are invalid.

    >>> decode_message(b"orders/42", b"{}", 10)
    ('orders/42', '{}')
    """
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"its key has {len(key)} bytes; a key has 1 to {MAX_KEY_BYTES}")
    if len(body) > max_body:
        raise ValueError(f"its body is longer than {max_body} bytes (max_body)")
    return key.decode(), body.decode()


def checked_count(found: object) -> int:
    """Return a count of receives, or raise ValueError.

    >>> checked_count(3)
    3
    """
    if type(found) is not int or not 0 <= found <= MAX_RECEIVES:
        raise ValueError(f"its receives are {found!r:.80}, which is not a count")
    return found


def preview(words: object, max_bytes: int) -> str:
    """Return a value as text for a dead letter, cut after `max_bytes`.

    >>> preview(b"\\xff and so on", 4), preview(None, 4)
    ('\\\\xff an … (cut) … ', '')
    """
    if words is None:
        return ""
    found = words if isinstance(words, bytes) else str(words).encode(errors="backslashreplace")
    text = found[:max_bytes].decode(errors="backslashreplace")
    return text + CUT if len(found) > max_bytes else text


def unreadable_reason(error: ValueError) -> tuple[str, str, str]:
    """Return the kind, the reason and the trace for the dead letter of a message that can't be decoded.

    >>> unreadable_reason(ValueError("its body is missing"))
    ('unreadable', 'it is not UTF-8, or not a message: its body is missing', '')
    """
    return "unreadable", f"it is not UTF-8, or not a message: {error}"[:MAX_REASON_BYTES], ""


def encode_attributes(attributes: Mapping[str, str]) -> str | None:
    """Encode attributes as one line of JSON; None for no attributes.

    >>> encode_attributes({"from": "me"}), encode_attributes({})
    ('{"from": "me"}', None)
    """
    return json.dumps(dict(attributes), ensure_ascii=False) if attributes else None


def decode_attributes(encoded: bytes | None) -> Mapping[str, str]:
    """Decode attributes; raise ValueError if they are invalid.

    >>> decode_attributes(b'{"from": "me"}')
    {'from': 'me'}
    """
    if not encoded:
        return NO_ATTRIBUTES
    if not isinstance(encoded, (bytes, str)) or len(encoded) > MAX_ATTRIBUTES_BYTES:
        raise ValueError(f"attributes must be of at most {MAX_ATTRIBUTES_BYTES} bytes")
    try:
        found = json.loads(encoded)
    except RecursionError:
        raise ValueError("attributes are nested too deeply") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("attributes must be strings by name")
    return found


def preview_attributes(encoded: bytes | None) -> Mapping[str, str]:
    """Return the attributes of a dead letter, or none if they can't be decoded.

    >>> dict(preview_attributes(b"garbage"))
    {}
    """
    try:
        return decode_attributes(encoded)
    except ValueError:
        return NO_ATTRIBUTES


def encode_content(body: str, attributes: Mapping[str, str]) -> str:
    """Encode a body and its attributes in one value.

    >>> encode_content("hello", {"from": "me"})
    '{"from": "me"}\\nhello'
    """
    return f"{encode_attributes(attributes) or ''}\n{body}"


def decode_content(key: bytes, content: bytes | None, max_body: int) -> tuple[str, str, Mapping[str, str]]:
    """Decode a key, and a body with its attributes; raise ValueError if they are invalid.

    >>> decode_content(b"orders/42", b'{"from": "me"}\\nhello', 10)
    ('orders/42', 'hello', {'from': 'me'})
    """
    if content is None:
        raise ValueError("its content is missing")
    line, end, body = content.partition(b"\n")
    if not end:
        raise ValueError("it has no line of attributes")
    return *decode_message(key, body, max_body), decode_attributes(line)


def preview_content(content: bytes | None, max_bytes: int) -> tuple[str, Mapping[str, str]]:
    """Return the body and the attributes of a dead letter, as far as they can be shown."""
    line, _, body = (content or b"").partition(b"\n")
    return preview(body, max_bytes), preview_attributes(line)
