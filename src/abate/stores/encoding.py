"""Encode messages for a store, and decode rows that other programs may have written.

Attributes are JSON, or NULL for none. Redis keeps them in one value with the body: a line of JSON (empty for none),
then the body. JSON on one line contains no line break, so the body begins after the first line break.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from abate.stores.validation import CUT, DEFAULT_MAX_BODY, MAX_KEY_BYTES, MAX_REASON_BYTES
from abate.work.source import NO_ATTRIBUTES

MAX_ATTRIBUTES_BYTES = 6 * DEFAULT_MAX_BODY
"""Maximum bytes of encoded attributes: JSON encodes a character in up to six bytes."""
MAX_RECEIVES = 2**31 - 2
"""A higher count was written by another program."""


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
