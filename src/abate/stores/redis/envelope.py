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


def unwrapped(content: bytes | None) -> tuple[str, Mapping[str, str]]:
    """The body and the attributes; ValueError where they can't be read.

    >>> unwrapped(b'{"from": "me"}\\nhello')
    ('hello', {'from': 'me'})
    """
    if content is None:
        raise ValueError("its content is gone")
    line, end, body = content.partition(b"\n")
    if not end:
        raise ValueError("it has no line of attributes")
    return body.decode(), envelope.unwrapped(line)


def shown(content: bytes | None) -> tuple[str, Mapping[str, str]]:
    """The same of a dead letter: what can't be read is shown as it is, or left out."""
    line, _, body = (content or b"").partition(b"\n")
    return body.decode(errors="backslashreplace"), envelope.shown(line)
