"""How what a message holds is written in Redis: attributes as JSON on one line (empty for none), then the body.

No line of JSON has an end of line in it, so the first one is where the body begins, whatever that holds.
"""

from __future__ import annotations

from collections.abc import Mapping

from abate.stores import envelope


def wrapped(body: str, attributes: Mapping[str, str]) -> str:
    """A body and its attributes.

    >>> wrapped("hello", {"from": "me"})
    '{"from": "me"}\\nhello'
    """
    return f"{envelope.wrapped(attributes) or ''}\n{body}"


def unwrapped(key: bytes, content: bytes | None, longest: int) -> tuple[str, str, Mapping[str, str]]:
    """The key, the body and the attributes; ValueError where they can't be read, or are too long.

    >>> unwrapped(b"orders/42", b'{"from": "me"}\\nhello', 10)
    ('orders/42', 'hello', {'from': 'me'})
    """
    if content is None:
        raise ValueError("its content is gone")
    line, end, body = content.partition(b"\n")
    if not end:
        raise ValueError("it has no line of attributes")
    return *envelope.checked(key, body, longest), envelope.unwrapped(line)


def shown(content: bytes | None, longest: int) -> tuple[str, Mapping[str, str]]:
    """The same of a dead letter: what can't be read is shown as it is, or left out."""
    line, _, body = (content or b"").partition(b"\n")
    return envelope.readable(body, longest), envelope.shown(line)
